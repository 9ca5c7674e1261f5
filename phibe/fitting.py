"""Fitting: `fit`, the one way from trajectories to a flow, and what it chooses when it is not told.

A model is solved in closed form [paper: fixed linear-basis models] or trained [paper: empirical PhiBE-Flow objective];
either way the sum of a registered objective over the data is least at the velocity that comes back. Read next: `fit`
below, then `phibe.linear` for the closed forms and `phibe.training.loop` for networks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phibe.bases import Basis as Fields
from phibe.diagnostics import changes_with_time, diagnose
from phibe.ensembles import integrate, observed, place_marks
from phibe.files import write_json
from phibe.flow import Flow
from phibe.io import open_data, windowed
from phibe.linear.affine import fit_affine
from phibe.linear.basis import Folds, Size, fit_basis, fold_sums, in_units_of, left_out, solved
from phibe.metrics import sliced_w2
from phibe.networks import NETWORKS, arguments_of, build
from phibe.networks.basis import Basis
from phibe.networks.network import Normalised
from phibe.objectives import estimate_noise, find_objective
from phibe.training.config import CLOSED, MODELS, FitConfig, closest
from phibe.training.loop import fit_network
from phibe.training.runs import (
    Fitted,
    Folder,
    about_flow,
    describe,
    identify,
    of_data,
    open_flow,
)
from phibe.trajectories import Trajectories, split_paths

# -- knots -----------------------------------------------------------------------------------------------------------


def place_knots(data: Trajectories, count: int, *, bins: int = 32) -> Tensor:
    """Knots in [0, 1] so that the law moves equally far between any two: its mean and spread, in standard units.

    Time is cut into bins; where nothing but noise moves, the knots are even. As a fifth of the weight is even in any
    case, no stretch of time is without one. Two knots are never closer than three typical steps (if even ones are not):
    a shorter stretch, above all the first, where central differences see nothing of t = 0, would hang in the air.
    """
    even = torch.linspace(0, 1, count, dtype=torch.float64)
    if count < 3:
        return even
    data = data[:: max(1, data.states.numel() // 2_000_000)]
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
    moved = (moved - 3 * noise).clamp(min=0)
    centres = ((torch.arange(bins) + 0.5) / bins)[used]
    gaps = centres.diff()
    share = 0.8 * min(1.0, float(moved.sum()))  # a law that moves by less than its spread needs no gathering
    pace = share * moved / moved.sum().clamp(min=1e-12) + (1 - share) * gaps / gaps.sum()
    way = torch.cat([torch.zeros(1), pace.cumsum(0)]).double()
    centres = centres.double()
    centres[0], centres[-1] = 0.0, 1.0
    closest = 3 * data.typical_step / (end - start)
    return _apart(_inverse(way / way[-1], centres, even), even, closest)


def _apart(knots: Tensor, even: Tensor, closest: float) -> Tensor:
    """As much of the even knots mixed in as it takes to part all of them by `closest`."""
    gaps, gap = knots.diff(), float(even[1])
    if closest >= gap:
        return even
    share = ((closest - gaps) / (gap - gaps))[gaps < closest]
    return torch.lerp(knots, even, float(share.max()) if len(share) else 0.0)


def _inverse(way: Tensor, places: Tensor, levels: Tensor) -> Tensor:
    """Where the way, linear between places, reaches each level."""
    right = torch.searchsorted(way, levels).clamp(1, len(way) - 1)
    share = (levels - way[right - 1]) / (way[right] - way[right - 1])
    return places[right - 1] + share * (places[right] - places[right - 1])


# -- closed form -----------------------------------------------------------------------------------------------------


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
    flow = of_data(Fitted(velocity), data, objective)
    if folder.finished:
        return open_flow(str(out))
    about = about_flow(velocity, flow, torch.float64) | {"trials": [_line(trial) for trial in tried]}
    folder.keep_solved(velocity, about, held_out=value)
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


def choose(tried: Sequence[Trial], sums: dict[int, Folds], data: Trajectories) -> Normalised:
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
    made, apart = (integrate(flow, part, marks) for part in (data, data._with(wide, data.times, data.lengths)))
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
) -> tuple[list[Trial], dict[int, Folds]]:
    """All candidates on all folds, and the sums over the data for each number of knots."""
    steps = (data.interval[1] - data.interval[0]) / data.typical_step
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
    return [Trial(size, left_out(sums[size.knots], size)) for size in candidates], sums


@torch.no_grad()
def _score(velocity: Normalised, data: Trajectories, objective: str) -> float:
    """The mean objective on held-out paths, in the units of the training."""
    kind = find_objective(objective)
    options: dict[str, Any] = {"noise": estimate_noise(data), "exact": True} if objective == "isotropic" else {}
    sample = [part.double() for part in kind.samples(data)]
    values = velocity.balanced(kind, *sample) if not options else kind(velocity, *sample, **options)
    worth = kind.weights(*sample)
    return float((worth * values).sum() / worth.sum())


# -- the one way in ----------------------------------------------------------------------------------------------------


FEW, PIECES, COORDINATES = 5, 40, 8
"""Paths below which they are cut into windows, into about how many, and coordinates up to which a basis is tried."""

Model = str | nn.Module | Fields
"""A name of `MODELS`, a network called as v(x, t), or a basis of one's own."""


