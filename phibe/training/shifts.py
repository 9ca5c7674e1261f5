"""Shifts: training on periodic fields whose law is the same everywhere, each sample moved to a random place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phibe.training.config import FitConfig
from phibe.training.objective import Loss
from phibe.training.tasks import Around, Result
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class Shifted(Around[Result]):
    """A task on fields (channels, height, width) that are periodic, with a law that no shift changes.

    Each time a sample is seen, all its observations are moved by the same random number of pixels around the torus: one
    film is as good as height × width of them, and no network can learn places by heart.
    """

    def loss(self, typical: Trajectories, config: FitConfig) -> ShiftedLoss:
        if len(typical.state_shape) != 3:
            raise ValueError(f"Shifts are for states (channels, height, width); got {typical.state_shape}.")
        return ShiftedLoss(self.task.loss(typical, config), self.width)


class ShiftedLoss(Loss):
    """A loss of samples that are moved first."""

    def __init__(self, loss: Loss, width: int):
        super().__init__()
        self.loss, self.network, self.width = loss, loss.network, width
        self.facts, self.jacobian, self.scale = loss.facts | {"shifted": True}, loss.jacobian, loss.scale

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Where to, as shares of height and width (n, 2), and what the loss itself draws."""
        return torch.rand(n, 2, generator=generator), *self.loss.draw(n, generator)

    def forward(self, *sample: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.width == 2:
            x, t, dx, dt, to, *drawn = sample
            return self.loss(shift(x, to), t, shift(dx, to), dt, *drawn, generator=generator)
        x, t, dt, to, *drawn = sample
        return self.loss(shift(x, to), t, dt, *drawn, generator=generator)


def shift(x: Tensor, to: Tensor) -> Tensor:
    """Fields (n, …, height, width), each moved around the torus by its own shares (n, 2) of the two sides."""
    fields = x.flatten(1, -3)
    number = torch.arange(len(x), device=x.device).reshape(-1, 1, 1, 1)
    layer = torch.arange(fields.shape[1], device=x.device).reshape(1, -1, 1, 1)
    down, right = (_around(side, share) for side, share in zip(x.shape[-2:], to.unbind(1), strict=True))
    return fields[number, layer, down[:, None, :, None], right[:, None, None, :]].reshape(x.shape)


def _around(side: int, share: Tensor) -> Tensor:
    """Which pixel comes to each place of a side, (n, side)."""
    places = torch.arange(side, device=share.device)
    return (places - (share * side).long()[:, None]) % side
