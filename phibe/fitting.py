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
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from phibe.bases import Basis as Fields
from phibe.diagnostics import changes_with_time, diagnose
from phibe.files import write_json
from phibe.flow import Flow
from phibe.io import open_data, windowed
from phibe.linear.affine import fit_affine
from phibe.linear.basis import Size, choose, fit_basis, sizes, try_sizes
from phibe.networks import NETWORKS, arguments_of
from phibe.networks.network import Normalised
from phibe.objectives import estimate_noise, find_objective
from phibe.training.config import CLOSED, MODELS, FitConfig, closest
from phibe.training.loop import fit_network
from phibe.training.runs import Fitted, about_flow, identify, keep_solved, of_data
from phibe.trajectories import Trajectories, split_paths

# -- closed form -----------------------------------------------------------------------------------------------------

LARGE = 2**29
"""Bytes of states, in float64, of which a solve has enough."""


def fit_closed(
    data: Trajectories,
    objective: str = "symmetric",
    *,
    candidates: Sequence[Size],
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
) -> Flow:
    """The flow of the basis that does best on paths left out, solved on all training paths   [paper: linear basis].

    Each size is fitted to seven eighths of the training paths and scored on the rest, in turn; the flows of the few
    best are integrated through the data's times, and the one that keeps closest to the observed marginals is taken. Of
    `config` the held-out share, the seed and the units are used: the held-out paths are seen by no fit. With a folder
    `out` the run is saved there like that of a network.
    """
    config = config or FitConfig()
    seen, check = _parts(data, held_out, config)
    tried, found = try_sizes(seen, objective, candidates, seed=config.seed, normalise=config.normalise)
    velocity = choose(tried, found, seen)
    value = None if check is None else _score(velocity, check, objective)
    flow = of_data(Fitted(velocity), data, objective)
    about = about_flow(velocity, flow, torch.float64) | {"trials": [trial.about() for trial in tried]}
    if out is not None:
        identity = identify(data, held_out, about["network"], {"name": objective}, config)
        keep_solved(out, velocity, about, identity, leads=_leads(), score=value)
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


@torch.no_grad()
def _score(velocity: Normalised, data: Trajectories, objective: str) -> float:
    """The mean objective on held-out paths, in the units of the training."""
    kind = find_objective(objective)
    sample = [part.double() for part in kind.samples(data)]
    if kind.noise:
        values = kind(velocity, *sample, noise=estimate_noise(data), exact=True)
    else:
        values = velocity.balanced(kind, *sample)
    weights = kind.weights(*sample)
    return float((weights * values).sum() / weights.sum())


def _leads() -> bool:
    """Whether this process, of several that train together, is the one that prints and writes."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


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
    `held_out_data` is evaluated on instead of a share of the paths. With a folder `out` the run is saved: the same call
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
    given, held_out = (open_data(one) if isinstance(one, str | Path) else one for one in (data, held_out_data))
    if not isinstance(given, Trajectories):
        kind = type(data).__name__
        raise ValueError(f"`fit` needs `Trajectories(states, times)` or the path of a file; got {kind}.")
    data = given
    on_all = _solved_on_all(model, out, knots=knots, ridge=ridge, blocks=blocks)
    length = windows or (None if on_all else window_length(data))
    shown = [_windows(data, length)] if length and not windows else []
    if length:
        data, held_out, time = windowed(data, length), held_out and windowed(held_out, length), False
    plan = make_plan(
        data, model, objective, config=config, held_out=held_out, time=time, settings=settings, on_all=on_all
    )
    shown += plan.automatic
    if progress and shown and _leads():
        print("\n".join(["automatic settings", *map(str, shown)]), flush=True)
    if on_all:
        return _solve(plan, data, out, knots=knots, ridge=ridge, blocks=blocks)
    flow = carry_out(plan, data, out=out, held_out=held_out, progress=progress)
    if out is not None and _leads():
        write_json(Path(out) / "automatic.json", [setting._asdict() for setting in shown])
    return flow


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
    of_time = None
    if isinstance(kind, str) and kind not in CLOSED:
        if time is None:
            time, of_time = _time(data)
        arguments = {"time": time} | arguments
    if "steps" in fields_given:
        of_budget = None
    chosen = of_objective, of_model, of_time, _units(data, own), of_budget, None if held_out else _split(data, own)
    return Plan(kind, arguments, name, own, time is not False, tuple(filter(None, chosen)))


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
        d, samples = math.prod(data.state_shape), len(data) * data.states.shape[1]
        tried = sizes(d, samples, affine=model == "affine", time=plan.time)
        return fit_closed(data, plan.objective, candidates=tried, config=plan.config, out=out, held_out=held_out)
    assert isinstance(model, str | nn.Module)
    how: dict[str, Any] = {"config": plan.config, "out": out, "held_out": held_out, "progress": progress}
    return fit_network(data, model, plan.objective, arguments=plan.arguments, **how)


def _solve(plan: Plan, data: Trajectories, out: str | Path | None, *, knots: Any, ridge: float, blocks: int) -> Flow:
    """The closed form at given knots, or in a basis of one's own."""
    noise = plan.config.noise
    if not isinstance(plan.model, str):
        flow = fit_basis(data, plan.model, plan.objective, noise=noise, ridge=ridge, blocks=blocks)
        return replace(flow, labels=data.labels)
    flow = replace(fit_affine(data, plan.objective, noise=noise, knots=knots), labels=data.labels)
    assert isinstance(flow.velocity, nn.Module)
    if out is not None:
        about, config = about_flow(flow.velocity, flow, data.states.dtype), replace(plan.config, held_out=0.0)
        identity = identify(data, None, about["network"], {"name": plan.objective}, config)
        keep_solved(out, flow.velocity, about, identity, leads=_leads())
    return flow


# -- what was asked for ------------------------------------------------------------------------------------------------


def _solved_on_all(model: Model, out: str | Path | None, *, knots: Any, ridge: float, blocks: int) -> bool:
    """Whether all paths go into one solve, without cross-validation; an error where an option has no use."""
    own_basis = not isinstance(model, str | nn.Module)
    if own_basis and not callable(model):
        kinds = f"one of {', '.join(MODELS)}, a torch module or a basis"
        raise ValueError(f"`model` must be {kinds}; got {type(model).__name__}.")
    if knots is not None and model != "affine":
        raise ValueError("`knots` are times for model='affine'; a basis of your own takes them by `bases.InTime`.")
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
            there = "Settings are the fields of FitConfig and the arguments of a network"
            raise ValueError(f"There is no setting `{name}`{closest(name, [*known, *arguments])}. {there}; {takes}.")
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
    stationary = f"cut into windows of {length} observations, taken to be of a stationary process"
    return Automatic("windows", f"{length}", f"{plural} cannot show how a distribution changes: {stationary}")


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
    reason = f"{transitions} transitions, at most 30 times each, in batches of {batch}, until held-out paths say stop"
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
    arguments = about["network"]["arguments"]
    return fit_network(thinned, name, objective, arguments=arguments, config=config, progress=False)