class Automatic(NamedTuple):
    """A setting that was chosen, and why; printed as one line."""

    what: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"  {self.what:10} {self.value}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """What will be fitted: a `model` other than auto with its `arguments`, on `objective`, as `config` says.

    `time` says whether a closed form may depend on time, `automatic` what was chosen.
    """

    model: Model
    arguments: dict[str, Any]
    objective: str
    config: FitConfig
    time: bool
    automatic: tuple[Automatic, ...]


def fit(
    data: Trajectories | str | Path,
    model: Model = "auto",
    objective: str = "auto",
    *,
    out: str | Path | None = None,
    config: FitConfig | None = None,
    held_out_data: Trajectories | str | Path | None = None,
    windows: int | None = None,
    time: bool | None = None,
    knots: Any = None,
    ridge: float = 0.0,
    blocks: int = 1,
    progress: bool = True,
    **settings: Any,
) -> Flow:
    """The flow fitted to the data; what is `auto` is chosen, and the reason printed.

    `model` is affine or basis (solved in closed form, their size by cross-validation over paths), a network (mlp,
    residual, unet, transformer, or any module called as v(x, t)), or a basis of your own (see `phibe.bases`), solved
    with `ridge` and with standard errors from `blocks`. `affine` at given `knots` and your own basis are solved on all
    paths. `time` = False asks for a velocity that is the same at all times.

    `settings` are fields of `FitConfig` and arguments of the network, as steps=1000, width=64. Paths are cut into
    `windows` of so many observations, by default if there are fewer than five of them, and then taken to be stationary.
    `held_out_data` is evaluated on instead of a share of the paths. With a folder `out` the run is kept: the same call
    goes on where it was killed, `open_flow` opens it, and its automatic.json lists what was chosen.

    >>> import phibe
    >>> data = phibe.OU.reversible().simulate(paths=100, times=[0.0, 0.1, 0.2, 0.3], seed=0)
    >>> flow = phibe.fit(data, "affine", "symmetric", held_out=0.1)
    automatic settings
      units      standard: mean zero and spread one for each coordinate; theirs go from ... to ...
      held out   10 of 100 paths: no fit sees them; the report judges by them
    >>> flow.generate(data.states[:, 0], [0.0, 0.3]).states.shape
    torch.Size([100, 2, 2])
    """
    data, held_out = as_trajectories(data), None if held_out_data is None else as_trajectories(held_out_data)
    on_all = _solved_on_all(model, out, knots=knots, ridge=ridge, blocks=blocks)
    length = windows or (None if on_all else window_length(data))
    shown = [_windows(data, length)] if length and not windows else []
    if length:
        data, held_out, time = windowed(data, length), held_out and windowed(held_out, length), False
    plan = make_plan(
        data, model, objective, config=config, held_out=held_out, time=time, settings=settings, on_all=on_all
    )
    shown += plan.automatic
    leads = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    if progress and leads and shown:
        print("\n".join(["automatic settings", *map(str, shown)]), flush=True)
    if on_all:
        return _solve(plan, data, out, knots=knots, ridge=ridge, blocks=blocks)
    flow = carry_out(plan, data, out=out, held_out=held_out, progress=progress)
    if out is not None and leads:
        write_json(Path(out) / "automatic.json", [setting._asdict() for setting in shown])
    return flow


def as_trajectories(data: Trajectories | str | Path) -> Trajectories:
    """The trajectories themselves, or those in a file."""
    if isinstance(data, str | Path):
        return open_data(data)
    if not isinstance(data, Trajectories):
        raise ValueError(f"`fit` needs `Trajectories(states, times)` or the path of a file; got {type(data).__name__}.")
    return data


def make_plan(
    data: Trajectories,
    model: Model = "auto",
    objective: str = "auto",
    *,
    config: FitConfig | None = None,
    held_out: Trajectories | None = None,
    time: bool | None = None,
    settings: dict[str, Any] | None = None,
    on_all: bool = False,
) -> Plan:
    """The user's settings where they were made, automatic ones elsewhere; of one solve on all paths there are few."""
    if isinstance(model, str) and model not in MODELS:
        raise ValueError(f"`model` must be one of {', '.join(MODELS)}{closest(model, MODELS)}; got {model!r}.")
    kind, of_model = _model(data) if model == "auto" else (model, None)
    fields_given, arguments = _sorted_settings(kind, settings or {})
    own, of_budget = (config, None) if config else budget(data, kind)
    own = replace(own, **fields_given)
    if own.held_out == 0 and not config and "patience" not in fields_given:
        own = replace(own, patience=0)  # nothing to wait for
    name, of_objective = _objective(data) if objective == "auto" else (find_objective(objective).name, None)
    if on_all:
        return Plan(kind, arguments, name, own, True, (of_objective,) if of_objective else ())
    network, of_time = isinstance(kind, str) and kind not in CLOSED, None
    if time is None and network:
        time, of_time = _time(data)
    time = time is not False
    arguments = {"time": time} | arguments if network else arguments
    found = (of_objective, of_model, of_time, _units(data, own), of_budget if "steps" not in fields_given else None)
    chosen = (*found, None if held_out else _split(data, own))
    return Plan(kind, arguments, name, own, time, tuple(filter(None, chosen)))


