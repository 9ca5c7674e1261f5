"""The report of a run: whole, readable, and without a single request."""

import base64
import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from phibe import OU, FitConfig, Trajectories, fit
from phibe.cli import main
from phibe.fitting import fit_closed
from phibe.io import save_data
from phibe.linear.basis import Size
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


ACTIVE = {"script", "iframe", "object", "embed", "form", "base", "svg", "a"}


class Tags(HTMLParser):
    """The names of all elements, and all attributes, of a page as a browser reads them."""

    def __init__(self, page: str):
        super().__init__()
        self.names, self.attributes = set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes += attrs


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
    assert set(re.findall(r"<h2>(.*?)</h2>", page)) >= {"The data", "Marginals at observed times", "Intermediate times"}
    figures = re.findall(r'<img class="drawn" src="data:image/svg\+xml;base64,([^"]*)" alt="([^"]+)">', page)
    assert len(figures) > 12
    drawn = [base64.b64decode(code).decode() for code, _ in figures]
    assert any("&lt;script&gt;alert(1)" in svg for svg in drawn)  # the name is on an axis, as text
    assert not any("<script" in svg or "onload" in svg for svg in drawn)


def test_names_and_folders_cannot_bring_html_or_upset_a_figure(tmp_path):
    names = ['t" onload="x', "$x_1$ [$]", "{0} {label}", "<img src=x onerror=alert(1)>"]
    process = OU(torch.eye(3) * -1.0, torch.eye(3), m0=[1.0, 0.0, 0.0], C0=torch.eye(3))
    states = process.simulate(paths=40, times=TIMES, seed=0).states
    data = Trajectories(states, TIMES, labels=Labels.read(names))
    folder = tmp_path / "<b>run & {{ 7 * 7 }}"
    size = [Size(1, 0, 1, 1e-9)]
    fit_closed(data, "symmetric", candidates=size, config=FitConfig(held_out=0.25), out=folder)
    write_report(folder, data, calibrate=False)
    page = (folder / "report.html").read_text("utf8")
    tags = Tags(page)
    assert tags.names.isdisjoint(ACTIVE) and not [name for name, _ in tags.attributes if name.startswith("on")]
    assert all(value.startswith("data:image/") for name, value in tags.attributes if name == "src")
    assert "<h1>&lt;b&gt;run &amp; {{ 7 * 7 }}</h1>" in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_the_verdict_and_its_numbers_are_those_of_the_record(run):
    page, quality = (run / "report.html").read_text("utf8"), json.loads((run / "quality.json").read_text("utf8"))
    assert quality["verdict"] == "good"
    assert quality["verdict"].capitalize() in page
    assert f"{quality['held_out']['value']:.3g} ± {quality['held_out']['error']:.2g}" in page
    assert quality["data"]["held_out_paths"] == 50
    assert {finding["about"] for finding in quality["findings"]} >= {
        "marginals",
        "held-out objective",
        "intermediate times",
    }


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
    assert len(quality.left_out_times) == 4
    assert "objective on training and held-out samples" in page
    assert write_report(tmp_path, data, calibrate=False).left_out_times == []


def test_images_are_shown_as_frames(tmp_path):
    grid = torch.linspace(-1, 1, 8)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(40, 5, 1, 1, generator=generator).cumsum(1) / 4
    data = Trajectories(
        torch.exp(-((grid[None, None, None, :] - centres) ** 2)).expand(40, 5, 8, 8)[:, :, None], TIMES[:5]
    )
    fit(data, "mlp", "symmetric", config=QUICK, out=tmp_path, progress=False)
    write_report(tmp_path, data, calibrate=False)
    page = (tmp_path / "report.html").read_text("utf8")
    assert page.count("data:image/png;base64,") == 3
    assert "Frames" in page and "<h2>Marginals</h2>" not in page
