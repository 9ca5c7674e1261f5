"""Moments: the sums over transitions that an affine fit needs, from one pass over data that need not fit in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class AffineMoments:
    """Sums over the transitions that start at each of `times`, with z = (x − shift, 1) and w = Δx.

    `count` (L,), `zz` = Σ z zᵀ (L, d+1, d+1), `wz` = Σ w zᵀ/Δt (L, d, d+1), `ww` = Σ w wᵀ/Δt (L, d, d); `shift` (d,).
    """

    times: Tensor
    shift: Tensor
    count: Tensor
    zz: Tensor
    wz: Tensor
    ww: Tensor
    interval: tuple[float, float]
    step: float
    dtype: torch.dtype

    def noise(self) -> float:
        """σ̂² = mean of |Δx|²/(d Δt), as `estimate_noise`."""
        return float(self.ww.diagonal(dim1=1, dim2=2).sum() / (self.count.sum() * self.ww.shape[1]))


def grid_moments(blocks: Iterable[Trajectories]) -> AffineMoments:
    """The moments of complete paths on one grid, in one pass at the speed of memory."""
    band: Band | None = None
    for block in blocks:
        band = band or Band(block)
        band.add(block)
    if band is None:
        raise ValueError("There is no block of paths to fit: the iterable was empty. Was it used up by an earlier fit?")
    return band.moments()


class Band:
    """Running sums Σ x_t, Σ x_t x_tᵀ and Σ x_t x_{t+1}ᵀ: all that the affine fit needs of complete paths on one grid.

    The products stand in the band of the Gram matrix of a path seen as one long row; a few times at once, with one time
    of overlap, make a small dense product that BLAS does well. The sums are of float64 whatever the data's type, around
    a `shift`, so that small increments of large states survive the differences.
    """

    def __init__(self, first: Trajectories):
        self.times, self.paths, self.dtype = first.times, 0, first.states.dtype
        self.d = first.states[0, 0].numel()
        self.width = max(1, 6 // self.d)
        self.strips = -(-(len(self.times) - 1) // self.width)
        self.span = max(1, 4096 // (self.width * self.d))  # fewer, larger pieces: fewer waits between threads
        self.shift = first.states[:256].double().flatten(2).mean(dim=(0, 1))
        side = (self.width + 1) * self.d
        self.gram = torch.zeros(self.strips, side, side, dtype=torch.float64)
        self.sums = torch.zeros(len(self.times), self.d, dtype=torch.float64)
        self.buffer = torch.empty(256, (self.span * self.width + 1) * self.d, dtype=torch.float64)
        self.shifts = self.shift.repeat(self.span * self.width + 1)
        self.ones = torch.ones(len(self.buffer), dtype=torch.float64)

    def add(self, block: Trajectories) -> None:
        if block.lengths is not None or not torch.equal(block.times, self.times):
            raise ValueError(
                "All blocks must be complete paths on the same times. Fit one `Trajectories` object instead."
            )
        for chunk in block.states.flatten(2).split(len(self.buffer)):
            for first in range(0, self.strips, self.span):
                self._add_piece(chunk, first, min(self.span, self.strips - first))
            self.paths += len(chunk)

    def _add_piece(self, chunk: Tensor, first: int, strips: int) -> None:
        """Add a few strips of a few paths, small enough to stay in cache: chunk (n, time, d)."""
        start, end = first * self.width, (first + strips) * self.width
        piece = chunk[:, start : end + 1]
        n, steps = piece.shape[:2]
        rows = self.buffer[:n, : (end + 1 - start) * self.d]
        rows[:, steps * self.d :] = 0.0
        rows = rows[:, : steps * self.d].copy_(piece.flatten(1)).sub_(self.shifts[: steps * self.d])
        last = steps if first + strips == self.strips else steps - 1
        self.sums[start : start + last].view(-1).addmv_(rows[:, : last * self.d].mT, self.ones[:n])
        view = rows.as_strided((strips, n, self.gram.shape[1]), (self.width * self.d, rows.stride(0), 1))
        gram = self.gram[first : first + strips]
        torch.baddbmm(gram, view.mT, view, out=gram)

    def moments(self) -> AffineMoments:
        same, cross, after = self._products(0, 0), self._products(0, 1), self._products(1, 1)
        dt = self.times.diff()[:, None, None]
        count = torch.full((len(self.times) - 1,), float(self.paths), dtype=torch.float64)
        column = self.sums[:-1, :, None]
        zz = torch.cat([torch.cat([same, column], 2), torch.cat([column.mT, count[:, None, None]], 2)], 1)
        wz = torch.cat([cross.mT - same, self.sums.diff(dim=0)[:, :, None]], 2) / dt
        ww = (after - cross - cross.mT + same) / dt
        span = (float(self.times[0]), float(self.times[-1]))
        return AffineMoments(self.times[:-1], self.shift, count, zz, wz, ww, span, float(dt.median()), self.dtype)

    def _products(self, i: int, j: int) -> Tensor:
        """Σ x_{t+i} x_{t+j}ᵀ for every t but the last: (time − 1, d, d)."""
        blocks = self.gram.reshape(self.strips, self.width + 1, self.d, self.width + 1, self.d)
        products = torch.stack([blocks[:, k + i, :, k + j] for k in range(self.width)], 1)
        return products.flatten(0, 1)[: len(self.times) - 1]


def grouped_moments(data: Trajectories) -> AffineMoments:
    """The moments of any data: transitions are grouped by the exact time at which they start."""
    d = data.states[0, 0].numel()
    times = data._path_times()[:, :-1][data._observed(2)].unique()
    shift = data.states[:, 0].double().flatten(1).mean(0)
    parts = [(len(times),), (len(times), d + 1, d + 1), (len(times), d, d + 1), (len(times), d, d)]
    count, zz, wz, ww = (torch.zeros(shape, dtype=torch.float64) for shape in parts)
    for chunk in data.chunks():
        inside, dt = chunk._observed(2), chunk._path_times().diff(dim=1)
        group = torch.searchsorted(times, chunk._path_times()[:, :-1][inside].contiguous())
        x, _, w, _ = chunk.pairs()
        z = torch.nn.functional.pad(x.double().flatten(1) - shift, (0, 1), value=1.0)
        w, dt = w.double().flatten(1), dt[inside][:, None, None]
        count.index_add_(0, group, torch.ones(len(z), dtype=torch.float64))
        zz.index_add_(0, group, z[:, :, None] * z[:, None, :])
        wz.index_add_(0, group, w[:, :, None] * z[:, None, :] / dt)
        ww.index_add_(0, group, w[:, :, None] * w[:, None, :] / dt)
    if float(count.median()) < d + 1:
        raise ValueError(
            f"An affine field at each time needs {d + 1} or more transitions that start there; half of the "
            f"{len(times)} different times have {int(count.median())} or fewer. Pass `knots`, e.g. "
            f"`knots=torch.linspace({data.interval[0]:g}, {data.interval[1]:g}, 20)`."
        )
    return AffineMoments(times, shift, count, zz, wz, ww, data.interval, typical_step(data), data.states.dtype)


def typical_step(data: Trajectories) -> float:
    return (
        float(data._path_times().diff(dim=1)[data._observed(2)].median())
        if not data.shared_times
        else float(data.times.diff().median())
    )
