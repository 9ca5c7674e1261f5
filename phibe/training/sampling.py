"""Sampling: which observations make up the batch of a step, as a function of the seed and the step alone.

Nothing is remembered between batches: a run resumes exactly, and any number of processes sees the same batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phibe.calculus import rademacher
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS
from phibe.trajectories import Trajectories, split_paths

WINDOW, MEGABYTES, BLOCKS = 2**20, 256, 64
"""Samples shuffled at once: at most this many, of at most these megabytes, gathered from that many places."""


def seed_of(*key: int) -> int:
    """A seed for torch from several numbers, e.g. (seed, purpose, step): a well-mixed hash of them."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


class Samples:
    """The runs of `width` neighbouring observations of some `paths`, by number; nothing is copied until it is taken."""

    def __init__(self, data: Trajectories, *, width: int = 2, paths: Tensor | None = None):
        self.data, self.width = data, width
        self.paths = torch.arange(len(data)) if paths is None else paths
        self.counts = (data._ends.cpu()[self.paths] - width + 1).clamp(min=0)
        self.ends = self.counts.cumsum(0)
        if not len(self):
            raise ValueError(f"There is no run of {width} observations in these {len(self.paths)} paths.")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def where(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Path and first time index of each sample."""
        k = torch.searchsorted(self.ends, index, right=True)
        return self.paths[k], index - self.ends[k] + self.counts[k]

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        """What an objective is called with: x, t, dx, dt of transitions; of other runs x (n, width, *state), t and dt.

        Times and their differences are float64, states of the data's own type.
        """
        path, time = (part.to(self.data.states.device) for part in self.where(index))
        if self.width == 2:
            x, t = self._observed(path, time)
            later, end = self._observed(path, time + 1)
            return x, t, later - x, end - t
        x, t = self._observed(path[:, None], time[:, None] + torch.arange(self.width, device=time.device))
        return x, t, t.diff(dim=1)

    def _observed(self, path: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        times = self.data.times
        return self.data.states[path, time], times[time] if times.ndim == 1 else times[path, time]

    def some(self, count: int, *, seed: int) -> Tensor:
        """At most `count` of the samples at random, in order."""
        generator = torch.Generator().manual_seed(seed)
        if count >= len(self):
            return torch.arange(len(self))
        return torch.randint(len(self), (count,), generator=generator).sort().values

    def order(self, seed: int) -> Order:
        """The endless order in which training reads these samples."""
        size = self.data.states[0, 0].numel() * self.data.states.element_size()
        return Order(len(self), seed=seed, window=max(BLOCKS, min(WINDOW, MEGABYTES * 2**20 // size)))


class Order:
    """An endless stream of the numbers 0 … count − 1, every epoch each of them once, read at any place.

    Up to `window` numbers are shuffled as a whole. More are cut into blocks of neighbours, the blocks shuffled, and
    `BLOCKS` of them at a time mixed: near one place of the stream all reads fall into a few parts of the data.
    """

    def __init__(self, count: int, *, seed: int, window: int = WINDOW):
        self.count, self.seed = count, seed
        self.blocks = 1 if count <= window else -(-count * BLOCKS // window)
        self._epoch = lru_cache(maxsize=2)(self._shuffle_blocks)
        self._window = lru_cache(maxsize=2)(self._shuffle_window)

    def __getitem__(self, places: slice) -> Tensor:
        """The numbers at those places of the stream, e.g. `order[step * batch : (step + 1) * batch]`."""
        parts, place = [], places.start or 0
        while place < places.stop:
            epoch, inside = divmod(place, self.count)
            starts = self._epoch(epoch)[1]
            k = int(np.searchsorted(starts, inside, side="right")) - 1
            part = self._window(epoch, k)[inside - starts[k] :][: places.stop - place]
            parts.append(part)
            place += len(part)
        return torch.from_numpy(np.concatenate(parts))

    def _shuffle_blocks(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks in the order of this epoch, and the place where each window begins."""
        blocks = self._generator(epoch, 0).permutation(self.blocks)
        sizes = self._bound(blocks + 1) - self._bound(blocks)
        return blocks, np.concatenate([[0], sizes.cumsum()])[: self.blocks : BLOCKS]

    def _shuffle_window(self, epoch: int, k: int) -> np.ndarray:
        blocks = self._epoch(epoch)[0][k * BLOCKS : (k + 1) * BLOCKS]
        bounds = zip(self._bound(blocks).tolist(), self._bound(blocks + 1).tolist(), strict=True)
        members = np.concatenate([np.arange(first, last) for first, last in bounds])
        return self._generator(epoch, k + 1).permutation(members)

    def _bound(self, block: np.ndarray) -> np.ndarray:
        return block * self.count // self.blocks

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, *key))))


def split_samples(
    data: Trajectories, held_out: Trajectories | None, width: int, config: FitConfig
) -> tuple[Samples, Samples | None]:
    """Training and held-out samples, of the width that the task asks for (2 observations: a transition)."""
    if held_out is not None:
        if not isinstance(held_out, Trajectories):
            raise ValueError(f"`held_out` takes trajectories; a share is `FitConfig(held_out={held_out})`.")
        if held_out.state_shape != data.state_shape:
            raise ValueError(f"`held_out` has states {held_out.state_shape}; the training data has {data.state_shape}.")
        return Samples(data, width=width), Samples(held_out, width=width)
    if config.held_out == 0:
        if config.patience:
            raise ValueError("`patience` waits for the held-out objective, but `held_out` is 0. Hold some paths out.")
        return Samples(data, width=width), None
    train, held = split_paths(len(data), config.held_out, seed=config.seed)
    return Samples(data, width=width, paths=train), Samples(data, width=width, paths=held)


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
            wanted = f"processes × micro-batches, here {devices.world_size} × {config.micro_batches}"
            fix = f"Try {-(-config.batch // shares) * shares}."
            raise ValueError(f"`batch` must be a multiple of {wanted}; got {config.batch}. {fix}")
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
        config, taken = self.config, self.samples.take(self.index(step)[self.mine])
        x, *rest = (part.to(self.dtype).to(self.device) for part in taken)
        if config.input_noise:
            shape, generator = self.samples.data.state_shape, self._generator(INPUT, step)
            normal = torch.randn(config.batch, *shape, generator=generator, dtype=self.dtype)[self.mine]
            shift = config.input_noise * self.scale * normal.to(self.device)
            x = x + shift.reshape(len(x), *[1] * (self.samples.width != 2), *shift.shape[1:])
        drawn = self.draw(config.batch, self._generator(DRAWN, step))
        return x, *rest, *(part[self.mine].to(self.dtype).to(self.device) for part in drawn)

    def probes(self, step: int) -> torch.Generator:
        """The generator of the step's random directions, moved on past those of the processes before this one."""
        generator = self._generator(PROBES, step, self.device)
        if self.mine.start:
            rademacher(torch.empty(self.mine.start, *self.samples.data.state_shape, device=self.device), generator)
        return generator

    def _generator(self, purpose: int, step: int, device: torch.device | None = None) -> torch.Generator:
        return torch.Generator(device or "cpu").manual_seed(seed_of(self.config.seed, purpose, step))
