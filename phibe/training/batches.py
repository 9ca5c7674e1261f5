"""Batches: the samples of each step, this process's share of them, with the random numbers that belong to the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phibe.calculus import rademacher
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS
from phibe.training.sampling import Samples, seed_of

PROBES, INPUT, DRAWN = 1, 2, 3
"""Purposes of random numbers, each with its own stream."""

Draw = Callable[[int, torch.Generator], tuple[Tensor, ...]]


class Batches:
    """Everything here is a function of the seed and the step; several processes take slices of the same batch.

    `scale` is that of the states, for `input_noise`; `draw` makes the random numbers that a loss asks for.
    """

    def __init__(
        self,
        samples: Samples,
        config: FitConfig,
        devices: Any,
        *,
        scale: Tensor | float = 1.0,
        draw: Draw = lambda n, generator: (),
    ):
        shares = devices.world_size * config.micro_batches
        if config.batch % shares:
            raise ValueError(
                f"`batch` must be a multiple of processes × micro-batches, here {devices.world_size} × "
                f"{config.micro_batches}; got {config.batch}. Try {-(-config.batch // shares) * shares}."
            )
        self.samples, self.order, self.config, self.draw = samples, samples.order(config.seed), config, draw
        self.device, self.dtype = devices.device, PRECISIONS[config.precision]
        self.scale = torch.as_tensor(scale, device=self.device, dtype=self.dtype)
        share = config.batch // devices.world_size
        self.mine = slice(devices.global_rank * share, (devices.global_rank + 1) * share)

    def index(self, step: int) -> Tensor:
        """Numbers of all samples of the step's batch."""
        return self.order[step * self.config.batch : (step + 1) * self.config.batch]

    def sample(self, step: int) -> tuple[Tensor, ...]:
        """This process's share of the batch, and of what is drawn for it; `input_noise` moves a sample as a whole."""
        taken = self.samples.take(self.index(step)[self.mine])
        x, *rest = (part.to(self.dtype).to(self.device) for part in taken)
        if self.config.input_noise:
            shift = self.config.input_noise * self.scale * self._normal(step)
            x = x + shift.reshape(len(x), *[1] * (self.samples.width != 2), *shift.shape[1:])
        return x, *rest, *self._drawn(step)

    def _drawn(self, step: int) -> tuple[Tensor, ...]:
        drawn = self.draw(self.config.batch, torch.Generator().manual_seed(seed_of(self.config.seed, DRAWN, step)))
        return tuple(part[self.mine].to(self.dtype).to(self.device) for part in drawn)

    def _normal(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_of(self.config.seed, INPUT, step))
        numbers = torch.randn(self.config.batch, *self.samples.data.state_shape, generator=generator, dtype=self.dtype)
        return numbers[self.mine].to(self.device)

    def probes(self, step: int) -> torch.Generator:
        """The generator of the step's random directions, moved on past those of the processes before this one."""
        generator = torch.Generator(self.device).manual_seed(seed_of(self.config.seed, PROBES, step))
        if self.mine.start:
            rademacher(torch.empty(self.mine.start, *self.samples.data.state_shape, device=self.device), generator)
        return generator
