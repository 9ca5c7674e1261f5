"""Closed form: the least of an objective over a `Basis`, whose size is chosen by cross-validation over paths."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.ensembles import carry, observed, place_marks
from phibe.files import write_json
from phibe.flow import Flow
from phibe.metrics import sliced_w2
from phibe.networks import Basis, Normalised
from phibe.objectives import estimate_noise, find_objective
from phibe.training.checkpoints import save_tensors
from phibe.training.config import FitConfig
from phibe.training.knots import place_knots
from phibe.training.loop import identify
from phibe.training.normal_equations import Size, Sums, fold_sums, in_units_of, left_out, solved
from phibe.training.resume import Folder
from phibe.training.runs import Fitted, about_flow, describe, of_data, open_flow
from phibe.training.sampling import split_paths
from phibe.trajectories import Trajectories

FOLDS, MOST = 8, 600
"""Groups of paths that are left out in turn; coefficients of a coordinate beyond which no candidate goes."""

LARGE = 2**29
"""Bytes of states, in float64, of which a solve has enough."""

SHORT, CLOSE, ALIKE, FAR = 6, 0.05, 1.2, 30.0
"""Candidates that are followed by their flow, how near to the best objective they must be, gaps that are alike, and
spreads from the mean where a flow has run away."""


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
    kinds = [(degree, 0) for degree in degrees] + ([] if affine else [(1, 30), (2, 30), (1, 90)])
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

    Each size is fitted to seven eighths of the training paths and scored on the rest, in turn; the few best are carried
    through the data's times, and the one that keeps closest to the observed laws is taken. Of `config` the held-out
    share, the seed and the units are used: the held-out paths are seen by no fit. With a folder `out` the run is kept
    there like that of a network.
    """
    config = config or FitConfig()
    seen, check = _parts(data, held_out, config)
    samples = len(seen) * (seen.states.shape[1] - find_objective(objective).width + 1)
    tried, sums = try_sizes(seen, objective, candidates or sizes(seen.states[0, 0].numel(), samples), config)
    velocity = choose(tried, sums, seen)
    value = None if check is None else _score(velocity, check, objective)
    identity = identify(data, held_out, describe(velocity), {"name": objective}, config) if out else {}
    folder = Folder(out, identity, writes=os.environ.get("RANK", "0") == "0")
    flow = of_data(Fitted(velocity), data)
    if folder.finished:
        return open_flow(str(out))
    if folder.path and folder.writes:
        about = about_flow(velocity, flow, torch.float64)
        write_json(folder.path / "config.json", folder.identity | about | {"trials": [_line(trial) for trial in tried]})
        save_tensors(folder.path / "weights.safetensors", velocity.state_dict())
        result = {"steps": 0, "stopped_early": False, "best_step": 0, "held_out": value, "closed_form": True}
        write_json(folder.path / "result.json", result)
    return flow


def _parts(
    data: Trajectories, held_out: Trajectories | None, config: FitConfig
) -> tuple[Trajectories, Trajectories | None]:
    """Training and held-out paths; of more than `LARGE` bytes, evenly chosen ones."""
    every = 1 + data.states.numel() * 8 // LARGE
    if held_out is not None or not config.held_out:
        return data[::every], held_out
    train, held = split_paths(len(data), config.held_out, seed=config.seed)
    return data[train[::every]], data[held[::every]]


