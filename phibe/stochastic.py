"""Between a flow and its SDE: one family of processes, all of them with the same marginals."""

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
class Between:
    """dx = [v + θ(b − v)]dt + √θ dW, W having the covariance Σ of the SDE, with the share θ from 0 to 1.

    θ = 0 is the flow and θ = 1 the SDE. As b − v = ½∇·Σ + ½Σ∇log ρ, what the drift gathers the noise spreads again, and
    ρ_t is the same for all θ. A flow at rest has nothing that leads an error back to where the data is; a little of the
    drift does. Without `noise` the drift's part is no longer balanced: a *leaning* flow, whose law is too narrow.
    """

    velocity: Velocity
    drift: Velocity
    share: float
    noise: Noise | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"`share` must be from 0 (the flow) to 1 (the SDE); got {self.share}.")

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
        noise of its duration before each and half after it [Strang]; order 2 in law. A new draw at each call."""
        times = torch.as_tensor(times, dtype=torch.float64)
        x, made = x0, [x0]
        for start, end in pairwise(times):
            for t in torch.linspace(float(start), float(end), substeps + 1, dtype=torch.float64).unfold(0, 2, 1):
                x = self._step(x, t, method, generator)
            made.append(x)
        return Trajectories(torch.stack(made, dim=1), times.to(x0.device))

    def leaning(self, x: Tensor, t: Tensor) -> Tensor:
        """v + θ(b − v), (n, *state)."""
        return self.drift(x, t) if self.share == 1 else torch.lerp(self.velocity(x, t), self.drift(x, t), self.share)

    def carried(self, x: Tensor, t: Tensor, *, method: str = "rk4") -> Tensor:
        """States (n, *state) after one step of `method` along `leaning` from the first to the last of `t`, no noise."""
        return Flow(self.leaning).generate(x, t, method=method).states[:, -1]

    def _step(self, x: Tensor, t: Tensor, method: str, generator: torch.Generator | None) -> Tensor:
        half = float(t[1] - t[0]) / 2
        return self._stirred(self.carried(self._stirred(x, half, generator), t, method=method), half, generator)

    def _stirred(self, x: Tensor, h: float, generator: torch.Generator | None) -> Tensor:
        return x if self.noise is None else x + math.sqrt(self.share) * self.noise(x, h, generator)


@dataclass(frozen=True)
class Balanced(Between):
    """x′ = Φ(x) + n, with Φ one step along v + θ(b − v) and the noise n that gives back what Φ takes.

    √θ dW belongs to the exact v and b and to short steps. Those that were learnt, followed over an interval that is not
    short, take something else from each wave than that noise returns, and the spectrum drifts away. Here the noise is
    what the data says is missing [`FieldNoise.of_balance`]: E|x̂′|² = E|Φ̂(x)|² + E|n̂|² in each shell of waves. As n is
    independent of x, one step then keeps the spectrum of the data, however good v and b are.
    """

    def _step(self, x: Tensor, t: Tensor, method: str, generator: torch.Generator | None) -> Tensor:
        x = self.carried(x, t, method=method)
        return x if self.noise is None else x + self.noise(x, float(t[1] - t[0]), generator)
