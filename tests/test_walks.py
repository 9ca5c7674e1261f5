"""Walks: how many files of phibe a call passes through. Few are easy to follow; module bodies do not count."""

import importlib
import pkgutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import phibe
from phibe import FitConfig
from phibe.cli import main
from phibe.experiments import experiment
from phibe.io import save_data
from phibe.systems.ou import OU

PACKAGE = str(Path(phibe.__file__).parent)


def files_passed(call: Callable[[], object]) -> set[str]:
    """The files of the package in which a function is entered while `call` runs, in this and in other threads.

    All modules are imported before, since what an import runs belongs to no call.
    """
    seen = set()
    for module in pkgutil.walk_packages(phibe.__path__, "phibe."):
        if module.name != "phibe.__main__":
            importlib.import_module(module.name)

    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_filename.endswith(".py"):
            seen.add(str(Path(code.co_filename).relative_to(PACKAGE)))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


@pytest.fixture
def data():
    return OU.nonreversible().simulate(paths=200, times=torch.linspace(0, 1, 11), seed=0)


@pytest.mark.slow
def test_a_fit_of_a_table_is_a_short_walk(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_data(data, "data.csv")
    passed = files_passed(lambda: main(["fit", "data.csv", "--out", "run"]))
    assert len(passed) <= 26, sorted(passed)
    assert {"io.py", "trajectories.py", "fitting.py", "flow.py"} <= passed


def test_a_fit_of_a_network_is_a_short_walk(data):
    config = FitConfig(steps=20, batch=32, evaluate_every=10)
    fit = phibe.fit  # a lazy name is looked up once
    passed = files_passed(lambda: fit(data, "mlp", "symmetric", config=config, progress=False))
    assert len(passed) <= 14, sorted(passed)
    assert {"training/loop.py", "objectives.py", "networks/mlp.py"} <= passed


@pytest.mark.slow
def test_a_run_of_the_video_experiment_is_a_short_walk(tmp_path):
    video = experiment("video")
    passed = files_passed(lambda: video.run("smoke", out=tmp_path))
    assert len(passed) <= 34, sorted(passed)
    assert {"experiments/baselines/pfi.py", "experiments/baselines/mcvd.py", "training/loop.py"} <= passed


def test_a_file_that_is_only_imported_is_not_passed():
    assert files_passed(lambda: OU.reversible().velocity(torch.zeros(1, 2), 0.0)) == {"systems/ou.py"}
