"""Methods of the video experiment, trained, rolled out, evaluated and compared: latent flows, PFI, MCVD, persistence.

Conditioned on the previous frame, the forward difference of `regression` finds f = E[Δ₊z/Δt | z, z₋]: one Euler step a
frame moves by the mean next increment. A central difference contains the condition: `symmetric` finds (f + Δ₋z/Δt)/2,
and a frame moves by the mean of that increment and of the last one. With the velocity as a part of the state this is a
Markov process, as the theory assumes. Read next: `run.py`.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phibe.experiments.baselines.forecaster import Forecaster, ForecastTask
from phibe.experiments.baselines.mcvd import MCVD
from phibe.experiments.baselines.persistence import ConstantVelocity, Persistence
from phibe.experiments.baselines.pfi import PFI
from phibe.experiments.conditioned import ConditionedFlow, ConditionedTask, restored, rolls_of, with_velocity
from phibe.experiments.report import Report
from phibe.experiments.training import InputNoise, Placed, Roll, seeded
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
from phibe.networks import build
from phibe.networks.network import Network, Normalised
from phibe.objectives import OBJECTIVES
from phibe.training.loop import Diverged, Task, VelocityTask, train
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories

CONDITIONED, AUGMENTED = "conditioned", "augmented"
UNTRAINED = ("persistence", "constant velocity")
FAR = 8.0
"""Standard deviations from the mean at which a diverging latent is clamped before a velocity sees it."""


def methods(config: Any) -> list[str]:
    """Everything that is compared; the costliest training first, so that the workers end together."""
    conditioned = [f"{name} {CONDITIONED}" for name in config.conditioned]
    return [*conditioned, *(f"{name} {AUGMENTED}" for name in config.augmented), "pfi", "mcvd", *UNTRAINED]


# -- training ----------------------------------------------------------------------------------------------------------


def assemble(name: str, shape: tuple[int, ...], config: Any) -> Network | Forecaster:
    """The method before it is trained, for latents of this shape: a forecaster, or the network of a velocity."""
    channels, *grid = shape
    with seeded(config.seed):
        if name in ("pfi", "mcvd"):
            settings = getattr(config, name)
            past, frames = settings.get("past", 1), settings.get("frames", 1)
            inside = _network((frames * channels, *grid), past * channels, config, time=True)
            return PFI(inside, **settings) if name == "pfi" else MCVD(inside, **settings)
        if name.endswith(AUGMENTED):
            return _network((2 * channels, *grid), 0, config, time=config.time)
        return _network(shape, channels, config, time=config.time)


def _network(shape: tuple[int, ...], condition_channels: int, config: Any, *, time: bool) -> Network:
    kind, arguments = config.network["name"], {k: v for k, v in config.network.items() if k != "name"}
    return build(kind, shape, condition_channels=condition_channels, time=time, **arguments)


def augment(data: Trajectories) -> Trajectories:
    """s_t = (z_t, (z_t − z_{t−1})/Δt), from the second frame of each path on: twice the channels."""
    return with_velocity(data.states, data.times, data.lengths)


def in_units(network: Network, data: Trajectories) -> Normalised:
    """The network in the units of the data, with the RMS amplitude of Δz/Δt as the unit of the velocity.

    The usual unit is that of the slow motion; a frame's latents are mostly sensor noise, and the largest part of the
    velocity is the restoring term that removes it.
    """
    made, some = Normalised.fit(network, data), data[:: max(1, len(data) // 500)]
    moved = some.states.diff(dim=1)[some._observed(2)] / data.typical_step
    amplitude = moved.double().square().mean([0, *range(2, moved.ndim)]).sqrt()
    made.velocity_scale.copy_(amplitude.clamp(min=1e-12).reshape(made.velocity_scale.shape))
    return made


def learn(name: str, data: Trajectories, held_out: Trajectories, *, config: Any, out: Path) -> Any:
    """The trained method, from its folder if that is there: a flow, or a forecaster; if training diverges, the last
    finite one."""
    if name in UNTRAINED:
        return Persistence(data.state_shape) if name == UNTRAINED[0] else ConstantVelocity(data.typical_step)
    made: Any = assemble(name, data.state_shape, config)
    if name.endswith(AUGMENTED):
        data, held_out = augment(data), augment(held_out)
    task = task_of(name, made if isinstance(made, Forecaster) else in_units(made, data), config)
    training = replace(config.training, seed=config.seed)
    try:
        return train(data, task, config=training, held_out=held_out, out=out, progress=False)
    except Diverged as error:
        warnings.warn(f"{name}: {error}", stacklevel=2)
        return error.flow


def task_of(name: str, made: Any, config: Any) -> Task[Any]:
    """What is trained: a forecaster, or the network of a velocity with its objective; with noise on where it starts."""
    if isinstance(made, Forecaster):
        task: Placed[Any] = ForecastTask(made)
    else:
        objective, kind = name.split()
        task = (VelocityTask if kind == AUGMENTED else ConditionedTask)(made, objective)
    return InputNoise(task, config.input_noise) if config.input_noise else task


def restore(name: str, tensors: dict[str, Tensor], *, shape: tuple[int, ...], step: float, config: Any) -> Any:
    """The method of these weights, of latents of this shape seen every `step`."""
    if name in UNTRAINED:
        return Persistence(shape) if name == UNTRAINED[0] else ConstantVelocity(step)
    return restored(assemble(name, shape, config), tensors, step=step, conditioned=name.endswith(CONDITIONED))


# -- rollouts ----------------------------------------------------------------------------------------------------------


def rolls(name: str, model: Any, config: Any) -> dict[str, Roll]:
    """The ways to roll a method out, by their labels: a flow has one for each integrator."""
    return rolls_of(name, model, config.integrators, integrate=integrate, seed=config.seed)


def integrate(
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


# -- evaluation --------------------------------------------------------------------------------------------------------


class Evaluation:
    """Test clips (clip, time, 1, 64, 64), of which methods see the latents of the first `context` frames.

    `truth` are the clips, `reconstructed` what the codec makes of them.
    """

    def __init__(self, clips: Clips, codec: Coded, features: Features, config: Any):
        self.actions, self.codec, self.features, self.config = clips.actions, codec, features, config
        data = clips.trajectories(config.context + config.horizon)
        self.truth, self.times = data.states, data.times
        self.few = min(config.few, len(self.truth))
        self.latents = codec.encode_paths(self.truth)
        self.reconstructed = codec.decode_paths(self.latents)
        self.background = background(self.truth)
        self.detail = (self.truth - self.reconstructed)[:, : config.context].mean(1, keepdim=True)

    @property
    def history(self) -> Tensor:
        return self.latents[:, : self.config.context]

    @property
    def lead(self) -> Tensor:
        """Times from the last frame of the context on."""
        return self.times[self.config.context - 1 :]

    def ahead(self, clips: Tensor) -> Tensor:
        """The frames after the context."""
        return clips[:, self.config.context :]

    def decoded(self, roll: Roll, history: Tensor) -> Tensor:
        """The generated frames after those of `history` (clip, past, *latent): (clip, horizon, 1, 64, 64)."""
        return self.codec.decode_paths(roll.frames(history, self.lead)[:, 1:])

    def score(self, roll: Roll) -> tuple[dict[str, Any], Tensor]:
        """All measures of a method, and its clips; a stochastic method also draws `samples` futures of the first `few`
        clips."""
        began = time.perf_counter()
        latents = roll.frames(self.history, self.lead)[:, 1:]
        seconds = time.perf_counter() - began
        generated, few, futures = self.codec.decode_paths(latents), self.few, None
        if roll.random:
            again = self.decoded(roll, self.history[:few].repeat(self.config.samples - 1, 1, 1, 1, 1))
            futures = torch.cat([generated[None, :few], again.unflatten(0, (-1, few))])
        cost = {"evaluations": roll.evaluations, "milliseconds": 1000 * seconds / generated[:, :, 0, 0, 0].numel()}
        return self.measure(generated, futures) | cost, generated

    def measure(self, generated: Tensor, futures: Tensor | None = None) -> dict[str, Any]:
        """The measures of clips (clip, horizon, 1, 64, 64), over all frames and by lead time.

        `standard` ones are against the originals, `adjusted` ones against their reconstructions, `detailed` ones
        against the originals, after the mean loss of the codec on the context was added: the background then needs no
        codec. `few` are the scores of the first clips alone; of several `futures` of them (sample, few, …), `best` are
        those of the best future for each clip and measure.
        """
        truth, reconstructed, few = self.ahead(self.truth), self.ahead(self.reconstructed), self.few
        error = mse(generated, truth)
        return {
            "standard": score(generated, truth)._asdict(),
            "adjusted": score(generated, reconstructed)._asdict()
            if not torch.equal(generated, reconstructed)
            else None,
            "detailed": score((generated + self.detail).clamp(0, 1), truth)._asdict(),
            "few": score(generated[:few], truth[:few])._asdict(),
            "best": score(futures, truth[:few])._asdict() if futures is not None else None,
            "diversity": _values(diversity(futures).mean(0)) if futures is not None else None,
            "mse": _values(error.mean(0)),
            "ssim": _values(ssim(generated, truth).mean(0)),
            "mse_by_action": self._by_action(error.mean(1)),
            "frechet": {
                "standard": self._frechet(generated, self.truth, "original"),
                "adjusted": self._frechet(generated, self.reconstructed, "reconstruction"),
            },
            "motion": self._motion(generated),
        }

    def _by_action(self, error: Tensor) -> dict[str, float]:
        chosen = {name: [i for i, a in enumerate(self.actions) if a == name] for name in sorted(set(self.actions))}
        return {name or "unnamed": float(error[index].mean()) for name, index in chosen.items()}

    def _frechet(self, generated: Tensor, truth: Tensor, reference: Any) -> dict[str, Any]:
        context = self.config.context
        whole = torch.cat([truth[:, :context], generated], dim=1)
        found = frechet_distance(
            whole, truth, self.features, context=context, reference=reference, data=self.config.data
        )
        return found.record() | {"text": str(found)}

    def _motion(self, generated: Tensor) -> dict[str, Any]:
        """Drift of the figure in pixels by lead time; medians over the clips of the relative error of its step
        frequency and of the ratio of its limb-motion amplitude to the true one; None where too little is visible."""
        own, true = (silhouette(clips, self.background) for clips in (generated, self.ahead(self.truth)))
        steps = gait(own, true, self.lead[1:])
        return {
            "drift": _values(position_drift(own, true).nanmean(0)),
            "frequency_error": _value(steps.frequency_error.nanmedian()),
            "amplitude_ratio": _value(steps.amplitude_ratio.nanmedian()),
        }


def _value(value: Tensor) -> float | None:
    """For JSON, which knows no NaN."""
    return float(value) if math.isfinite(value) else None


def _values(values: Tensor) -> list[float | None]:
    return [_value(value) for value in values]


# -- comparison in a report -------------------------------------------------------------------------------------------


RECIPE = "phibe conditioned, euler"
"""What the paper's code does: conditioned on the previous frame, one Euler step a frame."""
MEASURES = ("MSE × 100", "Fréchet", "PSNR", "SSIM")
"""The columns of the paper's table; its Fréchet distance is the FVD, ours is that of the features in the report."""


