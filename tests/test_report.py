"""The report of a run: whole, readable, and without a single request."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

from phibe import OU, FitConfig, Trajectories, fit
from phibe.cli import main
from phibe.fitting import fit_closed
from phibe.io import save_data
from phibe.linear.folds import Size
from phibe.report import write_report
from phibe.trajectories import Labels

ROOT = Path(__file__).resolve().parent.parent
TIMES = torch.linspace(0, 1, 9, dtype=torch.float64)
QUICK = FitConfig(steps=6, batch=16, evaluate_every=3, held_out=0.25, accelerator="cpu")


def remote(page: str) -> set[str]:
    """What a page would load from elsewhere, as the build of the book looks for it."""
    spec = importlib.util.spec_from_file_location("offline", ROOT / "book" / "_ext" / "offline.py")
    offline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(offline)
    return offline.Loads(page).found


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A closed-form run of the paper's process, with names that want to be HTML."""
    folder = tmp_path_factory.mktemp("run")
    process = OU([[-0.5, -2.0], [2.0, -0.5]], torch.eye(2), m0=[2.0, 0.0], C0=torch.eye(2))
    data = process.simulate(paths=200, times=TIMES, seed=0)
    data = Trajectories(data.states, TIMES, labels=Labels.read(["t [s]", "<script>alert(1)</script> [m]", "y"]))
    save_data(data, folder / "data.npz")
    fit_closed(
        data, "symmetric", candidates=[Size(1, 0, 4, 1e-9)], config=FitConfig(held_out=0.25), out=folder / "mine"
    )
    write_report(folder / "mine", data, source=folder / "data.npz")
    return folder / "mine"


def test_the_page_stands_alone_and_runs_nothing(run):
    page = (run / "report.html").read_text("utf8")
    assert remote(page) == set()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert set(re.findall(r"<h2>(.*?)</h2>", page)) >= {"The data", "Laws at observed times", "Times in between"}
    assert page.count("<svg") > 12


def test_the_verdict_and_its_numbers_are_those_of_the_record(run):
    page, quality = (run / "report.html").read_text("utf8"), json.loads((run / "quality.json").read_text())
    assert quality["verdict"] == "good"
    assert quality["verdict"].capitalize() in page
    assert f"{quality['held_out']['value']:.3g} ± {quality['held_out']['error']:.2g}" in page
    assert quality["data"]["held_out_paths"] == 50
    assert {finding["about"] for finding in quality["findings"]} >= {"laws", "held-out objective", "intermediate times"}


def test_the_command_renews_it_and_knows_where_the_data_was(run, capsys):
    before = (run / "report.html").stat().st_mtime_ns
    assert main(["report", str(run), "--calibrate", "false"]) == 0
    said = capsys.readouterr().out
    assert "report.html: good" in said
    assert (run / "report.html").stat().st_mtime_ns > before
    assert "Not checked" in (run / "report.html").read_text("utf8")
    assert main(["report", str(run.parent)]) == 2
    assert "There is no run" in capsys.readouterr().err


def test_a_network_is_trained_again_for_the_times_in_between_and_its_curves_are_shown(tmp_path):
    data = OU.nonreversible().simulate(paths=60, times=TIMES, seed=0)
    fit(data, "mlp", "symmetric", config=QUICK, out=tmp_path, progress=False)
    quality = write_report(tmp_path, data)
    page = (tmp_path / "report.html").read_text("utf8")
    assert quality.verdict != "good"  # six steps are none
    assert len(quality.between) == 4
    assert "objective on training and held-out samples" in page
    assert write_report(tmp_path, data, calibrate=False).between == []


def test_pictures_are_shown_as_pictures(tmp_path):
    grid = torch.linspace(-1, 1, 8)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(40, 5, 1, 1, generator=generator).cumsum(1) / 4
    data = Trajectories(
        torch.exp(-((grid[None, None, None, :] - centres) ** 2)).expand(40, 5, 8, 8)[:, :, None], TIMES[:5]
    )
    fit(data, "mlp", "symmetric", config=QUICK, out=tmp_path, progress=False)
    write_report(tmp_path, data, calibrate=False)
    page = (tmp_path / "report.html").read_text("utf8")
    assert page.count("data:image/png;base64,") == 6
    assert "Frames" in page and "Marginals" not in page
