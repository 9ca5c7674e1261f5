"""Basis fits: minimisers of the objectives among combinations of fixed fields, with error bars and cross-validation.

H_N θ = c_N   [paper: fixed linear-basis models], solved from the sums of all the data; those of its blocks give the
standard errors, those of folds left out in turn the size that does best. Read next: `phibe.linear.affine`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phibe.bases import Basis as Fields
from phibe.bases import InTime, lift
from phibe.flow import Flow
from phibe.linear.sums import assembled, merged, sums
from phibe.networks.basis import Basis
from phibe.networks.network import Normalised
from phibe.objectives import estimate_noise, find_objective
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

    def __init__(self, basis: Fields, coefficients: Tensor, gram: Tensor, moment: Tensor, influence: Tensor, rank: int):
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
    basis: Fields,
    objective: str = "phibe",
    *,
    noise: float | None = None,
    ridge: float = 0.0,
    blocks: int = 1,
    executor: Executor | None = None,
) -> Flow:
    """The combination of basis fields that minimises the objective, H_N θ = c_N   [paper: fixed linear-basis models].

    H_N is the mean of ΨᵀΨ and c_N that of ψ_ℓ·u + ½ Σ q dᵀ(∇ψ_ℓ)d over the samples, with the objective's targets and
    directions. `ridge` adds a multiple of the identity to H_N. Where H_N is singular the solution of smallest norm is
    taken, with a warning. With more `blocks` than one the field also knows its standard errors: the data falls into so
    many, groups of paths or, of few paths, stretches of them, that are taken to be independent. An `executor` of
    `concurrent.futures` sums them side by side.

    >>> from phibe.bases import lift, polynomials
    >>> from phibe.systems.ou import OU
    >>> data = OU([[-1.0]], [[1e-9]]).simulate(paths=9, times=[0.0, 0.1])  # dX = −X dt, seen at a step of 0.1
    >>> flow = fit_basis(data, lift(polynomials(1)), "regression")
    >>> flow.velocity.coefficients.round(decimals=3).abs()  # 0 and (1 − e⁻⁰·¹)/0.1
    tensor([0.0000, 0.9520], dtype=torch.float64)
    """
    if objective == "isotropic" and noise is None:
        noise = estimate_noise(data)
    field = fit_blocks(data.blocks(blocks), basis, objective, noise=noise, ridge=ridge, executor=executor)
    return Flow(field, data.interval, data.typical_step, method=find_objective(objective).method)


def fit_blocks(
    blocks: Sequence[Trajectories],
    basis: Fields,
    objective: str,
    *,
    noise: float | None = None,
    ridge: float = 0.0,
    weighted: bool = False,
    executor: Executor | None = None,
) -> BasisField:
    """The field of `fit_basis`, from data that is already in blocks; `weighted` by the weight of each sample."""
    each = map if executor is None else executor.map
    one = partial(sums, basis=basis, objective=objective, noise=noise, weighted=weighted)
    parts = list(each(one, blocks))
    whole = merged(parts, objective)
    count = float(whole.counts.sum())
    gram, moment = (part / count for part in whole.equations())
    gram = gram + ridge * torch.eye(len(gram), dtype=torch.float64)
    inverse, rank = pseudo_inverse(gram)
    theta, columns = inverse @ moment, moment.shape[1]
    if rank < len(gram):
        warnings.warn(
            f"The {theta.numel()} basis fields are only {int(rank) * columns} different ones here; "
            "θ is the solution of smallest norm.",
            stacklevel=3,
        )
    influence = torch.stack([inverse @ (m - g @ theta) for g, m in (part.equations() for part in parts)]) / count
    full = torch.kron(gram, torch.eye(columns, dtype=torch.float64))
    return BasisField(basis, theta.flatten(), full, moment.flatten(), influence.flatten(1), int(rank) * columns)


def pseudo_inverse(gram: Tensor, *, floor: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Pseudo-inverse and rank of Gram matrices (..., p, p), in the units in which their diagonal is one.

    So neither depends on the units of the data. A diagonal entry at or below `floor` counts as zero.
    """
    unit = _units(gram, floor)
    scale = unit[..., :, None] * unit[..., None, :]
    values, vectors = torch.linalg.eigh(gram * scale)
    kept = values > 1e-13 * values[..., -1:]
    reciprocal = torch.where(kept, 1 / values, 0.0)[..., None, :]
    return (vectors * reciprocal) @ vectors.mT * scale, kept.sum(-1)


def _units(gram: Tensor, floor: Tensor | float) -> Tensor:
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    return torch.where(diagonal > floor, diagonal.clamp(min=0).rsqrt(), 0.0)


# -- cross-validation --------------------------------------------------------------------------------------------------


