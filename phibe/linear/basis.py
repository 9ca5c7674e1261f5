"""Basis fits: minimisers of the objectives among combinations of fixed fields, with block error bars."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phibe.bases import Basis, Lifted
from phibe.calculus import along, times
from phibe.flow import Flow
from phibe.objectives import Stencil, estimate_noise, find_objective
from phibe.trajectories import Trajectories


class BasisField(nn.Module):
    """v(x, t) = Σ θ_ℓ ψ_ℓ(x, t), with the normal equations that gave θ: `gram` = H_N (p, p), `moment` = c_N (p,).

    `influence` (blocks, p) is what each block of the data did to θ; from it come the standard errors. `rank` is that of
    H_N: below p, the data does not tell the basis fields apart.
    """

    coefficients: Tensor
    gram: Tensor
    moment: Tensor
    influence: Tensor

    def __init__(self, basis: Basis, coefficients: Tensor, gram: Tensor, moment: Tensor, influence: Tensor, rank: int):
        super().__init__()
        self.basis, self.rank = basis, rank
        for name, tensor in (("coefficients", coefficients), ("gram", gram), ("moment", moment)):
            self.register_buffer(name, tensor)
        self.register_buffer("influence", influence)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.einsum("np...,p->n...", self.basis(x, t), self.coefficients.to(x.dtype))

    @property
    def covariance(self) -> Tensor:
        """Of θ, (p, p): blocks are taken to be independent."""
        if (count := len(self.influence)) < 2:
            raise ValueError(
                "This field knows no standard errors: fit it with `blocks`, e.g. `fit_basis(…, blocks=20)`."
            )
        return count / (count - 1) * self.influence.mT @ self.influence

    def standard_error(self, x: Tensor, t: Tensor) -> Tensor:
        """Of each component of v at each point, √(ψᵀ Cov(θ) ψ): (n, *state)."""
        psi = self.basis(x, t).double()
        return torch.einsum("np...,pq,nq...->n...", psi, self.covariance, psi).clamp(min=0).sqrt().to(x.dtype)


def fit_basis(
    data: Trajectories,
    basis: Basis,
    objective: str = "phibe",
    *,
    noise: float | None = None,
    ridge: float = 0.0,
    blocks: int = 1,
) -> Flow:
    """The combination of basis fields that minimises the objective, H_N θ = c_N   [paper: fixed linear-basis models].

    H_N is the mean of ΨᵀΨ and c_N that of ψ_ℓ·u + ½ Σ q dᵀ(∇ψ_ℓ)d over the samples, with the objective's targets and
    directions. `ridge` adds a multiple of the identity to H_N. Where H_N is singular the solution of smallest norm is
    taken, with a warning. With more `blocks` than one the field also knows its standard errors: the data falls into so
    many, groups of paths or, of few paths, stretches of them, that are taken to be independent.
    """
    if objective == "isotropic" and noise is None:
        noise = estimate_noise(data)
    field = fit_blocks(data.blocks(blocks), basis, objective, noise=noise, ridge=ridge)
    return Flow(field, data.interval, data.typical_step)


def fit_blocks(
    blocks: Sequence[Trajectories],
    basis: Basis,
    objective: str,
    *,
    noise: float | None = None,
    ridge: float = 0.0,
    weighted: bool = False,
) -> BasisField:
    """The field of `fit_basis`, from data that is already in blocks; `weighted` by what each sample is worth."""
    p = _basis_size(basis, blocks[0])
    sums = [_basis_sums(basis, block, objective, noise, weighted) for block in blocks]
    count = sum(part.count for part in sums)
    if not count:
        raise ValueError(f"No path has the {find_objective(objective).width} observations that `{objective}` looks at.")
    gram = torch.stack([part.gram for part in sums]).sum(0) / count + ridge * torch.eye(p, dtype=torch.float64)
    moment = torch.stack([part.moment for part in sums]).sum(0) / count
    inverse, rank = pseudo_inverse(gram)
    if rank < p:
        warnings.warn(
            f"The {p} basis fields are only {int(rank)} different ones here; θ is the solution of smallest norm.",
            stacklevel=3,
        )
    theta = inverse @ moment
    residues = torch.stack([part.moment - part.gram @ theta for part in sums]) / count
    return BasisField(basis, theta, gram, moment, residues @ inverse, int(rank))


def _basis_size(basis: Basis, data: Trajectories) -> int:
    shape = tuple(basis(data.states[:1, 0], data.times.reshape(-1)[:1].to(data.states.dtype)).shape)
    if len(shape) < 3 or shape[2:] != data.state_shape:
        raise ValueError(
            f"A basis must return (n, p, *state), here (1, p, {', '.join(map(str, data.state_shape))}); got {shape}. "
            "Scalar features φ_k(x, t)? Wrap them: `lift(features)`."
        )
    return shape[1]


@dataclass(frozen=True)
class BasisSums:
    """Σ ΨᵀΨ (p, p) and Σ [ψ·u + ½ Σ q dᵀ(∇ψ)d] (p,) over `count` places (or their weight), in float64."""

    gram: Tensor
    moment: Tensor
    count: float


def _basis_sums(basis: Basis, data: Trajectories, objective: str, noise: float | None, weighted: bool) -> BasisSums:
    p, kind = _basis_size(basis, data), find_objective(objective)
    options = {"noise": noise, "exact": True} if objective == "isotropic" else {}
    gram, moment, count = torch.zeros(p, p, dtype=torch.float64), torch.zeros(p, dtype=torch.float64), 0.0
    for chunk in data.chunks(megabytes=16 / p):
        if chunk.states.shape[1] < kind.width:
            continue
        sample = kind.samples(chunk)
        stencil = kind.stencil(*sample, **options)
        worth = kind.weights(*sample).repeat(len(stencil.t) // len(sample[0])) if weighted else None
        products, pulls = _stencil_sums(basis, stencil, worth)
        gram, moment = gram + products, moment + pulls
        count += len(stencil.t) if worth is None else float(worth.sum())
    return BasisSums(gram, moment, count)


def _stencil_sums(basis: Basis, stencil: Stencil, worth: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums of one chunk; of fields φ_k e_i by their features φ_k alone. `worth` (m,) weighs its places."""
    x, t, u, directions = stencil
    lifted = isinstance(basis, Lifted)
    worth = torch.ones_like(t, dtype=torch.float64) if worth is None else worth

    def values(z: Tensor) -> Tensor:
        """(n, K) of features, (n, p, D) of fields."""
        return basis.features(z, t) if isinstance(basis, Lifted) else basis(z, t).flatten(2)

    def pull(psi: Tensor, w: Tensor) -> Tensor:
        psi, w = psi.double(), w.double().flatten(1)
        return (psi.mT @ w).flatten() if lifted else torch.einsum("npd,nd->p", psi, w)

    psi = values(x)
    moment = pull(psi, times(u.double(), worth))
    for q, d in directions:
        moment = moment + 0.5 * pull(along(values, x, d)[1], times(d, q * worth))
    psi = psi.double()
    heavy, unit = times(psi, worth), torch.eye(x[0].numel(), dtype=torch.float64)
    gram = torch.kron(psi.mT @ heavy, unit) if lifted else torch.einsum("nps,nqs->pq", psi, heavy)
    return gram, moment


def pseudo_inverse(gram: Tensor, *, floor: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
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
