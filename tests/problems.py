"""Systems with exact answers, and the numerical tools that several tests share. All in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.func import jacrev, jvp, vmap

from phibe.systems.ou import OU, Gaussian

torch.set_num_threads(1)  # problems this small run fastest on one thread, above all beside other processes

PAPER = {"reversible": OU.reversible(), "nonreversible": OU.nonreversible()}

properties = settings(max_examples=25, deadline=None, derandomize=True)
"""The same examples on every machine and at every run."""


def real(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- Ornstein–Uhlenbeck processes --------------------------------------------------------------------------------------


def _matrices(rows: int, columns: int, size: float) -> st.SearchStrategy[np.ndarray]:
    entries = st.floats(-size, size, allow_nan=False, allow_subnormal=False).map(lambda a: round(a, 3))
    return arrays(np.float64, (rows, columns), elements=entries)


def _vectors(size: int) -> st.SearchStrategy[np.ndarray]:
    return _matrices(1, size, 4.0).map(lambda row: row[0])


def _noise(draw: st.DrawFn, d: int) -> Tensor:
    """An invertible noise matrix: lower triangular with a diagonal away from zero."""
    diagonal = draw(arrays(np.float64, (d,), elements=st.floats(0.4, 1.5)))
    return real(np.tril(draw(_matrices(d, d, 0.7)), -1) + np.diag(diagonal))


def _start(draw: st.DrawFn, d: int) -> dict[str, Tensor]:
    root = real(np.tril(draw(_matrices(d, d, 0.7)), -1) + np.eye(d))
    return {"mu": real(draw(_vectors(d))), "m0": real(draw(_vectors(d))), "C0": root @ root.mT}


@st.composite
def stable_systems(draw: st.DrawFn, dimensions: st.SearchStrategy[int] = st.integers(1, 5)) -> OU:  # noqa: B008
    """Any drift matrix, shifted until its slowest mode decays (not only those with a definite symmetric part)."""
    d = draw(dimensions)
    raw = real(draw(_matrices(d, d, 1.5)))
    slowest = float(torch.linalg.eigvals(raw).real.max())
    A = raw - (slowest + draw(st.floats(0.3, 1.5))) * torch.eye(d, dtype=torch.float64)
    return OU(A, _noise(draw, d), **_start(draw, d))


@st.composite
def reversible_systems(draw: st.DrawFn, dimensions: st.SearchStrategy[int] = st.integers(1, 5)) -> OU:  # noqa: B008
    """A = −Σ P with P symmetric and positive definite: overdamped motion in a quadratic well, in detailed balance."""
    d = draw(dimensions)
    S, root = _noise(draw, d), _noise(draw, d)
    return OU(-(S @ S.mT) @ (root @ root.mT), S, **_start(draw, d))


def kinetic() -> OU:
    """A damped oscillator: position and velocity, with noise in the velocity alone (Σ has rank one)."""
    return OU([[0.0, 1.0], [-2.0, -1.0]], [[0.0], [0.8]], mu=[0.5, 0.0], m0=[-1.0, 0.0], C0=torch.eye(2) / 4)


def near(ou: OU, t: float, *, n: int = 12, seed: int = 0) -> Tensor:
    """Points where the marginal at time t lives."""
    return ou.marginal(t).sample(n, generator=torch.Generator().manual_seed(seed))


# -- other systems -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearNoise:
    """dX = A X dt + Σₖ Bₖ X dBₖ: noise that grows with the state, with exact moments of its increments.

    The second moment obeys a linear equation, dM/dt = A M + M Aᵀ + Σₖ Bₖ M Bₖᵀ. The score is that of a Gaussian; the
    identities under test hold for any density.
    """

    A: Tensor
    B: Tensor
    marginal: Gaussian

    @staticmethod
    def example() -> LinearNoise:
        B = real([[[0.5, 0.1], [0.0, 0.3]], [[0.0, -0.2], [0.4, 0.1]]])
        marginal = Gaussian(real([1.0, -0.5]), real([[0.8, 0.2], [0.2, 0.5]]))
        return LinearNoise(real([[-1.0, 0.6], [-0.3, -0.7]]), B, marginal)

    def drift(self, x: Tensor, t: Any = 0.0) -> Tensor:
        return x @ self.A.mT

    def diffusion(self, x: Tensor) -> Tensor:
        columns = torch.einsum("kij,nj->nki", self.B, x)
        return torch.einsum("nki,nkj->nij", columns, columns)

    def score(self, x: Tensor, t: Any) -> Tensor:
        return self.marginal.score(x)

    def increment_moments(self, x: Tensor, step: float) -> tuple[Tensor, Tensor]:
        eye = torch.eye(2, dtype=torch.float64)
        rate = torch.kron(self.A, eye) + torch.kron(eye, self.A) + sum(torch.kron(b, b) for b in self.B)
        later = x @ torch.linalg.matrix_exp(self.A * step).mT
        square = x[:, :, None] * x[:, None, :]
        second = (square.flatten(1) @ torch.linalg.matrix_exp(rate * step).mT).reshape(square.shape)
        crossed = later[:, :, None] * x[:, None, :]
        return later - x, second - crossed - crossed.mT + square


@dataclass(frozen=True)
class Logistic:
    """dx/dt = r (1 + cos t) x(1 − x), coordinate by coordinate: nonlinear, driven in time, with a known flow.

    In y = log(x/(1−x)) it is a translation, y(t) = y(0) + r (t + sin t).
    """

    rates: Tensor

    @staticmethod
    def example() -> Logistic:
        return Logistic(real([1.0, -0.7]))

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        return self.rates * (1 + torch.cos(t))[..., None] * x * (1 - x)

    def exact(self, x: Tensor, t0: float, t1: float) -> Tensor:
        """The state at t1 of what is at x at t0."""
        return torch.sigmoid(torch.logit(x) + self.rates * (t1 - t0 + math.sin(t1) - math.sin(t0)))

    def log_density(self, x: Tensor, t: Any) -> Tensor:
        """The density that the flow makes of a standard normal distribution of y at t = 0."""
        t = torch.as_tensor(t, dtype=x.dtype)
        moved = torch.logit(x) - self.rates * (t + torch.sin(t))
        return (-0.5 * moved**2 - 0.5 * math.log(2 * math.pi) - torch.log(x * (1 - x))).sum(-1)


# -- tools -------------------------------------------------------------------------------------------------------------


def continuity_residual(log_density: Callable, velocity: Callable, x: Tensor, t: float) -> float:
    """Largest |∂t log ρ + v·∇log ρ + ∇·v| over the points x: zero when v carries ρ (the continuity equation over ρ)."""
    time = real(t)
    v = velocity(x, time)
    along_flow = jvp(log_density, (x, time), (v, torch.ones_like(time)))[1]
    gradient = vmap(jacrev(lambda z: velocity(z[None], time)[0]))(x)
    return float((along_flow + gradient.diagonal(dim1=1, dim2=2).sum(1)).abs().max())


def order(steps: Sequence[float], errors: Sequence[float]) -> float:
    """Least-squares slope of log error against log step."""
    h, e = np.log(np.asarray(steps)), np.log(np.asarray(errors))
    return float(np.polyfit(h, e, 1)[0])


def quadrature(marginal: Gaussian, nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite points (nodes^d, d) and weights of a Gaussian: exact for polynomials of degree < 2·nodes."""
    points, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(nodes))
    d = marginal.mean.shape[0]
    grid = torch.cartesian_prod(*[points] * d).reshape(-1, d)
    weight = torch.cartesian_prod(*[weights / weights.sum()] * d).reshape(-1, d).prod(1)
    return marginal.mean + grid @ torch.linalg.cholesky(marginal.covariance).mT, weight
