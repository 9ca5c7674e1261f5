"""Population quantities of PhiBE-Flow: coefficients at step Δt, the field v̂, its leading bias, constants of the bounds.

Everything is for a `Diffusion`, a system that knows its drift b(x), its covariance Σ(x) and its score; derivatives are
taken by automatic differentiation, so that a closed form elsewhere can be checked against it. Points are x (n, d).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import hessian, jacrev, jvp, vmap

from phibe.systems.ou import OU, Gaussian
from phibe.systems.sde import matrix_divergence


class Diffusion(Protocol):
    """dX = b(X)dt + σ(X)dB with Σ = σσᵀ, and the density of its marginals."""

    def drift(self, x: Tensor, t: Any = 0.0) -> Tensor: ...
    def diffusion(self, x: Tensor) -> Tensor: ...
    def score(self, x: Tensor, t: Any) -> Tensor: ...


class Sampled(Diffusion, Protocol):
    """A diffusion that knows the first two moments of its increments over a step."""

    def increment_moments(self, x: Tensor, step: float) -> tuple[Tensor, Tensor]: ...


# -- the PhiBE coefficients and field at step Δt -----------------------------------------------------------------------


def phibe_drift(system: Sampled, x: Tensor, step: float) -> Tensor:
    """b̂(x) = E[ΔX | x]/Δt   [paper: PhiBE drift]; (n, d)."""
    return system.increment_moments(x, step)[0] / step


def phibe_covariance(system: Sampled, x: Tensor, step: float) -> Tensor:
    """Σ̂(x) = E[ΔX ΔXᵀ | x]/Δt, the raw second moment   [paper: PhiBE diffusion]; (n, d, d)."""
    return system.increment_moments(x, step)[1] / step


def phibe_divergence(system: Sampled, x: Tensor, step: float) -> Tensor:
    """∇·Σ̂, row by row: (∇·Σ̂)_i = Σ_j ∂_j Σ̂_ij; (n, d)."""
    return matrix_divergence(lambda z: phibe_covariance(system, z, step), x)


def phibe_field(system: Sampled, x: Tensor, t: Any, *, step: float) -> Tensor:
    """v̂ = b̂ − ½ Σ̂ ∇log ρ_t − ½ ∇·Σ̂, the unique population minimiser   [paper: population PhiBE field]; (n, d)."""
    covariance = phibe_covariance(system, x, step)
    return (
        phibe_drift(system, x, step)
        - 0.5 * _times(covariance, system.score(x, t))
        - 0.5 * phibe_divergence(system, x, step)
    )


def population_objective(system: Sampled, field: Callable[[Tensor], Tensor], x: Tensor, *, step: float) -> Tensor:
    """‖u‖² − 2 u·b̂ − Σ̂:∇u at each point; its mean over ρ_t is J(u) = ‖u − v̂‖² − ‖v̂‖²   [paper: objective identity]."""
    u, gradient = field(x), vmap(jacrev(_one(field)))(x)
    pull = 2 * u * phibe_drift(system, x, step)
    return (u * u - pull).sum(1) - (phibe_covariance(system, x, step) * gradient).sum((1, 2))


def continuity_residual(
    log_density: Callable[..., Tensor], velocity: Callable[..., Tensor], x: Tensor, t: float
) -> Tensor:
    """∂ₜlog ρ + v·∇log ρ + ∇·v at each point: zero where v carries ρ   [paper: continuity equation, over ρ]; (n,)."""
    time = torch.tensor(t, dtype=x.dtype)
    along_flow = jvp(log_density, (x, time), (velocity(x, time), torch.ones_like(time)))[1]
    gradient = vmap(jacrev(_one_at(velocity, time)))(x)
    return along_flow + gradient.diagonal(dim1=1, dim2=2).sum(1)


def affine_phibe_field(ou: OU, t: Any, *, step: Any) -> tuple[Tensor, Tensor]:
    """The best affine field A x + b for the PhiBE objective at time t, in the limit of infinitely many paths.

    It is the L²(ρ_t) projection of the cubic v̂ onto affine fields: [A | b] E[z zᵀ] = E[w zᵀ]/h + (½ E[w wᵀ]/h | 0).
    For times (n,), and one step or a step for each: (n, d, d), (n, d).
    """
    step = torch.as_tensor(step, dtype=torch.float64)
    law, (propagator, noise) = ou.marginal(t), ou.transition(step)
    M = propagator - torch.eye(ou.dimension, dtype=torch.float64)
    drift = _times(M, law.mean - ou.mu)
    second = M @ law.covariance @ M.mT + drift[..., :, None] * drift[..., None, :] + noise
    # The slope solves the centred equations; the offset then fits the means, E[v] = E[w]/h.
    matrix = (M + 0.5 * second @ torch.linalg.inv(law.covariance)) / step[..., None, None]
    return matrix, drift / step[..., None] - _times(matrix, law.mean)


def affine_velocity(ou: OU, t: Any) -> tuple[Tensor, Tensor]:
    """A and b of the exact velocity v = A x + b, which is affine for an OU process; (n,) → (n, d, d), (n, d)."""
    law = ou.marginal(t)
    matrix = ou.A + 0.5 * ou.S @ ou.S.mT @ torch.linalg.inv(law.covariance)
    return matrix, -_times(ou.A, ou.mu) - _times(matrix - ou.A, law.mean)


def affine_gap(law: Gaussian, matrix: Tensor, offset: Tensor) -> Tensor:
    """‖A x + b‖ in L²(ρ) for a Gaussian ρ, √(|A m + b|² + tr A C Aᵀ), for one or for a batch of times."""
    mean = _times(matrix, law.mean) + offset
    spread = (matrix @ law.covariance @ matrix.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (mean.square().sum(-1) + spread).sqrt()


# -- expansions in Δt --------------------------------------------------------------------------------------------------


def generator(system: Diffusion, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(𝓛f)(x) = b·∇f + ½ Σ:∇²f for f of one point (d,) → (...); (n, d) → (n, ...)."""

    def at(point: Tensor, b: Tensor, sigma: Tensor) -> Tensor:
        return torch.einsum("...i,i->...", jacrev(f)(point), b) + 0.5 * torch.einsum(
            "...ij,ij->...", hessian(f)(point), sigma
        )

    return vmap(at)(x, system.drift(x), system.diffusion(x))