def flows(report: Report) -> list[str]:
    """The labels of all flows, in the order of the report."""
    return [label for label in report["methods"] if label.split()[0] in OBJECTIVES]


def best(report: Report) -> str:
    """The label of the flow with the least square error against the clips."""
    return min(flows(report), key=lambda label: report["methods"][label]["standard"]["mse"])


def by_euler(label: str) -> str:
    """The same flow with one Euler step, and so one evaluation, a frame."""
    return f"{label.split(',')[0]}, euler"


def nearest(report: Report) -> str:
    """The label of the flow with the least Fréchet distance to the clips: its clips look most like true ones, though
    perhaps not like the clip that they continue."""
    return min(flows(report), key=lambda label: report["methods"][label]["frechet"]["standard"]["value"])


def numbers(entry: dict[str, Any], kind: str = "standard") -> list[float] | None:
    """The four measures of a method, `standard` or `adjusted`; None where there are none."""
    scores = entry[kind]
    if scores is None:
        return None
    return [100 * scores["mse"], entry["frechet"][kind]["value"], scores["psnr_published"], scores["ssim"]]


def better(report: Report, label: str, *, than: tuple[str, ...] = ("pfi", "mcvd")) -> list[str]:
    """The measures in which one future of a method is better than one of each of the others."""
    sign = np.array([-1, -1, 1, 1])
    mine, *others = (sign * np.array(numbers(report["methods"][name])) for name in (label, *than))
    won = np.all([mine > other for other in others], axis=0)
    return [name.removesuffix(" × 100") for name, yes in zip(MEASURES, won, strict=True) if yes]


