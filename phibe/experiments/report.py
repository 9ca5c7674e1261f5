"""Experiments and their reports: how one is run, and what it measured, with all that is needed to run it again.

A report holds every number that book, README and apps show. Read next: `theory.py` for the smallest experiment,
`training.py` for what the larger ones share.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from phibe.experiments import EXPERIMENTS
from phibe.experiments.downloads import sha256_of
from phibe.files import copy, write_json, writing
from phibe.training.devices import pick
from phibe.training.tensors import save_tensors

ARTIFACTS = Path(os.environ.get("PHIBE_ARTIFACTS", Path(__file__).resolve().parents[2] / "artifacts"))
FILES = ("config.json", "report.json", "weights.safetensors")


class MissingData(ValueError):
    """An experiment needs files that are not part of the project; the message says which and where."""


class Protocol(NamedTuple):
    """One item of a protocol: what the paper states, what is assumed where it is silent, for all methods alike, and
    what differs here, with the reason; each may be empty."""

    item: str
    stated: str = ""
    assumed: str = ""
    differs: str = ""


class Choice(NamedTuple):
    """What was chosen on validation data: the candidates with their scores, of which the least wins."""

    what: str
    score: str
    candidates: dict[str, float]

    @property
    def chosen(self) -> str:
        return min(self.candidates, key=lambda name: self.candidates[name])


class Claim(NamedTuple):
    """What a method of one column says of a claim of the paper, in one number with its 95 % interval.

    `where` is the place in the paper, `measure` what the number is. A control has no verdict: the claim is not of it.
    """

    where: str
    claim: str
    column: str
    method: str
    measure: str
    value: float
    low: float
    high: float
    verdict: str = ""


@dataclass(frozen=True)
class Report:
    """What one run measured: every number that the book, the README or an app shows of it.

    `seconds` of a run that was `resumed` are those of its last part and of the trainings before it; `data` has the hash
    of each set, `evaluations` how often a method calls its network for a frame.
    """

    experiment: str
    preset: str
    config: dict[str, Any]
    results: dict[str, Any]
    seconds: float
    device: str
    versions: dict[str, str]
    command: str = ""
    resumed: bool = False
    data: dict[str, str] = field(default_factory=dict)
    evaluations: dict[str, float] = field(default_factory=dict)
    protocol: list[Any] = field(default_factory=list)
    choices: list[Any] = field(default_factory=list)
    claims: list[Any] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.results[name]

    @staticmethod
    def open(folder: str | Path) -> Report:
        path = Path(folder) / "report.json"
        try:
            read = json.loads(path.read_text("utf8"))
            rows = {"protocol": Protocol, "choices": Choice, "claims": Claim}
            return Report(**read | {name: [kind(*row) for row in read.get(name, [])] for name, kind in rows.items()})
        except FileNotFoundError:
            raise ValueError(f"There is no report in {folder}. Run the experiment first: `phibe run NAME`.") from None
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"{path} is not a report of this project: {error}") from error


class Measured(NamedTuple):
    """Numbers for the report, tensors for the file of weights, and what else a report says of them."""

    results: dict[str, Any]
    weights: dict[str, Tensor] = {}  # noqa: RUF012  # never changed
    claims: Sequence[Claim] = ()
    choices: Sequence[Choice] = ()
    data: dict[str, str] = {}  # noqa: RUF012
    evaluations: dict[str, float] = {}  # noqa: RUF012


@dataclass(frozen=True)
class Experiment:
    """A configuration for each preset, `measure(config, fits)`, which runs one, and `plan(config)`, what it needs.

    Whatever is trained is saved in the folder `fits`, from where a run that was stopped resumes. A plan is a
    `phibe.experiments.plan.Needs`; the `protocol` compares with that of the paper.
    """

    name: str
    presets: dict[str, Any]
    measure: Callable[[Any, Path], Measured]
    plan: Callable[[Any], Any] | None = None
    protocol: tuple[Protocol, ...] = ()

    def run(self, preset: str = "laptop", *, out: Path | None = None, config: Any = None) -> Report:
        """Measure, and leave config, weights and report in `out` (default: runs/NAME/PRESET), each file whole.

        They replace those of an earlier run of the same experiment once all is measured; no other folder is written.
        """
        if preset not in self.presets:
            raise ValueError(f"The preset of {self.name} is one of {', '.join(self.presets)}; got {preset!r}.")
        config = config or self.presets[preset]
        out = out or Path("runs") / self.name / preset
        settings, resumed = asdict(config), (out / "fits").exists()
        began = time.perf_counter() - _trained(out / "fits")
        with writing(out, f"the experiment {self.name}", keys=settings):
            found = self.measure(config, out / "fits")
            report = Report(
                experiment=self.name,
                preset=preset,
                config=settings,
                results=found.results,
                seconds=round(time.perf_counter() - began, 1),
                device=pick("auto").type,
                versions=versions(),
                command=" ".join([f"phibe run {self.name} --preset {preset}", *changed(self.presets[preset], config)]),
                resumed=resumed,
                data=found.data,
                evaluations=found.evaluations,
                protocol=list(self.protocol),
                choices=list(found.choices),
                claims=list(found.claims),
            )
            write_json(out / "config.json", settings)
            if found.weights:
                save_tensors(out / "weights.safetensors", found.weights)
            write_json(out / "report.json", asdict(report))
        return report


def _trained(fits: Path) -> float:
    """Seconds of the trainings that a folder holds."""
    lines = (file.read_text("utf8").splitlines()[-1:] for file in fits.rglob("metrics.jsonl"))
    return sum(json.loads(line[0])["seconds"] for line in lines if line)


def digest(states: Tensor) -> str:
    """SHA-256 of simulated data, which tells two sets apart, and one CPU's rounding from another's."""
    return hashlib.sha256(states.contiguous().numpy().tobytes()).hexdigest()


def changed(preset: Any, config: Any, within: str = "--") -> list[str]:
    """The options of `phibe run` that make this configuration of the preset."""
    options: list[str] = []
    for name in (one.name for one in fields(preset)):
        usual, own = getattr(preset, name), getattr(config, name)
        if is_dataclass(usual):
            options += changed(usual, own, f"{within}{name}.")
        elif usual != own:
            text = ",".join(map(str, own)) if isinstance(own, tuple) else str(own)
            options.append(f"{within}{name} {text}".replace("_", "-"))
    return options


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__.split("+")[0], "numpy": np.__version__}


def rate(sizes: Any, errors: Any) -> float:
    """The least-squares slope of log error against log size: the order of convergence."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


