"""From a table to a flow and back, as a new user would: check, fit, generate and read the report, against the truth."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from phibe import Trajectories, open_data, open_flow
from phibe.experiments.own_data import random_ou
from phibe.io import save_data
from phibe.metrics import gaussian_w2, global_velocity_error, moments
from phibe.trajectories import Labels

ROOT = Path(__file__).resolve().parents[2]


def observe(paths: int = 500, times: int = 100) -> Trajectories:
    """A random stable process in three dimensions, every path at times of its own, all of them from t = 0 on."""
    generator = torch.Generator().manual_seed(0)
    own = 2 * torch.rand(paths, times, dtype=torch.float64, generator=generator).sort(dim=1).values
    own[:, 0] = 0.0
    seen = random_ou().simulate(paths=paths, times=own, generator=generator)
    return Trajectories(seen.states, own, labels=Labels.read(["time [s]", "x [m]", "y [m]", "z [m]"]))


def say(folder: Path, *arguments: str) -> str:
    """`phibe …` in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "phibe", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    save_data(observe(), folder / "mydata.csv")
    said = {"check": say(folder, "check", "mydata.csv")}
    said["fit"] = say(folder, "fit", "mydata.csv", "--out", "mine")
    times = ["--times", "0:2:0.125", "--log-density", "true", "--out", "made.csv"]
    said["generate"] = say(folder, "generate", "mine", "--paths-of", "mydata.csv", *times)
    return folder, said


def test_check_says_what_was_understood(walked):
    _, said = walked
    for fact in ("500", "100 a path", "each path its own", "x [m], y [m], z [m], over time [s]", "advice"):
        assert fact in said["check"]


def test_every_choice_has_its_reason(walked):
    folder, said = walked
    choices = {choice["what"]: choice for choice in json.loads((folder / "mine" / "automatic.json").read_text("utf8"))}
    assert {"objective", "model", "held out"} <= choices.keys()
    assert all(choice["reason"] in said["fit"] for choice in choices.values())


def test_the_velocity_is_the_true_one(walked):
    folder, _ = walked
    process, flow = random_ou(), open_flow(folder / "mine")
    grid = torch.linspace(0.1, 1.9, 10)

    def error(velocity):
        def sample(t):
            return process.marginal(t).sample(1000, generator=torch.Generator().manual_seed(7))

        return global_velocity_error(velocity, process.velocity, sample, grid).value

    size = error(lambda x, t: torch.zeros_like(x))
    assert error(flow.velocity) < 0.15 * size
    assert error(process.drift) > 0.3 * size  # the drift alone is no answer


def test_the_generated_distribution_is_the_true_one(walked):
    folder, _ = walked
    process, made = random_ou(), open_data(folder / "made.csv", columns=["x", "y", "z"])
    assert made.labels.texts() == ["time [s]", "x [m]", "y [m]", "z [m]"]
    for t in (0.5, 1.0, 2.0):
        index = int((made.times - t).abs().argmin())
        marginal = process.marginal(float(made.times[index]))
        unit = float(marginal.covariance.diagonal().sum().sqrt())
        assert gaussian_w2(moments(made.states[:, index]), marginal) < 0.12 * unit
        assert gaussian_w2(moments(made.states[:, 0]), marginal) > 0.3 * unit  # the start is another distribution


def test_the_report_says_so_in_a_browser(walked, page):
    folder, said = walked
    quality = json.loads((folder / "mine" / "quality.json").read_text("utf8"))
    assert quality["verdict"] == "good"
    assert "good" in said["fit"]
    page.goto((folder / "mine" / "report.html").as_uri())
    shown = page.inner_text("body")
    assert "good" in shown[:600].lower()
    for name in ("x [m]", "y [m]", "time [s]"):
        assert name in shown
    assert page.locator("img.drawn").count() >= 3
