"""What the theorems speak of, without sampling error: population fields and minimisers, their bias, the bounds.

From top to bottom: the PhiBE coefficients and v̂ at step Δt   [paper: population PhiBE field, objective identity]; their
leading error in Δt   [paper: generator expansion]; the constants of the bounds   [paper: population theorem, Grönwall]
and of finite samples   [paper: finite-sample convergence]; for OU processes the best affine field of every objective;
and the maps that affine flows make of Gaussian marginals. Read next: `diagnostics.py`, which measures from data alone
what is known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import hessian, jacrev, jvp, vmap

from phibe.calculus import Velocity
from phibe.flow import Flow
from phibe.integrators import ALPHA, FILTER, INTEGRATORS
from phibe.objectives import Objective, find_objective
from phibe.systems.ou import OU, Gaussian
from phibe.systems.sde import Diffusion, matrix_divergence


class Scored(Diffusion, Protocol):
    """A diffusion that knows the score ∇log ρ_t of its marginals."""

    def score(self, x: Tensor, t: Any) -> Tensor: ...


class Sampled(Scored, Protocol):
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
    parts = (part(system, x, step) for part in (phibe_drift, phibe_covariance, phibe_divergence))
    return _current(*parts, score=system.score(x, t))


def _current(drift: Tensor, covariance: Tensor, divergence: Tensor, *, score: Tensor) -> Tensor:
    """b − ½ Σ∇log ρ − ½∇·Σ; (n, d)."""
    return drift - 0.5 * _times(covariance, score) - 0.5 * divergence


def population_objective(system: Sampled, field: Callable[[Tensor], Tensor], x: Tensor, *, step: float) -> Tensor:
    """‖u‖² − 2 u·b̂ − Σ̂:∇u at each point; its mean over ρ_t is J(u) = ‖u − v̂‖² − ‖v̂‖²   [paper: objective identity]."""
    u, gradient = field(x), vmap(jacrev(_one(field)))(x)
    pull = 2 * u * phibe_drift(system, x, step)
    return (u * u - pull).sum(1) - (phibe_covariance(system, x, step) * gradient).sum((1, 2))


def continuity_residual(
    log_density: Callable[..., Tensor], velocity: Callable[..., Tensor], x: Tensor, t: float
) -> Tensor:
    """∂ₜlog ρ + v·∇log ρ + ∇·v at each point: zero where v transports ρ   [paper: continuity equation]; (n,)."""
    time = torch.tensor(t, dtype=x.dtype)
    along_flow = jvp(log_density, (x, time), (velocity(x, time), torch.ones_like(time)))[1]
    gradient = vmap(jacrev(_one_at(velocity, time)))(x)
    return along_flow + gradient.diagonal(dim1=1, dim2=2).sum(1)


# -- expansions in Δt --------------------------------------------------------------------------------------------------


def generator(system: Diffusion, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(𝓛f)(x) = b·∇f + ½ Σ:∇²f for f of one point (d,) → (...); (n, d) → (n, ...)."""

    def at(point: Tensor, b: Tensor, sigma: Tensor) -> Tensor:
        spread = torch.einsum("...ij,ij->...", hessian(f)(point), sigma)
        return torch.einsum("...i,i->...", jacrev(f)(point), b) + 0.5 * spread

    return vmap(at)(x, system.drift(x), system.diffusion(x))


def drift_bias(system: Diffusion, x: Tensor) -> Tensor:
    """Leading term of b̂ − b over Δt: ½ 𝓛b; (n, d)."""
    return 0.5 * generator(system, _one(system.drift), x)


def covariance_bias(system: Diffusion, x: Tensor) -> Tensor:
    """Leading term of Σ̂ − Σ over Δt: R = b bᵀ + ½(∇b Σ + Σ ∇bᵀ) + ½ 𝓛Σ, from ½𝓛²g with g = (y−x)(y−x)ᵀ; (n, d, d)."""
    b, sigma = system.drift(x), system.diffusion(x)
    mixed = vmap(jacrev(_one(system.drift)))(x) @ sigma
    outer = b[..., :, None] * b[..., None, :]
    return outer + 0.5 * (mixed + mixed.mT) + 0.5 * generator(system, _one(system.diffusion), x)


def velocity_bias(system: Scored, x: Tensor, t: Any) -> Tensor:
    """Leading term of v̂ − v over Δt: ½𝓛b − ½ R ∇log ρ_t − ½ ∇·R; (n, d). For OU, minus the paper's corollary."""
    spread = matrix_divergence(lambda z: covariance_bias(system, z), x)
    return _current(drift_bias(system, x), covariance_bias(system, x), spread, score=system.score(x, t))


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


