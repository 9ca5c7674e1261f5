"""The paper's experiments and our own: one file each, with its presets and `run(preset) -> Report`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PRESETS = ("smoke", "laptop", "paper")
EXPERIMENTS = {
    "ou_theory": "phibe.experiments.theory",
    "affine_ou": "phibe.experiments.affine_ou",
    "ou": "phibe.experiments.ou",
    "estimators": "phibe.experiments.estimators",
    "nonlinear": "phibe.experiments.nonlinear",
    "pendulum_states": "phibe.experiments.pendulum.states",
    "pendulum_images": "phibe.experiments.pendulum.images",
    "pendulum_real": "phibe.experiments.pendulum.real",
    "navier_stokes": "phibe.experiments.turbulence.run",
    "figure_features": "phibe.experiments.video.features_run",
    "video": "phibe.experiments.video.run",
    "video_real": "phibe.experiments.video.real",
    "own_data": "phibe.experiments.own_data",
}
"""The module of each experiment, imported when it is asked for."""


def experiment(name: str) -> ModuleType:
    """The module of that experiment: `CONFIGS`, `Config` and `run`."""
    return import_module(EXPERIMENTS[name])


def description(name: str) -> str:
    """The first line of that module's docstring, read from its file: to list experiments must not import them."""
    spec = find_spec(EXPERIMENTS[name])
    assert spec is not None and spec.origin is not None
    with Path(spec.origin).open(encoding="utf8") as file:
        return file.readline().strip().strip('"')
