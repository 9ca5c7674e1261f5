"""The spectrum explorer without a browser: set a parameter, look at what would be shown."""

import asyncio
import importlib
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from phibe.experiments.turbulence.spectra import enstrophy_spectrum

CHEAP = {"interval": 0.5, "integrator": "euler"}


@pytest.fixture(scope="module")
def app(from_apps):
    return from_apps("spectrum_explorer")


@pytest.fixture(scope="module")
def made(app):
    return importlib.import_module("spectrum_frames")


@pytest.fixture
def explorer(app):
    explorer = app.SpectrumExplorer(**CHEAP)
    asyncio.run(explorer.compute())
    return explorer


@pytest.fixture(scope="module")
def stirred(app) -> str:
    return next(name for name in app.MENU.methods if name.startswith("sde"))


def stack(columns, name) -> np.ndarray:
    return np.stack(columns[name]).astype(int)


def waiting(seconds: float, found: dict):
    """In place of `frames`: it takes its time, tells of ten frames, and notes which settings it worked on at once."""
    busy, lock = [], threading.Lock()

    def frames(setting, watch):
        with lock:
            busy.append(setting)
            found.setdefault("at once", []).append(len(busy))
        try:
            for k in range(10):
                watch(k)
                time.sleep(seconds / 10)
        finally:
            busy.remove(setting)
        found.setdefault("done", []).append(setting)
        return found["rollout"]

    return frames


# -- what is shown -------------------------------------------------------------------------------------------------


def test_the_first_view_stands_still_until_its_rollout_is_there(app, made):
    setting = app.Setting(clip=app.MENU.clips, **CHEAP)
    made._known.pop(setting, None)
    explorer = app.SpectrumExplorer(clip=app.MENU.clips, **CHEAP)
    assert explorer.shown[0] == setting.still
    asyncio.run(explorer.compute())
    assert explorer.shown[0] == setting
    assert "symmetric, euler" in explorer.status.object


def test_a_rollout_begins_at_the_truth(app, made, explorer):
    columns = explorer.figure.frames.data
    assert {len(column) for column in columns.values()} == {(app.MENU.frames - 1) // 5 + 1}
    np.testing.assert_array_equal(columns["truth"][0], columns["guess"][0])
    assert columns["error"][0] == 0 < columns["error"][-1]
    assert (columns["difference"][0] == made.LEVELS).all()
    assert (columns["difference"][-1] != made.LEVELS).any()


def test_persistence_stands_still_and_its_error_is_what_moved(made, explorer):
    explorer.method = "persistence"
    rollout = explorer.shown[1]
    truth, guess, difference = (stack(rollout.columns, name) for name in ("truth", "guess", "difference"))
    assert (guess == guess[0]).all() and not (truth == truth[0]).all()
    fields = made.saved().clip(0, 0.5).truth
    np.testing.assert_array_equal(difference, np.stack(made.pictures(fields[:1] - fields, rollout.limit)))
    np.testing.assert_array_equal(rollout.columns["error"], rollout.columns["still"])
    assert rollout.evaluations == 0 and "No network" in explorer.reading()


def test_colour_limits_are_shared_centred_and_those_of_the_truth(made, explorer):
    mappers = [plot.renderers[0].glyph.color_mapper for plot in explorer.figure.screens.values()]
    assert len(mappers) == 3 and len({mapper.id for mapper in mappers}) == 1
    assert (mappers[0].low + mappers[0].high) / 2 == made.LEVELS
    limit, fields = explorer.shown[1].limit, torch.zeros(1, 1, 2, 2)
    fields[0, 0] = torch.tensor([[0.0, limit], [-limit, 9 * limit]])
    levels = made.pictures(fields, limit)[0]
    assert levels.tolist() == [[0, 2 * made.LEVELS], [made.LEVELS, 2 * made.LEVELS]]  # the first row is below
    explorer.param.update(method="persistence", interval=0.1)
    truth = made.saved().clip(0, 0.1).truth
    assert explorer.shown[1].limit == limit == pytest.approx(3 * float(truth.square().mean().sqrt()))


def test_spectra_are_those_that_phibe_measures(made, explorer):
    run, columns = made.saved(), explorer.shown[1].columns
    clip = run.clip(0, 0.5)
    fields = {"truth": clip.truth, "guess": run.roll("symmetric, euler", clip, seed=1).states}
    for name, states in fields.items():
        spectrum = enstrophy_spectrum(states.double()).mean[:, 0, 1 : made.shells() + 1]
        np.testing.assert_allclose(10 ** columns[f"{name}_spectrum"].astype(float), spectrum, rtol=1e-4)
    np.testing.assert_allclose(made.truth(), run.report["system"]["enstrophy_spectrum"][1 : made.shells() + 1])
    assert not np.allclose(columns["truth_spectrum"][-1], columns["guess_spectrum"][-1], atol=1e-4)


# -- settings ------------------------------------------------------------------------------------------------------


def test_a_changed_setting_changes_pictures_colour_and_words(explorer):
    before, words, equation = explorer.figure.frames.data["guess"], explorer.reading(), explorer.equations()
    explorer.method = "regression"
    assert not np.array_equal(np.stack(explorer.figure.frames.data["guess"]), np.stack(before))
    assert {glyph.line_color for glyph in explorer.figure.tinted} == {explorer.figure.colors["regression"]}
    assert explorer.reading() != words and explorer.equations() != equation
    assert "regression, euler" in explorer.key() and "regression, euler" in explorer.status.object
    explorer.interval = 0.1
    assert len(explorer.figure.frames.data["t"]) == 5 * (len(before) - 1) + 1


def test_what_a_method_leaves_no_choice_of_is_said_and_changes_nothing(app, explorer, stirred):
    assert not explorer.fixed() and explorer.certain()
    for method, words in (
        ("pfi", "nothing to integrate"),
        (stirred, "rk4 alone"),
        ("persistence", "persistence forecast"),
    ):
        wanted = app.SpectrumExplorer(method=method, **CHEAP)
        assert wanted.fixed() and words in wanted.no_choice()
        assert wanted.certain() == (method == "persistence")
        asked = wanted.setting()
        assert asked.integrator == ("rk4" if method == stirred else "")
    assert replace(explorer.setting(), draw=5) != explorer.setting()
    assert app.SpectrumExplorer(draw=5, **CHEAP).setting() == explorer.setting()  # no chance, no other draw


def test_every_method_has_its_colour_its_equation_and_its_note(app, explorer):
    words = importlib.import_module("spectrum_text")
    for method in app.MENU.methods:
        setting = app.Setting(method=method)
        assert explorer.figure.color(method) != explorer.figure.colors["exact"]
        assert "\\(" in words.equations(setting) and "09_turbulence" in words.equations(setting)
        assert method.split()[0] in words.NOTE


def test_junk_in_an_address_gives_the_defaults(app):
    theme = importlib.import_module("theme")
    junk = {"clip": "../..", "interval": [1], "method": "<script>", "integrator": 7, "draw": 1e999, "low": "x"}
    for name, value in junk.items():
        parameter = app.SpectrumExplorer.param[name]
        assert theme.clean(parameter, value) == parameter.default
    assert theme.clean(app.SpectrumExplorer.param.draw, -3) == 1
    assert app.SpectrumExplorer(low=app.MENU.shells, high=2).high == app.MENU.shells


# -- computing -----------------------------------------------------------------------------------------------------


def test_a_new_draw_is_another_video_of_the_same_method(explorer, stirred):
    explorer.method = stirred
    before = stack(explorer.shown[1].columns, "guess")
    explorer.again()
    after = stack(explorer.shown[1].columns, "guess")
    assert explorer.shown[0].draw == 2 and "draw 2" in explorer.status.object
    assert (before[0] == after[0]).all() and (before[-1] != after[-1]).any()


def test_progress_is_told_while_the_old_rollout_stays(app, explorer, monkeypatch):
    found, said = {"rollout": explorer.shown[1]}, []
    monkeypatch.setattr(app, "frames", waiting(1.0, found))
    old = explorer.figure.frames.data
    explorer.status.param.watch(lambda event: said.append((event.new, explorer.figure.frames.data is old)), "object")
    explorer.method = "mcvd"
    bars = [(words, kept) for words, kept in said if "<progress" in words]
    assert len({words for words, _ in bars}) >= 3 and all(kept for _, kept in bars)
    assert "computing <i>mcvd</i>" in bars[0][0]
    assert "<progress" not in explorer.status.object and "mcvd" in explorer.status.object


def test_a_newer_setting_ends_the_one_under_way_and_never_two_are_at_work(app, explorer, monkeypatch):
    found = {"rollout": explorer.shown[1]}
    monkeypatch.setattr(app, "frames", waiting(1.0, found))

    async def hurry() -> None:
        for method in ("pfi", "mcvd", "regression"):
            explorer.method = method
            await asyncio.sleep(0.2)
        while explorer.shown[0].method != "regression":
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(hurry(), 30))
    assert [setting.method for setting in found["done"]] == ["regression"]
    assert len(found["at once"]) >= 2 and set(found["at once"]) == {1}


