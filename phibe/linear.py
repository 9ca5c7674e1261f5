"""Closed-form fits: minimisers of the objectives among fields linear in their parameters, in one pass over the data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from phibe.bases import Basis, Lifted, in_time, lift, polynomials
from phibe.flow import Flow
from phibe.moments import AffineMoments, grid_moments, grouped_moments, typical_step
from phibe.objectives import along, estimate_noise, find_objective
from phibe.trajectories import Pairs, Trajectories

# -- affine in x at each observation time --------------------------------------------------------------------------


class AffineField(nn.Module):
    """v(x, t) = A(t) x + b(t), linear in t between `times`, constant beyond; `matrices` (L, d, d), `offsets` (L, d)."""

    times: Tensor
    matrices: Tensor
    offsets: Tensor

    def __init__(self, times: Tensor, matrices: Tensor, offsets: Tensor):
        super().__init__()
        self.register_buffer("times", times.contiguous())
        self.register_buffer("matrices", matrices)
        self.register_buffer("offsets", offsets)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        matrix, offset = self.coefficients(t)
        return ((matrix @ x.flatten(1)[..., None])[..., 0] + offset).reshape(x.shape)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """A and b at each of the times asked for: (n,) → (n, d, d), (n, d). One look-up when all times are equal."""
        if t.numel() > 1 and bool((t == t[0]).all()):
            return tuple(part.expand(len(t), *part.shape[1:]) for part in self.coefficients(t[:1]))  # type: ignore[return-value]
        if len(self.times) == 1:
            return self.matrices.expand(len(t), -1, -1), self.offsets.expand(len(t), -1)
        right = torch.searchsorted(self.times, t.to(self.times.dtype)).clamp(1, len(self.times) - 1)
        left = right - 1
        share = (t - self.times[left]) / (self.times[right] - self.times[left])
        share = share.clamp(0, 1).to(self.matrices.dtype)
        matrix = torch.lerp(self.matrices[left], self.matrices[right], share[:, None, None])
        return matrix, torch.lerp(self.offsets[left], self.offsets[right], share[:, None])

    def thin(self, k: int) -> AffineField:
        """The same field on fewer times: means over k neighbouring ones, which also averages their sampling noise."""
        parts = ([block.mean(0) for block in part.split(k)] for part in (self.times, self.matrices, self.offsets))
        return AffineField(*(torch.stack(part) for part in parts))


def fit_affine(
    data: Trajectories | Iterable[Trajectories],
    objective: str = "phibe",
    *,
    noise: float | None = None,
    knots: Any = None,
) -> Flow:
    """The affine field at each observation time that minimises the objective   [paper: affine velocity field].

    [A | b] (Σ z zᵀ) = Σ w zᵀ/Δt + (½ Σ w wᵀ/Δt | 0), solved with the pseudo-inverse. `noise` is σ² for `isotropic`
    (default: estimated). When paths have times of their own, few start at the same instant: pass `knots`, and the field
    is piecewise linear in time between them, fitted to all transitions at once. An iterable of blocks of paths on one
    grid is read once, so that data may be simulated or loaded as it is used.
    """
    find_objective(objective)
    knots = None if knots is None else _checked(torch.as_tensor(knots, dtype=torch.float64))
    if not isinstance(data, Trajectories):
        moments = grid_moments(data)
    elif data.shared_times and data.lengths is None:
        moments = grid_moments([data])
    elif knots is None:
        moments = grouped_moments(data)
    else:
        return _fit_affine_knots(data, objective, noise, knots)
    times = moments.times if knots is None else knots
    solution = (
        _solve_affine(moments, objective, noise) if knots is None else _solve_knots(moments, objective, noise, knots)
    )
    matrices, offsets = (part.to(moments.dtype) for part in solution)
    return Flow(AffineField(times, matrices, offsets), moments.interval, moments.step)


def _solve_affine(moments: AffineMoments, objective: str, noise: float | None) -> tuple[Tensor, Tensor]:
    """The slope from the centred moments of each time, then the offset from their means: E[v] = E[w/Δt]."""
    n, d = moments.count[:, None, None], moments.wz.shape[1]
    mean, pull = moments.zz[:, :d, d:] / n, moments.wz[..., d:] / n
    right = moments.wz[..., :d] / n - pull @ mean.mT
    if objective == "phibe":
        right += 0.5 * moments.ww / n
    if objective == "isotropic":
        right += 0.5 * (moments.noise() if noise is None else noise) * torch.eye(d, dtype=torch.float64)
    gram = moments.zz[:, :d, :d] / n
    inverse, rank = _pseudo_inverse(gram - mean @ mean.mT, floor=1e-11 * gram.diagonal(dim1=1, dim2=2))
    if (deficient := rank < d).any():
        where = ", ".join(f"t = {float(t):g}" for t in moments.times[deficient][:3])
        warnings.warn(
            f"The states span fewer than {d} dimensions at {where}{' …' if deficient.sum() > 3 else ''}: "
            "the affine field there is the one of smallest norm among many.",
            stacklevel=3,
        )
    matrix = right @ inverse
    return matrix, (pull - matrix @ (mean + moments.shift[:, None]))[..., 0]


def _pseudo_inverse(gram: Tensor, *, floor: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Pseudo-inverse and rank of Gram matrices (..., p, p), in the units in which their diagonal is one.

    So neither depends on the units of the data. A diagonal entry at or below `floor` counts as zero.
    """
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    unit = torch.where(diagonal > floor, diagonal.clamp(min=0).rsqrt(), 0.0)
    scale = unit[..., :, None] * unit[..., None, :]
    values, vectors = torch.linalg.eigh(gram * scale)
    kept = values > 1e-13 * values[..., -1:]
    reciprocal = torch.where(kept, 1 / values, 0.0)[..., None, :]
    return (vectors * reciprocal) @ vectors.mT * scale, kept.sum(-1)