def drift(entry: dict[str, Any], *, last: int = 0) -> float:
    """Mean distance of the figure from the true one in pixels, over all frames or the `last` ones; NaN where no frame
    shows both."""
    apart = np.array(entry["motion"]["drift"], dtype=float)[-last:]
    seen = apart[np.isfinite(apart)]
    return float(seen.mean()) if len(seen) else float("nan")


def cells(entry: dict[str, Any]) -> list[str]:
    """A row of the paper's table: the four measures against the clips, then against their reconstructions."""
    return [cell for kind in ("standard", "adjusted") for cell in written(numbers(entry, kind))]


def written(values: list[float] | None) -> list[str]:
    """The four measures with the paper's digits; dashes for none."""
    if values is None:
        return ["–"] * 4
    return [f"{value:{form}}" for value, form in zip(values, (".4f", ".1f", ".2f", ".4f"), strict=True)]


def falls_behind(curve: list[float], still: list[float]) -> int | None:
    """The first frame, from 1, at which an error is no longer below another, after it was so once; 1 if it never is,
    None if it stays below from then on."""
    ahead = np.array(curve) < np.array(still)
    if not ahead.any():
        return 1
    first = int(ahead.argmax())
    behind = np.flatnonzero(~ahead[first:])
    return int(first + behind[0] + 1) if len(behind) else None