def test_a_result_that_comes_too_late_is_dropped(explorer):
    setting, rollout = explorer.shown
    explorer._show(replace(setting, clip=99), rollout, "")
    assert explorer.shown[0] == setting
    explorer._say(replace(setting, clip=99), "too late")
    assert "too late" not in explorer.status.object


def test_a_session_that_ends_stops_its_rollout(app, explorer, monkeypatch):
    found = {"rollout": explorer.shown[1]}
    monkeypatch.setattr(app, "frames", waiting(2.0, found))

    async def leave() -> None:
        explorer.method = "mcvd"
        await asyncio.sleep(0.3)
        explorer.jobs.stop()
        with explorer.jobs.busy:  # free again: the thread has ended
            pass

    asyncio.run(leave())
    assert found["at once"] == [1] and "done" not in found


def test_a_rollout_that_cannot_be_computed_leaves_a_readable_message(app, explorer, monkeypatch):
    def fail(setting, watch):
        raise ValueError("no <room>")

    before = explorer.figure.frames.data
    with monkeypatch.context() as patch:
        patch.setattr(app, "frames", fail)
        explorer.method = "regression"
    assert explorer.problem.visible and "no &lt;room&gt;" in explorer.problem.object
    assert explorer.figure.frames.data is before and "symmetric" in explorer.status.object
    explorer.method = "persistence"
    assert not explorer.problem.visible


def test_two_sessions_share_no_state(app, explorer):
    other = app.SpectrumExplorer(method="persistence", **CHEAP)
    assert explorer.method == "symmetric"
    assert explorer.figure.frames is not other.figure.frames and explorer.figure.look is not other.figure.look
    assert explorer.jobs is not other.jobs and explorer.figure.mapper is not other.figure.mapper


def test_without_a_run_there_is_nothing_to_choose_and_the_page_says_what_makes_one(made, monkeypatch, tmp_path):
    monkeypatch.setattr("phibe.experiments.report.ARTIFACTS", tmp_path)
    monkeypatch.setattr(made, "saved", made.saved.__wrapped__)
    assert made.menu() == made.Menu() and not made.menu().methods
    assert "phibe run navier_stokes" in importlib.import_module("spectrum_text").missing()