def carry_out(
    plan: Plan,
    data: Trajectories,
    *,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> Flow:
    """Fit what the plan says, but for what is solved on all paths."""
    model = plan.model
    if isinstance(model, str) and model in CLOSED:
        samples = len(data) * data.states.shape[1]
        tried = sizes(math.prod(data.state_shape), samples, affine=model == "affine", time=plan.time)
        return fit_closed(data, plan.objective, candidates=tried, config=plan.config, out=out, held_out=held_out)
    if isinstance(model, str):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.config.seed)
            model = build(model, data.state_shape, **plan.arguments)
    assert isinstance(model, nn.Module)
    return fit_network(data, model, plan.objective, config=plan.config, out=out, held_out=held_out, progress=progress)


def _solve(plan: Plan, data: Trajectories, out: str | Path | None, *, knots: Any, ridge: float, blocks: int) -> Flow:
    """The closed form at given knots, or in a basis of one's own."""
    noise = plan.config.noise
    if isinstance(plan.model, str):
        flow = fit_affine(data, plan.objective, noise=noise, knots=knots)
    else:
        flow = fit_basis(data, plan.model, plan.objective, noise=noise, ridge=ridge, blocks=blocks)
    flow = replace(flow, labels=data.labels)
    if out is not None:
        assert isinstance(flow.velocity, nn.Module)
        config, objective = replace(plan.config, held_out=0.0), {"name": plan.objective}
        identity = identify(data, None, describe(flow.velocity), objective, config)
        about = about_flow(flow.velocity, flow, data.states.dtype)
        Folder(out, identity, writes=True).keep_solved(flow.velocity, about, held_out=None)
    return flow


