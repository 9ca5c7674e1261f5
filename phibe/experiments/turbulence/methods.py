"""Methods on fields: flows, mixtures and forecasters on one U-Net, trained, rolled out and evaluated in the same way.

A mixture is a flow with a drift weight θ: dx = [v + θ(b − v)]dt, as an ODE, with the noise √θ of the SDE, or with noise
calibrated to the spectrum   [`phibe.stochastic`]. Read next: `run.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phibe.experiments.baselines.forecaster import Forecaster, ForecastTask, conditional_unet
from phibe.experiments.baselines.mcvd import MCVD
from phibe.experiments.baselines.persistence import Persistence
from phibe.experiments.baselines.pfi import PFI
from phibe.experiments.conditioned import ConditionedFlow, ConditionedTask, restored, rolls_of
from phibe.experiments.training import RandomShift, Roll, Rollouts
from phibe.experiments.turbulence.noise import CalibratedFamily, FieldNoise
from phibe.flow import Flow
from phibe.integrators import INTEGRATORS
from phibe.networks.unet import UNet
from phibe.stochastic import StochasticFamily
from phibe.training.config import FitConfig
from phibe.training.loop import Task, VelocityTask, train
from phibe.training.tensors import save_tensors
from phibe.trajectories import Trajectories

BOUND = 60.0
"""Largest value of a diverging field that a network is shown."""

MIXTURES = {"ode": StochasticFamily, "sde": StochasticFamily, "calibrated": CalibratedFamily}
"""Drift weight θ: an ODE, an SDE with weight θ, an SDE with spectrum-calibrated noise."""

CENTRED = "mcvd centred"


def methods(config: Any) -> list[str]:
    """Everything that is compared at an interval."""
    return [*config.objectives, "pfi", "mcvd", *(f"{name} conditioned" for name in config.conditioned), "persistence"]


def mixtures(config: Any) -> list[str]:
    """What needs no further training: flows with a drift weight, and an MCVD that knows the mean of the field."""
    return [*(f"{kind} {weight:g}" for kind in MIXTURES for weight in getattr(config, f"{kind}_weights")), CENTRED]


def rule(weight: float) -> str:
    """The integrator of a mixture: the drift alone predicts the conditional mean by one Euler step [`regression`]."""
    return "euler" if weight == 1 else "rk4"


def assemble(name: str, shape: tuple[int, ...], config: Any) -> Any:
    """The method before it is trained: a forecaster, or the network of a velocity."""
    torch.manual_seed(config.seed)
    if name == "pfi":
        return PFI(conditional_unet(shape, past=config.pfi.get("past", 1), **config.network), **config.pfi)
    if name == "mcvd":
        sizes = {key: config.mcvd[key] for key in ("past", "frames")}
        return MCVD(conditional_unet(shape, **sizes, **config.network), **config.mcvd)
    condition_channels = shape[0] if name.endswith("conditioned") else 0
    return UNet(shape, condition_channels=condition_channels, time=False, **config.network)


def learn(name: str, data: Trajectories, *, config: Any, out: Path) -> Any:
    """The trained method, from its folder if that is there: a flow, or a forecaster."""
    if name == "persistence":
        return Persistence(data.state_shape)
    task = task_of(name, data.state_shape, config)
    return train(data, task, config=training(name, config), out=out, progress=False)


def task_of(name: str, shape: tuple[int, ...], config: Any) -> Task[Any]:
    """What is trained: a new network with its objective, on randomly shifted fields."""
    model = assemble(name, shape, config)
    if isinstance(model, Forecaster):
        return RandomShift(ForecastTask(model))
    objective, *conditioned = name.split()
    return RandomShift((ConditionedTask if conditioned else VelocityTask)(model, objective))


def training(name: str, config: Any) -> FitConfig:
    """How a method is trained: all alike, but in fewer steps where one costs more."""
    return replace(config.training, seed=config.seed, steps=config.fewer.get(name, config.training.steps))


def mix(name: str, data: Trajectories, *, config: Any, out: Path) -> Any:
    """The flow of `symmetric` with a weight of the drift of `regression` and the noise of its kind; or centred MCVD."""
    if name == CENTRED:
        return _centred(learn("mcvd", data, config=config, out=out.parent / "mcvd"))
    kind, weight = name.split()
    flow, drift = (learn(part, data, config=config, out=out.parent / part) for part in ("symmetric", "regression"))
    bare = MIXTURES[kind](flow.velocity, drift.velocity, float(weight))
    if kind == "ode":
        return bare
    if kind == "sde":
        noise = FieldNoise.of_residuals(drift.velocity, data)
    else:
        noise = FieldNoise.of_balance(bare, data, method=rule(bare.theta))
    save_tensors(out / "weights.safetensors", {"power": noise.power})
    return replace(bare, noise=noise)


def restore(name: str, interval: float, *, config: Any, weights: dict[str, Tensor]) -> Any:
    """A method of a finished run, from the `weights` of all its methods at all intervals."""
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
        kind, weight = name.split()
        return MIXTURES[kind](flow, drift, float(weight), noise)
    own = {k.removeprefix(key): v for k, v in weights.items() if k.startswith(key)}
    return restored(assemble(name, shape, config), own, step=interval, conditioned=name.endswith("conditioned"))


def _centred(model: MCVD) -> MCVD:
    model.centred = True
    return model


def judge(name: str, model: Any, rollouts: Rollouts) -> dict[str, Any]:
    """The scores of each way to roll a method out, by its label."""
    return {
        label: rollouts.score(roll)
        for label, roll in rolls(name, model, rollouts.config, seed=rollouts.config.seed).items()
    }


def rolls(name: str, model: Any, config: Any, *, seed: int) -> dict[str, Roll]:
    """The ways to roll a method out, by their labels: a flow has one for each integrator. Draws begin from the seed."""
    if isinstance(model, StochasticFamily):
        method, generator = rule(model.theta), torch.Generator().manual_seed(seed)
        frames = partial(integrate_mixture, model, method, generator=generator)
        cost = (1 if model.theta == 1 else 2) * INTEGRATORS[method].evaluations
        return {f"{name}, {method}": Roll(frames, cost, random=model.noise is not None)}
    remember = ("leapfrog", "filtered") if isinstance(model, ConditionedFlow) else ()
    integrators = [way for way in config.integrators if way[0] not in remember]
    return rolls_of(name, model, integrators, integrate=integrate, seed=seed)


def integrate_mixture(
    model: StochasticFamily, method: str, history: Tensor, times: Tensor, *, generator: torch.Generator
) -> Tensor:
    """Frames of a flow with drift weight θ, or of its SDE."""
    return model.generate(history[:, -1], times, method=method, generator=generator).states


def integrate(model: Flow | ConditionedFlow, history: Tensor, times: Tensor, *, method: str, substeps: int) -> Tensor:
    """Frames along a flow; a diverging field is clamped to ±`BOUND` before the network sees it."""
    if isinstance(model, ConditionedFlow):
        return model.generate(history, times, method=method, substeps=substeps, bound=BOUND).states
    bounded = Flow(lambda x, t: model.velocity(x.clamp(-BOUND, BOUND), t))
    return bounded.generate(history[:, -1], times, method=method, substeps=substeps).states
