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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from phibe.files import copy, write_json, writing
from phibe.training.devices import pick
from phibe.training.tensors import save_tensors

ARTIFACTS = Path(os.environ.get("PHIBE_ARTIFACTS", Path(__file__).resolve().parents[2] / "artifacts"))
FILES = ("config.json", "report.json", "weights.safetensors")


class MissingData(ValueError):
    """An experiment needs files that are not part of the project; the message says which and where."""


@dataclass(frozen=True)
class Report:
    """What one run measured: every number that the book, the README or an app shows of it."""

    experiment: str
    preset: str
    config: dict[str, Any]
    results: dict[str, Any]
    seconds: float
    device: str
    versions: dict[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.results[name]

    @staticmethod
    def open(folder: str | Path) -> Report:
        path = Path(folder) / "report.json"
        try:
            return Report(**json.loads(path.read_text("utf8")))
        except FileNotFoundError:
            raise ValueError(f"There is no report in {folder}. Run the experiment first: `phibe run NAME`.") from None
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"{path} is not a report of this project: {error}") from error


Measured = tuple[dict[str, Any], dict[str, Tensor]]
"""Numbers for the report, and tensors for the file of weights."""


@dataclass(frozen=True)
class Experiment:
    """A configuration for each preset, `measure(config, fits)`, which runs one, and `plan(config)`, what it needs.

    Whatever is trained is saved in the folder `fits`, from where a run that was stopped resumes. A plan is a
    `phibe.experiments.plan.Needs`.
    """

    name: str
    presets: dict[str, Any]
    measure: Callable[[Any, Path], Measured]
    plan: Callable[[Any], Any] | None = None

    def run(self, preset: str = "laptop", *, out: Path | None = None, config: Any = None) -> Report:
        """Measure, and leave config, weights and report in `out` (default: runs/NAME/PRESET), each file whole.

        They replace those of an earlier run of the same experiment once all is measured; no other folder is written.
        """
        if preset not in self.presets:
            raise ValueError(f"The preset of {self.name} is one of {', '.join(self.presets)}; got {preset!r}.")
        config = config or self.presets[preset]
        out = out or Path("runs") / self.name / preset
        began, settings = time.perf_counter(), asdict(config)
        with writing(out, f"the experiment {self.name}", keys=settings):
            results, weights = self.measure(config, out / "fits")
            seconds, device = round(time.perf_counter() - began, 1), pick("auto").type
            report = Report(self.name, preset, settings, results, seconds, device, versions())
            write_json(out / "config.json", settings)
            if weights:
                save_tensors(out / "weights.safetensors", weights)
            write_json(out / "report.json", asdict(report))
        return report


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
    interval: tuple[float, float], claimed: Literal["below", "above"] = "below", reference: float = 0.0
) -> Verdict:
    """Whether a claim is reproduced: the whole interval is on the claimed side of the reference, on the other, or on
    neither.

    >>> verdict((-0.3, -0.1)), verdict((0.1, 0.3)), verdict((-0.1, 0.3)), verdict((0.1, 0.3), "above")
    ('reproduced', 'opposite', 'undecided', 'reproduced')
    """
    if claimed not in ("below", "above"):
        raise ValueError(f"`claimed` must be 'below' or 'above'; got {claimed!r}.")
    low, high = interval
    if not low <= high:
        raise ValueError(f"An interval goes from its lower end to its upper one; got {low:g} to {high:g}.")
    if low <= reference <= high:
        return "undecided"
    return "reproduced" if (high < reference) == (claimed == "below") else "opposite"


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
    write_json(ARTIFACTS / "manifest.json", {str(p.relative_to(ARTIFACTS)): _sha256(p) for p in files})


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
