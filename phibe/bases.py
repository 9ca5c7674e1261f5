"""Bases of linear fits: scalar features of (x, t), with weights that change in time, and lifted to vector fields.

v = Σ θ_ℓ ψ_ℓ(x, t) is the paper's linear-basis model [paper: fixed linear-basis models]; these are the usual ψ. What
is made here can be pickled if its features can. Read next: `phibe.linear`, which finds θ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

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


# -- in time -----------------------------------------------------------------------------------------------------------


def in_time(features: Features, knots: Tensor) -> Features:
    """Features whose weights are piecewise linear in time between `knots`: (n, K) → (n, len(knots)·K)."""
    return InTime(features, knots)


class InTime:
    """h_j(t) φ_k(x, t); a fit that knows `knots` needs only the two hats that are not zero at a time."""

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


def place_between(t: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """The knot on the left of each time, and how far it is to the next one, from 0 to 1; (n,), (n,)."""
    left = torch.searchsorted(knots, t.detach().to(knots.dtype).contiguous()).clamp(1, len(knots) - 1) - 1
    start = knots[left]
    return left, ((t - start) / (knots[left + 1] - start)).clamp(0, 1)


# -- vector fields -----------------------------------------------------------------------------------------------------


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