def drift_bias(system: Diffusion, x: Tensor) -> Tensor:
    """Leading term of b̂ − b over Δt: ½ 𝓛b; (n, d)."""
    return 0.5 * generator(system, _one(system.drift), x)


def covariance_bias(system: Diffusion, x: Tensor) -> Tensor:
    """Leading term of Σ̂ − Σ over Δt: R = b bᵀ + ½(∇b Σ + Σ ∇bᵀ) + ½ 𝓛Σ, from ½𝓛²g with g = (y−x)(y−x)ᵀ; (n, d, d)."""
    b, sigma = system.drift(x), system.diffusion(x)
    mixed = vmap(jacrev(_one(system.drift)))(x) @ sigma
    return (
        b[..., :, None] * b[..., None, :]
        + 0.5 * (mixed + mixed.mT)
        + 0.5 * generator(system, _one(system.diffusion), x)
    )


def velocity_bias(system: Diffusion, x: Tensor, t: Any) -> Tensor:
    """Leading term of v̂ − v over Δt: ½𝓛b − ½ R ∇log ρ_t − ½ ∇·R; (n, d). For OU, minus the paper's corollary."""
    remainder = covariance_bias(system, x)
    spread = matrix_divergence(lambda z: covariance_bias(system, z), x)
    return drift_bias(system, x) - 0.5 * _times(remainder, system.score(x, t)) - 0.5 * spread


