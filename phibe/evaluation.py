"""Evaluation: a fitted flow against data that it was not fitted to, in numbers and a verdict.

`evaluate` compares generated marginals with those of held-out paths. The floor is the distance of other paths of the
data from them: below it no flow can be told from the data. It adds the objective on held-out paths (0 for v = 0) and,
given a flow refitted to every other observation, the marginals at the observations left out. It never fits.
`write_source` and `open_source` note and find the data of a run. Read next: `report.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from torch import Tensor

from phibe.ensembles import Marks, integrate, observed, place_marks, time_free
from phibe.files import write_json
from phibe.flow import Flow
from phibe.io import open_data, summary
from phibe.metrics import Estimate, sliced_w2
from phibe.networks.network import channels
from phibe.objectives import estimate_noise, find_objective
from phibe.training.tensors import fingerprint
from phibe.trajectories import Trajectories

# -- the data of a run -------------------------------------------------------------------------------------------------


NAME = "data.json"


def write_source(folder: str | Path, data: Trajectories, path: str | Path, **options: Any) -> Path:
    """Note in the run's folder where its data is, how it was read (`options` of `open_data`), and a hash of it."""
    facts = {"path": str(Path(path).resolve()), "options": options, "sha256": fingerprint(data)}
    return write_json(Path(folder) / NAME, facts)


def open_source(folder: str | Path) -> Trajectories:
    """The data that the run was fitted to; ValueError with the likely fix if it was not noted, moved or changed."""
    note = Path(folder) / NAME
    if not note.exists():
        raise ValueError(f"{folder} does not say where its data is. Tell it once: `phibe report {folder} --data FILE`.")
    try:
        facts = json.loads(note.read_text("utf8"))
        path, options, digest = Path(facts["path"]), facts["options"], facts["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{note} cannot be read: {error}. Write it anew with `phibe report`.") from error
    if not path.exists():
        moved = f"Moved? `phibe report {folder} --data FILE`."
        raise ValueError(f"The data of this run was {path}, which is no longer there. {moved}")
    data = open_data(path, **options)
    if fingerprint(data) != digest:
        raise ValueError(f"{path} has changed since this run was fitted to it: other numbers, or other times.")
    return data


# -- distances of marginals --------------------------------------------------------------------------------------------


LEAST, DRAWS, MEGABYTES = 8, 4, 64
"""Paths below which there is no marginal to compare, samples that a floor is averaged over, memory for the states."""


@dataclass(frozen=True)
class Distance:
    """Sliced W₂ at `time` from held-out paths, in standard deviations of the data.

    Of the flow, of as many other paths (the floor), and of the persistence forecast, the states at the start; `paths`
    is the size of a sample. `gap` is the mean square error of the generated mean and spread of a coordinate, in spreads
    of that time, less what sampling explains; `scale` the generated over the true spread.
    """

    time: float
    flow: float
    floor: float
    persistence: float
    paths: int
    gap: float
    scale: float