def _checked(knots: Tensor) -> Tensor:
    if knots.ndim != 1 or len(knots) < 2 or not (knots.diff() > 0).all():
        raise ValueError(f"`knots` must be at least two increasing times; got {knots.tolist()}.")
    return knots


def _solve_knots(moments: AffineMoments, objective: str, noise: float | None, knots: Tensor) -> tuple[Tensor, Tensor]:
    """The field that is linear in time between knots, from the moments of all times: hats φ_k(t) weigh them.

    Σ_l [A | b]_l Σ_t φ_k φ_l (Σ z zᵀ)_t = Σ_t φ_k (Σ w zᵀ/Δt + (½ Σ w wᵀ/Δt | 0))_t, for every knot k.
    """
    d, size = moments.wz.shape[1], len(knots) * (moments.wz.shape[1] + 1)
    right = moments.wz.clone()
    if objective == "phibe":
        right[..., :d] += 0.5 * moments.ww
    if objective == "isotropic":
        scale = 0.5 * (moments.noise() if noise is None else noise)
        right[..., :d] += scale * moments.count[:, None, None] * torch.eye(d, dtype=torch.float64)
    hats = in_time(polynomials(0), knots)(moments.times[:, None], moments.times)
    gram = torch.einsum("tk,tl,tij->kilj", hats, hats, moments.zz).reshape(size, size)
    inverse, rank = _pseudo_inverse(gram)
    if int(rank) < size:
        warnings.warn("Some knots see too few transitions: the field there is the one of smallest norm.", stacklevel=3)
    theta = (inverse @ torch.einsum("tk,tdi->kid", hats, right).reshape(size, d)).reshape(len(knots), d + 1, d)
    matrices, offsets = theta[:, :d].mT.contiguous(), theta[:, d]
    return matrices, offsets - (matrices @ moments.shift[:, None])[..., 0]


def _fit_affine_knots(data: Trajectories, objective: str, noise: float | None, knots: Tensor) -> Flow:
    """The same for paths with times of their own."""
    d = data.states[0, 0].numel()
    flow = fit_basis(data, lift(in_time(polynomials(1), knots)), objective, noise=noise)
    theta = flow.velocity.coefficients.reshape(len(knots), d + 1, d)  # type: ignore[attr-defined]
    matrices, offsets = theta[:, 1:].mT.to(data.states.dtype), theta[:, 0].to(data.states.dtype)
    return Flow(AffineField(knots, matrices.contiguous(), offsets.contiguous()), flow.interval, flow.step)


# -- any linear basis ----------------------------------------------------------------------------------------------