class Size(NamedTuple):
    """How large a basis is: degree of its monomials, number of waves, knots in time, and its ridge."""

    degree: int
    waves: int
    knots: int
    ridge: float

    def __str__(self) -> str:
        name = {0: "constant", 1: "affine", 2: "quadratic", 3: "cubic"}.get(self.degree, f"degree {self.degree}")
        waves = f" and {self.waves} random waves" if self.waves else ""
        return f"{name}{waves}, " + ("the same at all times" if self.knots == 1 else f"{self.knots} knots in time")

    def count(self, d: int) -> int:
        return self.knots * (math.comb(d + self.degree, self.degree) + self.waves)


class Folds(NamedTuple):
    """The sums of F folds: `gram` (F, G, K, K), `moment` (F, G, K, d) in units of the velocity, `weight` (F,) of their
    samples. The features are those of `network`."""

    network: Normalised
    gram: Tensor
    moment: Tensor
    weight: Tensor

    def equations(self, size: Size) -> tuple[Tensor, Tensor]:
        """G and M of each fold, of the features that a size has: its monomials and waves, at every knot."""
        own, d = self.network.network, self.moment.shape[-1]
        assert isinstance(own, Basis)
        degree, count = own.arguments["degree"], own.coefficients.shape[1]
        first = math.comb(d + degree, degree)
        chosen = torch.tensor([*range(math.comb(d + size.degree, size.degree)), *range(first, first + size.waves)])
        chosen = torch.cat([chosen + start for start in range(0, self.gram.shape[-1], count)])
        return assembled(self.gram[..., chosen, :][..., chosen], self.moment[..., chosen, :])


def fold_sums(network: Normalised, folds: Sequence[Trajectories], objective: str) -> Folds:
    """The sums of the features of a `Basis` in standard units, fold by fold; samples have their weights."""
    basis = network.network
    assert isinstance(basis, Basis)

    def features(x: Tensor, t: Tensor) -> Tensor:
        return basis.features(network.standardise(x))

    knots, unit = network.t_start + network.t_scale * basis.knots, network.velocity_scale
    unit = unit.expand(network.state_shape).flatten()
    noise = estimate_noise(folds[0]) if objective == "isotropic" else None
    each = [
        sums(fold, lift(InTime(features, knots)), objective, noise=noise, weighted=True, dtype=torch.float64)
        for fold in folds
    ]
    merged(each, objective)
    seen = [part for part in each if (part.counts > 0).any()]
    gram, moment, weight = (
        torch.stack(part)
        for part in ([p.gram for p in seen], [p.target + p.spread for p in seen], [p.counts.sum() for p in seen])
    )
    return Folds(network, gram, moment / unit, weight)


def left_out(folds: Folds, size: Size) -> Tensor:
    """The mean objective on each fold, of the fit to all others; of a single fold, of the fit to itself."""
    gram, moment = folds.equations(size)
    count = len(gram)
    others = torch.ones(count, count, dtype=torch.float64) - (torch.eye(count) if count > 1 else 0.0)
    theta = _solve(torch.tensordot(others, gram, 1), torch.tensordot(others, moment, 1), size.ridge)
    return (theta * (gram @ theta - 2 * moment)).sum((1, 2)) / folds.weight


def _solve(gram: Tensor, moment: Tensor, ridge: float) -> Tensor:
    """(G + ridge·diag G)⁻¹ M, in the units in which the diagonal is one."""
    unit = _units(gram, 1e-14 * gram.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True))[..., None]
    scaled = gram * unit * unit.mT + torch.diag_embed(torch.where(unit[..., 0] > 0, ridge, 1.0 + ridge))
    return unit * torch.linalg.solve(scaled, unit * moment)


def solved(folds: Folds, size: Size) -> Normalised:
    """The network of one size, with the coefficients of all the data."""
    large: Any = folds.network.network
    gram, moment = folds.equations(size)
    theta = _solve(gram.sum(0), moment.sum(0), size.ridge)
    arguments = large.arguments | {"degree": size.degree, "waves": size.waves}
    basis = Basis(large.state_shape, **arguments).double()
    with torch.no_grad():
        basis.knots.copy_(large.knots)
        basis.frequencies.copy_(large.frequencies[:, : size.waves])
        basis.phases.copy_(large.phases[: size.waves])
        basis.coefficients.copy_(theta.reshape(basis.coefficients.shape))
    return in_units_of(folds.network, basis)


def in_units_of(network: Normalised, basis: Basis) -> Normalised:
    """The basis, in float64, wrapped as another one is."""
    units = {name: getattr(network, name) for name in ("mean", "scale", "velocity_scale", "t_start", "t_scale")}
    return Normalised(basis.double(), basis.state_shape, **units)
