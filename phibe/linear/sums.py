"""Sums: all that a closed form needs of the data, added up for parts of it and merged in any order.

Of a velocity linear in its parameters, v = Σ θ_ℓ ψ_ℓ, the mean of ‖v‖² − 2 v·u − Σ q dᵀ(∇v)d over the samples is
θᵀHθ − 2c·θ, with H the mean of ΨᵀΨ and c that of ψ_ℓ·u + ½ Σ q dᵀ(∇ψ_ℓ)d   [paper: fixed linear-basis models]. For
fields φ_k e_i, features times unit vectors, that is one system for all coordinates, with Σ φφᵀ and
Σ [φ uᵀ + ½ Σ q (∇φ·d) dᵀ]; with φ = (x, 1) at one time it is the paper's for an affine field. Read next:
`phibe.linear.basis`, then `phibe.linear.affine`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from phibe.bases import Basis, InTime, Lifted
from phibe.calculus import along, place_between, times
from phibe.objectives import Stencil, find_objective
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class Sums:
    """Sums over the places of each of G groups, in float64, with K features and m columns.

    `gram` = Σ φφᵀ (G, K, K), `target` = Σ φ uᵀ and `spread` = ½ Σ q (∇φ·d) dᵀ (G, K, m). A basis that is not of the
    form φ_k e_i has fields for features, one row for each coordinate, and m = 1. `counts` (G, 2) are the weights of
    the places that are the first of their stencil, and of the others.

    The groups are the times of `keys` (G,), or the stretches between knots with the two hats that are not zero there,
    so that neighbours share half of their features, or one. Features (x − shift, 1) are kept around a `shift` (d,),
    empty for all others, so that small increments of large states survive. `step` is the least of those of the parts.
    """

    keys: Tensor
    counts: Tensor
    gram: Tensor
    target: Tensor
    spread: Tensor
    shift: Tensor
    interval: tuple[float, float]
    step: float
    dtype: torch.dtype

    def merge(self, other: Sums) -> Sums:
        """Those of both parts of the data: associative, and the order does not matter but for rounding."""
        other = other.around(self.shift)
        keys, group = torch.cat([self.keys, other.keys]).unique(return_inverse=True)
        parts: dict[str, Any] = {}
        for name in ADDED:
            both = torch.cat([getattr(self, name), getattr(other, name)])
            parts[name] = both.new_zeros(len(keys), *both.shape[1:]).index_add_(0, group, both)
        interval = min(self.interval[0], other.interval[0]), max(self.interval[1], other.interval[1])
        step, dtype = min(self.step, other.step), torch.promote_types(self.dtype, other.dtype)
        return replace(self, keys=keys, interval=interval, step=step, dtype=dtype, **parts)

    def around(self, shift: Tensor) -> Sums:
        """The same sums with the features (x − shift, 1) around another shift."""
        if torch.equal(shift, self.shift):
            return self
        d = len(shift)
        move = torch.eye(d + 1, dtype=torch.float64)
        move[:d, d] = self.shift - shift
        move = torch.kron(torch.eye(self.gram.shape[1] // (d + 1), dtype=torch.float64), move)
        return replace(self, gram=move @ self.gram @ move.mT, target=move @ self.target, shift=shift)

    def between(self, knots: Tensor) -> Sums:
        """From times to stretches between knots: each time goes to the two hats that are not zero there."""
        left, share = place_between(self.keys, knots)
        here, hats = [left == k for k in range(len(knots) - 1)], torch.stack([1 - share, share], dim=1)
        parts: dict[str, Any] = {
            name: torch.stack([torch.einsum("ta,tim->aim", hats[i], part[i]).flatten(0, 1) for i in here])
            for name, part in (("target", self.target), ("spread", self.spread))
        }
        gram = [torch.einsum("ta,tb,tij->aibj", hats[i], hats[i], self.gram[i]).flatten(2).flatten(0, 1) for i in here]
        counts = torch.stack([self.counts[i].sum(0) for i in here])
        keys = torch.arange(len(here), dtype=torch.float64)
        return replace(self, keys=keys, counts=counts, gram=torch.stack(gram), **parts)

    def equations(self) -> tuple[Tensor, Tensor]:
        """G and M of the normal equations G θ = M over all groups: (p, p), (p, m)."""
        return assembled(self.gram, self.target + self.spread)


FORWARD_MODE = Lock()
"""Torch keeps one level of forward-mode differentiation for a whole process: the threads of an executor take turns."""

ADDED = ("counts", "gram", "target", "spread")
"""What is added up when sums are merged."""


def assembled(gram: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """One system from those of the stretches, (…, G, K, K) and (…, G, K, m), whose neighbours share half of theirs."""
    groups, half = gram.shape[-3], gram.shape[-1] // 2
    if groups == 1:
        return gram[..., 0, :, :], moment[..., 0, :, :]
    size, batch = (groups + 1) * half, gram.shape[:-3]
    whole, side = gram.new_zeros(*batch, size, size), moment.new_zeros(*batch, size, moment.shape[-1])
    for k in range(groups):
        here = slice(k * half, (k + 2) * half)
        whole[..., here, here] += gram[..., k, :, :]
        side[..., here, :] += moment[..., k, :, :]
    return whole, side


def merged(parts: Iterable[Sums], objective: str) -> Sums:
    """Of all the parts, one after the other, at least one of them with something to say."""
    parts = iter(parts)
    if (first := next(parts, None)) is None:
        raise ValueError("There is no block of paths to fit: the iterable was empty. Was it used up by an earlier fit?")
    whole = reduce(Sums.merge, parts, first)
    if not (whole.counts > 0).any():
        raise ValueError(f"No path has the {find_objective(objective).width} observations that `{objective}` looks at.")
    return whole


@torch.no_grad()
def sums(
    data: Trajectories,
    basis: Basis,
    objective: str,
    *,
    noise: float | None = None,
    weighted: bool = False,
    by_time: bool = False,
    dtype: torch.dtype | None = None,
) -> Sums:
    """What an objective says of a basis over the data; `weighted` by what the objective says that a sample weighs.

    Stencils are taken in float64, the basis in `dtype` (default: that of the data). `by_time` asks for a group for each
    time that is seen. Paths that are too short for the objective add nothing.
    """
    kind, design = find_objective(objective), Design(basis, by_time, dtype or data.states.dtype)
    options = {"noise": noise, "exact": True} if kind.noise else {}
    x, t = data.states[:1, 0].double(), data.times.reshape(-1)[:1]
    total = Sums(  # of one place with weight zero: the shapes
        **design.add(Stencil(x, t, x), torch.zeros_like(t), 1),
        shift=design.shift,
        interval=data.interval,
        step=data.typical_step,
        dtype=data.states.dtype,
    )
    if data.states.shape[1] < kind.width:
        return total
    for chunk in data.chunks(megabytes=3 * total.target.shape[2] / total.gram.shape[2]):
        sample = kind.samples(chunk.to(torch.float64))
        if count := len(sample[0]):
            stencil = kind.stencil(*sample, **options)
            weight = kind.weights(*sample) if weighted else torch.ones(count, dtype=torch.float64)
            weight = weight.repeat(len(stencil.t) // count)
            total = total.merge(replace(total, **design.add(stencil, weight, count)))
    return total


class Design:
    """How a basis is summed: the features of its fields φ_k e_i alone, and of a basis in time two hats at each time."""

    def __init__(self, basis: Basis, by_time: bool, dtype: torch.dtype):
        self.lifted, self.by_time, self.dtype = isinstance(basis, Lifted), by_time, dtype
        self.values: Any = basis.features if isinstance(basis, Lifted) else basis
        self.knots: Tensor | None = None
        if self.lifted and isinstance(self.values, InTime) and len(self.values.knots) > 1:
            self.knots, self.values = self.values.knots, self.values.features
        self.shift = getattr(self.values, "shift", torch.empty(0, dtype=torch.float64))

    def add(self, stencil: Stencil, weight: Tensor, count: int) -> dict[str, Any]:
        """What is added up over some places (m,), of which `count` are the first of their stencil."""
        x, t, u, directions = stencil
        place, s = x.to(self.dtype), t.to(self.dtype)
        keys, group, hats = self._groups(t)
        outer = _Outer(group, len(keys))

        def rows(values: Tensor) -> Tensor:
            """(m, K) of features, (m, p, *state) of fields → a row for each place, or for each coordinate of it."""
            if not self.lifted:
                return values.double().flatten(2).mT.flatten(0, 1)
            return values.double() if hats is None else (hats[:, :, None] * values.double()[:, None]).flatten(1)

        def sides(w: Tensor) -> Tensor:
            w = times(w, weight)
            return w.flatten(1) if self.lifted else w.reshape(-1, 1)

        values, right = self.values(place, s), sides(u)
        if not self.lifted and (values.ndim < 3 or values.shape[2:] != x.shape[1:]):
            got = f"{tuple(values.shape)} of states {tuple(x.shape)}"
            raise ValueError(f"A basis must return (n, p, *state); got {got}. Scalar features? `lift(features)`.")
        phi = rows(values)
        heavy = phi * weight.repeat_interleave(len(phi) // len(t))[:, None]
        gram, target = outer(phi, torch.cat([heavy, right], 1)).split([phi.shape[1], right.shape[1]], 2)
        spread = torch.zeros_like(target)
        for q, d in directions:
            with FORWARD_MODE:
                slope = along(lambda z: self.values(z, s), place, d.to(self.dtype))[1]
            spread += outer(rows(slope), sides(times(d, 0.5 * q)))
        counts = torch.zeros(2 * len(keys), dtype=torch.float64)
        other = (torch.arange(len(t)) >= count).long()
        counts.index_add_(0, 2 * group + other, weight)
        return {"keys": keys, "counts": counts.reshape(-1, 2), "gram": gram, "target": target, "spread": spread}

    def _groups(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The keys, which of them each place belongs to (m,), and its two hats (m, 2) if it lies between knots."""
        if self.by_time:
            return *t.unique(return_inverse=True), None
        if self.knots is None:
            return torch.zeros(1, dtype=torch.float64), torch.zeros_like(t, dtype=torch.long), None
        left, share = place_between(t, self.knots)
        return torch.arange(len(self.knots) - 1).double(), left, torch.stack([1 - share, share], dim=1).double()