def choose(tried: Sequence[Trial], sums: dict[int, Sums], data: Trajectories) -> Normalised:
    """Of the best by the objective, the one whose flow keeps closest to the observed laws; of equals the smallest.

    The objective weighs errors where the data is. Carried along, an error may lead to where there is none, and a
    polynomial or a wave says anything there: so the few best are followed from the first states to the last.
    """
    ranked = sorted(tried, key=lambda trial: trial.mean)[:SHORT]
    limit = ranked[0].mean + CLOSE * abs(ranked[0].mean)
    good = {id(trial) for trial in ranked if trial.mean <= limit} | {id(best(tried))}
    near = [trial for trial in tried if id(trial) in good]
    rest = sorted((trial for trial in tried if id(trial) not in good), key=lambda trial: trial.mean)
    some, step = data[:: max(1, len(data) // 300)], data.typical_step

    def followed(trial: Trial) -> tuple[float, Normalised]:
        field = solved(sums[trial.size.knots], trial.size)
        return law_gap(Flow(Fitted(field), None, step), some), field

    found = [followed(trial) for trial in near]
    least = min(gap for gap, _ in found)
    if math.isfinite(least):
        return next(field for gap, field in found if gap <= ALIKE * least)
    # all of them run away: the next best that does not, and if there is none the smallest
    return next((field for gap, field in map(followed, rest) if math.isfinite(gap)), found[0][1])


def law_gap(flow: Flow, data: Trajectories) -> float:
    """Sliced W₂ between the observed states and where the flow carries their starts, in spreads of the data, root mean
    square over eight times. Infinite for a flow that runs away, even if only from starts half as far again apart."""
    marks = place_marks(data, 8, elapsed=False)
    centre, spread = (part(data.states[data._observed()].double(), 0) for part in (torch.mean, torch.std))
    unit = torch.where(spread > 0, spread, 1.0)
    wide = data.states.clone()
    wide[:, 0] += (wide[:, 0] - wide[:, 0].mean(0)) / 2
    made, apart = (carry(flow, part, marks) for part in (data, data._with(wide, data.times, data.lengths)))
    for states in (made, apart):
        far = ((states[marks.index >= 0] - centre) / unit).abs()
        if not bool((far < FAR).all()):  # not a number is not near either
            return math.inf
    made, seen = made / unit, observed(data, marks) / unit
    squares = []
    for k in range(len(marks.times)):
        there = marks.index[:, k] >= 0
        if int(there.sum()) > 1:
            squares.append(sliced_w2(made[there, k], seen[there, k], directions=32) ** 2)
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def _line(trial: Trial) -> dict[str, Any]:
    return trial.size._asdict() | {"objective": trial.mean, "error": standard_error(trial.scores)}


def standard_error(values: Tensor) -> float:
    """Of their mean; zero for a single one."""
    return float(values.std(correction=0)) / math.sqrt(max(1, len(values) - 1))


def best(tried: Sequence[Trial]) -> Trial:
    """The first of the trials, given from small to large, within one standard error of the least on the same folds."""
    least = min(tried, key=lambda trial: trial.mean)
    for trial in tried:
        gap = trial.scores - least.scores
        if float(gap.mean()) <= standard_error(gap):
            return trial
    return least


def try_sizes(
    data: Trajectories, objective: str, candidates: Sequence[Size], config: FitConfig
) -> tuple[list[Trial], dict[int, Sums]]:
    """All candidates on all folds, and the sums over the data for each number of knots."""
    d, steps = data.states[0, 0].numel(), (data.interval[1] - data.interval[0]) / data.typical_step
    candidates = [size for size in candidates if 3 * (size.knots - 1) <= steps] or candidates[:1]
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(config.seed))
    folds = [data[part] for part in order.chunk(min(FOLDS, len(data))) if len(part)]
    units = Normalised.fit(Basis(data.state_shape, degree=0, knots=1).double(), data)
    if not config.normalise:  # knots need times in [0, 1] all the same
        units.keep(slice(None)).velocity_scale.fill_(1.0)
    sums = {}
    for knots in {size.knots for size in candidates}:
        largest = Size(*(max(values) for values in zip(*(s for s in candidates if s.knots == knots), strict=True)))
        degree, waves = largest.degree, largest.waves
        basis = Basis(data.state_shape, degree=degree, waves=waves, knots=knots, time=knots > 1, seed=config.seed)
        basis.knots.copy_(place_knots(data, knots))
        sums[knots] = fold_sums(in_units_of(units, basis), folds, objective)
    return [Trial(size, left_out(sums[size.knots], size, d)) for size in candidates], sums


@torch.no_grad()
def _score(velocity: Normalised, data: Trajectories, objective: str) -> float:
    """The mean objective on held-out paths, in the units of the training."""
    kind = find_objective(objective)
    options: dict[str, Any] = {"noise": estimate_noise(data), "exact": True} if objective == "isotropic" else {}
    sample = [part.double() for part in kind.samples(data)]
    values = velocity.balanced(kind, *sample) if not options else kind(velocity, *sample, **options)
    worth = kind.weights(*sample)
    return float((worth * values).sum() / worth.sum())
