"""Moments: the sums over transitions that an affine fit needs, from one pass over data that need not fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from phibe.objectives import Objective, find_objective
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class AffineMoments:
    """Sums over the places at each of `times`, with z = (x − shift, 1), targets u and weighted directions q, d.

    `count` (L,), `zz` = Σ z zᵀ (L, d+1, d+1), `wz` = Σ u zᵀ (L, d, d+1), `ww` = Σ q d dᵀ (L, d, d); `shift` (d,). Of
    transitions Δx, u = Δx/Δt and ww = Σ Δx Δxᵀ/Δt.
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
    """The moments of the transitions of complete paths on one grid, in one pass at the speed of memory."""
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


def grouped_moments(blocks: Iterable[Trajectories], objective: str = "phibe") -> AffineMoments:
    """The moments of any data and any objective: what the samples say is grouped by the exact time of their place.

    Of an objective that looks from both ends of a transition, only times seen from both sides are kept.
    """
    sums: Sums | None = None
    interval, step, dtype = (math.inf, -math.inf), 0.0, torch.float64
    for block in blocks:
        for chunk in block.chunks(megabytes=8):
            shift = chunk.states[:, 0].double().flatten(1).mean(0) if sums is None else sums.shift
            part = _grouped(chunk.to(torch.float64), find_objective(objective), shift)
            sums = part if sums is None else sums.plus(part)
        interval = min(interval[0], block.interval[0]), max(interval[1], block.interval[1])
        step, dtype = block.typical_step, block.states.dtype
    if sums is None:
        raise ValueError("There is no block of paths to fit: the iterable was empty. Was it used up by an earlier fit?")
    both = (sums.counts > 0).all(1)
    if not both.any():
        raise ValueError(
            f"`{objective}` needs times that some transitions start from and others end at; there are none. Pass "
            "`knots` to fit a field that is piecewise linear in time, or take objective 'phibe'."
        )
    times, count, zz, wz, ww = (part[both] for part in (sums.times, sums.counts.sum(1), sums.zz, sums.wz, sums.ww))
    if float(count.median()) < zz.shape[1]:
        raise ValueError(
            f"An affine field at each time needs {zz.shape[1]} or more samples there; half of the {len(times)} "
            f"different times have {int(count.median())} or fewer. Pass `knots`, e.g. "
            f"`knots=torch.linspace({interval[0]:g}, {interval[1]:g}, 20)`."
        )
    return AffineMoments(times, sums.shift, count, zz, wz, ww, interval, step, dtype)


@dataclass(frozen=True)
class Sums:
    """The moments of some samples, with `counts` (L, places): how many there are of each place of the stencil."""

    times: Tensor
    shift: Tensor
    counts: Tensor
    zz: Tensor
    wz: Tensor
    ww: Tensor

    def plus(self, other: Sums) -> Sums:
        times, group = torch.cat([self.times, other.times]).unique(return_inverse=True)
        mine, theirs = ((s.counts, s.zz, s.wz, s.ww) for s in (self, other))
        both = (torch.cat(parts) for parts in zip(mine, theirs, strict=True))
        return Sums(
            times,
            self.shift,
            *(part.new_zeros(len(times), *part.shape[1:]).index_add_(0, group, part) for part in both),
        )


def _grouped(chunk: Trajectories, objective: Objective, shift: Tensor) -> Sums:
    """The moments of one chunk of paths in float64."""
    sample = objective.samples(chunk)
    x, t, u, directions = objective.stencil(*sample)
    times, group = t.unique(return_inverse=True)
    places = len(t) // len(sample.x)
    place = torch.arange(len(t)) // len(sample.x)
    counts = torch.zeros(len(times) * places, dtype=torch.float64)
    counts.index_add_(0, group * places + place, torch.ones_like(t))
    z = torch.nn.functional.pad(x.flatten(1) - shift, (0, 1), value=1.0)
    zz, wz = _outer(z, z, group, len(times)), _outer(u.flatten(1), z, group, len(times))
    ww = torch.zeros_like(zz[:, :-1, :-1])
    for q, d in directions:
        ww += _outer(q[:, None] * d.flatten(1), d.flatten(1), group, len(times))
    return Sums(times, shift, counts.reshape(-1, places), zz, wz, ww)


def _outer(a: Tensor, b: Tensor, group: Tensor, count: int) -> Tensor:
    """Σ a bᵀ over each group: (m, p), (m, q) → (count, p, q); of groups that repeat in one order, by dense products."""
    if len(group) % count == 0 and torch.equal(group, torch.arange(count).repeat(len(group) // count)):
        return torch.einsum("ntp,ntq->tpq", a.reshape(-1, count, a.shape[1]), b.reshape(-1, count, b.shape[1]))
    total = torch.zeros(count, a.shape[1], b.shape[1], dtype=torch.float64)
    return total.index_add_(0, group, a[:, :, None] * b[:, None, :])
