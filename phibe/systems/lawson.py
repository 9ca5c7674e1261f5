"""Lawson's scheme with noise: the linear part and its noise exactly, the rest by the classical Runge–Kutta method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from phibe.systems.ou import OU


class Forcing(NamedTuple):
    """F dB: r shapes that decay at one rate each, by their values (r, m) at the m coefficients where they are not 0."""

    places: Tensor
    values: Tensor
    rates: Tensor


class LawsonStep:
    """A step h of dω = −λω dt + N(ω)dt + F dB: strong order 1.5, and order 4 without noise.

    The noise of a step is, for each shape, z = ∫e^{−λ(h−s)}dB and J = ∫z ds, with their exact joint law: without N
    the step is exact, whatever h. In N, z is replaced by the straight line of the same growth and the same integral,
    z̃(s) = J/h + (s/h − ½)z.
    """

    def __init__(self, decay: Tensor, forcing: Forcing, h: float):
        self.h, self.forcing = h, forcing
        laws = [OU([[-float(rate), 0.0], [1.0, 0.0]], [[1.0], [0.0]]).transition(h) for rate in forcing.rates]
        none = torch.zeros(0, 2, 2, dtype=torch.float64)
        self._propagators = torch.stack([propagator for propagator, _ in laws]) if laws else none
        self._roots = torch.stack([_root(covariance) for _, covariance in laws]) if laws else none
        real = forcing.values.real.dtype
        self.half, self.whole = ((-decay * part).exp().to(forcing.values.device, real) for part in (h / 2, h))

    def draw(self, paths: int, *, generator: torch.Generator) -> Tensor:
        """(z, J) of every path and shape, (paths, r, 2), in float64."""
        normal = torch.randn(paths, len(self.forcing.rates), 2, dtype=torch.float64, generator=generator)
        return torch.einsum("rij,...rj->...ri", self._roots, normal)

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        """The noise of a longer step, exactly: that of its beginning, and that of the last h; (..., r, 2) each."""
        return torch.einsum("rij,...rj->...ri", self._propagators, first) + second

    def __call__(self, omega: Tensor, rest: Callable[[Tensor], Tensor], noise: Tensor) -> Tensor:
        """ω (paths, ...) a time h later; `rest` is N."""
        h, half, whole = self.h, self.half, self.whole
        z, mean = noise[..., 0], noise[..., 1] / h
        middle = self._coefficients(mean)
        a = rest(self._add(omega.clone(), self._coefficients(mean - z / 2)))
        b = rest(self._add(half * (omega + h / 2 * a), middle))
        c = rest(self._add(half * omega + h / 2 * b, middle))
        d = rest(self._add(whole * omega + (h * half) * c, self._coefficients(mean + z / 2)))
        later = whole * (omega + h / 6 * a) + (h / 3 * half) * (b + c) + h / 6 * d
        return self._add(later, self._coefficients(z))

    def _coefficients(self, amplitudes: Tensor) -> Tensor:
        """Σ amplitude · shape at the forced coefficients: (paths, r) → (paths, m)."""
        values = self.forcing.values
        return amplitudes.to(values.device, values.dtype) @ values

    def _add(self, omega: Tensor, coefficients: Tensor) -> Tensor:
        omega.view(len(omega), -1)[:, self.forcing.places] += coefficients
        return omega


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp(min=0).sqrt()
