"""Closed form: the least of an objective over a `Basis`, whose size is chosen by cross-validation over paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.calculus import along, times
from phibe.files import write_json
from phibe.flow import Flow
from phibe.moments import typical_step
from phibe.networks import Basis, Normalised
from phibe.objectives import estimate_noise, find_objective
from phibe.training.checkpoints import save_tensors
from phibe.training.config import FitConfig
from phibe.training.loop import identify
from phibe.training.resume import Folder
from phibe.training.runs import Fitted, about_flow, of_data, open_flow
from phibe.training.sampling import split_paths
from phibe.trajectories import Trajectories

FOLDS, MOST = 8, 600
"""Groups of paths that are left out in turn; coefficients of a coordinate beyond which no candidate goes."""


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


class Trial(NamedTuple):
    """The objective of a size on each fold left out, fitted to the others; of v = 0 it would be 0."""

    size: Size
    scores: Tensor

    @property
    def mean(self) -> float:
        return float(self.scores.mean())


def sizes(d: int, samples: int, *, affine: bool = False, time: bool = True) -> list[Size]:
    """What is tried, from small to large: never more coefficients than a twentieth of the samples."""
    degrees = [1] if affine else [1, 2, 3]
    kinds = [(degree, 0) for degree in degrees] + ([] if affine else [(1, 30), (1, 90)])
    found = [
        Size(degree, waves, knots, ridge)
        for (degree, waves), knots in product(kinds, (1, 4, 8, 16) if time else (1,))
        for ridge in ((1e-9,) if degree == 1 and not waves else (1e-6, 1e-3))
    ]
    fitting = [size for size in found if size.count(d) <= min(MOST, samples / 20)]
    return sorted(fitting or found[:1], key=lambda size: size.count(d))


def fit_closed(
    data: Trajectories,
    objective: str = "symmetric",
    *,
    candidates: Sequence[Size] | None = None,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
) -> Flow:
    """The flow of the basis that does best on paths left out, solved on all training paths   [paper: linear basis].

    Each size is fitted to seven eighths of the training paths and scored on the rest, in turn; of those within one
    standard error of the best the smallest is taken. Of `config` the held-out share, the seed and the units are used:
    the held-out paths are seen by no fit. With a folder `out` the run is kept there like that of a network.
    """
    config = config or FitConfig()
    seen, check = _parts(data, held_out, config)
    samples = len(seen) * (seen.states.shape[1] - find_objective(objective).width + 1)
    tried, sums = try_sizes(seen, objective, candidates or sizes(seen.states[0, 0].numel(), samples), config)
    velocity = _first_bounded(tried, sums, seen)
    value = None if check is None else _score(velocity, check, objective)
    identity = identify(data, held_out, velocity, {"name": objective}, config) if out else {}
    folder = Folder(out, identity, writes=True)
    flow = of_data(Fitted(velocity), data)
    if folder.finished:
        return open_flow(str(out))
    if folder.path:
        about = about_flow(velocity, flow, torch.float64)
        write_json(folder.path / "config.json", folder.identity | about | {"trials": [_line(trial) for trial in tried]})
        save_tensors(folder.path / "weights.safetensors", velocity.state_dict())
        result = {"steps": 0, "stopped_early": False, "best_step": 0, "held_out": value, "closed_form": True}
        write_json(folder.path / "result.json", result)
    return flow


def _parts(
    data: Trajectories, held_out: Trajectories | None, config: FitConfig
) -> tuple[Trajectories, Trajectories | None]:
    if held_out is not None or not config.held_out:
        return data, held_out
    train, held = split_paths(len(data), config.held_out, seed=config.seed)
    return data[train], data[held]


def _first_bounded(tried: Sequence[Trial], sums: dict[int, Sums], data: Trajectories) -> Normalised:
    """The best that carries the first states of the data to its last time without leaving its range by far.

    A polynomial may run away where no data is. When all do, the best.
    """
    chosen = best(tried)
    for trial in (chosen, *sorted(tried, key=lambda trial: trial.mean)):
        velocity = _solved(sums, trial.size)
        if _bounded(velocity, data):
            return velocity
    return _solved(sums, chosen.size)


def _bounded(velocity: Normalised, data: Trajectories) -> bool:
    start, end = data.interval
    count = max(2, min(200, round((end - start) / typical_step(data))))
    x0 = data.states[:: max(1, len(data) // 100), 0].double()
    try:
        times = torch.linspace(start, end, count + 1, dtype=torch.float64)
        reached = Flow(Fitted(velocity)).generate(x0, times, method="rk4").states.flatten(2)
    except ValueError:
        return False
    seen = data.states[data._observed()].double().flatten(1)
    low, high = seen.amin(0), seen.amax(0)
    return bool(((reached > 2 * low - high) & (reached < 2 * high - low) | (high == low)).all())


def _line(trial: Trial) -> dict[str, Any]:
    error = float(trial.scores.std()) / math.sqrt(len(trial.scores)) if len(trial.scores) > 1 else 0.0
    return trial.size._asdict() | {"objective": trial.mean, "error": error}


def best(tried: Sequence[Trial]) -> Trial:
    """The first of the trials, given from small to large, within one standard error of the least on the same folds."""
    least = min(tried, key=lambda trial: trial.mean)
    for trial in tried:
        gap = trial.scores - least.scores
        if float(gap.mean()) <= float(gap.std()) / math.sqrt(len(gap)):
            return trial
    return least


# -- normal equations --------------------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """Of each fold Σ φφᵀ (folds, p, p), Σ [φ uᵀ + ½ Σ q (∇φ·d) dᵀ] (folds, p, d) and the number of places; u, d in
    units of the velocity. `network` has the features."""

    network: Normalised
    gram: Tensor
    moment: Tensor
    count: Tensor


def try_sizes(
    data: Trajectories, objective: str, candidates: Sequence[Size], config: FitConfig
) -> tuple[list[Trial], dict[int, Sums]]:
    """All candidates on all folds, and the sums over the data for each number of knots."""
    d = data.states[0, 0].numel()
    degree, waves = (max(getattr(size, name) for size in candidates) for name in ("degree", "waves"))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(config.seed))
    folds = [data[part] for part in order.chunk(min(FOLDS, len(data))) if len(part)]
    sums = {}
    for knots in {size.knots for size in candidates}:
        basis = Basis(data.state_shape, degree=degree, waves=waves, knots=knots, time=knots > 1, seed=config.seed)
        network = Normalised.fit(basis.double(), data) if config.normalise else Normalised(basis, data.state_shape)
        basis.knots.copy_(place_knots(data, knots))
        sums[knots] = _sums(network, folds, objective)
    return [Trial(size, _left_out(sums[size.knots], size, d)) for size in candidates], sums


def place_knots(data: Trajectories, count: int, *, bins: int = 32) -> Tensor:
    """Knots in [0, 1] so that the law moves equally far between any two: its mean and spread, in standard units.

    Time is cut into bins; where nothing but noise moves, the knots are even. As a fifth of the weight is even in any
    case, no stretch of time is without one.
    """
    even = torch.linspace(0, 1, count, dtype=torch.float64)
    if count < 3:
        return even
    inside = data._observed()
    x, t = data.states[inside].double().flatten(1), data._path_times()[inside]
    start, end = data.interval
    place = ((t - start) / (end - start) * bins).long().clamp(0, bins - 1)
    number = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, torch.ones_like(t))
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-12)
    mean, square = (torch.zeros(bins, x.shape[1], dtype=torch.float64).index_add_(0, place, p) for p in (x, x * x))
    used = number > 1
    mean, square = mean[used] / number[used, None], square[used] / number[used, None]
    spread = (square - mean**2).clamp(min=0).sqrt()
    moved = torch.cat([mean, spread], 1).diff(dim=0).norm(dim=1)
    noise = (2 / number[used][1:]).sqrt() * math.sqrt(x.shape[1])
    moved = (moved - 2 * noise).clamp(min=0)
    centres = ((torch.arange(bins) + 0.5) / bins)[used]
    gaps = centres.diff()
    pace = moved / moved.sum() if float(moved.sum()) > 0 else gaps / gaps.sum()
    way = torch.cat([torch.zeros(1), (0.8 * pace + 0.2 * gaps / gaps.sum()).cumsum(0)]).double()
    centres = centres.double()
    centres[0], centres[-1] = 0.0, 1.0
    return _inverse(way / way[-1], centres, even)


def _inverse(way: Tensor, places: Tensor, levels: Tensor) -> Tensor:
    """Where the way, linear between places, reaches each level."""
    right = torch.searchsorted(way, levels).clamp(1, len(way) - 1)
    share = (levels - way[right - 1]) / (way[right] - way[right - 1])
    return places[right - 1] + share * (places[right] - places[right - 1])


def _sums(network: Normalised, folds: Sequence[Trajectories], objective: str) -> Sums:
    basis, kind = network.network, find_objective(objective)
    assert isinstance(basis, Basis)
    knots, count, d = basis.coefficients.shape
    gram = torch.zeros(len(folds), knots * count, knots * count, dtype=torch.float64)
    moment, number = torch.zeros(len(folds), knots * count, d, dtype=torch.float64), torch.zeros(len(folds))
    options = {"noise": estimate_noise(folds[0]), "exact": True} if objective == "isotropic" else {}
    for i, fold in enumerate(folds):
        for chunk in fold.chunks(megabytes=4):
            if chunk.states.shape[1] >= kind.width:
                stencil = kind.stencil(*(part.double() for part in kind.samples(chunk)), **options)
                _add(gram[i], moment[i], network, stencil)
                number[i] += len(stencil.t)
    kept = number > 0
    if not kept.any():
        raise ValueError(f"No path has the {kind.width} observations that `{objective}` looks at.")
    return Sums(network, gram[kept], moment[kept], number[kept].double())


@torch.no_grad()
def _add(gram: Tensor, moment: Tensor, network: Normalised, stencil: Any) -> None:
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
        weights = hats[rows, k : k + 2, None]
        block = (weights * phi[rows, None]).flatten(1)
        gram[columns, columns] += block.mT @ block
        for values, target in pulls:
            moment[columns] += (weights * values[rows, None]).flatten(1).mT @ target[rows]


def _left_out(sums: Sums, size: Size, d: int) -> Tensor:
    """The mean objective on each fold, of the fit to all others."""
    columns = _columns(sums, size, d)
    gram, moment = sums.gram[:, columns][:, :, columns], sums.moment[:, columns]
    scores = []
    for i, count in enumerate(sums.count):
        others = torch.arange(len(sums.count)) != i if len(sums.count) > 1 else torch.ones(1, dtype=torch.bool)
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


def _solved(sums: dict[int, Sums], size: Size) -> Normalised:
    """The network of one size, with the coefficients of all the data."""
    part = sums[size.knots]
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
    units = {name: getattr(part.network, name) for name in ("mean", "scale", "velocity_scale", "t_start", "t_scale")}
    return Normalised(basis, large.state_shape, **units)


@torch.no_grad()
def _score(velocity: Normalised, data: Trajectories, objective: str) -> float:
    """The mean objective on held-out paths, in the units of the training."""
    kind = find_objective(objective)
    options: dict[str, Any] = {"noise": estimate_noise(data), "exact": True} if objective == "isotropic" else {}
    sample = [part.double() for part in kind.samples(data)]
    values = velocity.balanced(kind, *sample) if not options else kind(velocity, *sample, **options)
    return float(values.mean())
