"""Population minimisers: the affine field that an objective finds on an OU process from infinitely many paths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phibe.objectives import Objective, find_objective
from phibe.systems.ou import OU
from phibe.theory import affine_gap, affine_velocity


def affine_minimiser(ou: OU, objective: str, t: Any, *, step: Any, noise: float | None = None) -> tuple[Tensor, Tensor]:
    """A (n, d, d) and b (n, d) of the best affine field for the objective at times t (n,), observed every `step`.

    A = (Cov(u, x) + ½ Σ q E[d dᵀ]) C_t⁻¹, b = E[u] − A m_t: the stencil's target u and directions d are linear in the
    observations, whose joint law is Gaussian. `noise` is the σ² that `isotropic` is told. A time inside a path is seen
    by `stratonovich` from both sides, as `symmetric` sees it.
    """
    kind = find_objective("symmetric" if objective == "stratonovich" else objective)
    t, step = torch.broadcast_tensors(*(torch.as_tensor(part, dtype=torch.float64) for part in (t, step)))
    place, target, directions = _weights(kind)
    times = t[:, None] + step[:, None] * (torch.arange(kind.width) - place.argmax())
    times = torch.where(times.abs() < 1e-12, 0.0, times)  # the start of the process, up to rounding
    mean, covariance = _joint(ou, times, step)
    at, u = _combine(mean, covariance, place, place), _combine(mean, covariance, target, place)
    right = u[1] / step[:, None, None]
    for q, d in directions:
        average, spread = _combine(mean, covariance, d, d)
        right = right + 0.5 * q * (spread + average[:, :, None] * average[:, None, :]) / step[:, None, None]
    if noise is not None:
        right = right + 0.5 * noise * torch.eye(ou.dimension, dtype=torch.float64)
    matrix = right @ torch.linalg.inv(at[1])
    return matrix, u[0] / step[:, None] - (matrix @ at[0][:, :, None])[..., 0]


def affine_bias(ou: OU, objective: str, *, step: float, times: Tensor | None = None) -> float:
    """Root mean square over ρ_t and t (default: 25 times in [0.4, 1]) of the minimiser's distance from the velocity."""
    times = torch.linspace(0.4, 1.0, 25, dtype=torch.float64) if times is None else times
    pairs = zip(affine_minimiser(ou, objective, times, step=step), affine_velocity(ou, times), strict=True)
    return float(affine_gap(ou.marginal(times), *(found - exact for found, exact in pairs)).square().mean().sqrt())


def _weights(kind: Objective) -> tuple[Tensor, Tensor, list[tuple[float, Tensor]]]:
    """Place, target and directions of a stencil with unit steps, as weights (width,) of its observations.

    They are read off windows in which one observation is one and the others are zero.
    """
    x = torch.eye(kind.width, dtype=torch.float64)
    t, dt = torch.arange(kind.width).expand(kind.width, -1).double(), torch.ones(kind.width, kind.width - 1).double()
    if kind.name == "isotropic":
        kind = find_objective("regression")  # its directions are not made of observations
    window = (x[..., None], t, dt) if kind.width > 2 else (x[:, :1], t[:, 0], x[:, 1:] - x[:, :1], dt[:, 0])
    place, _, target, directions = kind.stencil(*window)
    return place[:, 0], target[:, 0], [(float(q[0]), d[:, 0]) for q, d in directions]


def _joint(ou: OU, times: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Means (n, w, d) and covariances (n, w, w, d, d) of the observations at times (n, w), `step` apart."""
    (n, w), d = times.shape, ou.dimension
    propagator, _ = ou.transition(step)
    law = ou.marginal(times.flatten())
    mean, own = law.mean.reshape(n, w, d), law.covariance.reshape(n, w, d, d)
    covariance = own.new_zeros(n, w, w, d, d)
    for j in range(w):
        later = own[:, j]
        for i in range(j, w):
            covariance[:, i, j], covariance[:, j, i] = later, later.mT
            later = propagator @ later
    return mean, covariance


def _combine(mean: Tensor, covariance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of Σ aᵢXᵢ and its covariance with Σ bⱼXⱼ."""
    return torch.einsum("i,nid->nd", a, mean), torch.einsum("i,j,nijde->nde", a, b, covariance)
