"""The flow explorer without a browser: set a parameter, look at what would be shown."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from phibe import OU
from phibe.metrics import gaussian_w2
from phibe.systems import Gaussian

APPS = Path(__file__).resolve().parent.parent / "apps"
QUICK = {"observations": 600, "paths": 300, "horizon": 5.0}


@pytest.fixture(scope="module")
def app():
    """The app's module, found as `panel serve` finds it: with its own folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(APPS))
        yield importlib.import_module("flow_explorer")


@pytest.fixture
def explorer(app):
    return app.FlowExplorer(**QUICK)


def law(ellipse: np.ndarray) -> Gaussian:
    """The Gaussian whose 2σ ellipse goes to the browser as (mean, 2 C^½)."""
    root = torch.from_numpy(ellipse[2:].astype(float).reshape(2, 2)) / 2
    return Gaussian(torch.from_numpy(ellipse[:2].astype(float)), root @ root.mT)


def test_the_first_view_is_fitted_and_its_law_follows_the_exact_one(app):
    columns = app.FlowExplorer().stage.frames.data
    assert columns["law_error"].max() < 0.15
    assert all(np.isfinite(column).all() for column in columns.values())
    assert {len(column) for column in columns.values()} == {app.FRAMES}
    assert sum(column.nbytes for column in columns.values()) < 1e6


def test_the_ellipses_are_those_of_the_process_and_the_exact_flow_lies_on_them(explorer):
    explorer.estimator = "exact"
    columns = explorer.stage.frames.data
    for k in (0, 7, 120):
        truth = OU.nonreversible().marginal(float(columns["t"][k]))
        assert gaussian_w2(law(columns["law"][k]), truth) < 1e-3
        assert gaussian_w2(law(columns["flow_law"][k]), truth) < 1e-3
    assert columns["velocity_error"].max() == 0
    explorer.estimator = "regression"  # the drift alone does not keep the law
    assert gaussian_w2(law(explorer.stage.frames.data["flow_law"][120]), truth) > 0.3


def test_flow_particles_start_at_the_samples_and_then_leave_them(explorer):
    columns = explorer.stage.frames.data
    np.testing.assert_allclose(columns["particle_x"][0], columns["sample_x"][0], atol=1e-5)
    assert np.abs(columns["particle_x"][60] - columns["sample_x"][60]).mean() > 0.2


def test_arrows_are_the_velocity(explorer):
    columns, x = explorer.stage.frames.data, torch.tensor([[1.0, 5.0]], dtype=torch.float64)
    a, b, c, d, e, f = columns["exact"][40].astype(float)
    truth = OU.nonreversible().velocity(x, float(columns["t"][40]))[0]
    np.testing.assert_allclose([a + 5 * b + e, c + 5 * d + f], truth, atol=1e-4)


def test_a_changed_setting_changes_picture_colour_and_words(explorer):
    before, words = explorer.stage.frames.data["particle_x"], explorer.reading()
    explorer.param.update(process="reversible", estimator="regression")
    assert not np.array_equal(explorer.stage.frames.data["particle_x"], before)
    assert explorer.stage.dots.fill_color == explorer.stage.colors["regression"]
    assert explorer.reading() != words
    assert "∇v" not in explorer.equations()
    assert "comes to rest" in explorer.character()
    assert not explorer.figures.loading


def test_few_observations_are_biased_and_the_words_say_so(explorer):
    explorer.observations = 24
    assert "Δt is too long" in explorer.reading()
    explorer.param.update(observations=4800)
    assert "Δt is too long" not in explorer.reading()


def test_an_unstable_drift_is_shown_and_explained(explorer):
    explorer.param.update(process="custom", a11=1.5, a12=-2, a21=2, a22=1.5)
    words = explorer.character()
    assert "1.5 ± 2 i" in words
    assert "unstable" in words
    assert "no stationary law" in words
    columns = explorer.stage.frames.data
    assert columns["t"][-1] == pytest.approx(np.log(1e3) / 1.5)
    assert np.isfinite(columns["sample_x"]).all()


def test_a_flow_that_runs_away_is_not_drawn_and_the_words_say_so(explorer):
    explorer.param.update(process="custom", a11=1.9, a12=-0.2, a21=-1.5, a22=2.8, estimator="isotropic")
    assert np.isnan(explorer.stage.frames.data["particle_x"][-1]).mean() > 0.9
    assert "run away" in explorer.reading()


def test_a_setting_that_cannot_be_computed_leaves_a_readable_message(app, explorer, monkeypatch):
    def fail(setting):
        raise ValueError("no <room>")

    before = explorer.stage.frames.data
    monkeypatch.setattr(app, "frames", fail)
    explorer.seed = 5
    assert explorer.problem.visible
    assert "no &lt;room&gt;" in explorer.problem.object
    assert explorer.stage.frames.data is before
    assert not explorer.figures.loading
    monkeypatch.undo()
    explorer.seed = 6
    assert not explorer.problem.visible


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("horizon", 7, 7.0),
        ("horizon", 1e9, 25.0),
        ("horizon", float("nan"), 10.0),
        ("horizon", "../../etc/passwd", 10.0),
        ("horizon", [1, 2], 10.0),
        ("horizon", True, 10.0),
        ("seed", -3, 0),
        ("seed", 3.6, 4),
        ("paths", 300, 300),
        ("paths", 10**9, 1000),
        ("paths", "/etc/passwd", 1000),
        ("estimator", "exact", "exact"),
        ("estimator", "__import__('os')", "phibe"),
        ("estimator", {"a": 1}, "phibe"),
        ("knots", 0, 0),
    ],
)
def test_values_of_a_url_are_made_allowed_ones(app, name, value, expected):
    clean = importlib.import_module("theme").clean
    result = clean(app.FlowExplorer.param[name], value)
    assert result == expected
    app.FlowExplorer.param[name]._validate(result)


def test_two_sessions_share_no_state(app, explorer):
    other = app.FlowExplorer(**QUICK)
    other.estimator = "regression"
    assert explorer.estimator == "phibe"
    assert explorer.stage.frames is not other.stage.frames
    assert not np.array_equal(explorer.stage.frames.data["fitted"], other.stage.frames.data["fitted"])