# -- the rules of a comparison -----------------------------------------------------------------------------------------


COLUMNS = {
    "text": "the paper's recipe as its text has it: objective `phibe`, a Markov v(x, t), one Euler step a frame",
    "code": "the recipe as the authors' code has it, where that differs from the text",
    "best flow": "any objective whose population minimiser is a probability velocity, with any integrator",
    "controls": "what is no flow: regression, persistence, constant velocity, codec reconstruction, PFI, MCVD",
}
"""The columns of a comparison, which are never mixed: a verdict is of one of them."""

Verdict = Literal["reproduced", "opposite", "undecided"]


class Interval(NamedTuple):
    """Where a statistic lies, at some level of confidence."""

    low: float
    high: float


def interval(
    values: Any, statistic: Callable[..., Any] = np.mean, *, level: float = 0.95, seed: int = 0, resamples: int = 2000
) -> Interval:
    """The percentile bootstrap interval of a statistic of independent `values` (n,): one for each path, clip or person.

    Two methods on the same paths are compared by their differences, path by path. `statistic` takes an `axis`, as
    those of numpy do. With fewer than about twenty values the interval is too short: it knows no tails beyond them.

    >>> low, high = interval([1.0, 2.0, 3.0, 4.0])
    >>> 1.0 <= low < 2.5 < high <= 4.0
    True
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all() or not 0 < level < 1:
        raise ValueError(
            f"An interval needs two finite values or more, one a path, and a level between 0 and 1; got values of "
            f"shape {x.shape}, {np.count_nonzero(~np.isfinite(x))} of them not finite, and level {level}."
        )
    generator, rows = np.random.default_rng(seed), max(1, 4_000_000 // len(x))
    sizes = [min(rows, resamples - done) for done in range(0, resamples, rows)]
    drawn = [statistic(x[generator.integers(len(x), size=(size, len(x)))], axis=1) for size in sizes]
    low, high = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def verdict(
    interval: tuple[float, float],
    claimed: Literal["below", "above", "near"] = "below",
    reference: float = 0.0,
    *,
    tolerance: float = 0.0,
) -> Verdict:
    """Whether a claim is reproduced: the whole interval is on the claimed side of the reference, on the other, or on
    neither. `near`, for an order of convergence, claims that it lies within a tolerance of the reference.

    >>> verdict((-0.3, -0.1)), verdict((0.1, 0.3)), verdict((-0.1, 0.3)), verdict((0.1, 0.3), "above")
    ('reproduced', 'opposite', 'undecided', 'reproduced')
    >>> verdict((0.9, 1.1), "near", 1.0, tolerance=0.2), verdict((0.4, 0.6), "near", 1.0, tolerance=0.2)
    ('reproduced', 'opposite')
    """
    if claimed not in ("below", "above", "near"):
        raise ValueError(f"`claimed` must be 'below', 'above' or 'near'; got {claimed!r}.")
    low, high = interval
    if not low <= high:
        raise ValueError(f"An interval goes from its lower end to its upper one; got {low:g} to {high:g}.")
    if claimed == "near":  # how far the ends are from the reference, beyond the tolerance
        reach = max(abs(low - reference), abs(high - reference))
        away = 0.0 if low <= reference <= high else min(abs(low - reference), abs(high - reference))
        return "reproduced" if reach <= tolerance else "opposite" if away > tolerance else "undecided"
    if low <= reference <= high:
        return "undecided"
    return "reproduced" if (high < reference) == (claimed == "below") else "opposite"


def slope_interval(sizes: Any, errors: Any, *, seed: int = 0, resamples: int = 2000) -> tuple[float, Interval]:
    """The order of convergence of errors (size, seed), from their geometric means, and its 95 % bootstrap interval over
    the seeds: of each size so many are drawn as there are."""
    logs, generator = np.log(np.asarray(errors, dtype=np.float64)), np.random.default_rng(seed)
    drawn = generator.integers(logs.shape[1], size=(resamples, *logs.shape))
    means = np.take_along_axis(np.broadcast_to(logs, drawn.shape), drawn, axis=2).mean(2)
    slopes = np.polyfit(np.log(np.asarray(sizes, dtype=np.float64)), means.T, 1)[0]
    low, high = np.quantile(slopes, [0.025, 0.975])
    return rate(sizes, np.exp(logs.mean(1))), Interval(float(low), float(high))


def judged(
    about: tuple[str, str, str],
    column: str,
    method: str,
    values: Any,
    claimed: Literal["below", "above", "near"] = "below",
    reference: float = 0.0,
    *,
    tolerance: float = 0.0,
) -> Claim:
    """What the mean of independent `values`, one a seed, path or person, says of a claim; a control has no verdict.

    `about` is the place in the paper, the claim, and the measure.
    """
    low, high = interval(values)
    said = "" if column == "controls" else verdict((low, high), claimed, reference, tolerance=tolerance)
    where, claim, measure = about
    return Claim(where, claim, column, method, measure, float(np.mean(values)), low, high, said)


class Row(NamedTuple):
    """A claim of the paper, what is measured, and by column what the reports say of it."""

    experiment: str
    where: str
    claim: str
    measure: str
    cells: dict[str, list[Claim]]


def findings(reports: Sequence[Report]) -> list[Row]:
    """The claims of the reports, one row each, with their columns side by side."""
    rows: dict[tuple[str, ...], Row] = {}
    for report in reports:
        for claim in report.claims:
            key = (report.experiment, claim.where, claim.claim, claim.measure)
            cells = rows.setdefault(key, Row(*key, {column: [] for column in COLUMNS})).cells
            cells[claim.column].append(claim)
    return list(rows.values())


def findings_text(rows: Sequence[Row]) -> str:
    """The table of `phibe findings`: under each claim a line for each method, with its number, interval and verdict."""
    lines: list[str] = []
    for experiment, group in groupby(rows, key=lambda row: row.experiment):
        lines += ["", experiment]
        for row in group:
            lines.append(f"  {row.where}: {row.claim} ({row.measure})")
            for column, claims in row.cells.items():
                for c in claims:
                    interval = "" if c.low == c.high else f" [{c.low:.3g}, {c.high:.3g}]"
                    lines.append(f"    {column:10} {c.method:28} {c.value:.3g}{interval}  {c.verdict}".rstrip())
    return "\n".join(lines[1:])


def findings_html(rows: Sequence[Row]) -> str:
    """The same as a table claim × column: in a cell each method with its number, interval and verdict."""
    head = "".join(f'<th title="{meaning}">{column}</th>' for column, meaning in COLUMNS.items())
    body = "".join(
        f"<tr><td>{escape(row.claim)}<br><small>{escape(row.where)}; {escape(row.measure)}</small></td>"
        + "".join(f"<td>{''.join(map(_cell, claims))}</td>" for claims in row.cells.values())
        + "</tr>"
        for row in rows
    )
    return f'<table class="findings"><thead><tr><th>claim</th>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(c: Claim) -> str:
    ends = "" if c.low == c.high else f" <small>[{c.low:.3g}, {c.high:.3g}]</small>"
    said = f' <span class="{c.verdict}">{c.verdict}</span>' if c.verdict else ""
    return f"<div>{c.value:.3g}{ends}{said}<br><small>{escape(c.method)}</small></div>"


def protocol_html(report: Report) -> str:
    """What the paper states, what is assumed, and what differs, as a table that is folded."""
    rows = "".join(f"<tr>{''.join(f'<td>{escape(part)}</td>' for part in row)}</tr>" for row in report.protocol)
    head = "".join(f"<th>{name}</th>" for name in ("", "stated", "assumed", "differs"))
    table = f'<table class="findings"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<details><summary>What the paper states, and what was assumed here</summary>{table}</details>"


def reports() -> list[Report]:
    """All laptop reports that come with the project, in the order of the experiments."""
    return [committed(name) for name in EXPERIMENTS if (ARTIFACTS / name / "report.json").exists()]


# -- what comes with the project ---------------------------------------------------------------------------------------


def committed(experiment: str) -> Report:
    """The laptop report that comes with the project."""
    return Report.open(ARTIFACTS / experiment)


def committed_weights(experiment: str, part: str = "") -> dict[str, Tensor]:
    """The weights that come with the project: all of them, or those of a `part`, in float32 and without its name."""
    weights = load_file(ARTIFACTS / experiment / "weights.safetensors")
    if not part:
        return weights
    chosen = {name: value for name, value in weights.items() if name.startswith(f"{part}.")}
    if not chosen:
        raise ValueError(f"The project comes with no weights of {part!r} in {experiment}.")
    return {name[len(part) + 1 :]: v.float() if v.is_floating_point() else v for name, v in chosen.items()}


def in_half(part: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the name of their `part`, in half precision: what is lost is far below the error of a fit."""
    return {f"{part}.{name}": v.half() if v.is_floating_point() else v for name, v in weights.items()}


def keep(run: Path, experiment: str) -> None:
    """Copy a run's small results under `artifacts/` and note their hashes in the manifest."""
    for name in FILES:
        if (run / name).exists():
            copy(run / name, ARTIFACTS / experiment / name)
    files = sorted(path for path in ARTIFACTS.glob("*/*") if path.is_file())
    write_json(ARTIFACTS / "manifest.json", {str(p.relative_to(ARTIFACTS)): sha256_of(p) for p in files})