class BasisField(nn.Module):
    """v(x, t) = Σ θ_ℓ ψ_ℓ(x, t), with the normal equations that gave θ: `gram` = H_N (p, p), `moment` = c_N (p,)."""

    coefficients: Tensor
    gram: Tensor
    moment: Tensor

    def __init__(self, basis: Basis, coefficients: Tensor, gram: Tensor, moment: Tensor):
        super().__init__()
        self.basis = basis
        self.register_buffer("coefficients", coefficients)
        self.register_buffer("gram", gram)
        self.register_buffer("moment", moment)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.einsum("np...,p->n...", self.basis(x, t), self.coefficients.to(x.dtype))


def fit_basis(
    data: Trajectories,
    basis: Basis,
    objective: str = "phibe",
    *,
    noise: float | None = None,
    ridge: float = 0.0,
) -> Flow:
    """The combination of basis fields that minimises the objective, H_N θ = c_N   [paper: fixed linear-basis models].

    H_N is the mean of ΨᵀΨ and c_N that of ψ_ℓ·Δx/Δt + ½ Δxᵀ(∇ψ_ℓ)Δx/Δt over the transitions. `ridge` adds a multiple
    of the identity to H_N. Where H_N is singular the solution of smallest norm is taken, with a warning.
    """
    find_objective(objective)
    if objective == "isotropic" and noise is None:
        noise = estimate_noise(data)
    p = _basis_size(basis, data)
    gram, moment, count = torch.zeros(p, p, dtype=torch.float64), torch.zeros(p, dtype=torch.float64), 0
    for chunk in data.chunks(megabytes=16 / p):
        pairs = chunk.pairs()
        products, pulls = _basis_sums(basis, pairs, objective, noise)
        gram += products
        moment += pulls
        count += len(pairs.t)
    gram, moment = gram / count + ridge * torch.eye(p, dtype=torch.float64), moment / count
    inverse, rank = _pseudo_inverse(gram)
    if rank < p:
        warnings.warn(
            f"The {p} basis fields are only {int(rank)} different ones here; θ is the solution of smallest norm.",
            stacklevel=2,
        )
    return Flow(BasisField(basis, inverse @ moment, gram, moment), data.interval, typical_step(data))


def _basis_size(basis: Basis, data: Trajectories) -> int:
    shape = tuple(basis(data.states[:1, 0], data.times.reshape(-1)[:1].to(data.states.dtype)).shape)
    if len(shape) < 3 or shape[2:] != data.state_shape:
        raise ValueError(
            f"A basis must return (n, p, *state), here (1, p, {', '.join(map(str, data.state_shape))}); got {shape}. "
            "Scalar features φ_k(x, t)? Wrap them: `lift(features)`."
        )
    return shape[1]


def _basis_sums(basis: Basis, pairs: Pairs, objective: str, noise: float | None) -> tuple[Tensor, Tensor]:
    """Σ ΨᵀΨ (p, p) and Σ [ψ·Δx + ½ Δxᵀ(∇ψ)Δx]/Δt (p,) over the transitions, in float64; of φ_k e_i by φ_k alone."""
    x, t, dx, dt = pairs
    w = dx.double().flatten(1) / dt.double()[:, None]
    units = torch.eye(w.shape[1], dtype=x.dtype)
    lifted = isinstance(basis, Lifted)

    def values(z: Tensor) -> Tensor:
        """(n, K) of features, (n, p, D) of fields."""
        return basis.features(z, t) if isinstance(basis, Lifted) else basis(z, t).flatten(2)

    if objective == "phibe":
        psi, slope = (part.double() for part in along(values, x, dx))
        pull = psi + 0.5 * slope
    else:
        psi = pull = values(x).double()
    moment = pull.mT @ w if lifted else torch.einsum("npd,nd->p", pull, w)
    if objective == "isotropic":
        sides = [along(values, x, unit.reshape(x.shape[1:]).expand_as(x))[1].double().sum(0) for unit in units]
        slopes = torch.stack(sides, dim=-1)  # (K, D) of features, (p, D, D) of fields
        moment += 0.5 * float(noise or 0.0) * (slopes if lifted else slopes.diagonal(dim1=1, dim2=2).sum(1))
    gram = torch.kron(psi.mT @ psi, units.double()) if lifted else torch.einsum("nps,nqs->pq", psi, psi)
    return gram, moment.flatten()
