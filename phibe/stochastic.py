"""Between a probability flow and its SDE: a family of processes with one weight, all with the same marginals.

A flow has nothing that leads an error back to the data; some of the drift does, and noise restores the variance that
the drift dissipates. Read next: `metrics.py`, which scores what a process generates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from phibe.calculus import Velocity
from phibe.flow import Flow
from phibe.trajectories import Trajectories

Noise = Callable[[Tensor, float, torch.Generator | None], Tensor]
"""`noise(x, h, generator)`: what the noise adds to states (n, *state) in a time h."""


@dataclass(frozen=True)
class StochasticFamily:
    """dx = [v + θ(b − v)]dt + √θ dW, W having the covariance Σ of the SDE, with a weight θ of the drift from 0 to 1.

    θ = 0 is the flow and θ = 1 the SDE. As b − v = ½∇·Σ + ½Σ∇log ρ, what the drift contracts the noise spreads again,
    and ρ_t is the same for all θ. Without `noise` it is the *ODE with drift weight θ*: it has a restoring term, and
    marginals that are too narrow.
    """

    velocity: Velocity
    drift: Velocity
    theta: float
    noise: Noise | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= 1:
            raise ValueError(f"`theta` must be from 0 (the flow) to 1 (the SDE); got {self.theta}.")

    @torch.no_grad()
    def generate(
        self,
        x0: Tensor,
        times: Any,
        *,
        method: str = "rk4",
        substeps: int = 1,
        generator: torch.Generator | None = None,
    ) -> Trajectories:
        """Trajectories through `x0` (n, *state) at `times`: `substeps` of `method` between two of them, half of the
        noise of its duration before each and half after it [Strang]; weak order 2. New noise at each call."""
        times = torch.as_tensor(times, dtype=torch.float64)
        x, states = x0, [x0]
        for start, end in pairwise(times):
            for t in torch.linspace(float(start), float(end), substeps + 1, dtype=torch.float64).unfold(0, 2, 1):
                x = self._step(x, t, method, generator)
            states.append(x)
        return Trajectories(torch.stack(states, dim=1), times.to(x0.device))

    def interpolated(self, x: Tensor, t: Tensor) -> Tensor:
        """v + θ(b − v), (n, *state)."""
        return self.drift(x, t) if self.theta == 1 else torch.lerp(self.velocity(x, t), self.drift(x, t), self.theta)

    def ode_step(self, x: Tensor, t: Tensor, *, method: str = "rk4") -> Tensor:
        """States (n, *state) after one step of `method` along v + θ(b − v), from the first to the last of `t`."""
        return Flow(self.interpolated).generate(x, t, method=method).states[:, -1]

    def _step(self, x: Tensor, t: Tensor, method: str, generator: torch.Generator | None) -> Tensor:
        half = float(t[1] - t[0]) / 2
        return self._with_noise(self.ode_step(self._with_noise(x, half, generator), t, method=method), half, generator)

    def _with_noise(self, x: Tensor, h: float, generator: torch.Generator | None) -> Tensor:
        return x if self.noise is None else x + math.sqrt(self.theta) * self.noise(x, h, generator)