class _Outer:
    """Σ a bᵀ over each of `count` groups: (m, p), (m, q) → (count, p, q), by dense products where they are few or
    repeat in one order. With one group there may be more rows than places."""

    def __init__(self, group: Tensor, count: int):
        self.group, self.count = group, count
        self.regular = count > 1 and len(group) % count == 0
        self.regular = self.regular and torch.equal(group, torch.arange(count).repeat(len(group) // count))
        self.members = [(group == k).nonzero()[:, 0] for k in range(count)] if 1 < count <= 32 else []

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if self.count == 1:
            return (a.mT @ b)[None]
        if self.regular:
            a, b = (part.reshape(-1, self.count, part.shape[1]) for part in (a, b))
            return torch.einsum("ntp,ntq->tpq", a, b)
        if self.members:
            return torch.stack([a[rows].mT @ b[rows] for rows in self.members])
        total = torch.zeros(self.count, a.shape[1], b.shape[1], dtype=torch.float64)
        return total.index_add_(0, self.group, a[:, :, None] * b[:, None, :])


class Centred:
    """The features (x − shift, 1) of an affine field."""

    def __init__(self, shift: Tensor):
        self.shift = shift

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.nn.functional.pad(x.flatten(1) - self.shift, (0, 1), value=1.0)


# -- complete paths on one grid ----------------------------------------------------------------------------------------


class Band:
    """Running sums Σ x_t, Σ x_t x_tᵀ and Σ x_t x_{t+1}ᵀ: all that the affine fit needs of complete paths on one grid.

    The products stand in the band of the Gram matrix of a path seen as one long row; a few times at once, with one time
    of overlap, make a small dense product that BLAS does well. Sums are in float64, around a `shift`.
    """

    def __init__(self, data: Trajectories, shift: Tensor):
        self.data, self.shift, self.d, self.times = data, shift, len(shift), data.times
        self.width = max(1, 6 // self.d)
        self.strips = -(-(len(self.times) - 1) // self.width)
        self.span = max(1, 4096 // (self.width * self.d))  # fewer, larger pieces: fewer waits between threads
        side = (self.width + 1) * self.d
        self.gram = torch.zeros(self.strips, side, side, dtype=torch.float64)
        self.total = torch.zeros(len(self.times), self.d, dtype=torch.float64)
        self.buffer = torch.empty(256, (self.span * self.width + 1) * self.d, dtype=torch.float64)
        self.shifts = self.shift.repeat(self.span * self.width + 1)
        self.ones = torch.ones(len(self.buffer), dtype=torch.float64)
        for chunk in data.states.flatten(2).split(len(self.buffer)):
            for first in range(0, self.strips, self.span):
                self._add(chunk, first, min(self.span, self.strips - first))

    def _add(self, chunk: Tensor, first: int, strips: int) -> None:
        """Add a few strips of a few paths, small enough to stay in cache: chunk (n, time, d)."""
        start, end = first * self.width, (first + strips) * self.width
        piece = chunk[:, start : end + 1]
        n, steps = piece.shape[:2]
        rows = self.buffer[:n, : (end + 1 - start) * self.d]
        rows[:, steps * self.d :] = 0.0
        rows = rows[:, : steps * self.d].copy_(piece.flatten(1)).sub_(self.shifts[: steps * self.d])
        last = steps if first + strips == self.strips else steps - 1
        self.total[start : start + last].view(-1).addmv_(rows[:, : last * self.d].mT, self.ones[:n])
        view = rows.as_strided((strips, n, self.gram.shape[1]), (self.width * self.d, rows.stride(0), 1))
        gram = self.gram[first : first + strips]
        torch.baddbmm(gram, view.mT, view, out=gram)

    def sums(self) -> Sums:
        """Of `phibe`: u = Δx/Δt and q d dᵀ = Δx Δxᵀ/Δt."""
        same, cross, after = self._products(0, 0), self._products(0, 1), self._products(1, 1)
        dt, data = self.times.diff()[:, None, None], self.data
        counts = torch.tensor([len(data), 0.0], dtype=torch.float64).repeat(len(dt), 1)
        column = self.total[:-1, :, None]
        gram = torch.cat([torch.cat([same, column], 2), torch.cat([column.mT, counts[:, :1, None]], 2)], 1)
        target = torch.cat([cross - same, self.total.diff(dim=0)[:, None]], 1) / dt
        spread = torch.nn.functional.pad(0.5 * (after - cross - cross.mT + same) / dt, (0, 0, 0, 1))
        facts = data.interval, data.typical_step, data.states.dtype
        return Sums(self.times[:-1], counts, gram, target, spread, self.shift, *facts)

    def _products(self, i: int, j: int) -> Tensor:
        """Σ x_{t+i} x_{t+j}ᵀ for every t but the last: (time − 1, d, d)."""
        blocks = self.gram.reshape(self.strips, self.width + 1, self.d, self.width + 1, self.d)
        products = torch.stack([blocks[:, k + i, :, k + j] for k in range(self.width)], 1)
        return products.flatten(0, 1)[: len(self.times) - 1]
