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
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phibe.bases import Basis as Fields
from phibe.bases import InTime, lift, place_knots
from phibe.ensembles import integrate, observed, place_marks
from phibe.flow import Flow
from phibe.linear.sums import assembled, merged, sums
from phibe.metrics import sliced_w2
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
        tensors = {"coefficients": coefficients, "gram": gram, "moment": moment, "influence": influence}
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.einsum("np...,p->n...", self.basis(x, t), self.coefficients.to(x.dtype))

    @property
    def covariance(self) -> Tensor:
        """Of θ, (p, p): blocks are taken to be independent."""
        if (count := len(self.influence)) < 2:
            raise ValueError("This field knows no standard errors: fit it with `blocks`, as `fit_basis(…, blocks=20)`.")
        return count / (count - 1) * self.influence.mT @ self.influence

    def standard_error(self, x: Tensor, t: Tensor) -> Tensor:
        """Of each component of v at each point, √(ψᵀ Cov(θ) ψ): (n, *state)."""
        psi = self.basis(x, t).double()
        return torch.einsum("np...,pq,nq...->n...", psi, self.covariance, psi).clamp(min=0).sqrt().to(x.dtype)


def fit_basis(
    data: Trajectories | Sequence[Trajectories],
    basis: Fields,
    objective: str = "phibe",
    *,
    noise: float | None = None,
    ridge: float = 0.0,
    blocks: int = 1,
    weighted: bool = False,
    executor: Executor | None = None,
) -> Flow:
    """The combination of basis fields that minimises the objective, H_N θ = c_N   [paper: fixed linear-basis models].

    H_N is the mean of ΨᵀΨ and c_N that of ψ_ℓ·u + ½ Σ q dᵀ(∇ψ_ℓ)d over the samples (`weighted` by the objective's
    weights). `ridge` adds a multiple of the identity to H_N. Where H_N is singular the solution of smallest norm is
    taken, with a warning. With more `blocks` than one (see `Trajectories.blocks`; the data may also come in blocks) the
    field knows its standard errors. An `executor` of `concurrent.futures` sums them side by side.

    >>> from phibe.bases import lift, polynomials
    >>> from phibe.systems.ou import OU
    >>> data = OU([[-1.0]], [[1e-9]]).simulate(paths=9, times=[0.0, 0.1])  # dX = −X dt, seen at a step of 0.1
    >>> flow = fit_basis(data, lift(polynomials(1)), "regression")
    >>> flow.velocity.coefficients.round(decimals=3).abs()  # 0 and (1 − e⁻⁰·¹)/0.1
    tensor([0.0000, 0.9520], dtype=torch.float64)
    """
    kind, given = find_objective(objective), [data] if isinstance(data, Trajectories) else data
    if kind.noise and noise is None:
        noise = sum(map(estimate_noise, given)) / len(given)
    each = map if executor is None else executor.map
    one = partial(sums, basis=basis, objective=objective, noise=noise, weighted=weighted)
    parts = list(each(one, data.blocks(blocks) if isinstance(data, Trajectories) else data))
    whole = merged(parts, objective)
    count = float(whole.counts.sum())
    gram, moment = (part / count for part in whole.equations())
    gram = gram + ridge * torch.eye(len(gram), dtype=torch.float64)
    inverse, rank = pseudo_inverse(gram)
    theta, columns = inverse @ moment, moment.shape[1]
    if rank < len(gram):
        few = f"The {theta.numel()} basis fields are only {int(rank) * columns} different ones here"
        warnings.warn(f"{few}; θ is the solution of smallest norm.", stacklevel=2)
    influence = torch.stack([inverse @ (m - g @ theta) for g, m in (part.equations() for part in parts)]) / count
    full = torch.kron(gram, torch.eye(columns, dtype=torch.float64))
    field = BasisField(basis, theta.flatten(), full, moment.flatten(), influence.flatten(1), int(rank) * columns)
    step = data.typical_step if isinstance(data, Trajectories) else whole.step
    return Flow(field, whole.interval, step, method=kind.method)