def constants(system: Scored, x: Tensor, times: Tensor) -> Constants:
    """L_b, L_Σ, L_div, S₁, S₂, K and the sharp Lipschitz constant sup‖∇v‖, over points x (n, d) of Ω and times (m,)."""
    gradient = vmap(jacrev(_one(system.drift)))(x)
    sigma = system.diffusion(x)
    slope = vmap(jacrev(_one(system.diffusion)))(x)  # (n, d, d, d): the last index differentiates
    curl = vmap(jacrev(lambda z: matrix_divergence(system.diffusion, z[None])[0]))(x)
    scores = [_one_at(system.score, t) for t in times]
    hessians = [vmap(jacrev(score))(x) for score in scores]
    S_1 = max(largest(vmap(score)(x)) for score in scores)
    S_2 = max(map(largest, hessians))
    velocity_gradients = (
        gradient - 0.5 * sigma @ h - 0.5 * torch.einsum("nijk,nj->nik", slope, vmap(score)(x)) - 0.5 * curl
        for h, score in zip(hessians, scores, strict=True)
    )
    K = _norms(gradient) + 0.5 * S_1 * _norms(slope.flatten(1, 2)) + 0.5 * S_2 * _norms(sigma) + 0.5 * _norms(curl)
    return Constants(
        L_b=largest(drift_bias(system, x)),
        L_Sigma=largest(covariance_bias(system, x)),
        L_div=largest(matrix_divergence(lambda z: covariance_bias(system, z), x)),
        S_1=S_1,
        S_2=S_2,
        K=float(K.max()),
        lipschitz=max(map(largest, velocity_gradients)),
    )


def box(centre: Tensor, half_width: float | Tensor, *, per_side: int = 21) -> Tensor:
    """A grid of points, corners included, on the compact box Ω = centre ± half_width: (per_side^d, d)."""
    ends = zip((centre - half_width).tolist(), (centre + half_width).tolist(), strict=True)
    sides = [torch.linspace(low, high, per_side, dtype=centre.dtype) for low, high in ends]
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


def largest(values: Tensor) -> float:
    """The largest norm."""
    return float(_norms(values).max())


# -- the constants of the finite-sample theorem ------------------------------------------------------------------------

# The paper leaves c₀ and C_𝒱 unnamed. Its proof gives both from K_G and K_R with Bernstein's inequality for centred
# variables of ψ₁ norm K: with probability 1 − 2e⁻ˢ the mean of N is within K(2√(s/N) + s/N).


def psi_1(values: Tensor) -> Tensor:
    """‖U‖_ψ₁ = inf{a > 0: E e^{|U|/a} ≤ 2} of each column of draws (n, k); (k,)."""
    size = values.abs()
    peak = size.amax(0).clamp(min=1e-300)
    low, high = peak / math.log(2 * len(values)), peak / math.log(2)
    for _ in range(50):
        middle = (low * high).sqrt()
        over = (size / middle).exp().mean(0) > 2
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return high


def largest_psi_1(matrices: Tensor, *, starts: int = 4, rounds: int = 12, seed: int = 0) -> float:
    """sup ‖aᵀMa‖_ψ₁ over unit a, of draws (n, K, K).

    The norm is convex in aaᵀ: from some starts, a is the leading eigenvector of what the norm is linear in there, until
    it grows no more. That ends in a local maximum, so that the supremum is estimated from below.
    """
    generator, best = torch.Generator().manual_seed(seed), 0.0
    size = matrices.shape[1]
    directions = torch.randn(size, starts, dtype=matrices.dtype, generator=generator)
    directions[:, : min(size, starts)] = torch.eye(size, dtype=matrices.dtype)[:, :starts]
    for a in (directions / directions.norm(dim=0)).unbind(1):
        norm = 0.0
        for _ in range(rounds):
            form = torch.einsum("k,nkl,l->n", a, matrices, a)
            if (found := float(psi_1(form[:, None]))) <= norm * (1 + 1e-6):
                break
            norm = found
            weight = (form.abs() / norm).exp() * form.sign()
            a = torch.linalg.eigh(torch.einsum("n,nkl->kl", weight, matrices))[1][:, -1]
        best = max(best, norm)
    return best


def least_paths(p: int, K_G: float, miss: float, times: int = 1) -> float:
    """N ≥ c₀ p log(2p/δ): from it on ‖G_N − I‖ ≤ ½ at all `times` with probability 1 − δ/2, and N ≥ log(4p/δ).

    2·9ᵖe⁻ˢ = δ/2 over the net, and 2K_G(2√r + r) ≤ ½ for r = s/N.
    """
    root = math.sqrt(1 + 1 / (4 * K_G)) - 1
    return max((p * math.log(9) + math.log(4 * times / miss)) / root**2, math.log(4 * p * times / miss))


