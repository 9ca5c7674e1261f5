"""Choices: what to fit to data of one's own, and how, each with its reason, and each the user's to overrule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from phibe.diagnosis import diagnose
from phibe.diagnosis.measures import moves
from phibe.files import write_json
from phibe.flow import Flow
from phibe.networks import build
from phibe.objectives import find_objective
from phibe.reading import windowed
from phibe.training import FitConfig, fit, fit_closed
from phibe.training.closed import sizes
from phibe.trajectories import Trajectories

CLOSED = ("affine", "basis")
CLASSES = ("auto", *CLOSED, "mlp", "residual", "unet")
FEW, PIECES, COORDINATES = 5, 40, 8
"""Paths below which they are cut into pieces, into about how many, and coordinates up to which a basis is tried."""


class Choice(NamedTuple):
    """What was chosen, and why; printed as one line."""

    what: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"  {self.what:10} {self.value}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """What will be fitted: `network` is one of CLASSES but auto; `time` says whether the velocity may depend on it."""

    objective: str
    network: str
    config: FitConfig
    time: bool
    choices: tuple[Choice, ...]

    def lines(self) -> list[str]:
        return ["chosen", *map(str, self.choices)]


def fit_auto(
    data: Trajectories,
    network: str = "auto",
    objective: str = "auto",
    *,
    out: str | Path | None = None,
    time: bool | None = None,
    arguments: dict[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Flow:
    """The flow of what suits the data; every choice is printed with its reason, and any may be made instead.

    `network` is auto, affine or basis (both solved in closed form, their size by cross-validation), mlp, residual or
    unet, with further `arguments` for its size. `time` = False asks for a velocity that is the same at all times.
    `settings` are fields of `FitConfig`. Fewer than five paths are cut into windows and taken to be at rest. A run kept
    in `out` lists its choices in choices.json.
    """
    cut = window_length(data)
    if cut:
        data, time = windowed(data, cut.observations), False
    plan = make_plan(data, network, objective, settings=settings, time=time)
    plan = replace(plan, choices=(*((cut.choice,) if cut else ()), *plan.choices))
    if progress:
        print("\n".join(plan.lines()))
    flow = carry_out(plan, data, out=out, arguments=arguments, progress=progress)
    if out is not None:
        write_json(Path(out) / "choices.json", [choice._asdict() for choice in plan.choices])
    return flow


def carry_out(
    plan: Plan,
    data: Trajectories,
    *,
    out: str | Path | None,
    arguments: dict[str, Any] | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> Flow:
    """Fit what the plan says."""
    if plan.network in CLOSED:
        if arguments:
            raise ValueError(f"`{plan.network}` finds its size itself and takes no arguments; got {arguments}.")
        samples = len(data) * data.states.shape[1]
        tried = sizes(math.prod(data.state_shape), samples, affine=plan.network == "affine", time=plan.time)
        return fit_closed(data, plan.objective, candidates=tried, config=plan.config, out=out, held_out=held_out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.config.seed)
        made = build(plan.network, data.state_shape, **{"time": plan.time} | (arguments or {}))
    return fit(data, made, plan.objective, config=plan.config, out=out, held_out=held_out, progress=progress)


def make_plan(
    data: Trajectories,
    network: str = "auto",
    objective: str = "auto",
    *,
    settings: dict[str, Any] | None = None,
    time: bool | None = None,
) -> Plan:
    """The user's choices where they were made, ours elsewhere; `settings` are fields of `FitConfig`."""
    if network not in CLASSES:
        raise ValueError(f"`network` must be one of {', '.join(CLASSES)}; got {network!r}.")
    kind, of_class = _class(data) if network == "auto" else (network, None)
    settings = settings or {}
    config, of_budget = budget(data, kind)
    config = replace(config, **settings)
    of_time = None
    if time is None and kind in CLOSED:
        time = True
    elif time is None:
        time = moves(data[:: max(1, len(data) // 2000)])
        why = "means or variances change" if time else "means and variances do not change"
        of_time = Choice("time", "it enters" if time else "none", f"{why} between the first and the last third")
    name, of_objective = _objective(data) if objective == "auto" else (find_objective(objective).name, None)
    of_budget = None if "steps" in settings else of_budget
    found = (of_objective, of_class, of_time, _units(data, config), of_budget, _split(data, config))
    return Plan(name, kind, config, time, tuple(choice for choice in found if choice))


# -- one by one --------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    observations: int
    choice: Choice


def window_length(data: Trajectories) -> Cut | None:
    """For fewer than five paths, how long the pieces should be that stand for paths of their own; else None."""
    if len(data) >= FEW:
        return None
    total = int(data._observed(2).sum())
    length = max(5, min(data.states.shape[1], total // PIECES)) + 1
    plural = "one path" if len(data) == 1 else f"{len(data)} paths"
    reason = (
        f"{plural} cannot show how a law moves: cut into pieces of {length} observations, taken to be of a process at "
        "rest, with a velocity that is the same at all times"
    )
    return Cut(length, Choice("windows", f"{length}", reason))


def _objective(data: Trajectories) -> tuple[str, Choice]:
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
        return least.objective, Choice("objective", least.objective, reason)
    name = "symmetric" if data._shortest() >= 3 else "stratonovich"
    reason = f"there is too little data, or there are too few times, to compare errors; {name} is bounded and calm"
    return name, Choice("objective", name, reason)


def _class(data: Trajectories) -> tuple[str, Choice]:
    """By the shape of the state: a basis for a few coordinates, a U-Net for pictures, else a plain network."""
    shape = data.state_shape
    if len(shape) == 1 and shape[0] <= COORDINATES:
        reason = f"{shape[0]} coordinates: solved in closed form, its size by cross-validation over paths"
        return "basis", Choice("network", "basis", reason)
    if len(shape) == 3 and all(size % 4 == 0 and size >= 8 for size in shape[1:]):
        return "unet", Choice("network", "unet", f"states {shape} are pictures (channels, height, width)")
    reason = f"states {shape} have {math.prod(shape)} coordinates, too many for polynomials"
    return "mlp", Choice("network", "mlp", reason)


def budget(data: Trajectories, network: str) -> tuple[FitConfig, Choice | None]:
    """Steps and batch by the number of transitions; a closed form needs none."""
    share = 0.2 if len(data) < 2000 else 0.1
    if network in CLOSED:
        return FitConfig(held_out=share), None
    transitions = int(data._observed(2).sum())
    batch = 256 if math.prod(data.state_shape) <= 64 else 32
    steps = int(min(10_000, max(1000, 30 * transitions / batch)))
    config = FitConfig(steps=steps, batch=batch, ema=0.99, held_out=share, patience=15)
    reason = (
        f"{transitions} transitions, at most 30 times each, in batches of {batch}; stops when held-out paths say so"
    )
    return config, Choice("budget", f"{steps} steps", reason)


def _units(data: Trajectories, config: FitConfig) -> Choice:
    if not config.normalise:
        return Choice("units", "those of the data", "`normalise` is off")
    some = data[:: max(1, len(data) // 200)]
    spread = some.states[some._observed()].double().flatten(1).std(0)
    reason = f"mean zero and spread one for each coordinate; theirs go from {spread.min():.3g} to {spread.max():.3g}"
    return Choice("units", "standard", reason)


def _split(data: Trajectories, config: FitConfig) -> Choice:
    count = max(1, round(len(data) * config.held_out)) if config.held_out else 0
    reason = "no fit sees them; the report judges by them" if count else "`held_out` is 0, so nothing can be checked"
    return Choice("held out", f"{count} of {len(data)} paths", reason)
