"""The rollout explorer without a browser: set a parameter, look at what would be shown."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def app(from_apps):
    return from_apps("rollout_explorer")


@pytest.fixture
def explorer(app):
    return app.RolloutExplorer()


def test_the_first_view_follows_the_truth_for_a_while(app, explorer):
    setting, columns = explorer.shown
    assert setting.source == "pictures"
    assert {len(column) for column in columns.values()} == {app.FRAMES}
    assert np.median(columns["error"][:10]) < 15  # single frames with folded arms may be misread
    assert columns["still"][30] > columns["error"][10]


def test_truth_and_prediction_are_pictures_of_the_path(explorer):
    columns = explorer.figure.frames.data
    truth, guess = (np.stack(columns[name]) for name in ("truth", "guess"))
    assert truth.dtype == np.uint8 and truth.shape == guess.shape == (len(columns["t"]), 32, 32)
    assert truth[:, 14:18, 14:18].max() == 255  # the pivot is in the middle of every one
    same = np.corrcoef(truth[0].ravel(), guess[0].ravel())[0, 1]
    other = np.corrcoef(truth[0].ravel(), truth[40].ravel())[0, 1]
    assert same > 0.8 > other


def test_from_states_the_flow_starts_at_the_truth_and_the_plane_shows_angles(explorer):
    explorer.source = "states"
    columns = explorer.shown[1]
    assert columns["error"][0] == 0
    np.testing.assert_allclose(columns["truth_plane"][0], columns["guess_plane"][0])
    assert explorer.figure.plane.xaxis.axis_label.startswith("θ₁")
    assert "one state" in explorer.reading()


def test_a_changed_setting_changes_pictures_colour_and_words(explorer):
    before, words = explorer.figure.frames.data["guess"], explorer.reading()
    explorer.param.update(objective="regression", integrator="euler", path=7, start="in full swing")
    assert not np.array_equal(np.stack(explorer.figure.frames.data["guess"]), np.stack(before))
    glyph, name = explorer.figure.tinted[0]
    assert getattr(glyph, name) == explorer.figure.colors["regression"]
    assert explorer.reading() != words
    assert "T_\\phi" in explorer.equations()
    assert not explorer.figures.loading


def test_an_integrator_that_does_not_belong_to_the_objective_is_named(explorer):
    explorer.param.update(source="states", objective="phibe", integrator="euler")
    assert "pumps energy" in explorer.reading()
    explorer.integrator = "rk4"
    assert "pumps energy" not in explorer.reading()


def test_a_rollout_that_cannot_be_computed_leaves_a_readable_message(app, explorer, monkeypatch):
    def fail(setting):
        raise ValueError("no <room>")

    before = explorer.figure.frames.data
    monkeypatch.setattr(app, "frames", fail)
    explorer.path = 11
    assert explorer.problem.visible
    assert "no &lt;room&gt;" in explorer.problem.object
    assert explorer.figure.frames.data is before


def test_two_sessions_share_no_state(app, explorer):
    other = app.RolloutExplorer(path=3)
    assert explorer.path == 0
    assert explorer.figure.frames is not other.figure.frames
