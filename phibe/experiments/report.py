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
from typing import Any

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