def noise_bound(p: int, K_R: float, paths: float, step: float, miss: float, times: int = 1) -> float:
    """C_𝒱 √(p log(2p/δ)/(NΔt)) with C_𝒱 = 6√2 K_R: twice ‖η̄_N‖, each of whose entries is within 3K_R √(s/(NΔt))."""
    return 6 * math.sqrt(2) * K_R * math.sqrt(p * math.log(2 * p * times / miss) / (paths * step))


# -- affine fields of OU processes -------------------------------------------------------------------------------------


def affine_velocity(ou: OU, t: Any) -> tuple[Tensor, Tensor]:
    """A and b of the exact velocity v = A x + b, which is affine for an OU process; (n,) → (n, d, d), (n, d)."""
    marginal = ou.marginal(t)
    matrix = ou.A + 0.5 * ou.S @ ou.S.mT @ torch.linalg.inv(marginal.covariance)
    return matrix, -_times(ou.A, ou.mu) - _times(matrix - ou.A, marginal.mean)


def affine_gap(rho: Gaussian, matrix: Tensor, offset: Tensor) -> Tensor:
    """‖A x + b‖ in L²(ρ) for a Gaussian ρ, √(|A m + b|² + tr A C Aᵀ), for one or for a batch of times."""
    mean = _times(matrix, rho.mean) + offset
    spread = (matrix @ rho.covariance @ matrix.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (mean.square().sum(-1) + spread).sqrt()


def affine_minimiser(ou: OU, objective: str, t: Any, *, step: Any, noise: float | None = None) -> tuple[Tensor, Tensor]:
    """A (..., d, d) and b (..., d) of the best affine field for the objective at times t (...), observed every `step`.

    A = (Cov(u, x) + ½ Σ q E[d dᵀ]) C_t⁻¹, b = E[u] − A m_t: the stencil's target u and directions d are linear in the
    observations, whose joint distribution is Gaussian. `noise` is the σ² that `isotropic` is given. A time inside a
    path is seen by `stratonovich` from both sides, as by `symmetric`.
    """
    kind = find_objective("symmetric" if objective == "stratonovich" else objective)
    t, step = torch.broadcast_tensors(*(torch.as_tensor(part, dtype=torch.float64) for part in (t, step)))
    place, target, directions = _weights(kind)
    mean, covariance = _joint(ou, _window(t.flatten(), step.flatten(), int(place.argmax()), kind.width), step.flatten())
    at, u = _combine(mean, covariance, place, place), _combine(mean, covariance, target, place)
    right = u[1]
    for q, d in directions:
        average, spread = _combine(mean, covariance, d, d)
        right = right + 0.5 * q * (spread + average[:, :, None] * average[:, None, :])
    right = right / step.reshape(-1, 1, 1)
    if noise is not None:
        right = right + 0.5 * noise * torch.eye(ou.dimension, dtype=torch.float64)
    matrix = right @ torch.linalg.inv(at[1])
    offset = u[0] / step.reshape(-1, 1) - _times(matrix, at[0])
    return matrix.reshape(*t.shape, *matrix.shape[1:]), offset.reshape(*t.shape, -1)


def affine_phibe_field(ou: OU, t: Any, *, step: Any) -> tuple[Tensor, Tensor]:
    """The best affine field A x + b for the PhiBE objective at times t: the L²(ρ_t) projection of the cubic v̂."""
    return affine_minimiser(ou, "phibe", t, step=step)


def affine_bias(
    ou: OU, objective: str, *, step: float, times: Tensor | None = None, noise: float | None = None
) -> float:
    """Root mean square over ρ_t and t (default: 25 times in [0.4, 1]) of the minimiser's distance from the velocity."""
    times = torch.linspace(0.4, 1.0, 25, dtype=torch.float64) if times is None else times
    pairs = zip(affine_minimiser(ou, objective, times, step=step, noise=noise), affine_velocity(ou, times), strict=True)
    return float(affine_gap(ou.marginal(times), *(found - exact for found, exact in pairs)).square().mean().sqrt())


def _window(t: Tensor, step: Tensor, place: int, width: int) -> Tensor:
    """Times (n, width) of the observations around t (n,); the start of the process is exact, up to rounding."""
    times = t[:, None] + step[:, None] * (torch.arange(width) - place)
    return torch.where(times.abs() < 1e-12, times - times.detach(), times)


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
    marginal = ou.marginal(times.flatten())
    mean, own = marginal.mean.reshape(n, w, d), marginal.covariance.reshape(n, w, d, d)
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


# -- the maps of affine flows ------------------------------------------------------------------------------------------


def affine_coefficients(velocity: Velocity, times: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """A (L, d, d) and b (L, d) at `times` of a velocity that is affine in x, read off at the corners of the simplex."""
    corners = _simplex(dimension)
    values = velocity(corners.repeat(len(times), 1), times.repeat_interleave(dimension + 1))
    return _affine_through(values.reshape(len(times), dimension + 1, dimension))


def flow_map(velocity: Velocity, times: Tensor, dimension: int, *, method: str = "rk4") -> tuple[Tensor, Tensor]:
    """M (L, d, d) and c (L, d) of the map x₀ ↦ M x₀ + c of an affine velocity from `times[0]` to each time.

    Every integrator keeps the map affine, so d + 1 trajectories determine it. A fixed-step method makes one step from
    time to time: all steps are taken in one call and then composed. A flow that diverges becomes infinite.
    """
    if method == "adaptive":
        states = Flow(velocity).generate(_simplex(dimension), times, method=method, tolerance=1e-4).states
        return _affine_through(states.movedim(1, 0))
    leaps = {"leapfrog": 0.0, "filtered": FILTER}
    steps = _steps(velocity, times, dimension, "rk4" if method in leaps else method)
    with np.errstate(over="ignore", invalid="ignore"):
        if method in leaps:
            maps = _leapfrog(velocity, times, steps, leaps[method])
        else:
            maps = np.stack(list(accumulate(steps, lambda done, step: step @ done, initial=np.eye(dimension + 1))))
    return torch.from_numpy(maps[:, :-1, :-1]), torch.from_numpy(maps[:, :-1, -1])


def _steps(velocity: Velocity, times: Tensor, dimension: int, method: str) -> np.ndarray:
    """The map of each single step between neighbouring times, as [[M, c], [0, 1]]: composing is multiplying."""
    t, h = (part.repeat_interleave(dimension + 1)[:, None] for part in (times[:-1], times.diff()))
    starts = _simplex(dimension).repeat(len(times) - 1, 1)
    ends = INTEGRATORS[method].start()(lambda x, t: velocity(x, t[:, 0]), starts, t, h)
    return _homogeneous(*_affine_through(ends.reshape(-1, dimension + 1, dimension)), corner=1.0)


def _leapfrog(velocity: Velocity, times: Tensor, steps: np.ndarray, filter: float) -> np.ndarray:
    """`Leapfrog` on maps, x_{n+1} = x_{n−1} + 2h (A x_n + b); the given steps start it, and again at a new step."""
    rates = _homogeneous(*affine_coefficients(velocity, times[:-1], steps.shape[-1] - 1), corner=0.0)
    h = times.diff().numpy()
    maps = [np.eye(steps.shape[-1]), steps[0]]
    before = maps[0]
    for n in range(1, len(h)):
        here = maps[-1]
        if not np.isclose(h[n], h[n - 1], rtol=1e-6, atol=0):
            before = here
            maps.append(steps[n] @ here)
            continue
        after = before + 2 * h[n] * rates[n] @ here
        bend = filter / 2 * (before - 2 * here + after)
        before = here + ALPHA * bend
        maps.append(after + (ALPHA - 1) * bend)
    return np.stack(maps)


def pushforward(rho: Gaussian, matrix: Tensor, offset: Tensor) -> Gaussian:
    """The distribution of M x + c for x ~ N(m, C), one for each map: N(M m + c, M C Mᵀ)."""
    return Gaussian(_times(matrix, rho.mean) + offset, matrix @ rho.covariance @ matrix.mT)


def _simplex(dimension: int) -> Tensor:
    """The origin and the unit vectors, (d+1, d): enough points to know an affine map."""
    return torch.eye(dimension + 1, dimension, dtype=torch.float64).roll(1, 0)


def _affine_through(images: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix and offset of the affine map with these images of the simplex, (..., d+1, d)."""
    return (images[..., 1:, :] - images[..., :1, :]).mT, images[..., 0, :]


def _homogeneous(matrix: Tensor, offset: Tensor, *, corner: float) -> np.ndarray:
    """[[M, c], [0, corner]] for each."""
    d = matrix.shape[-1]
    whole = np.zeros((len(matrix), d + 1, d + 1))
    whole[:, :d, :d], whole[:, :d, d], whole[:, d, d] = matrix.numpy(), offset.numpy(), corner
    return whole
