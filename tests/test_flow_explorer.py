"""The flow explorer without a browser: set a parameter, look at what would be shown."""

import importlib

import numpy as np
import panel as pn
import pytest
import torch

from phibe import OBJECTIVES, OU
from phibe.metrics import gaussian_w2
from phibe.systems.ou import Gaussian
from phibe.systems.sde import double_well

QUICK = {"observations": 600, "paths": 300, "horizon": 5.0}
WELL = {"process": "double well", "paths": 1000}
WINDOWS = {name for name, kind in OBJECTIVES.items() if kind.width > 2}


@pytest.fixture(scope="module")
def app(from_apps):
    return from_apps("flow_explorer")


@pytest.fixture
def explorer(app):
    return app.FlowExplorer(**QUICK)


def gaussian(ellipse: np.ndarray) -> Gaussian:
    """The Gaussian whose 2σ ellipse goes to the browser as (mean, 2 C^½)."""
    root = torch.from_numpy(ellipse[2:].astype(float).reshape(2, 2)) / 2
    return Gaussian(torch.from_numpy(ellipse[:2].astype(float)), root @ root.mT)


def test_the_first_view_is_fitted_and_its_marginal_follows_the_exact_one(app):
    columns = app.FlowExplorer().figure.frames.data
    assert columns["marginal_error"].max() < 0.15
    assert all(np.isfinite(column).all() for column in columns.values())
    assert {len(column) for column in columns.values()} == {app.FRAMES}
    assert sum(column.nbytes for column in columns.values()) < 1e6


def test_the_ellipses_are_those_of_the_process_and_the_exact_flow_lies_on_them(explorer):
    explorer.estimator = "exact"
    columns = explorer.figure.frames.data
    for k in (0, 7, 120):
        truth = OU.nonreversible().marginal(float(columns["t"][k]))
        assert gaussian_w2(gaussian(columns["marginal"][k]), truth) < 1e-3
        assert gaussian_w2(gaussian(columns["flow_marginal"][k]), truth) < 1e-3
    assert columns["velocity_error"].max() == 0
    explorer.estimator = "regression"  # the drift alone does not keep the marginal
    assert gaussian_w2(gaussian(explorer.figure.frames.data["flow_marginal"][120]), truth) > 0.3


def test_flow_particles_start_at_the_samples_and_then_leave_them(explorer):
    columns = explorer.figure.frames.data
    np.testing.assert_allclose(columns["particle_x"][0], columns["sample_x"][0], atol=1e-5)
    assert np.abs(columns["particle_x"][60] - columns["sample_x"][60]).mean() > 0.2


def test_arrows_are_the_velocity(explorer):
    columns, x = explorer.figure.frames.data, torch.tensor([[1.0, 5.0]], dtype=torch.float64)
    a, b, c, d, e, f = columns["exact"][40].astype(float)
    truth = OU.nonreversible().velocity(x, float(columns["t"][40]))[0]
    np.testing.assert_allclose([a + 5 * b + e, c + 5 * d + f], truth, atol=1e-4)


def test_a_changed_setting_changes_picture_colour_and_words(explorer):
    before, words = explorer.figure.frames.data["particle_x"], explorer.reading()
    explorer.param.update(process="reversible", estimator="regression")
    assert not np.array_equal(explorer.figure.frames.data["particle_x"], before)
    assert explorer.figure.dots.fill_color == explorer.figure.colors["regression"]
    assert explorer.reading() != words
    assert "∇v" not in explorer.equations()
    assert "the flow stops" in explorer.character()
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
    assert "no stationary distribution" in words
    columns = explorer.figure.frames.data
    assert columns["t"][-1] == pytest.approx(np.log(1e3) / 1.5)
    assert np.isfinite(columns["sample_x"]).all()


def test_a_flow_that_runs_away_is_not_drawn_and_the_words_say_so(explorer):
    explorer.param.update(process="custom", a11=1.9, a12=-0.2, a21=-1.5, a22=2.8, estimator="isotropic")
    assert np.isnan(explorer.figure.frames.data["particle_x"][-1]).mean() > 0.9
    assert "diverged" in explorer.reading()