def spread(data: Trajectories) -> Tensor:
    """Standard deviation of each coordinate (of each channel of larger states), to divide states by; of 64 MB."""
    some = data[:: max(1, data.states.nbytes // 2**26)]
    sigma = channels(some.states[some._observed()]).std(dim=(0, 2))
    return torch.where(sigma > 0, sigma, 1.0).reshape(-1, *[1] * (len(data.state_shape) - 1)).to(data.states.dtype)


def marginal_distances(
    flow: Flow, data: Trajectories, count: int, marks: Marks, *, unit: Tensor, method: str
) -> list[Distance]:
    """Distances at the marks of `data`: the first `count` paths were seen by the fit, the others are held out.

    The flow integrates the starts of as many seen paths as are held out, some times over. The same paths, as observed,
    give the floor: an exact flow is at it.
    """
    if not count:
        return []
    size = min(len(data) - count, count)
    draws = max(1, min(DRAWS, count // size))
    used = slice(draws * size)
    groups = torch.arange(draws * size).split(size)
    held = slice(count, count + size)
    first, last = (Marks(marks.times, marks.places[part]) for part in (used, held))
    seen, target = observed(data[used], first) / unit, observed(data[held], last) / unit
    starts, generated = data.states[used, 0] / unit, integrate(flow, data[used], first, method=method) / unit
    found = []
    for k, time in enumerate(marks.times.tolist()):
        reference = target[torch.isfinite(target[:, k]).flatten(1).all(1), k]
        rows = [row for group in groups if len(row := group[marks.places[group, k] >= 0]) >= LEAST]
        if len(reference) < LEAST or not rows:
            continue
        samples = (generated[:, k], seen[:, k], starts)
        away, floor, rest = (_root_mean([_distance(x[row], reference) for row in rows]) for x in samples)
        every, paths = torch.cat(rows), min(len(rows[0]), len(reference))
        gap, scale = _moment_gap(generated[every, k], torch.cat([seen[every, k], reference]))
        found.append(Distance(time, away, floor, rest, paths, gap, scale))
    return found


def _moment_gap(made: Tensor, true: Tensor) -> tuple[float, float]:
    """Mean over the coordinates of (Δmean² + Δspread²)/spread², less its expectation for two samples of one
    distribution, and the geometric mean of the ratio of spreads; of images the spread is that of a channel."""
    made, true = channels(made), channels(true)
    each, unit = true.std(0), true.var(0).mean(1, keepdim=True).sqrt()
    kept = unit[:, 0] > 1e-6 * unit.max()
    shift, change = (made.mean(0) - true.mean(0))[kept] / unit[kept], (made.std(0) - each)[kept] / unit[kept]
    noise = 1.5 * (1 / len(made) + 1 / len(true))
    scale = made.var(0).mean(1).sqrt()[kept] / unit[kept, 0]
    return float((shift**2 + change**2).mean()) - noise, float(scale.clamp(min=1e-12).log().mean().exp())


def _distance(x: Tensor, y: Tensor) -> float:
    """Infinite when some of the states are lost."""
    return sliced_w2(x, y) if bool(torch.isfinite(x).all()) and float(x.abs().max()) < 1e6 else math.inf


def _root_mean(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))


def ratio(distances: list[Distance]) -> float:
    """How many times the floor the flow is away: root mean squares over the marks."""
    return _root_mean([d.flow for d in distances]) / _root_mean([d.floor for d in distances])


def excess(distances: list[Distance]) -> float:
    """The distance that the floor does not explain, √(W₂² − floor²), in standard deviations of the data."""
    flow, floor = (_root_mean([getattr(d, name) for d in distances]) for name in ("flow", "floor"))
    return math.sqrt(max(0.0, flow**2 - floor**2))


def moment_error(distances: list[Distance]) -> float:
    """How far the generated means and spreads are off, in spreads of the time, beyond what sampling explains."""
    return math.sqrt(max(0.0, sum(d.gap for d in distances) / len(distances)))


def held_out_objective(
    flow: Flow, held: Trajectories, objective: str, *, unit: Tensor, noise: float | None = None
) -> Estimate | None:
    """The mean objective on held-out paths, in standard coordinates, and its standard error, that of blocks of paths
    (of few paths, stretches). It is 0 for v = 0, and None if no path is long enough."""
    kind, size = find_objective(objective), held.states[0, 0].numel()
    means, options, samples = [], {}, min(20_000, max(400, 4_000_000 // size))
    if objective == "isotropic":  # σ²I knows no other units
        generator = torch.Generator().manual_seed(0)
        options = {"noise": noise or estimate_noise(held), "exact": size <= 64, "generator": generator}
        unit = torch.ones_like(unit)
    for block in held.blocks(20):
        if block._shortest() < kind.width:
            continue
        block = block[:: max(1, 20 * len(block) * block.states.shape[1] // samples)]
        x, t, *steps = kind.samples(block)
        scaled = (x / unit, t, *(step / unit if step.shape == x.shape else step for step in steps))
        values = kind(lambda z, s: flow.velocity(z * unit, s) / unit, *scaled, **options)
        weight = kind.weights(*scaled)  # of unequal steps the shortest would drown all others
        means.append(float((weight * values.double()).sum() / weight.sum()))
    if len(means) < 2:
        return None
    each = torch.tensor(means, dtype=torch.float64)
    return Estimate(float(each.mean()), float(each.std()) / math.sqrt(len(each)))


# -- verdict ---------------------------------------------------------------------------------------------------------


GRADES = ("good", "usable with care", "not trustworthy")
NEAR, FAR = 2.0, 4.0
"""Times the floor that the marginals may be away: up to the first is good, beyond the second not trustworthy …"""
SMALL, LARGE = 0.05, 0.25
"""… unless the excess over the floor, in standard deviations of the data, is up to the first, or up to the second."""
NARROW, WIDE = 0.2, 0.5
"""Errors of mean and spread, in spreads of the time: up to the first is good, beyond the second not trustworthy."""
COARSE = 0.35
"""A floor above this many standard deviations hides errors that matter."""
SURE = 3.0
"""Standard errors that a difference must have to be believed."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, its grade, and the reason with its numbers."""

    about: str
    grade: str
    text: str


CRITERIA = (
    f"Good: marginals within {NEAR:g} times the floor (or {SMALL:.0%} of a standard deviation beyond it), means "
    f"and spreads within {NARROW:.0%} of the spread at their time, a floor of at most {COARSE:g} standard "
    f"deviations, and a held-out objective at least {SURE:g} standard errors below that of no motion. Not "
    f"trustworthy: marginals beyond {FAR:g} times the floor and {LARGE:.0%} of a standard deviation, means and "
    f"spreads off by more than {WIDE:.0%}, a flow that diverges, or an objective above that of no motion. In "
    "between: usable with care. The worst of the findings decides."
)


def _grade(good: bool, usable: bool) -> str:
    return GRADES[0 if good else 1 if usable else 2]


def judge_objective(value: Estimate | None, *, objective: str) -> Finding:
    """Is the velocity better than none on paths that it has not seen?"""
    about = "held-out objective"
    if value is None:
        return Finding(about, GRADES[1], "There are too few observations to evaluate the objective on held-out paths.")
    score = -value.value / value.error if value.error > 0 else 0.0
    text = "The data does not show that this velocity is better than no motion."
    if score >= SURE:
        text = f"That is better than no motion by {score:.0f} standard errors."
    elif score <= -SURE:
        text = "Worse than no motion: the fit follows its noise."
    text = f"`{objective}` is {value.value:.3g} ± {value.error:.2g}; a velocity of zero has 0. {text}"
    return Finding(about, _grade(score >= SURE, score > -SURE), text)


def judge_marginals(about: str, distances: list[Distance], *, where: str) -> Finding:
    """Are the generated marginals those of held-out paths?"""
    if not distances:
        text = f"There are fewer than {LEAST} paths to compare at any time, so no marginal could be checked."
        return Finding(about, GRADES[1], text)
    if lost := [d.time for d in distances if d.flow == math.inf]:
        return Finding(about, GRADES[2], f"The flow diverges: some states are lost at t = {lost[0]:.4g}.")
    times, beyond = ratio(distances), excess(distances)
    text = f"{where} the generated marginals are {times:.2f} times the data-against-data floor away from held-out paths"
    text += f", {beyond:.3f} standard deviations beyond it."
    return Finding(about, _grade(times <= NEAR or beyond <= SMALL, times <= FAR or beyond <= LARGE), text)


def judge_moments(distances: list[Distance]) -> list[Finding]:
    """Are the generated means and spreads the true ones? The drift alone, for one, lets the spread shrink."""
    if not distances or any(d.flow == math.inf for d in distances):
        return []
    error = moment_error(distances)
    scale = math.exp(sum(math.log(d.scale) for d in distances) / len(distances))
    text = f"Mean and spread are off by {error:.2f} of the spread at their time; the generated spread is "
    text += f"{scale:.2f} times the observed one."
    return [Finding("mean and spread", _grade(error <= NARROW, error <= WIDE), text)]


def judge_resolution(distances: list[Distance]) -> list[Finding]:
    """Could the comparison have shown an error at all?"""
    if not distances or (floor := _root_mean([d.floor for d in distances])) <= COARSE:
        return []
    paths = sorted(d.paths for d in distances)[len(distances) // 2]
    text = f"With {paths} paths a sample, two samples of one distribution differ by {floor:.2f} standard deviations: "
    return [Finding("resolution", GRADES[1], text + "errors smaller than that cannot be seen. Bring more paths.")]


def motion(distances: list[Distance]) -> str:
    """What the persistence forecast would give: how much the test of the marginals asks of the flow."""
    if not distances:
        return ""
    most = max(d.persistence / d.floor for d in distances)
    if most < NEAR:
        still = f"The marginals hardly change: the persistence forecast is at most {most:.1f} times the floor away."
        return f"{still} They alone cannot tell a flow from no motion here; the held-out objective can."
    return f"The persistence forecast would be up to {most:.0f} times the floor away."


MARKS, FEW = 12, 24
"""Times that marginals are compared at, and paths of images, which take long to integrate."""


@dataclass(frozen=True)
class Quality:
    """Measured numbers, findings and a verdict. Distances are in standard deviations of the data."""

    verdict: str
    findings: list[Finding]
    criteria: str
    motion: str
    data: dict[str, Any]
    objective: str
    method: str
    time_free: bool
    held_out: Estimate | None
    marginals: list[Distance]
    left_out_times: list[Distance]
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """The verdict and its findings, for a terminal."""
        found = (f"{finding.about}: {finding.grade}. {finding.text}" for finding in self.findings)
        lines = (fill(line, 88, initial_indent="  ", subsequent_indent="    ") for line in found)
        return "\n".join([self.verdict, *lines])

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; a number that is not finite becomes null."""
        content = asdict(self)
        content["held_out"] = self.held_out and self.held_out._asdict()
        return _finite(content)


def evaluate(
    flow: Flow,
    data: Trajectories,
    refitted: Flow | None = None,
    *,
    held_out: Tensor | None = None,
    objective: str = "symmetric",
    noise: float | None = None,
    notes: Sequence[str] = (),
) -> Quality:
    """What the data says of the flow: numbers, findings and a verdict.

    `held_out` are the numbers of the paths that the fit did not see. None says that it saw all; every fifth path is
    then compared, which is no test. `refitted` is a flow fitted to every other observation of the training paths, to
    be checked at those left out. `objective` is what the flow was fitted by.

    >>> from phibe import OU
    >>> ou = OU.nonreversible()
    >>> data = ou.simulate(paths=100, times=torch.linspace(0, 1, 9).double(), seed=0)
    >>> evaluate(Flow(ou.velocity, (0.0, 1.0), 1 / 8), data, held_out=torch.arange(50)).verdict
    'good'
    """
    findings: list[Finding] = []
    if held_out is None:
        text = "No path of this data was held out: every number here is of paths that the fit has seen."
        findings.append(Finding("held-out paths", GRADES[1], text))
    unit, free = spread(data), time_free(flow, data)
    some, count = _arranged(data, held_out_paths(data, held_out))

    def distances(of: Flow, every: int) -> list[Distance]:
        marks = place_marks(some, MARKS, elapsed=free, every=every)
        return marginal_distances(of, some, count, marks, unit=unit, method=flow.method)

    value = held_out_objective(flow, some[count:], objective, unit=unit, noise=noise)
    marginals, left_out = distances(flow, 1), distances(refitted, 2) if refitted else []
    findings.append(judge_objective(value, objective=objective))
    findings.append(judge_marginals("marginals", marginals, where="At the observed times"))
    findings += [*judge_moments(marginals), *judge_resolution(marginals)]
    if refitted:
        where = "Fitted to every other observation, at those left out"
        findings.append(judge_marginals("intermediate times", left_out, where=where))
    return Quality(
        verdict=max((finding.grade for finding in findings), key=GRADES.index),
        findings=findings,
        criteria=CRITERIA,
        motion=motion(marginals),
        data=summary(data) | {"held_out_paths": len(some) - count},
        objective=objective,
        method=flow.method,
        time_free=free,
        held_out=value,
        marginals=marginals,
        left_out_times=left_out,
        notes=list(notes),
    )


def held_out_paths(data: Trajectories, held_out: Tensor | None) -> Tensor:
    """The numbers of the paths to compare with: those held out, or every fifth if none were."""
    return torch.arange(0, len(data), 5) if held_out is None else held_out


def _arranged(data: Trajectories, held_out: Tensor) -> tuple[Trajectories, int]:
    """Some paths that the fit saw, in random order, then those that it did not see; and how many it saw.

    As many of each kind as a few hundred megabytes hold.
    """
    seen = torch.ones(len(data), dtype=torch.bool)
    seen[held_out] = False
    most = FEW
    if len(data.state_shape) == 1:
        most = max(16, int(MEGABYTES * 2**20 / (data.states[0].numel() * data.states.element_size())))
    order = torch.randperm(int(seen.sum()), generator=torch.Generator().manual_seed(0))[: DRAWS * most]
    return data[torch.cat([seen.nonzero()[order, 0], held_out[:most]])], len(order)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
