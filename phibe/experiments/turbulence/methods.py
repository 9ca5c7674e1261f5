"""Methods on fields: flows, mixtures and forecasters on one U-Net, trained alike, rolled out and judged alike."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phibe.experiments.baselines.forecaster import Forecaster, conditional_unet
from phibe.experiments.baselines.mcvd import MCVD
from phibe.experiments.baselines.persistence import Persistence
from phibe.experiments.baselines.pfi import PFI
from phibe.experiments.baselines.training import ForecastTask
from phibe.experiments.conditioned import ConditionedFlow, ConditionedTask
from phibe.experiments.training import Roll, Rollouts, Shifted
from phibe.experiments.turbulence.noise import FieldNoise
from phibe.flow import Flow
from phibe.integrators import INTEGRATORS
from phibe.networks.normalised import Normalised
from phibe.networks.unet import UNet
from phibe.stochastic import Balanced, Between
from phibe.training.config import FitConfig
from phibe.training.loop import Task, VelocityTask, train
from phibe.training.runs import Fitted, save_tensors
from phibe.trajectories import Trajectories

BOUND = 60.0
"""What a network is shown at most of a field that runs away."""

MIXTURES = {"leaning": Between, "stirred": Between, "balanced": Balanced}
"""Flows with a share of the drift: alone, with the noise of the SDE, with the noise that keeps the spectrum."""

CENTRED = "mcvd centred"

EVALUATIONS = {name: rule.evaluations for name, rule in INTEGRATORS.items()}


def methods(config: Any) -> list[str]:
    """Everything that is compared at an interval."""
    return [*config.objectives, "pfi", "mcvd", *(f"{name} conditioned" for name in config.conditioned), "persistence"]


def mixtures(config: Any) -> list[str]:
    """What is made of them without training: flows with a share of the drift, and an MCVD that knows the mean."""
    return [*(f"{kind} {share:g}" for kind in MIXTURES for share in getattr(config, kind)), CENTRED]


def rule(share: float) -> str:
    """The integrator of a mixture: the drift alone is the mean of what comes, by one Euler step [`regression`]."""
    return "euler" if share == 1 else "rk4"


def assemble(name: str, shape: tuple[int, ...], config: Any) -> Any:
    """The method before it is trained: a forecaster, or the network of a velocity."""
    torch.manual_seed(config.seed)
    if name == "pfi":
        return PFI(conditional_unet(shape, past=config.pfi.get("past", 1), **config.network), **config.pfi)
    if name == "mcvd":
        sizes = {key: config.mcvd[key] for key in ("past", "frames")}
        return MCVD(conditional_unet(shape, **sizes, **config.network), **config.mcvd)
    told = shape[0] if name.endswith("conditioned") else 0
    return UNet(shape, condition_channels=told, time=False, **config.network)


def learn(name: str, data: Trajectories, *, config: Any, out: Path) -> Any:
    """The trained method, from its folder if that is there: a flow, or a forecaster."""
    if name == "persistence":
        return Persistence(data.state_shape)
    model = assemble(name, data.state_shape, config)
    if isinstance(model, Forecaster):
        task: Task[Any] = ForecastTask(model)
    else:
        objective, *conditioned = name.split()
        task = (ConditionedTask if conditioned else VelocityTask)(model, objective)
    return train(data, Shifted(task), config=training(name, config), out=out, progress=False)


def training(name: str, config: Any) -> FitConfig:
    """How a method is trained: all alike, but in fewer steps where one costs more."""
    return replace(config.training, seed=config.seed, steps=config.fewer.get(name, config.training.steps))


def mix(name: str, data: Trajectories, *, config: Any, out: Path) -> Any:
    """`symmetric` with a share of the drift that `regression` has found and the noise that its kind asks for; or MCVD,
    centred."""
    if name == CENTRED:
        return _centred(learn("mcvd", data, config=config, out=out.parent / "mcvd"))
    kind, share = name.split()
    flow, drift = (learn(part, data, config=config, out=out.parent / part) for part in ("symmetric", "regression"))
    bare = MIXTURES[kind](flow.velocity, drift.velocity, float(share))
    if kind == "leaning":
        return bare
    if kind == "stirred":
        noise = FieldNoise.of_residuals(drift.velocity, data)
    else:
        noise = FieldNoise.of_balance(bare, data, method=rule(bare.share))
    save_tensors(out / "weights.safetensors", {"power": noise.power})
    return replace(bare, noise=noise)


def restore(name: str, interval: float, *, config: Any, weights: dict[str, Tensor]) -> Any:
    """A method as a run has left it, from the `weights` of all its methods at all intervals."""
    shape, key = (1, config.grid, config.grid), f"{interval:g}.{name}."
    if name == CENTRED:
        return _centred(restore("mcvd", interval, config=config, weights=weights))
    if name == "persistence":
        return Persistence(shape)
    if name in mixtures(config):
        parts = (restore(part, interval, config=config, weights=weights) for part in ("symmetric", "regression"))
        flow, drift = (part.velocity for part in parts)
        power = weights.get(f"{key}power")
        noise = None if power is None else FieldNoise(power.float(), interval)
        kind, share = name.split()
        return MIXTURES[kind](flow, drift, float(share), noise)
    model = assemble(name, shape, config)
    model = model if isinstance(model, Forecaster) else Normalised(model, shape)
    model.load_state_dict({k.removeprefix(key): v.float() for k, v in weights.items() if k.startswith(key)})
    model.eval().requires_grad_(False)
    if isinstance(model, Forecaster):
        return model
    return ConditionedFlow(model, interval) if name.endswith("conditioned") else Flow(Fitted(model), step=interval)


def _centred(model: MCVD) -> MCVD:
    model.centred = True
    return model


def judge(name: str, model: Any, rollouts: Rollouts) -> dict[str, Any]:
    """What each way of rolling a method out is worth, by its label."""
    return {
        label: rollouts.judge(roll)
        for label, roll in rolls(name, model, rollouts.config, seed=rollouts.config.seed).items()
    }


def rolls(name: str, model: Any, config: Any, *, seed: int) -> dict[str, Roll]:
    """The ways to roll a method out, by their labels: a flow has one for each integrator. Draws begin from the seed."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, Between):
        method = rule(model.share)
        stirred = partial(stir, model, method, generator=generator)
        networks = 1 if model.share == 1 else 2
        return {f"{name}, {method}": Roll(stirred, networks * EVALUATIONS[method], random=model.noise is not None)}
    if not isinstance(model, (Flow, ConditionedFlow)):
        return {name: Roll(partial(draw, model, generator=generator), model.evaluations, isinstance(model, Forecaster))}
    return {
        f"{name}, {method}{f' ×{substeps}' if substeps > 1 else ''}": Roll(
            partial(carry, model, method, substeps), EVALUATIONS[method] * substeps
        )
        for method, substeps in config.integrators
        if not (isinstance(model, ConditionedFlow) and method in ("leapfrog", "filtered"))
    }


def draw(model: Any, history: Tensor, times: Tensor, *, generator: torch.Generator) -> Tensor:
    """Frames that a forecaster draws."""
    return model.generate(history, times, generator=generator).states


def stir(model: Between, method: str, history: Tensor, times: Tensor, *, generator: torch.Generator) -> Tensor:
    """Frames between a flow and its SDE."""
    return model.generate(history[:, -1], times, method=method, generator=generator).states


def carry(model: Flow | ConditionedFlow, method: str, substeps: int, history: Tensor, times: Tensor) -> Tensor:
    """Frames along a flow; a field that runs away is shown to the network at `BOUND` at most."""
    if isinstance(model, ConditionedFlow):
        return model.generate(history, times, method=method, substeps=substeps, bound=BOUND).states
    bounded = Flow(lambda x, t: model.velocity(x.clamp(-BOUND, BOUND), t))
    return bounded.generate(history[:, -1], times, method=method, substeps=substeps).states