def test_a_setting_that_cannot_be_computed_leaves_a_readable_message(app, explorer, monkeypatch):
    def fail(setting):
        raise ValueError("no <room>")

    before = explorer.figure.frames.data
    monkeypatch.setattr(app, "frames", fail)
    explorer.seed = 5
    assert explorer.problem.visible
    assert "no &lt;room&gt;" in explorer.problem.object
    assert explorer.figure.frames.data is before
    assert not explorer.figures.loading
    monkeypatch.undo()
    explorer.seed = 6
    assert not explorer.problem.visible


def test_values_of_a_url_are_made_allowed_ones(app):
    clean = importlib.import_module("theme").clean
    for name, value, expected in (
        ("horizon", 7, 7.0),
        ("horizon", 1e9, 25.0),
        ("horizon", float("nan"), 10.0),
        ("horizon", "../../etc/passwd", 10.0),
        ("horizon", True, 10.0),
        ("seed", 3.6, 4),
        ("paths", 10**9, 1000),
        ("estimator", "exact", "exact"),
        ("estimator", "__import__('os')", "phibe"),
        ("estimator", {"a": 1}, "phibe"),
        ("knots", 0, 0),
    ):
        result = clean(app.FlowExplorer.param[name], value)
        assert result == expected
        app.FlowExplorer.param[name]._validate(result)


def test_two_sessions_share_no_state(app, explorer):
    other = app.FlowExplorer(**QUICK)
    other.estimator = "regression"
    assert explorer.estimator == "phibe"
    assert explorer.figure.frames is not other.figure.frames
    assert not np.array_equal(explorer.figure.frames.data["fitted"], other.figure.frames.data["fitted"])


# -- two estimators ----------------------------------------------------------------------------------------------------


def size(error: np.ndarray) -> float:
    """The root of the mean square over an animation."""
    return float(np.sqrt(np.mean(np.square(error, dtype=float))))


def test_of_two_estimators_both_are_shown_and_the_closer_is_named(explorer):
    explorer.observations = 60
    assert "closer" not in explorer.reading()
    assert "particle_x_2" not in explorer.figure.frames.data
    explorer.compare = "symmetric"
    columns = explorer.figure.frames.data
    assert size(columns["velocity_error_2"]) < 0.5 * size(columns["velocity_error"])
    assert "<b>symmetric</b> is closer" in explorer.reading()
    assert explorer.figure.rings.line_color == explorer.figure.colors["symmetric"]
    assert all(rf"\hat v_{{\text{{{name}}}}}" in explorer.equations() for name in ("phibe", "symmetric"))
    explorer.param.update(estimator="symmetric", compare="phibe")
    assert "<b>symmetric</b> is closer" in explorer.reading()
    explorer.compare = "exact"
    assert "<b>exact</b> is closer" in explorer.reading()
    explorer.compare = "symmetric"  # with itself: nothing to compare
    assert "closer" not in explorer.reading()


def test_a_second_flow_is_what_it_is_alone(app, explorer):
    explorer.compare = "symmetric"
    alone = app.FlowExplorer(**QUICK, estimator="symmetric")
    both, one = explorer.figure.frames.data, alone.figure.frames.data
    for name in ("fitted", "particle_x", "flow_marginal", "velocity_error", "marginal_error"):
        np.testing.assert_array_equal(both[f"{name}_2"], one[name])
        assert not np.array_equal(both[name], one[name])
    curves = explorer.errors.curves.data
    np.testing.assert_array_equal(curves["marginal_error_2"], one["marginal_error"])
    assert np.isnan(alone.errors.curves.data["marginal_error_2"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "estimator"),
    [*(("double well", name) for name in OBJECTIVES), ("non-reversible", "phibe"), ("non-reversible", "symmetric2")],
)
def test_every_estimator_makes_do_with_few_observations_and_says_what_it_cannot_see(app, process, estimator):
    few = {"observations": 12, "well_observations": 12, "paths": 300}
    explorer = app.FlowExplorer(process=process, estimator=estimator, **few)
    curves = explorer.errors.curves.data
    assert np.isfinite(curves["velocity_error"]).all()
    assert ("neighbouring observations" in explorer.reading()) == (estimator in WINDOWS)
    assert r"\arg\min" in explorer.equations()
    assert estimator in explorer.figure.colors


