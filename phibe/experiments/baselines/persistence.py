"""Forecasts without training: persistence, and extrapolation by the last observed velocity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phibe.trajectories import Trajectories


class Persistence:
    """x(t) = x(t₀), the persistence forecast. A frame of `history` (n, *state), or the last of (n, past, *state)."""

    evaluations = 0.0

    def __init__(self, state_shape: tuple[int, ...]):
        self.state_shape = tuple(state_shape)

    def generate(
        self, history: Tensor, times: Any, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> Trajectories:
        last = history if history.shape[1:] == self.state_shape else history[:, -1]
        return Trajectories(last[:, None].repeat(1, len(times), *[1] * len(self.state_shape)), times)


class ConstantVelocity:
    """x(t) = x(t₀) + (t − t₀)(x(t₀) − x(t₀ − Δt))/Δt, from the last two frames of `history` (n, past, *state)."""

    evaluations = 0.0

    def __init__(self, step: float):
        self.step = step

    def generate(
        self, history: Tensor, times: Any, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> Trajectories:
        if history.ndim < 3 or history.shape[1] < 2:
            raise ValueError(f"`history` must be (n, two frames or more, *state); got {tuple(history.shape)}.")
        times = torch.as_tensor(times, dtype=torch.float64)
        last, velocity = history[:, -1], (history[:, -1] - history[:, -2]) / self.step
        elapsed = (times - times[0]).to(last).reshape(-1, *[1] * (last.ndim - 1))
        return Trajectories(last[:, None] + elapsed * velocity[:, None], times)
