"""Methods of the video experiment: latent flows of two kinds, PFI and MCVD, and what needs no training.

Told the frame before, an objective that looks ahead alone (`regression`) finds f = E[Δ₊z/Δt | z, z₋]: one Euler step a
frame moves by the mean next increment. A central difference contains the condition: `symmetric` finds (f + Δ₋z/Δt)/2,
and a frame moves by the mean of that increment and of the one before. With a state that holds its own velocity all of
this is a Markov process, as the theory wants it.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phibe.experiments.baselines.forecaster import Forecaster, ForecastTask
from phibe.experiments.baselines.mcvd import MCVD
from phibe.experiments.baselines.persistence import ConstantVelocity, Persistence
from phibe.experiments.baselines.pfi import PFI
from phibe.experiments.conditioned import ConditionedFlow, ConditionedTask
from phibe.experiments.pendulum.codec import with_velocity
from phibe.experiments.training import Nudged, Placed, Roll
from phibe.experiments.video.clips import Clips
from phibe.experiments.video.metrics import (
    Features,
    background,
    diversity,
    frechet_distance,
    gait,
    mse,
    position_drift,
    score,
    silhouette,
    ssim,
)
from phibe.experiments.video.vq import Coded
from phibe.flow import Flow
from phibe.integrators import INTEGRATORS
from phibe.networks import build
from phibe.networks.mlp import Network
from phibe.networks.normalised import Normalised
from phibe.training.loop import Diverged, Task, VelocityTask, train
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories

CONDITIONED, AUGMENTED = "conditioned", "augmented"
UNTRAINED = ("persistence", "constant velocity")
FAR = 8.0
"""Standard deviations from the mean at which a latent that runs away is shown to a velocity."""


def methods(config: Any) -> list[str]:
    """Everything that is compared; the costliest training first, so that the workers end together."""
    told = [f"{name} {CONDITIONED}" for name in config.conditioned]
    return [*told, *(f"{name} {AUGMENTED}" for name in config.augmented), "pfi", "mcvd", *UNTRAINED]


# -- training ----------------------------------------------------------------------------------------------------------


def assemble(name: str, shape: tuple[int, ...], config: Any) -> Network | Forecaster:
    """The method before it is trained, for latents of this shape: a forecaster, or the network of a velocity."""
    channels, *grid = shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if name in ("pfi", "mcvd"):
            settings = getattr(config, name)
            past, frames = settings.get("past", 1), settings.get("frames", 1)
            inside = _network((frames * channels, *grid), past * channels, config, time=True)
            return PFI(inside, **settings) if name == "pfi" else MCVD(inside, **settings)
        if name.endswith(AUGMENTED):
            return _network((2 * channels, *grid), 0, config, time=config.time)
        return _network(shape, channels, config, time=config.time)


def _network(shape: tuple[int, ...], told: int, config: Any, *, time: bool) -> Network:
    kind, arguments = config.network["name"], {k: v for k, v in config.network.items() if k != "name"}
    return build(kind, shape, condition_channels=told, time=time, **arguments)


def augment(data: Trajectories) -> Trajectories:
    """s_t = (z_t, (z_t − z_{t−1})/Δt), from the second frame of each path on: twice the channels."""
    return with_velocity(data.states, data.times, data.lengths)


def in_units(network: Network, data: Trajectories) -> Normalised:
    """The network in the units of the data, with the size of Δz/Δt as that of a velocity.

    The usual choice, how fast a path leaves its neighbourhood, is that of the motion; a frame's latents are mostly
    noise of the sensor, and what the network has to return first is the way back from it.
    """
    made, some = Normalised.fit(network, data), data[:: max(1, len(data) // 500)]
    moved = some.states.diff(dim=1)[some._observed(2)] / data.typical_step
    size = moved.double().square().mean([0, *range(2, moved.ndim)]).sqrt()
    made.velocity_scale.copy_(size.clamp(min=1e-12).reshape(made.velocity_scale.shape))
    return made


def learn(name: str, data: Trajectories, held_out: Trajectories, *, config: Any, out: Path) -> Any:
    """The trained method, from its folder if that is there: a flow, or a forecaster. Of a training that diverges, the
    last good one."""
    if name in UNTRAINED:
        return Persistence(data.state_shape) if name == UNTRAINED[0] else ConstantVelocity(data.typical_step)
    made = assemble(name, data.state_shape, config)
    if isinstance(made, Forecaster):
        task: Placed[Any] = ForecastTask(made)
    else:
        objective, kind = name.split()
        if kind == AUGMENTED:
            data, held_out = augment(data), augment(held_out)
        task = (VelocityTask if kind == AUGMENTED else ConditionedTask)(in_units(made, data), objective)
    training = replace(config.training, seed=config.seed)
    nudged: Task[Any] = Nudged(task, config.nudge) if config.nudge else task
    try:
        return train(data, nudged, config=training, held_out=held_out, out=out, progress=False)
    except Diverged as error:
        warnings.warn(f"{name}: {error}", stacklevel=2)
        return error.flow


def restore(name: str, tensors: dict[str, Tensor], *, shape: tuple[int, ...], step: float, config: Any) -> Any:
    """The method of these weights, of latents of this shape seen every `step`."""
    if name in UNTRAINED:
        return Persistence(shape) if name == UNTRAINED[0] else ConstantVelocity(step)
    made = assemble(name, shape, config)
    model = made if isinstance(made, Forecaster) else Normalised(made, made.state_shape)
    model.load_state_dict({key: tensor.float() for key, tensor in tensors.items()})
    model.eval().requires_grad_(False)
    if isinstance(model, Forecaster):
        return model
    return ConditionedFlow(model, step) if name.endswith(CONDITIONED) else Flow(Fitted(model), step=step)


# -- rollouts ----------------------------------------------------------------------------------------------------------


def rolls(name: str, model: Any, config: Any) -> dict[str, Roll]:
    """The ways to roll a method out, by their labels: a flow has one for each integrator."""
    if isinstance(model, (Flow, ConditionedFlow)):
        return {
            f"{name}, {method}{f' ×{substeps}' if substeps > 1 else ''}": Roll(
                partial(carry, model, method=method, substeps=substeps), INTEGRATORS[method].evaluations * substeps
            )
            for method, substeps in config.integrators
        }
    generator = torch.Generator().manual_seed(config.seed)
    random = isinstance(model, Forecaster)
    return {name: Roll(partial(draw, model, generator=generator), model.evaluations, random)}


def draw(model: Any, history: Tensor, times: Tensor, *, generator: torch.Generator) -> Tensor:
    """Latents that a forecaster draws."""
    return model.generate(history, times, generator=generator).states


def carry(
    model: Flow | ConditionedFlow, history: Tensor, times: Tensor, *, method: str = "euler", substeps: int = 1
) -> Tensor:
    """Latents along a flow, from the last two of `history`; at any `times`, those between two frames among them."""
    if isinstance(model, ConditionedFlow):
        mean, scale = (getattr(model.network, part).abs() for part in ("mean", "scale"))
        bound = float((mean + FAR * scale).max())
        options: dict[str, Any] = {"method": method, "substeps": substeps, "bound": bound}
        return model.generate(history, times, delayed=True, **options).states
    assert isinstance(model.velocity, Fitted) and model.step is not None
    inside = model.velocity.network
    near = Flow(lambda x, t: inside(_clamped(x, inside), t))
    start = torch.cat([history[:, -1], (history[:, -1] - history[:, -2]) / model.step], dim=1)
    return near.generate(start, times, method=method, substeps=substeps).states[:, :, : history.shape[2]]


def _clamped(x: Tensor, units: Any) -> Tensor:
    return torch.minimum(torch.maximum(x, units.mean - FAR * units.scale), units.mean + FAR * units.scale)


# -- measures ----------------------------------------------------------------------------------------------------------


class Judge:
    """Test clips (clip, time, 1, 64, 64), of which methods see the latents of the first `context` frames."""

    def __init__(self, clips: Clips, codec: Coded, features: Features, config: Any):
        self.clips, self.codec, self.features, self.config = clips, codec, features, config
        data = clips.trajectories(config.context + config.horizon)
        self.films, self.times = data.states, data.times
        self.few = min(config.few, len(self.films))
        self.latents = codec.encode_paths(self.films)
        self.rebuilt = codec.decode_paths(self.latents)
        self.behind = background(self.films)
        self.detail = (self.films - self.rebuilt)[:, : config.context].mean(1, keepdim=True)

    @property
    def history(self) -> Tensor:
        return self.latents[:, : self.config.context]

    @property
    def lead(self) -> Tensor:
        """Times from the last frame of the context on."""
        return self.times[self.config.context - 1 :]

    def film(self, roll: Roll, history: Tensor) -> Tensor:
        """The decoded frames after those of `history` (clip, past, *latent): (clip, horizon, 1, 64, 64)."""
        return self.codec.decode_paths(roll.frames(history, self.lead)[:, 1:])

    def judge(self, roll: Roll) -> tuple[dict[str, Any], Tensor]:
        """All measures of a method, and its films; of a stochastic one also `samples` futures of the first `few` clips
        are drawn."""
        began = time.perf_counter()
        latents = roll.frames(self.history, self.lead)[:, 1:]
        seconds = time.perf_counter() - began
        made, few, drawn = self.codec.decode_paths(latents), self.few, None
        if roll.random:
            again = self.film(roll, self.history[:few].repeat(self.config.samples - 1, 1, 1, 1, 1))
            drawn = torch.cat([made[None, :few], again.unflatten(0, (-1, few))])
        cost = {"evaluations": roll.evaluations, "milliseconds": 1000 * seconds / made[:, :, 0, 0, 0].numel()}
        return self.measure(made, drawn) | cost, made

    def measure(self, made: Tensor, drawn: Tensor | None = None) -> dict[str, Any]:
        """The measures of films (clip, horizon, 1, 64, 64): `standard` ones against the originals, `adjusted` ones
        against what the codec makes of them; over all frames, and by lead time. `detailed` ones are against the
        originals, after what the codec loses of the context, on average, was added: what stands still needs no codec.

        `few` are the scores of the first clips alone; of several futures `drawn` for them (sample, few, …), `best` are
        those of the best future for each clip and measure.
        """
        truth, rebuilt, few = self._ahead(self.films), self._ahead(self.rebuilt), self.few
        error = mse(made, truth)
        return {
            "standard": score(made, truth)._asdict(),
            "adjusted": score(made, rebuilt)._asdict() if not torch.equal(made, rebuilt) else None,
            "detailed": score((made + self.detail).clamp(0, 1), truth)._asdict(),
            "few": score(made[:few], truth[:few])._asdict(),
            "best": score(drawn, truth[:few])._asdict() if drawn is not None else None,
            "diversity": _numbers(diversity(drawn).mean(0)) if drawn is not None else None,
            "mse": _numbers(error.mean(0)),
            "ssim": _numbers(ssim(made, truth).mean(0)),
            "mse_by_action": self._by_action(error.mean(1)),
            "frechet": {
                "standard": self._frechet(made, self.films, "original"),
                "adjusted": self._frechet(made, self.rebuilt, "reconstruction"),
            },
            "motion": self._motion(made),
        }

    def _ahead(self, films: Tensor) -> Tensor:
        return films[:, self.config.context :]

    def _by_action(self, error: Tensor) -> dict[str, float]:
        actions = self.clips.actions
        chosen = {name: [i for i, action in enumerate(actions) if action == name] for name in sorted(set(actions))}
        return {name or "unnamed": float(error[index].mean()) for name, index in chosen.items()}

    def _frechet(self, made: Tensor, truth: Tensor, reference: Any) -> dict[str, Any]:
        context = self.config.context
        whole = torch.cat([truth[:, :context], made], dim=1)
        found = frechet_distance(
            whole, truth, self.features, context=context, reference=reference, data=self.config.data
        )
        return found.record() | {"text": str(found)}

    def _motion(self, made: Tensor) -> dict[str, Any]:
        """Drift of the figure in pixels by lead time; medians over the clips of how wrong its step frequency is, and of
        its amplitude against the true one; None where no clip shows enough of a figure."""
        ahead = self._ahead(self.films)
        mine, true = (silhouette(films, self.behind) for films in (made, ahead))
        steps = gait(mine, true, self.lead[1:])
        return {
            "drift": _numbers(position_drift(mine, true).nanmean(0)),
            "frequency_error": _number(steps.frequency_error.nanmedian()),
            "amplitude_ratio": _number(steps.amplitude_ratio.nanmedian()),
        }


def _number(value: Tensor) -> float | None:
    """For JSON, which knows no NaN."""
    return float(value) if math.isfinite(value) else None


def _numbers(values: Tensor) -> list[float | None]:
    return [_number(value) for value in values]