# -- the constants of the bounds on a compact set ----------------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """The constants of the population theorem on Ω × [0, T], as maxima over the points and times asked for."""

    L_b: float
    L_Sigma: float
    L_div: float
    S_1: float
    S_2: float
    K: float
    lipschitz: float

    @property
    def L_v(self) -> float:
        """L_b + ½ L_Σ S₁ + ½ L_div."""
        return self.L_b + 0.5 * self.L_Sigma * self.S_1 + 0.5 * self.L_div

    def velocity_bound(self, step: float) -> float:
        """‖v − v̂‖ ≤ L_v Δt + o(Δt)."""
        return self.L_v * step

    def trajectory_bound(self, t: Tensor, step: float, *, sharp: bool = False) -> Tensor:
        """‖x_t − x̂_t‖ ≤ (e^{Kt} − 1)/K · L_v Δt + o(Δt)   [paper: Grönwall]; `sharp`: sup‖∇v‖ for the paper's K."""
        K = self.lipschitz if sharp else self.K
        return torch.expm1(K * t) / K * self.L_v * step


def constants(system: Diffusion, x: Tensor, times: Tensor) -> Constants:
    """L_b, L_Σ, L_div, S₁, S₂, K and the sharp Lipschitz constant sup‖∇v‖, over points x (n, d) of Ω and times (m,)."""
    gradient = vmap(jacrev(_one(system.drift)))(x)
    sigma = system.diffusion(x)
    slope = vmap(jacrev(_one(system.diffusion)))(x)  # (n, d, d, d): the last index differentiates
    curl = vmap(jacrev(lambda z: matrix_divergence(system.diffusion, z[None])[0]))(x)
    scores = [_one_at(system.score, t) for t in times]
    S_1 = max(float(_norms(vmap(score)(x)).max()) for score in scores)
    hessians = [vmap(jacrev(score))(x) for score in scores]
    S_2 = max(float(_norms(h).max()) for h in hessians)
    velocity_gradients = (
        gradient - 0.5 * sigma @ h - 0.5 * torch.einsum("nijk,nj->nik", slope, vmap(score)(x)) - 0.5 * curl
        for h, score in zip(hessians, scores, strict=True)
    )
    K = _norms(gradient) + 0.5 * S_1 * _norms(slope.flatten(1, 2)) + 0.5 * S_2 * _norms(sigma) + 0.5 * _norms(curl)
    return Constants(
        L_b=float(_norms(drift_bias(system, x)).max()),
        L_Sigma=float(_norms(covariance_bias(system, x)).max()),
        L_div=float(_norms(matrix_divergence(lambda z: covariance_bias(system, z), x)).max()),
        S_1=S_1,
        S_2=S_2,
        K=float(K.max()),
        lipschitz=max(float(_norms(g).max()) for g in velocity_gradients),
    )


def box(centre: Tensor, half_width: float | Tensor, *, per_side: int = 21) -> Tensor:
    """A grid of points, corners included, on the compact box Ω = centre ± half_width: (per_side^d, d)."""
    half = torch.as_tensor(half_width, dtype=centre.dtype).expand(centre.shape)
    sides = [
        torch.linspace(float(c - h), float(c + h), per_side, dtype=centre.dtype)
        for c, h in zip(centre, half, strict=True)
    ]
    return torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).reshape(-1, len(centre))


def _one(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of points as a function of one point."""
    return lambda point: f(point[None])[0]


def _one_at(f: Callable[[Tensor, Any], Tensor], t: Any) -> Callable[[Tensor], Tensor]:
    return lambda point: f(point[None], t)[0]


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.einsum("...ij,...j->...i", matrix, vector)


def _norms(values: Tensor) -> Tensor:
    """Euclidean norms of vectors (n, d), operator norms of matrices (n, p, d)."""
    return values.norm(dim=1) if values.ndim == 2 else torch.linalg.matrix_norm(values, 2)
