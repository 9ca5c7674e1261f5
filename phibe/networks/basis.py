"""A velocity that is linear in its weights: polynomials and random waves of the state, piecewise linear in time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phibe.bases import hats, polynomials
from phibe.networks.network import Network, keywords


class Basis(Network):
    """v = Σ_jk h_j(t) φ_k(x) θ_jk: monomials up to `degree` and `waves` cosines, with weights linear between `knots`.

    Meant for standard coordinates (see `Normalised`): the knots lie in [0, 1], and the waves cos(ω·x + c) have random
    directions and lengths of about √d, some of them much shorter (ω is a Student vector with 3 degrees of freedom, as
    for a Matérn kernel). Without `time` there is one knot, and the velocity is the same at all times. As it is linear
    in θ, `fit_closed` finds the least of an objective by one solve; like any network it may also be trained.
    """

    knots: Tensor
    frequencies: Tensor
    phases: Tensor

    def __init__(
        self,
        state_shape: Sequence[int],
        *,
        degree: int = 3,
        waves: int = 0,
        knots: int = 8,
        time: bool = True,
        seed: int = 0,
    ):
        super().__init__(state_shape, **keywords(locals()))
        if degree < 0 or waves < 0 or knots < 1:
            raise ValueError(f"`degree`, `waves` ≥ 0 and `knots` ≥ 1 are needed; got {degree}, {waves} and {knots}.")
        size, generator = math.prod(self.state_shape), torch.Generator().manual_seed(seed)
        tails = torch.randn(3, waves, generator=generator).square().mean(0).sqrt()
        self.register_buffer("knots", torch.linspace(0, 1, knots if time else 1))
        self.register_buffer("frequencies", torch.randn(size, waves, generator=generator) / tails / math.sqrt(size))
        self.register_buffer("phases", 2 * math.pi * torch.rand(waves, generator=generator))
        count = math.comb(size + degree, degree) + waves
        start = torch.randn(len(self.knots), count, size) / (10 * math.sqrt(count))
        self.coefficients = nn.Parameter(start)

    def features(self, x: Tensor) -> Tensor:
        """φ(x): (n, *state) → (n, K), the monomials first, the constant before all."""
        x = x.flatten(1)
        waves = (x @ self.frequencies + self.phases).cos()
        return torch.cat([polynomials(self.arguments["degree"])(x, x[:, 0]), waves], dim=1)

    def hats(self, t: Tensor) -> Tensor:
        """h(t): (n,) → (n, knots)."""
        return hats(t, self.knots)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self._check(x, t)
        parts = torch.einsum("nk,jkd->njd", self.features(x), self.coefficients)
        return torch.einsum("nj,njd->nd", self.hats(t.to(x.dtype)), parts).reshape(x.shape)
