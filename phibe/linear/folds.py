"""Normal equations of a `Basis`: sums over folds of the paths, and the coefficients of any part of its features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.calculus import along, times
from phibe.networks.basis import Basis
from phibe.networks.normalised import Normalised
from phibe.objectives import Stencil, estimate_noise, find_objective
from phibe.trajectories import Trajectories


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


class Sums(NamedTuple):
    """Of each fold Σ φφᵀ (folds, p, p), Σ [φ uᵀ + ½ Σ q (∇φ·d) dᵀ] (folds, p, d) and the number of places; u, d in
    units of the velocity. `network` has the features."""

    network: Normalised
    gram: Tensor
    moment: Tensor
    number: Tensor


def fold_sums(network: Normalised, folds: Sequence[Trajectories], objective: str) -> Sums:
    basis, kind = network.network, find_objective(objective)
    assert isinstance(basis, Basis)
    knots, count, d = basis.coefficients.shape
    gram = torch.zeros(len(folds), knots * count, knots * count, dtype=torch.float64)
    moment, number = torch.zeros(len(folds), knots * count, d, dtype=torch.float64), torch.zeros(len(folds))
    options = {"noise": estimate_noise(folds[0]), "exact": True} if objective == "isotropic" else {}
    for i, fold in enumerate(folds):
        for chunk in fold.chunks(megabytes=4):
            if chunk.states.shape[1] >= kind.width:
                sample = [part.double() for part in kind.samples(chunk)]
                if not len(sample[0]):
                    continue
                stencil, worth = kind.stencil(*sample, **options), kind.weights(*sample)
                _add(gram[i], moment[i], network, stencil, worth.repeat(len(stencil.t) // len(worth)))
                number[i] += float(worth.sum()) * (len(stencil.t) // len(worth))
    kept = number > 0
    if not kept.any():
        raise ValueError(f"No path has the {kind.width} observations that `{objective}` looks at.")
    return Sums(network, gram[kept], moment[kept], number[kept].double())


@torch.no_grad()
def _add(gram: Tensor, moment: Tensor, network: Normalised, stencil: Stencil, worth: Tensor) -> None:
    """Only the two hats around a time are not zero there, so the sums go stretch by stretch between knots."""
    basis, unit = network.network, network.velocity_scale
    x, t, u, directions = stencil
    z, s = network.standardise(x), (t - network.t_start) / network.t_scale
    phi, hats = basis.features(z), basis.hats(s)  # type: ignore[operator]
    count, stretches = phi.shape[1], max(1, hats.shape[1] - 1)
    pulls = [(phi, (u / unit).flatten(1))]
    for q, d in directions:
        slope = along(basis.features, z, d / network.scale)[1]  # type: ignore[arg-type]
        pulls.append((0.5 * slope, times(d / unit, q).flatten(1)))
    where = torch.searchsorted(basis.knots[1:-1].contiguous(), s)  # type: ignore[index]
    for k in range(stretches):
        rows, columns = where == k, slice(k * count, (k + 2) * count)
        weights, own = hats[rows, k : k + 2, None], worth[rows, None]
        block = (weights * phi[rows, None]).flatten(1)
        gram[columns, columns] += block.mT @ (own * block)
        for values, target in pulls:
            moment[columns] += (weights * values[rows, None]).flatten(1).mT @ (own * target[rows])


def left_out(sums: Sums, size: Size, d: int) -> Tensor:
    """The mean objective on each fold, of the fit to all others."""
    columns = _columns(sums, size, d)
    gram, moment = sums.gram[:, columns][:, :, columns], sums.moment[:, columns]
    scores = []
    for i, count in enumerate(sums.number):
        others = torch.arange(len(sums.number)) != i if len(sums.number) > 1 else torch.ones(1, dtype=torch.bool)
        theta = _solve(gram[others].sum(0), moment[others].sum(0), size.ridge)
        scores.append(((theta * (gram[i] @ theta)).sum() - 2 * (theta * moment[i]).sum()) / count)
    return torch.stack(scores)


def _columns(sums: Sums, size: Size, d: int) -> Tensor:
    """Which of the features a candidate has: its monomials and waves, at every knot."""
    basis = sums.network.network
    assert isinstance(basis, Basis)
    knots, count, _ = basis.coefficients.shape
    first = math.comb(d + basis.arguments["degree"], basis.arguments["degree"])
    own = [*range(math.comb(d + size.degree, size.degree)), *range(first, first + size.waves)]
    return (torch.arange(knots)[:, None] * count + torch.tensor(own)).flatten()


def _solve(gram: Tensor, moment: Tensor, ridge: float) -> Tensor:
    """(G + ridge·diag G)⁻¹ M, in the units in which the diagonal is one."""
    diagonal = gram.diagonal()
    unit = torch.where(diagonal > 1e-14 * diagonal.max(), diagonal.clamp(min=0).rsqrt(), 0.0)
    scaled = gram * unit[:, None] * unit + ridge * torch.eye(len(gram), dtype=gram.dtype)
    scaled.diagonal()[unit == 0] += 1.0
    return unit[:, None] * torch.linalg.solve(scaled, unit[:, None] * moment)


def solved(part: Sums, size: Size) -> Normalised:
    """The network of one size, with the coefficients of all the data."""
    large: Any = part.network.network
    d = large.coefficients.shape[2]
    columns = _columns(part, size, d)
    theta = _solve(part.gram.sum(0)[columns][:, columns], part.moment.sum(0)[columns], size.ridge)
    arguments = large.arguments | {"degree": size.degree, "waves": size.waves}
    basis = Basis(large.state_shape, **arguments).double()
    with torch.no_grad():
        basis.knots.copy_(large.knots)
        basis.frequencies.copy_(large.frequencies[:, : size.waves])
        basis.phases.copy_(large.phases[: size.waves])
        basis.coefficients.copy_(theta.reshape(basis.coefficients.shape))
    return in_units_of(part.network, basis)


def in_units_of(network: Normalised, basis: Basis) -> Normalised:
    """The basis, in float64, wrapped as another one is."""
    units = {name: getattr(network, name) for name in ("mean", "scale", "velocity_scale", "t_start", "t_scale")}
    return Normalised(basis.double(), basis.state_shape, **units)