def test_of_many_observations_the_ends_that_a_window_cannot_see_are_not_worth_a_word(explorer):
    explorer.param.update(estimator="symmetric2", compare="phibe2")
    assert "neighbouring observations" not in explorer.reading()


# -- the double well ---------------------------------------------------------------------------------------------------


def grid(columns) -> tuple[np.ndarray, float]:
    frames = importlib.import_module("well_frames")
    x = np.linspace(frames.LOW, frames.HIGH, columns["density"].shape[1])
    return x, x[1] - x[0]


def test_the_density_of_the_double_well_is_carried_by_its_velocity(app):
    columns = app.FlowExplorer(**WELL).well.frames.data
    (x, dx), rho = grid(columns), columns["density"].astype(float)
    np.testing.assert_allclose(rho.sum(1) * dx, 1, atol=1e-3)

    def gap(v) -> float:
        """How far d/dt ∫x²ρ is from 2∫xvρ, over the frames."""
        return size((np.gradient(rho @ x**2 * dx, columns["t"]) - 2 * (v * rho) @ x * dx)[2:-2])

    assert gap(np.nan_to_num(columns["exact"])) < 0.05
    drift = double_well().drift(torch.from_numpy(x)[:, None])[:, 0].numpy()
    assert gap(drift) == pytest.approx(1, abs=0.05)  # the drift alone lacks the growth σ² = 1 by the noise
    assert rho[0, x > 0.5].sum() * dx < 0.01
    assert rho[-1, x > 0.5].sum() * dx > 0.2


def test_in_the_well_the_exact_flow_keeps_the_marginal_and_a_drift_does_not(app):
    explorer = app.FlowExplorer(**WELL, estimator="exact", compare="regression")
    columns = explorer.well.frames.data
    assert columns["velocity_error"].max() < 1e-6
    assert size(columns["marginal_error"]) < 1.5 * size(columns["sample_error"])
    assert size(columns["marginal_error_2"]) > 5 * size(columns["sample_error"])
    np.testing.assert_allclose(columns["particle"][0], columns["sample"][0], atol=1e-5)


def test_in_the_well_a_flexible_field_of_symmetric_stays_and_one_of_phibe_runs_away(app):
    explorer = app.FlowExplorer(**WELL, estimator="symmetric", compare="phibe", degree=7, well_observations=240)
    columns = explorer.well.frames.data
    assert size(columns["marginal_error"]) < 2 * size(columns["sample_error"])
    assert columns["lost"].max() == 0
    assert columns["lost_2"][-1] > 0
    assert "diverge" in explorer.reading()
    assert "<b>symmetric</b> is closer" in explorer.reading()
    explorer.compare = "none"
    assert "diverge" not in explorer.reading()


def test_the_well_takes_the_stage_and_leaves_it(explorer):
    rows = {row[0].name: row for row in explorer.controls().select(pn.Row)}
    assert rows["Knots of the field in time"].visible
    assert not rows["Degree of the field in x"].visible
    assert explorer.plane.visible
    assert not explorer.line.visible
    explorer.process = "double well"
    assert not explorer.plane.visible
    assert explorer.line.visible
    assert explorer.figure.frames.data == {}
    assert not rows["Knots of the field in time"].visible
    assert rows["Degree of the field in x"].visible
    assert "Fokker–Planck" in explorer.character()
    assert "fresh" in explorer.errors.figures[1].title.text
    explorer.process = "reversible"
    assert explorer.plane.visible
    assert explorer.well.frames.data == {}


# -- the double pendulum -----------------------------------------------------------------------------------------------

PENDULUM = {"process": "double pendulum"}