def pseudo_inverse(gram: Tensor, *, floor: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Pseudo-inverse and rank of Gram matrices (..., p, p), in the units in which their diagonal is one.

    So neither depends on the units of the data. A diagonal entry at or below `floor` counts as zero.
    """
    unit = _units(gram, floor)[..., None]
    scale = unit * unit.mT
    values, vectors = torch.linalg.eigh(gram * scale)
    kept = values > 1e-13 * values[..., -1:]
    reciprocal = torch.where(kept, 1 / values, 0.0)[..., None, :]
    return (vectors * reciprocal) @ vectors.mT * scale, kept.sum(-1)


def _units(gram: Tensor, floor: Tensor | float) -> Tensor:
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    return torch.where(diagonal > floor, diagonal.clamp(min=0).rsqrt(), 0.0)


# -- cross-validation --------------------------------------------------------------------------------------------------

FOLDS, MOST = 8, 600
"""Groups of paths that are left out in turn; coefficients of a coordinate beyond which no candidate goes."""

SHORT, CLOSE, ALIKE, FAR = 6, 0.05, 1.2, 30.0
"""Candidates whose flow is integrated, how near to the best objective they must be, gaps that are alike, and spreads
from the mean beyond which a flow diverges."""


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


def sizes(d: int, samples: int, *, affine: bool = False, time: bool = True) -> list[Size]:
    """What is tried, from small to large: never more coefficients than a twentieth of the samples."""
    kinds = [(1, 0)] if affine else [(1, 0), (2, 0), (3, 0), (1, 30), (2, 30), (1, 90)]
    found = [
        Size(degree, waves, knots, ridge)
        for (degree, waves), knots in product(kinds, (1, 4, 8, 16) if time else (1,))
        for ridge in ((1e-9,) if (degree, waves) == (1, 0) else (1e-6, 1e-3))
    ]
    fitting = [size for size in found if size.count(d) <= min(MOST, samples / 20)]
    return sorted(fitting or found[:1], key=lambda size: size.count(d))


class Folds(NamedTuple):
    """The sums of F folds: `gram` (F, G, K, K), `moment` (F, G, K, d) in units of the velocity, `weight` (F,) of their
    samples. The features are those of the `Basis` in `network`, as the stretches between its knots have them."""

    network: Normalised
    gram: Tensor
    moment: Tensor
    weight: Tensor

    def equations(self, size: Size) -> tuple[Tensor, Tensor]:
        """G and M of each fold, of the features that a size has: its monomials and waves, at every knot."""
        large: Any = self.network.network
        d, count = self.moment.shape[-1], large.coefficients.shape[1]
        first = math.comb(d + large.arguments["degree"], d)
        chosen = torch.tensor([*range(math.comb(d + size.degree, d)), *range(first, first + size.waves)])
        chosen = torch.cat([chosen + start for start in range(0, self.gram.shape[-1], count)])
        return assembled(self.gram[..., chosen, :][..., chosen], self.moment[..., chosen, :])

    def left_out(self, size: Size) -> Tensor:
        """The mean objective on each fold, of the fit to all others; of a single fold, of the fit to itself."""
        gram, moment = self.equations(size)
        count = len(gram)
        others = torch.ones(count, count, dtype=torch.float64) - (torch.eye(count) if count > 1 else 0.0)
        theta = _solve(torch.tensordot(others, gram, 1), torch.tensordot(others, moment, 1), size.ridge)
        return (theta * (gram @ theta - 2 * moment)).sum((1, 2)) / self.weight

    def solved(self, size: Size) -> Normalised:
        """The network of one size, with the coefficients of all the data."""
        large: Any = self.network.network
        gram, moment = self.equations(size)
        theta = _solve(gram.sum(0), moment.sum(0), size.ridge)
        basis = Basis(large.state_shape, **large.arguments | {"degree": size.degree, "waves": size.waves}).double()
        with torch.no_grad():
            basis.knots.copy_(large.knots)
            basis.frequencies.copy_(large.frequencies[:, : size.waves])
            basis.phases.copy_(large.phases[: size.waves])
            basis.coefficients.copy_(theta.reshape(basis.coefficients.shape))
        return _in_units_of(self.network, basis)


def _solve(gram: Tensor, moment: Tensor, ridge: float) -> Tensor:
    """(G + ridge·diag G)⁻¹ M, in the units in which the diagonal is one."""
    unit = _units(gram, 1e-14 * gram.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True))[..., None]
    scaled = gram * unit * unit.mT + torch.diag_embed(ridge + (unit[..., 0] == 0).double())
    return unit * torch.linalg.solve(scaled, unit * moment)


def _in_units_of(network: Normalised, basis: Basis) -> Normalised:
    units = {name: getattr(network, name) for name in ("mean", "scale", "velocity_scale", "t_start", "t_scale")}
    return Normalised(basis.double(), basis.state_shape, **units)


def _fold_sums(network: Normalised, folds: Sequence[Trajectories], objective: str) -> Folds:
    """The sums of the features of a `Basis` in standard units, fold by fold; samples have their weights."""
    basis: Any = network.network

    def features(x: Tensor, t: Tensor) -> Tensor:
        return basis.features(network.standardise(x))

    lifted = lift(InTime(features, network.t_start + network.t_scale * basis.knots))
    noise = estimate_noise(folds[0]) if find_objective(objective).noise else None
    each = [sums(fold, lifted, objective, noise=noise, weighted=True, dtype=torch.float64) for fold in folds]
    merged(each, objective)  # an error if none has a sample
    seen = [(p.gram, p.target + p.spread, p.counts.sum()) for p in each if (p.counts > 0).any()]
    gram, moment, weight = map(torch.stack, zip(*seen, strict=True))
    return Folds(network, gram, moment / network.velocity_scale.expand(network.state_shape).flatten(), weight)


class Trial(NamedTuple):
    """The objective of a size on each fold left out, fitted to the others; of v = 0 it would be 0."""

    size: Size
    scores: Tensor

    @property
    def mean(self) -> float:
        return float(self.scores.mean())

    def about(self) -> dict[str, Any]:
        return self.size._asdict() | {"objective": self.mean, "error": _standard_error(self.scores)}


def try_sizes(
    data: Trajectories, objective: str, candidates: Sequence[Size], *, seed: int, normalise: bool
) -> tuple[list[Trial], dict[int, Folds]]:
    """All candidates on all folds, and the sums over the data for each number of knots."""
    steps = (data.interval[1] - data.interval[0]) / data.typical_step
    candidates = [size for size in candidates if 3 * (size.knots - 1) <= steps] or candidates[:1]
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    folds = [data[part] for part in order.chunk(min(FOLDS, len(data)))]
    units = Normalised.fit(Basis(data.state_shape, degree=0, knots=1).double(), data)
    if not normalise:  # knots need times in [0, 1] all the same
        units.keep(slice(None)).velocity_scale.fill_(1.0)
    found = {}
    for knots in {size.knots for size in candidates}:
        alike = [size for size in candidates if size.knots == knots]
        degree, waves = max(size.degree for size in alike), max(size.waves for size in alike)
        basis = Basis(data.state_shape, degree=degree, waves=waves, knots=knots, time=knots > 1, seed=seed)
        basis.knots.copy_(place_knots(data, knots))
        found[knots] = _fold_sums(_in_units_of(units, basis), folds, objective)
    return [Trial(size, found[size.knots].left_out(size)) for size in candidates], found


def _standard_error(values: Tensor) -> float:
    """Of their mean; zero for a single one."""
    return float(values.std(correction=0)) / math.sqrt(max(1, len(values) - 1))


def best(tried: Sequence[Trial]) -> Trial:
    """The first of the trials, given from small to large, within one standard error of the least on the same folds."""
    least = min(tried, key=lambda trial: trial.mean)
    gaps = (trial.scores - least.scores for trial in tried)
    return next(t for t, gap in zip(tried, gaps, strict=True) if float(gap.mean()) <= _standard_error(gap))


@torch.no_grad()
def choose(tried: Sequence[Trial], found: dict[int, Folds], data: Trajectories) -> Normalised:
    """Of the best by the objective, the one whose flow keeps closest to the observed marginals; of equals the smallest.

    The objective weighs errors where the data is; integrated, an error may lead to where there is none.
    """
    ranked = sorted(tried, key=lambda trial: trial.mean)
    limit = ranked[0].mean + CLOSE * abs(ranked[0].mean)
    good = {best(tried).size} | {trial.size for trial in ranked[:SHORT] if trial.mean <= limit}
    some = data[:: max(1, len(data) // 300)].to(torch.float64)

    def integrated(size: Size) -> tuple[float, Normalised]:
        field = found[size.knots].solved(size)
        return marginal_gap(Flow(field, None, data.typical_step), some), field

    near = [integrated(trial.size) for trial in tried if trial.size in good]
    least = min(gap for gap, _ in near)
    if math.isfinite(least):
        return next(field for gap, field in near if gap <= ALIKE * least)
    # all of them diverge: the next best that does not, and if there is none the smallest
    rest = (integrated(trial.size) for trial in ranked if trial.size not in good)
    return next((field for gap, field in rest if math.isfinite(gap)), near[0][1])


def marginal_gap(flow: Flow, data: Trajectories) -> float:
    """Sliced W₂ between the observed states and those of the flow from their starts, in spreads of the data, root mean
    square over eight times. Infinite for a flow that diverges, even if only from starts half as far again apart."""
    marks = place_marks(data, 8, elapsed=False)
    inside = data.states[data._observed()]
    centre, spread = inside.mean(0), inside.std(0)
    unit = torch.where(spread > 0, spread, 1.0)
    wide = data.states.clone()
    wide[:, 0] += (wide[:, 0] - wide[:, 0].mean(0)) / 2
    flowed, apart = (integrate(flow, part, marks) for part in (data, data._with(wide, data.times, data.lengths)))
    for states in (flowed, apart):
        far = ((states[marks.places >= 0] - centre) / unit).abs()
        if not bool((far < FAR).all()):  # NaN is not below FAR either
            return math.inf
    flowed, seen, there = flowed / unit, observed(data, marks) / unit, marks.places >= 0
    pairs = [(flowed[rows, k], seen[rows, k]) for k, rows in enumerate(there.unbind(1)) if int(rows.sum()) > 1]
    squares = [sliced_w2(*pair, directions=32) ** 2 for pair in pairs]
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0
