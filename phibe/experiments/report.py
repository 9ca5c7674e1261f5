"""Reports: what a run of an experiment measured, with all that is needed to run it again."""

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
KEPT = ("config.json", "report.json", "weights.safetensors")


class MissingData(ValueError):
    """An experiment needs files that are not part of the project; the message says which and where."""


@dataclass(frozen=True)
class Report:
    """Every number that the book, the README or an app shows of one run."""

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
            return Report(**json.loads(path.read_text()))
        except FileNotFoundError:
            raise ValueError(f"There is no report in {folder}. Run the experiment first: `phibe run NAME`.") from None
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"{path} is not a report of this project: {error}") from error


def record(
    experiment: str,
    preset: str,
    config: Any,
    measure: Callable[[], tuple[dict[str, Any], dict[str, Tensor]]],
    out: Path,
) -> Report:
    """Run `measure() -> (results, weights)`, time it, leave config, weights and report in `out`, each file whole.

    They replace those of an earlier run of the same experiment only when all is measured; no other folder is written.
    """
    began, settings = time.perf_counter(), asdict(config)
    with writing(out, f"the experiment {experiment}", keys=settings):
        results, weights = measure()
        seconds, device = round(time.perf_counter() - began, 1), pick("auto").type
        report = Report(experiment, preset, settings, results, seconds, device, versions())
        write_json(out / "config.json", settings)
        if weights:
            save_tensors(out / "weights.safetensors", weights)
        write_json(out / "report.json", asdict(report))
    return report


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__.split("+")[0], "numpy": np.__version__}


def rate(sizes: Any, errors: Any) -> float:
    """The least-squares slope of log error against log size."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def committed(experiment: str) -> Report:
    """The laptop report that comes with the project."""
    return Report.open(ARTIFACTS / experiment)


def committed_weights(experiment: str) -> dict[str, Tensor]:
    return load_file(ARTIFACTS / experiment / "weights.safetensors")


def keep(run: Path, experiment: str) -> None:
    """Copy a run's small results under `artifacts/` and note their hashes in the manifest."""
    for name in KEPT:
        if (run / name).exists():
            copy(run / name, ARTIFACTS / experiment / name)
    files = sorted(path for path in ARTIFACTS.glob("*/*") if path.is_file())
    write_json(ARTIFACTS / "manifest.json", {str(p.relative_to(ARTIFACTS)): _sha256(p) for p in files})


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
