"""Nonlinear worlds: a double well, a rotating one, noise that depends on the state, inertia, and chaos."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phibe.systems.laws import Distribution, Law, boltzmann
from phibe.systems.ou import Gaussian
from phibe.systems.sde import SDE


def quartic(x: Tensor) -> Tensor:
    """U(x) = (x² − 1)²: two wells at ±1 and a barrier of height 1 between them."""
    return (x * x - 1) ** 2


def quartic_slope(x: Tensor) -> Tensor:
    """U′(x) = 4x(x² − 1)."""
    return 4 * x * (x * x - 1)


def double_well(*, temperature: float = 0.5, start: Distribution | None = None) -> SDE:
    """dX = −U′(X)dt + √(2T) dB, U = (x² − 1)², T = ½, from N(−½, 0.3²): the law splits, then crosses the barrier.

    Stationary density e^{−U/T}/Z, where v = 0 (detailed balance). The marginals on the way are not known in closed
    form; `solve_fokker_planck` gives them.
    """
    start = start or Gaussian(_real([-0.5]), _real([[0.09]]))
    rest = boltzmann(lambda x: quartic(x) / temperature)
    return SDE(lambda x: -quartic_slope(x), math.sqrt(2 * temperature) * _real([[1.0]]), start, rest)


def rotating_well(*, start: Distribution | None = None) -> SDE:
    """dX = (−∇U + J∇U)dt + √2 dB, U = (x² − 1)² + y²/2, J = [[0, −1], [1, 0]], T = 1: not in detailed balance.

    J∇U is free of divergence and runs along the level lines of U, so the density e^{−U}/Z stays, and there v = J∇U.
    Starts at rest unless told otherwise.
    """

    def drift(x: Tensor) -> Tensor:
        gx, gy = quartic_slope(x[..., 0]), x[..., 1]
        return torch.stack([-gx - gy, -gy + gx], dim=-1)

    rest = boltzmann(quartic, lambda y: y * y / 2)
    return SDE(drift, math.sqrt(2.0) * torch.eye(2, dtype=torch.float64), start or rest, rest)


def multiplicative(*, start: Distribution | None = None) -> SDE:
    """dX = (−X + JX)dt + √(2D) dB with D = a + b|X|², a = ¾, b = ⅛, J = [[0, −1], [1, 0]]: noise grows with the state.

    The stationary density ∝ (a + b|x|²)^{−1−1/(2b)} is a Student law of two coordinates with 8 degrees of freedom
    (E|X|² = 2, E|X|⁴ = 12); there v = JX, a rotation. Without ½∇·Σ = 2bX the flow would spiral outwards as e^{t/4}.
    At any time E X turns and decays, d E X/dt = (−1 + J)E X, and d E|X|²/dt = −(2 − 4b)E|X|² + 4a.
    The noise does not commute, so that paths converge with order ½ only; expectations with order 1.
    """
    a, b = 0.75, 0.125
    k = 1 / (2 * b)
    constant = math.log(b * k / (math.pi * a))

    def spread(x: Tensor) -> Tensor:
        return a + b * (x * x).sum(-1)

    def drift(x: Tensor) -> Tensor:
        return torch.stack([-x[..., 0] - x[..., 1], -x[..., 1] + x[..., 0]], dim=-1)

    def draw(n: int, generator: torch.Generator) -> Tensor:
        """|X|² from its distribution function 1 − (1 + b s/a)^{−k}, the angle at random."""
        level, turn = torch.rand(2, n, dtype=torch.float64, generator=generator)
        radius = (a / b * torch.expm1(-torch.log1p(-level) / k)).sqrt()
        return radius[:, None] * torch.stack([(2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()], dim=1)

    rest = Law(lambda x: constant - (1 + k) * (spread(x) / a).log(), draw)
    eye = torch.eye(2, dtype=torch.float64)
    return SDE(drift, lambda x: (2 * spread(x)).sqrt()[..., None, None] * eye, start or rest, rest)


def langevin(*, temperature: float = 1.0, friction: float = 1.0, start: Distribution | None = None) -> SDE:
    """dq = p dt, dp = (−U′(q) − γp)dt + √(2γT) dB, U = (q² − 1)², T = γ = 1: noise in the velocity alone.

    Σ has rank 1. Stationary density e^{−H/T}/Z with H = U + p²/2, where friction and noise balance and v = (p, −U′(q))
    is Hamilton's flow. Starts at rest unless told otherwise.
    """

    def drift(x: Tensor) -> Tensor:
        q, p = x[..., 0], x[..., 1]
        return torch.stack([p, -quartic_slope(q) - friction * p], dim=-1)

    rest = boltzmann(lambda q: quartic(q) / temperature, lambda p: p * p / (2 * temperature))
    return SDE(drift, _real([[0.0], [math.sqrt(2 * friction * temperature)]]), start or rest, rest)


def lorenz(*, noise: float = 2.0, start: Distribution | None = None) -> SDE:
    """dx = 10(y − x)dt, dy = (28x − y − xz)dt, dz = (xy − 8z/3)dt, each with noise σ dB, σ = 2: stochastic Lorenz.

    From N((0, 0, 25), 2²I), between the two wings, over which the law then spreads. Neither its stationary law nor the
    way there is known in closed form; within about a time unit the flow forgets the details of where it came from.
    """

    def drift(state: Tensor) -> Tensor:
        x, y, z = state.unbind(-1)
        return torch.stack([10 * (y - x), 28 * x - y - x * z, x * y - 8 / 3 * z], dim=-1)

    eye = torch.eye(3, dtype=torch.float64)
    start = start or Gaussian(_real([0.0, 0.0, 25.0]), 4 * eye)
    return SDE(drift, noise * eye, start, substep=0.0025)


def _real(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
