"""Affine fits: the minimiser of an objective among fields affine in x, at each observation time or between knots."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from phibe.bases import in_time, lift, polynomials
from phibe.calculus import differentiable
from phibe.flow import Flow
from phibe.linear.basis import fit_basis, pseudo_inverse
from phibe.linear.sums import AffineMoments, grid_moments, grouped_moments
from phibe.objectives import find_objective
from phibe.trajectories import Trajectories


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
        self.state_shape: tuple[int, ...] = (offsets.shape[1],)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        matrix, offset = self.coefficients(t)
        return ((matrix @ x.flatten(1)[..., None])[..., 0] + offset).reshape(x.shape)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """A and b at each of the times asked for: (n,) → (n, d, d), (n, d). One look-up when all times are equal.

        The derivative in t is that of the stretch between two times; at a time itself the one from the left, at the
        first the one from the right.
        """
        if t.numel() > 1 and not differentiable(t) and bool((t == t[0]).all()):
            return tuple(part.expand(len(t), *part.shape[1:]) for part in self.coefficients(t[:1]))  # type: ignore[return-value]
        if len(self.times) == 1:
            return self.matrices.expand(len(t), -1, -1), self.offsets.expand(len(t), -1)
        right = torch.searchsorted(self.times, t.to(self.times.dtype).contiguous()).clamp(1, len(self.times) - 1)
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

    [A | b] (Σ z zᵀ) = Σ u zᵀ + (½ Σ q d dᵀ | 0), with the objective's targets and directions (u = Δx/Δt, q d dᵀ =
    Δx Δxᵀ/Δt for `phibe`), solved with the pseudo-inverse. `noise` is σ² for `isotropic` (default: estimated). A time
    that the objective cannot see, as `symmetric` the first and the last, takes the field of the nearest that it can.
    When paths have times of their own, few start at the same instant: pass `knots`, and the field is piecewise linear
    in time between them, fitted to all samples at once. An iterable of blocks of paths on one grid is read once, so
    that data may be simulated or loaded as it is used.
    """
    kind = find_objective(objective)
    knots = None if knots is None else _checked(torch.as_tensor(knots, dtype=torch.float64))
    grid = not isinstance(data, Trajectories) or (data.shared_times and data.lengths is None)
    if not grid and knots is not None and isinstance(data, Trajectories):
        return _fit_affine_knots(data, objective, noise, knots)
    blocks = [data] if isinstance(data, Trajectories) else data
    on_transitions = kind.width == 2 and objective != "stratonovich"
    fast = grid and on_transitions
    moments = grid_moments(blocks) if fast else grouped_moments(blocks, "phibe" if on_transitions else objective)
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
    right += 0.5 * _spread(moments, objective, noise) / n
    gram = moments.zz[:, :d, :d] / n
    inverse, rank = pseudo_inverse(gram - mean @ mean.mT, floor=1e-11 * gram.diagonal(dim1=1, dim2=2))
    if (deficient := rank < d).any():
        where = ", ".join(f"t = {float(t):g}" for t in moments.times[deficient][:3])
        warnings.warn(
            f"The states span fewer than {d} dimensions at {where}{' …' if deficient.sum() > 3 else ''}: "
            "the affine field there is the one of smallest norm among many.",
            stacklevel=3,
        )
    matrix = right @ inverse
    return matrix, (pull - matrix @ (mean + moments.shift[:, None]))[..., 0]


def _spread(moments: AffineMoments, objective: str, noise: float | None) -> Tensor:
    """What the Jacobian term of the objective sees at each time: n σ²I for `isotropic`, else Σ q d dᵀ or nothing."""
    if objective == "isotropic":
        unit = torch.eye(moments.ww.shape[1], dtype=torch.float64)
        return (moments.noise() if noise is None else noise) * moments.count[:, None, None] * unit
    return moments.ww if find_objective(objective).jacobian else torch.zeros_like(moments.ww)


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
    right[..., :d] += 0.5 * _spread(moments, objective, noise)
    hats = in_time(polynomials(0), knots)(moments.times[:, None], moments.times)
    gram = torch.einsum("tk,tl,tij->kilj", hats, hats, moments.zz).reshape(size, size)
    inverse, rank = pseudo_inverse(gram)
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
