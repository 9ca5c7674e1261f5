"""How near a flow of the pendulum is to the truth: path by path, in energy, and in its marginals.

Angles are compared as points on circles, so that a whole turn counts as nothing. Read next: `states.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from phibe.experiments.pendulum.acrobot import Acrobot, frame_times, on_circles, wrap
from phibe.flow import Flow
from phibe.metrics import energy_distance, sliced_w2
from phibe.trajectories import Trajectories


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


def by_path(x: Tensor, y: Tensor) -> Tensor:
    """Error in angle of each path in degrees: root mean square over the two angles, mean over time; (n,)."""
    return torch.rad2deg(wrap(x - y)[:, 1:, :2].double().square().mean(-1).sqrt()).mean(1)


def rollout(flow: Flow, x0: Tensor, times: Tensor, method: str, *, fastest: float = 60.0) -> Tensor:
    """The flow at the frame rate, one step a frame   [paper: autoregressive generation]; a path that diverges is
    held at the largest velocities that a pendulum can have, 60 rad/s in simulations."""
    bounded = Flow(lambda x, t: flow.velocity(_inside(x, fastest), t), flow.interval, flow.step)
    return _inside(bounded.generate(x0, times, method=method).states, fastest)


def _inside(x: Tensor, limit: float) -> Tensor:
    return torch.cat([x[..., :2], x[..., 2:].clamp(-limit, limit)], dim=-1)


class Marginals:
    """Marginals over time: ensembles of the SDE against each other, which is the floor, and of a flow against them."""

    def __init__(self, config: Any, scale: Scale):
        self.acrobot, self.scale, self.config = Acrobot(config.sigma, config.sigma), scale, config
        self.frames = torch.arange(0, config.frames, config.every)
        self.truths = [self.draw(100 + k) for k in range(config.repeats)]

    def draw(self, seed: int) -> Tensor:
        paths, times = self.config.ensemble, frame_times(self.config.frames)
        return self.acrobot.simulate(paths=paths, times=times, seed=self.config.seed + seed).states

    def floor(self) -> dict[str, Any]:
        """Distances of further ensembles of the SDE, and the energy that its paths gain."""
        others = [self.compare(self.draw(200 + k))[0] for k in range(self.config.repeats)]
        return {name: torch.tensor([other[name] for other in others]).mean(0).tolist() for name in others[0]}

    def distances(self, flow: Flow, method: str) -> tuple[dict[str, list[float]], list[float]]:
        """The same for a flow, from starts of its own."""
        generator = torch.Generator().manual_seed(self.config.seed + 300)
        start = self.acrobot.draw_start(self.config.ensemble, generator=generator)
        return self.compare(rollout(flow, start, frame_times(self.config.frames), method))

    def compare(self, states: Tensor) -> tuple[dict[str, list[float]], list[float]]:
        """Mean distances from the truths and mean energy gained, in time; the mean distance from each truth."""
        energy = self.acrobot.energy(states[:, self.frames].double())
        sliced, spread = self._from(partial(sliced_w2, directions=64), states), self._from(energy_distance, states)
        InTime = {
            "energy_distance": spread.mean(1).tolist(),
            "sliced_w2": sliced.mean(1).tolist(),
            "energy_gain": (energy - energy[:, :1]).mean(0).tolist(),
        }
        return InTime, sliced[1:].mean(0).tolist()

    def _from(self, distance: Callable[[Tensor, Tensor], float], states: Tensor) -> Tensor:
        """Distances by time and truth."""
        embed = self.scale.embed
        return torch.tensor([[distance(embed(states[:, i]), embed(x[:, i])) for x in self.truths] for i in self.frames])