def test_the_pendulum_flows_start_at_the_paths_and_follow_them_for_a_while(app):
    columns = app.FlowExplorer(**PENDULUM, integrator="euler", estimator="regression").pendulum.frames.data
    np.testing.assert_array_equal(columns["particle_angle1"][0], columns["sample_angle1"][0])
    assert columns["path_error"][30] < columns["divergence"][30]  # through the middle of the draws
    assert columns["path_error"][120] > 3 * columns["path_error"][30]
    assert np.abs(columns["sample_angle1"]).max() <= np.float32(np.pi)
    assert columns["t"][30] == pytest.approx(1)
    assert {len(column) for column in columns.values()} == {app.FRAMES}
    dt, turned = np.diff(columns["t"])[:, None], np.diff(np.unwrap(columns["sample_angle2"], axis=0), axis=0)
    speed = columns["sample_velocity2"]
    assert np.abs(turned / dt - (speed[1:] + speed[:-1]) / 2).max() < 0.05 * np.abs(speed).max()
    assert np.abs(turned / dt - columns["sample_velocity1"][1:]).max() > np.abs(speed).max() / 2


def test_euler_pumps_energy_into_central_differences_and_none_into_forward_ones(app):
    explorer = app.FlowExplorer(**PENDULUM, integrator="euler", estimator="symmetric", compare="regression")
    columns = explorer.pendulum.frames.data
    assert columns["gain"][-1] > 5 * abs(columns["sample_gain"][-1])
    assert columns["marginal_error"][-1] > 1.8 * columns["sample_error"][-1]
    assert columns["marginal_error_2"][-1] < 1.3 * columns["sample_error"][-1]
    assert "the distribution of <b>regression</b> is closer" in explorer.reading()
    explorer.integrator = "rk4"
    columns = explorer.pendulum.frames.data
    assert columns["gain_2"][-1] < -5 * columns["sample_gain"][-1]
    assert columns["marginal_error"][-1] < 1.3 * columns["sample_error"][-1] < columns["marginal_error_2"][-1]
    assert "07_pendulum_states" in explorer.equations()
    np.testing.assert_array_equal(explorer.errors.curves.data["velocity_error_2"], columns["path_error_2"])


def test_an_estimator_without_a_trained_network_is_named_and_not_drawn(app):
    explorer = app.FlowExplorer(**PENDULUM, estimator="isotropic", compare="exact")
    assert "particle_angle1" not in explorer.pendulum.frames.data
    assert "no network trained with <b>isotropic</b>" in explorer.reading().replace("No ", "no ")
    assert "<b>exact</b> velocity of the pendulum is not known" in explorer.reading()
    assert not explorer.problem.visible
    explorer.compare = "regression"
    assert explorer.pendulum.tinted["flow"][0][0].line_color == explorer.pendulum.colors["regression"]
    assert "exact" not in explorer.reading().partition("</p>")[0]
    explorer.estimator = "phibe"
    assert "not drawn" not in explorer.reading()


def test_the_pendulum_takes_the_stage_and_leaves_it(explorer):
    rows = {row[0].name: row for row in explorer.controls().select(pn.Row)}
    assert not rows["Seconds"].visible
    explorer.param.update(**PENDULUM, integrator="euler")
    assert (explorer.plane.visible, explorer.line.visible, explorer.pendulum_view.visible) == (False, False, True)
    assert rows["Seconds"].visible
    assert not rows["Knots of the field in time"].visible
    assert not rows["Degree of the field in x"].visible
    assert not rows["Paths"].visible
    assert "two draws" in explorer.errors.figures[0].title.text
    four = explorer.pendulum.frames.data
    explorer.seconds = 8
    eight = explorer.pendulum.frames.data
    np.testing.assert_allclose(eight["t"][:50], four["t"][:100:2], atol=1e-6)
    np.testing.assert_allclose(eight["particle_angle1"][:50], four["particle_angle1"][:100:2], atol=1e-5)
    explorer.process = "reversible"
    assert (explorer.plane.visible, explorer.pendulum_view.visible) == (True, False)
    assert explorer.pendulum.frames.data == {}
