"""The stochastic double pendulum from its states: errors of single paths, and the marginals of the whole ensemble.

Chaos and noise pull paths apart, so the scale of an error is the distance between two draws of the SDE from the same
start. Read next: `codec.py` and `images.py`, the same from images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.experiments import plan
from phibe.experiments.pendulum.acrobot import RATE, Acrobot, frame_times, on_circles, wrap
from phibe.experiments.report import Experiment, Measured, committed, committed_weights, in_half
from phibe.experiments.training import fit_epochs, network_of, seeded
from phibe.flow import Flow
from phibe.metrics import energy_distance, sliced_w2
from phibe.networks.mlp import ResidualMLP
from phibe.networks.network import Normalised
from phibe.training.config import FitConfig
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories

INPUTS: dict[str, dict[str, Any]] = {
    "time": {"time": True, "angles": 0},
    "plain": {"time": False, "angles": 0},
    "circles": {"time": False, "angles": 2},
}
"""What the network sees: state and time as in the paper, the state alone, sines and cosines of the angles."""


TRAINING = FitConfig(batch=512, learning_rate=1e-3, optimiser="adam", held_out=0.1, evaluate_every=400)
PAPER_TRAINING = FitConfig(batch=512, learning_rate=1e-3, optimiser="adam", floor=1.0, warmup=0, evaluate_every=2000)


@dataclass(frozen=True)
class FlowConfig:
    """The flows of a pendulum: a residual MLP for each of `objectives`, `epochs` long, rolled out by each of
    `integrators`."""

    objectives: tuple[str, ...] = ("phibe", "symmetric", "regression")
    integrators: tuple[str, ...] = ("euler", "rk4")
    width: int = 256
    blocks: int = 2
    epochs: int = 8
    training: FitConfig = TRAINING
    seed: int = 0


SMOKE_FLOWS: dict[str, Any] = {
    "objectives": ("phibe", "regression"),
    "width": 16,
    "blocks": 1,
    "epochs": 1,
    "training": FitConfig(batch=32, evaluate_every=5, held_out=0.2),
}


@dataclass(frozen=True)
class Config(FlowConfig):
    """`paths` × `frames` observations 1/30 s apart, `held_out` of the paths for the test; a fit for each of
    `objectives` × `inputs`; marginals of `ensemble` paths, compared `every` so many frames with `repeats` ensembles of
    the SDE."""

    paths: int = 1000
    frames: int = 240
    sigma: float = 0.2
    held_out: float = 0.2
    inputs: tuple[str, ...] = ("time", "plain", "circles")
    integrators: tuple[str, ...] = ("euler", "rk4", "leapfrog")
    ensemble: int = 1000
    repeats: int = 3
    every: int = 15


PRESETS = {
    "smoke": Config(
        paths=20, frames=20, inputs=("circles",), ensemble=30, repeats=2, every=5, **SMOKE_FLOWS | {"epochs": 2}
    ),
    "laptop": Config(),
    "paper": Config(
        epochs=50,
        training=PAPER_TRAINING,
        ensemble=5000,
    ),
}


def measure(config: Config, fits: Path) -> Measured:
    """Simulate, train every fit, roll out, compare."""
    train, test = observe(config)
    scale = Scale(train)
    marginals = Marginals(config, scale)
    results: dict[str, Any] = {
        "speed": scale.speed.tolist(),
        "horizon": test.times.tolist(),
        **_references(config, test, scale),
        "law_times": (marginals.frames / RATE).tolist(),
        "law_floor": marginals.floor(),
        "flows": {},
    }
    weights: dict[str, Tensor] = {}
    cases = [(objective, inputs) for inputs in config.inputs for objective in config.objectives]
    for objective, inputs in tqdm(cases, desc="fits", unit="fit"):
        flow = learn(train, objective, inputs, config=config, fits=fits)
        for method in config.integrators:
            results["flows"][f"{objective}, {inputs}, {method}"] = {
                **_path_errors(flow, test, scale, method),
                **marginals.distances(flow, method),
            }
        if inputs == config.inputs[-1] or (objective, inputs) == ("phibe", "time"):
            weights |= in_half(f"{objective}.{inputs}", network_of(flow).state_dict())
    return Measured(results, weights)


# -- data and fits -----------------------------------------------------------------------------------------------------


def observe(config: Any) -> tuple[Trajectories, Trajectories]:
    """Training and test paths, as the paper splits them."""
    acrobot = Acrobot(config.sigma, config.sigma)
    data = acrobot.simulate(paths=config.paths, times=frame_times(config.frames), seed=config.seed)
    return data.split(config.held_out, seed=config.seed)


def learn(train: Trajectories, objective: str, inputs: str, *, config: Config, fits: Path) -> Flow:
    """The residual MLP of the paper, trained for so many epochs; read from its folder if that is there."""
    data = train.to(torch.float32)
    transitions, folder = len(data) * (config.frames - 1), fits / f"{objective}-{inputs}"
    return fit_epochs(
        data, _network(data, inputs, config), objective, transitions=transitions, config=config, out=folder
    )


def _network(data: Trajectories, inputs: str, config: Config) -> Normalised:
    with seeded(config.seed):
        network = ResidualMLP((4,), width=config.width, blocks=config.blocks, **INPUTS[inputs])
    wrapped = Normalised.fit(network, data)
    return wrapped.keep(slice(0, 2)) if INPUTS[inputs]["angles"] else wrapped


def committed_flow(objective: str, inputs: str = "circles") -> Flow:
    """A flow of the laptop run that comes with the project."""
    config = committed("pendulum_states").config
    network = ResidualMLP((4,), width=config["width"], blocks=config["blocks"], **INPUTS[inputs])
    weights = committed_weights("pendulum_states", f"{objective}.{inputs}")
    return trained_flow(network, weights, first=0, frames=config["frames"])


def trained_flow(network: ResidualMLP, weights: dict[str, Tensor], *, first: int, frames: int) -> Flow:
    """The flow of these weights, fitted from frame `first` to the last of `frames`."""
    velocity = Normalised(network, network.state_shape)
    velocity.load_state_dict(weights)
    return Flow(Fitted(velocity), (first / RATE, (frames - 1) / RATE), 1 / RATE)


# -- measures ----------------------------------------------------------------------------------------------------------


class Scale:
    """Distances between states: angles as points on circles, velocities in units of their spread in the data."""

    def __init__(self, data: Trajectories):
        self.speed = data.states[..., 2:].std((0, 1))

    def embed(self, x: Tensor) -> Tensor:
        return on_circles(x.double(), speed=self.speed)

    def error(self, x: Tensor, y: Tensor) -> list[float]:
        """Root mean square distance over paths, at each time: (n, time, 4)² → time."""
        return (self.embed(x) - self.embed(y)).square().sum(-1).mean(0).sqrt().tolist()


def degrees(x: Tensor, y: Tensor) -> list[float]:
    """Root mean square difference of the wrapped angles over paths, at each time, in degrees."""
    return torch.rad2deg(wrap(x - y)[..., :2].square().mean((0, 2)).sqrt()).tolist()


def _references(config: Config, test: Trajectories, scale: Scale) -> dict[str, Any]:
    """Errors of a second draw of the noise from the same starts, and of a persistence forecast."""
    acrobot = Acrobot(config.sigma, config.sigma)
    other = acrobot.simulate(start=test.states[:, 0], times=test.times, seed=config.seed + 1).states
    still = test.states[:, :1].expand_as(test.states)
    return {
        "divergence": scale.error(other, test.states),
        "divergence_degrees": degrees(other, test.states),
        "persistence": scale.error(still, test.states),
        "persistence_degrees": degrees(still, test.states),
    }


def _path_errors(flow: Flow, test: Trajectories, scale: Scale, method: str) -> dict[str, Any]:
    x = rollout(flow, test.states[:, 0], test.times, method)
    return {"error": scale.error(x, test.states), "degrees": degrees(x, test.states)}


def rollout(flow: Flow, x0: Tensor, times: Tensor, method: str) -> Tensor:
    """The flow at the frame rate, one step a frame   [paper: autoregressive generation]; a path that diverges is
    held at the largest velocities that a pendulum can have, 60 rad/s."""
    bounded = Flow(lambda x, t: flow.velocity(_inside(x), t), flow.interval, flow.step)
    return _inside(bounded.generate(x0, times, method=method).states)


def _inside(x: Tensor, limit: float = 60.0) -> Tensor:
    return torch.cat([x[..., :2], x[..., 2:].clamp(-limit, limit)], dim=-1)


class Marginals:
    """Marginals over time: ensembles of the SDE against each other, which is the floor, and of a flow against them."""

    def __init__(self, config: Config, scale: Scale):
        self.acrobot, self.scale, self.config = Acrobot(config.sigma, config.sigma), scale, config
        self.frames = torch.arange(0, config.frames, config.every)
        self.truths = [self._draw(100 + k) for k in range(config.repeats)]

    def _draw(self, seed: int) -> Tensor:
        paths, times = self.config.ensemble, frame_times(self.config.frames)
        return self.acrobot.simulate(paths=paths, times=times, seed=self.config.seed + seed).states

    def floor(self) -> dict[str, Any]:
        """Distances of further ensembles of the SDE, and the energy that its paths gain."""
        others = [self._compare(self._draw(200 + k)) for k in range(self.config.repeats)]
        return {name: torch.tensor([other[name] for other in others]).mean(0).tolist() for name in others[0]}

    def distances(self, flow: Flow, method: str) -> dict[str, Any]:
        """The same for a flow, from starts of its own."""
        generator = torch.Generator().manual_seed(self.config.seed + 300)
        start = self.acrobot.draw_start(self.config.ensemble, generator=generator)
        return self._compare(rollout(flow, start, frame_times(self.config.frames), method))

    def _compare(self, states: Tensor) -> dict[str, list[float]]:
        """Mean distances from the truths in time, and the mean energy gained."""
        energy = self.acrobot.energy(states[:, self.frames].double())
        return {
            "energy_distance": self._mean(energy_distance, states),
            "sliced_w2": self._mean(partial(sliced_w2, directions=64), states),
            "energy_gain": (energy - energy[:, :1]).mean(0).tolist(),
        }

    def _mean(self, distance: Callable[[Tensor, Tensor], float], states: Tensor) -> list[float]:
        embed = self.scale.embed
        by_time = [[distance(embed(states[:, i]), embed(x[:, i])) for x in self.truths] for i in self.frames]
        return torch.tensor(by_time).mean(1).tolist()


def plan_states(config: Config) -> plan.Needs:
    train = config.paths - max(1, round(config.paths * config.held_out))
    steps = math.ceil(config.epochs * train * (config.frames - 1) / config.training.batch)
    data = [plan.states("double pendulum: paths × frames × 4 =", (config.paths, config.frames, 4))]
    size = {"width": config.width, "blocks": config.blocks}
    trainings = [
        plan.training(
            f"{objective}, {inputs}, residual MLP {config.width} × {config.blocks}",
            partial(plan.velocity, "residual", (4,), objective, **size, **INPUTS[inputs]),
            (4,),
            config.training,
            steps=steps,
        )
        for inputs in config.inputs
        for objective in config.objectives
    ]
    return plan.Needs(data, trainings)


PENDULUM_STATES = Experiment("pendulum_states", PRESETS, measure, plan_states)
