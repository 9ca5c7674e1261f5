"""Bases of linear fits: scalar features of (x, t), with weights that change in time, and lifted to vector fields.

v = Σ θ_ℓ ψ_ℓ(x, t) is the paper's linear-basis model [paper: fixed linear-basis models]; these are the usual ψ. What
is made here can be pickled if its features can. Read next: `phibe.linear`, which finds θ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phibe.calculus import place_between
from phibe.trajectories import Trajectories

Features = Callable[[Tensor, Tensor], Tensor]
"""φ(x, t): (n, *state), (n,) → (n, K), smooth in x."""

Basis = Callable[[Tensor, Tensor], Tensor]
"""ψ(x, t): (n, *state), (n,) → (n, p, *state), smooth in x."""


def polynomials(degree: int) -> Features:
    """Monomials of the (flattened) state up to that degree, the constant first: (n, *state) → (n, K)."""
    return partial(_monomials, degree)


def _monomials(degree: int, x: Tensor, t: Tensor) -> Tensor:
    columns = x.flatten(1).unbind(1)
    level = [(0, torch.ones_like(columns[0]))]  # the last variable of a monomial, and the monomial
    values = [level[0][1]]
    for _ in range(degree):
        level = [(i, value * columns[i]) for last, value in level for i in range(last, len(columns))]
        values += [value for _, value in level]
    return torch.stack(values, dim=1)


class InTime:
    """Features with weights piecewise linear in time between `knots`, h_j(t) φ_k(x, t): (n, K) → (n, len(knots)·K).

    A fit that knows them needs only the two hats that are not zero at a time.
    """

    def __init__(self, features: Features, knots: Tensor):
        self.features, self.knots = features, knots

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return (hats(t, self.knots)[:, :, None] * self.features(x, t)[:, None, :]).flatten(1)


def hats(t: Tensor, knots: Tensor) -> Tensor:
    """h(t): (n,) → (n, knots), the weights of linear interpolation between `knots`: their sum is one, and beyond the
    ends they stay as they are there. At a knot dh/dt is the one from the left, at the first the one from the right."""
    if len(knots) == 1:
        return torch.ones_like(t)[:, None]
    left, share = place_between(t, knots)
    ends, weights = torch.stack([left, left + 1], dim=1), torch.stack([1 - share, share], dim=1).to(t.dtype)
    return torch.zeros(len(t), len(knots), dtype=t.dtype, device=t.device).scatter(1, ends, weights)


def place_knots(data: Trajectories, count: int) -> Tensor:
    """Knots in [0, 1] so that mean and spread move equally far between any two, in standard units.

    Time is cut into bins; where nothing but noise moves, the knots are even. A fifth of the weight is even in any case.
    Two knots are never closer than three typical steps (if even ones are not): a shorter stretch sees too little.
    """
    even, bins = torch.linspace(0, 1, count, dtype=torch.float64), 32
    if count < 3:
        return even
    data = data[:: max(1, data.states.numel() // 2_000_000)]
    (start, end), inside = data.interval, data._observed()
    x, t = data.states[inside].double().flatten(1), data._path_times()[inside]
    place = ((t - start) / (end - start) * bins).long().clamp(0, bins - 1)
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-12)
    rows = torch.cat([torch.ones_like(t)[:, None], x, x * x], 1)
    total = torch.zeros(bins, rows.shape[1], dtype=torch.float64).index_add_(0, place, rows)
    used = total[:, 0] > 1
    number = total[used, :1]
    mean, square = (total[used, 1:] / number).chunk(2, dim=1)
    moved = torch.cat([mean, (square - mean**2).clamp(min=0).sqrt()], 1).diff(dim=0).norm(dim=1)
    moved = (moved - 3 * (2 / number[1:, 0]).sqrt() * math.sqrt(x.shape[1])).clamp(min=0)  # but for the noise
    centres = ((torch.arange(bins) + 0.5) / bins)[used]
    gaps, centres = centres.diff(), centres.double()
    share = 0.8 * min(1.0, float(moved.sum()))  # marginals that move by less than their spread need no gathering
    pace = share * moved / moved.sum().clamp(min=1e-12) + (1 - share) * gaps / gaps.sum()
    way = torch.cat([torch.zeros(1, dtype=torch.float64), pace.cumsum(0)])
    centres[0], centres[-1] = 0.0, 1.0
    left, beyond = place_between(even, way / way[-1])
    knots = centres[left] + beyond * (centres[left + 1] - centres[left])
    least, gap, gaps = 3 * data.typical_step / (end - start), float(even[1]), knots.diff()
    if least >= gap:
        return even
    mixed = ((least - gaps) / (gap - gaps))[gaps < least]  # as much of the even knots as parts all of them by `least`
    return torch.lerp(knots, even, max(mixed.tolist(), default=0.0))


def lift(features: Features) -> Basis:
    """Vector fields from scalar features: every feature times every unit vector, ψ = φ_k e_i. A frozen network's hidden
    layer is such a `features`, and fitting it trains the last layer in closed form."""
    return Lifted(features)


class Lifted:
    """The basis φ_k e_i; a fit that knows the features needs no (n, K·D, D) array of mostly zeros."""

    def __init__(self, features: Features):
        self.features = features

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        phi = self.features(x, t)
        size = x[0].numel()
        units = torch.eye(size, dtype=phi.dtype, device=phi.device)
        return (phi[:, :, None, None] * units).reshape(len(x), phi.shape[1] * size, *x.shape[1:])