# -- what was asked for ------------------------------------------------------------------------------------------------


def _solved_on_all(model: Model, out: str | Path | None, *, knots: Any, ridge: float, blocks: int) -> bool:
    """Whether all paths go into one solve, without cross-validation; an error where an option has no use."""
    own_basis = not isinstance(model, str | nn.Module)
    if own_basis and not callable(model):
        raise ValueError(
            f"`model` must be one of {', '.join(MODELS)}, a torch module or a basis; got {type(model).__name__}."
        )
    if knots is not None and model != "affine":
        raise ValueError(
            "`knots` are times for model='affine'; a basis of your own takes them by `phibe.bases.in_time`."
        )
    if (ridge or blocks != 1) and not own_basis:
        raise ValueError("`ridge` and `blocks` are for a basis of your own, as `lift(polynomials(3))` of phibe.bases.")
    if own_basis and out is not None:
        raise ValueError("A fit in a basis of your own cannot be kept in `out`: a function is not saved. Fit it again.")
    return own_basis or knots is not None


def _sorted_settings(model: Model, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of `FitConfig` among the settings, and the arguments of the network."""
    known = [field.name for field in fields(FitConfig)]
    arguments = arguments_of(model) if isinstance(model, str) and model not in CLOSED else []
    for name in settings:
        if name not in (*known, *arguments):
            takes = f"{model!r} takes {', '.join(arguments)}"
            if not arguments:
                takes = f"{model!r} finds its size itself" if isinstance(model, str) else "yours is made already"
            raise ValueError(
                f"There is no setting `{name}`{closest(name, [*known, *arguments])}. Settings are the fields of "
                f"FitConfig and the arguments of a network; {takes}."
            )
    mine = {name: value for name, value in settings.items() if name in known}
    return mine, {name: value for name, value in settings.items() if name not in known}


# -- automatic settings ------------------------------------------------------------------------------------------------


def window_length(data: Trajectories) -> int | None:
    """For fewer than five paths, how long the windows should be that stand for paths of their own; else None."""
    if len(data) >= FEW:
        return None
    return max(5, min(data.states.shape[1], int(data._observed(2).sum()) // PIECES)) + 1


def _windows(data: Trajectories, length: int) -> Automatic:
    plural = "one path" if len(data) == 1 else f"{len(data)} paths"
    reason = (
        f"{plural} cannot show how a distribution changes: cut into windows of {length} observations, taken to be of a "
        "stationary process, with a velocity that is the same at all times"
    )
    return Automatic("windows", f"{length}", reason)


def _time(data: Trajectories) -> tuple[bool, Automatic]:
    time = changes_with_time(data[:: max(1, len(data) // 2000)])
    why = "means or variances change" if time else "means and variances do not change"
    reason = f"{why} between the first and the last third"
    return time, Automatic("time", "the velocity depends on it" if time else "none", reason)


def _objective(data: Trajectories) -> tuple[str, Automatic]:
    """The least error at the data's own step by `diagnose`; `symmetric` where it cannot say.

    An objective that differentiates the velocity is not bounded below by a sample: it must be better by a quarter.
    """
    try:
        errors = [error for error in diagnose(data).errors if error.every == 1 and math.isfinite(error.total)]
    except ValueError:
        errors = []
    if errors:
        least = min(errors, key=lambda error: error.total * (1.25 if find_objective(error.objective).jacobian else 1.0))
        others = ", ".join(f"{e.objective} {e.total:.0%}" for e in errors if e is not least)
        reason = f"its error is about {least.total:.0%} of the drift" + (f" ({others})" if others else "")
        return least.objective, Automatic("objective", least.objective, reason)
    name = "symmetric" if data._shortest() >= 3 else "stratonovich"
    reason = f"there is too little data, or there are too few times, to compare errors; {name} is bounded below"
    return name, Automatic("objective", name, reason)


def _model(data: Trajectories) -> tuple[str, Automatic]:
    """By the shape of the state: a basis for a few coordinates, a U-Net for images, else a plain network."""
    shape = data.state_shape
    if len(shape) == 1 and shape[0] <= COORDINATES:
        reason = f"{shape[0]} coordinates: solved in closed form, its size by cross-validation over paths"
        return "basis", Automatic("model", "basis", reason)
    if len(shape) == 3 and all(size % 4 == 0 and size >= 8 for size in shape[1:]):
        return "unet", Automatic("model", "unet", f"states {shape} are images (channels, height, width)")
    reason = f"states {shape} have {math.prod(shape)} coordinates, too many for polynomials"
    return "mlp", Automatic("model", "mlp", reason)


def budget(data: Trajectories, model: Model) -> tuple[FitConfig, Automatic | None]:
    """Steps and batch by the number of transitions; a closed form needs none."""
    share = 0.2 if len(data) < 2000 else 0.1
    if model in CLOSED:
        return FitConfig(held_out=share), None
    transitions = int(data._observed(2).sum())
    batch = 256 if math.prod(data.state_shape) <= 64 else 32
    steps = int(min(10_000, max(1000, 30 * transitions / batch)))
    config = FitConfig(steps=steps, batch=batch, ema=0.99, held_out=share, patience=15)
    reason = (
        f"{transitions} transitions, at most 30 times each, in batches of {batch}; stops when held-out paths say so"
    )
    return config, Automatic("budget", f"{steps} steps", reason)


def _units(data: Trajectories, config: FitConfig) -> Automatic:
    if not config.normalise:
        return Automatic("units", "those of the data", "`normalise` is off")
    some = data[:: max(1, len(data) // 200)]
    spread = some.states[some._observed()].double().flatten(1).std(0)
    reason = f"mean zero and spread one for each coordinate; theirs go from {spread.min():.3g} to {spread.max():.3g}"
    return Automatic("units", "standard", reason)


def _split(data: Trajectories, config: FitConfig) -> Automatic:
    count = max(1, round(len(data) * config.held_out)) if config.held_out else 0
    reason = "no fit sees them; the report judges by them" if count else "`held_out` is 0, so nothing can be checked"
    return Automatic("held out", f"{count} of {len(data)} paths", reason)


# -- again, for a check ------------------------------------------------------------------------------------------------


def refit_thinned(about: dict[str, Any], data: Trajectories) -> Flow:
    """What a run did, done again to every other observation: the same held-out paths, settings, candidates or network.

    `about` is the run's config.json. The flow can be checked at the observations that were left out. ValueError if some
    paths have fewer than three observations, or if the network is one of your own.
    """
    if "config" not in about:
        raise ValueError("The folder holds a flow that was saved, and does not say how it was fitted.")
    name, objective = about["network"]["name"], about["objective"]["name"]
    config, thinned = FitConfig(**about["config"]), data.coarsen(2)
    if "trials" in about:
        tried = [Size(**{field: trial[field] for field in Size._fields}) for trial in about["trials"]]
        return fit_closed(thinned, objective, candidates=tried, config=config)
    if name not in NETWORKS:
        raise ValueError(f"It is of a network of your own, {name}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build(name, about["state_shape"], **about["network"]["arguments"])
    return fit_network(thinned, network, objective, config=config, progress=False)
