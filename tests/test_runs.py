"""Runs of one's own in the apps: listed by name, shown with their data, and never opened by a path from a URL."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from phibe import OU, FitConfig, Trajectories, fit
from phibe.evaluation import write_source
from phibe.fitting import fit_closed
from phibe.io import save_data
from phibe.linear.basis import Size
from phibe.report import write_report

APPS = Path(__file__).resolve().parent.parent / "apps"
TIMES = torch.linspace(0, 1, 9, dtype=torch.float64)


def make_vectors(folder: Path) -> None:
    data = OU.nonreversible().simulate(paths=80, times=TIMES, seed=0)
    save_data(data, folder.parent / "spiral.npz")
    fit_closed(data, "symmetric", candidates=[Size(1, 0, 4, 1e-9)], config=FitConfig(held_out=0.25), out=folder)
    write_report(folder, data, source=folder.parent / "spiral.npz", calibrate=False)


def make_pictures(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = Trajectories(torch.rand(20, 5, 2, 8, 8, generator=generator).cumsum(1), TIMES[:5])
    save_data(data, folder.parent / "animations.npz")
    config = FitConfig(steps=2, batch=4, accelerator="cpu")
    fit(data, "mlp", "symmetric", config=config, out=folder, progress=False)
    write_source(folder, data, folder.parent / "animations.npz")


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """The module of the view, with a folder of runs to look at."""
    root = tmp_path_factory.mktemp("runs")
    (root / "fit").mkdir()
    make_vectors(root / "fit" / "spiral")
    make_pictures(root / "fit" / "animations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHIBE_RUNS", str(root))
        patch.syspath_prepend(str(APPS))
        yield importlib.import_module("run_view")


def test_finished_runs_are_listed_by_kind_and_lead_to_their_app(view, tmp_path):
    runs = view.listed()
    assert {name: run.kind for name, run in runs.items()} == {"fit/spiral": "vectors", "fit/animations": "pictures"}
    assert runs["fit/spiral"].address == "/flow_explorer?run=fit%2Fspiral"
    assert "rollout_explorer" in runs["fit/animations"].address
    assert list(view.listed("vectors")) == ["fit/spiral"]
    links = importlib.import_module("run_list").links
    assert "fit/spiral" in links("vectors") and "fit/animations" not in links("vectors")


def test_a_run_is_shown_with_its_data_and_its_verdict(view):
    shown = view.RunView("vectors")
    columns = shown.figure.frames.data
    assert len(columns["t"]) == len(TIMES)
    np.testing.assert_allclose(columns["particles_x"][0], columns["samples_x"][0], atol=1e-6)
    assert np.abs(columns["particles_x"][-1] - columns["samples_x"][-1]).max() > 0.3
    area = (columns["xbars_y"] * (columns["xbars_x1"] - columns["xbars_x"])).sum(1)
    np.testing.assert_allclose(area, 1, atol=0.05)
    np.testing.assert_array_equal(columns["xbars_y"][0], columns["xbars2_y"][0, :-1])  # the same starts
    assert shown.figures.visible and not shown.problem.visible
    assert "of the flow" not in shown.reading() and "/report/fit/spiral" in shown.reading()
    assert len(shown.figure.curves.data["t"]) > 4


def test_other_coordinates_and_methods_are_other_pictures(view):
    shown = view.RunView("vectors")
    before = shown.figure.frames.data
    shown.param.update(first=1, second=0)
    after = shown.figure.frames.data
    np.testing.assert_array_equal(after["samples_x"], before["samples_y"])
    assert shown.figure.main[0].xaxis.axis_label == "x[1]"
    shown.method = "euler"
    assert not np.array_equal(shown.figure.frames.data["particles_x"], after["particles_x"])


def test_pictures_are_shown_beside_their_prediction(view):
    shown = view.RunView("pictures")
    columns = shown.figure.frames.data
    assert columns["truth"][0].dtype == np.uint8 and columns["truth"][0].shape == (8, 8)
    np.testing.assert_array_equal(columns["truth"][0], columns["guess"][0])
    assert not np.array_equal(columns["truth"][-1], columns["guess"][-1])
    assert "Nobody has judged" in shown.reading()
    shown.first = 3
    assert not np.array_equal(shown.figure.frames.data["truth"][0], columns["truth"][0])


def test_data_that_moved_leaves_a_readable_page(view):
    run = view.listed()["fit/spiral"]
    place = run.folder / "data.json"
    kept = place.read_text("utf8")
    place.write_text(json.dumps(json.loads(kept) | {"path": "/no/such/<file>.npz"}), encoding="utf8")
    importlib.import_module("run_frames").opened.cache_clear()
    try:
        shown = view.RunView("vectors")
        assert shown.problem.visible and not shown.figures.visible
        assert "no longer there" in shown.problem.object and "&lt;file&gt;" in shown.problem.object
    finally:
        place.write_text(kept, encoding="utf8")


def test_without_runs_the_page_says_how_to_make_one(view, monkeypatch, tmp_path):
    monkeypatch.setenv("PHIBE_RUNS", str(tmp_path))
    shown = view.RunView("vectors")
    assert "phibe fit" in shown.problem.object
    assert not shown.figures.visible


@pytest.mark.parametrize("name", ["../../etc/passwd", "fit/../fit/spiral", ["a"]])
def test_a_name_from_an_address_is_only_looked_up(view, monkeypatch, name):
    query = {"run": name, "first": 10**9, "method": "<b>", "frame": -3}
    monkeypatch.setattr(view.pn, "state", SimpleNamespace(location=SimpleNamespace(query_params=query)))
    shown = view.asked_for("vectors")
    assert shown.run == "fit/spiral"  # the newest of those listed
    assert (shown.first, shown.method, shown.frame) == (0, "rk4", 0)
    monkeypatch.setattr(view.pn.state.location, "query_params", {})
    assert view.asked_for("vectors") is None
