"""Nudges: training that teaches the way back, each sample starting a little beside the path it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from phibe.training.config import FitConfig
from phibe.training.objective import Loss
from phibe.training.tasks import Around, Result, Task
from phibe.trajectories import Trajectories


class Placed(Task[Result], Protocol[Result]):
    """A task whose samples start from one of their observations, the `place`-th."""

    @property
    def place(self) -> int: ...


@dataclass(frozen=True)
class Nudged(Around[Result]):
    """A task whose samples start beside the observation, by ε ~ N(0, (`size` · s)²), s being the spread of the data.

    The observations before and after stay where they are, so a step ahead is Δx − ε: it also leads back. A regression
    on it finds E[Δx | x + ε] + σ²∇log p_σ, the second term being E[−ε | x + ε], the pull of the noisy data's density
    towards the data. Rollouts that stray a little are led back. (`input_noise` moves a sample as a whole, and teaches
    no way back.) The central difference of `symmetric` does not contain its place: it is smoothed, nothing more.
    """

    task: Placed[Result]
    size: float

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError(f"`size` must be above 0, in standard deviations of the data; got {self.size}.")

    def loss(self, typical: Trajectories, config: FitConfig) -> NudgedLoss:
        return NudgedLoss(self.task.loss(typical, config), self.task, self.size, typical.state_shape)


class NudgedLoss(Loss):
    """A loss of samples that start beside themselves."""

    def __init__(self, loss: Loss, task: Placed[Any], size: float, shape: tuple[int, ...]):
        super().__init__()
        self.loss, self.network, self.place, self.width = loss, loss.network, task.place, task.width
        self.size, self.shape = size, shape
        self.facts, self.jacobian, self.scale = loss.facts | {"nudged": size}, loss.jacobian, loss.scale

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Where to, in standard deviations (n, *state), and what the loss itself draws."""
        return torch.randn(n, *self.shape, generator=generator), *self.loss.draw(n, generator)

    def forward(self, *sample: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.width == 2:
            x, t, dx, dt, nudge, *drawn = sample
            moved = self.size * self.scale * nudge
            return self.loss(x + moved, t, dx - moved, dt, *drawn, generator=generator)
        x, t, dt, nudge, *drawn = sample
        at = torch.zeros(self.width, dtype=x.dtype, device=x.device)
        at[self.place] = self.size
        moved = at.reshape(-1, *[1] * (x.ndim - 2)) * (self.scale * nudge)[:, None]
        return self.loss(x + moved, t, dt, *drawn, generator=generator)
