"""Video in the rollout explorer without a browser: set a parameter or bring a clip, look at what would be shown."""

import asyncio
import importlib
import io

import numpy as np
import pytest
import torch

from phibe.experiments.report import committed
from phibe.experiments.video import run as video
from phibe.experiments.video.methods import integrate, rolls
from phibe.experiments.video.metrics import score


@pytest.fixture(scope="module")
def app(from_apps):
    return from_apps("rollout_explorer")


@pytest.fixture(scope="module")
def clips(app):
    return importlib.import_module("video_frames")


@pytest.fixture
def view(app):
    """The view of video, as the page shows it."""
    explorer = app.RolloutExplorer(source="video")
    assert [main.visible for main, _ in explorer.views.values()] == [True]
    return explorer.video


def pictures(source, name: str) -> torch.Tensor:
    """Pictures that go to the browser, the right way up: (time, 1, 64, 64), from 0 to 1."""
    sent = np.stack(source.data[name])
    assert sent.dtype == np.uint8
    return torch.from_numpy(sent[:, ::-1].copy())[:, None].float() / 255


def bar(frames: int = 20) -> np.ndarray:
    """A white bar that moves to the right: (time, 64, 64) bytes."""
    clip = np.zeros((frames, 64, 64), np.uint8)
    for i, picture in enumerate(clip):
        picture[:, 2 * i : 2 * i + 8] = 255
    return clip


def archive(clip: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, clip=clip)
    return file.getvalue()


def bring(view, content: bytes, name: str = "mine.npz") -> None:
    asyncio.run(view.take(name, len(content), content))


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_first_view_shows_a_clip_and_what_is_foretold_of_it(view, clips):
    setting, columns = view.shown
    assert setting.context == 10 and len(columns["t"]) == len(columns["rows"]) == clips.LENGTH
    assert columns["t"][setting.context - 1] == 0
    truth = pictures(view.figure.whole, "truth")
    torch.testing.assert_close(truth, clips.figure(setting.clip, setting.person), atol=1e-6, rtol=0)
    assert not view.problem.visible and "no training has seen" in view.reading()


def test_before_it_begins_each_method_shows_what_the_codec_makes_of_the_clip(view, clips):
    codec = video.committed_codec()
    seen = codec.decode_paths(codec.encode_paths(clips.figure("walking", 0)[None]))[0, :10]
    for method in ("augmented", "conditioned", "persistence", "constant velocity"):
        view.method = method
        assert view.shown[0].method == method
        torch.testing.assert_close(pictures(view.figure.rows, "guess")[:10], seen, atol=0.5 / 255 + 1e-6, rtol=0)


def test_persistence_stands_still_and_is_the_reference(view):
    view.method = "persistence"
    guess = pictures(view.figure.rows, "guess")
    assert (guess[9:] == guess[9]).all()
    np.testing.assert_array_equal(view.shown[1]["guess"], view.shown[1]["still"])
    assert "persistence</span>" in view.key() and view.figure.tinted[0].line_color == view.figure.colors["persistence"]


@pytest.mark.parametrize("slow", [1, 2])
def test_the_scores_are_those_of_the_frames_on_the_screen(view, slow):
    view.param.update(slow=slow, context=6)
    columns = view.figure.whole.data
    truth, guess = pictures(view.figure.whole, "truth"), pictures(view.figure.rows, "guess")[::slow]
    for last in (7, 20, 40):
        found = score(guess[None, 6:last], truth[None, 6:last])
        here = [columns[f"guess_{name}"][last - 1] for name in ("mse", "psnr", "ssim")]
        assert here == pytest.approx([found.mse, found.psnr_published, found.ssim], rel=1e-4)
    assert np.isnan(columns["guess"][:6]).all() and np.isfinite(columns["guess"][6:]).all()
    apart = pictures(view.figure.whole, "difference")
    torch.testing.assert_close(apart, (truth - guess).abs(), atol=1e-6, rtol=0)


def test_a_changed_setting_changes_colour_words_and_equations(view):
    view.param.update(method="conditioned", video_objective="regression", video_integrator="euler")
    assert view.shown[0].label == "regression conditioned, euler"
    assert view.figure.tinted[0].line_color == view.figure.colors["regression"]
    assert "z_-" in view.equations() and "conditioned on that of the previous frame" in view.reading()
    view.method = "persistence"
    assert "z(t) = z(0)" in view.equations() and r"\arg\min" not in view.equations()
    assert not view.figures.loading


# -- slow motion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "integrator"), [("augmented", "euler"), ("conditioned", "rk4")])
def test_in_slow_motion_a_flow_takes_shorter_steps(clips, method, integrator):
    """At half speed the whole frames are those of two steps a frame, to rounding: a flow has values in between."""
    setting = clips.Setting(method=method, objective="symmetric", integrator=integrator, slow=2)
    z = video.committed_codec().encode_paths(clips.figure("walking", 0)[None, :20])
    slow = clips._rolled(setting, z)
    times = torch.arange(9, 20, dtype=torch.float64) / 25
    both = [
        integrate(video.committed_method(setting.name), z[:, :10], times, method=integrator, substeps=substeps)
        for substeps in (2, 1)
    ]
    assert slow.shape[1] == 2 * 10 + 1
    torch.testing.assert_close(slow[:, ::2], both[0], atol=1e-4, rtol=1e-4)
    if integrator == "euler":  # the error of RK4 may already be below rounding
        assert not torch.allclose(both[0][:, -1], both[1][:, -1], atol=1e-6, rtol=0)


def test_constant_velocity_is_halfway_at_half_a_frame(clips):
    setting = clips.Setting(method="constant velocity", slow=2)
    made = clips._rolled(setting, video.committed_codec().encode_paths(clips.figure("walking", 0)[None, :14]))
    torch.testing.assert_close(made[:, 1::2], (made[:, :-1:2] + made[:, 2::2]) / 2, atol=1e-4, rtol=1e-4)


def test_what_knows_whole_frames_alone_repeats_them_and_draws_the_same_again(clips):
    clip = clips.figure("boxing", 1)[:14]
    usual, slow = (clips.predicted(clips.Setting(method="mcvd", slow=slow), clip)["rows"] for slow in (1, 4))
    assert len(usual) == 14 and len(slow) == 13 * 4 + 1
    np.testing.assert_array_equal(np.stack(slow)[::4], np.stack(usual))
    np.testing.assert_array_equal(np.stack(slow)[3::4], np.stack(usual)[:-1])


def test_slow_motion_stretches_the_player_and_says_what_is_compared(view):
    assert view.player.end == 39
    view.slow = 4
    assert view.player.end == 4 * 39 == len(view.figure.rows.data["guess"]) - 1
    assert "4 times as short" in view.reading() and "where alone they are compared" in view.reading()


# -- the menu ----------------------------------------------------------------------------------------------------------


def test_the_menu_is_what_the_committed_run_has_trained(app, clips):
    rows = set(committed("video")["methods"]) - {"codec", *video.STILLS}
    offered = clips.menu()
    made = {
        clips.Setting(method=method, objective=objective, integrator=integrator).label
        for method, objectives in offered.items()
        for objective, integrators in (objectives or {"": [""]}).items()
        for integrator in integrators
    }
    assert made == rows
    for name in {clips.Setting(method=m, objective=o).name for m, os in offered.items() for o in os or [""]}:
        assert set(rolls(name, video.committed_method(name), video.CONFIGS["laptop"])) <= rows


def test_labels_become_a_menu(clips):
    labels = ["phibe conditioned, euler", "phibe conditioned, rk4 ×2", "regression augmented, euler", "pfi"]
    assert clips.arranged([*labels, "constant velocity"]) == {
        "conditioned": {"phibe": ["euler", "rk4 ×2"]},
        "augmented": {"regression": ["euler"]},
        **{"pfi": {}, "constant velocity": {}},
    }


def test_an_objective_that_a_method_lacks_gives_way(view, clips):
    view.method = "conditioned"
    view.video_objective = "phibe"
    assert view.shown[0].name == "phibe conditioned"
    view.method = "augmented"
    assert view.video_objective in clips.menu()["augmented"]
    assert view.shown[0].name == f"{view.video_objective} augmented"


def test_a_method_that_needs_more_frames_says_so_and_the_picture_stays(view):
    before = view.figure.rows.data
    view.param.update(method="mcvd", context=4)
    assert view.problem.visible and "10 frames or more, and is shown 4" in view.problem.object
    assert view.figure.rows.data is before and not view.figures.loading
    view.method = "persistence"
    assert not view.problem.visible and view.figure.rows.data is not before


def test_a_video_that_is_no_longer_wanted_is_dropped(view):
    setting, columns = view.shown
    view.person = 3
    now = view.figure.rows.data
    view._show(setting, columns, "")
    assert view.figure.rows.data is now and view.shown[0].person == 3


# -- one's own clip ----------------------------------------------------------------------------------------------------


def test_one_s_own_clip_is_shown_as_it_came(view, clips):
    clip, kept = bar(), clips.frames.cache_info().currsize
    bring(view, archive(clip), "my <clip>.npz")
    assert view.footage == "your clip" and view.shown[0].upload == 1 and not view.figures.loading
    truth = pictures(view.figure.whole, "truth")
    np.testing.assert_array_equal((truth[:, 0] * 255).round().numpy(), clip)
    assert view.player.end == 19
    assert "my &lt;clip&gt;.npz</b>: 20 frames" in view.upload_words()
    assert "drawn figures alone" in view.reading()
    assert clips.frames.cache_info().currsize == kept  # what sessions share does not hold it


def test_of_a_long_clip_a_part_is_shown(view):
    clip = np.concatenate([bar(30), bar(30)[::-1]])
    bring(view, archive(clip))
    assert len(view.shown[1]["t"]) == 40 and view.param.begin.bounds == (0, 60 - 14)
    view.begin = 46
    np.testing.assert_array_equal(np.stack(view.figure.whole.data["truth"])[:, ::-1], clip[46:])
    view.footage = "test figure"
    assert view.shown[0].upload == 0 and len(view.shown[1]["t"]) == 40


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no clip at all", "none of these"),
        (archive(bar(13)), "14 frames or more; this one has 13"),
    ],
)
def test_a_bad_file_is_explained_and_the_picture_stays(view, content, message):
    before = view.figure.whole.data
    bring(view, content, "<b>bad</b>.mp4")
    assert view.problem.visible and message in view.problem.object
    assert "&lt;b&gt;bad&lt;/b&gt;.mp4 is not shown" in view.problem.object
    assert view.figure.whole.data is before and view.footage == "test figure" and not view.figures.loading
    bring(view, archive(bar()))
    assert not view.problem.visible


def test_a_file_that_was_too_large_to_be_sent_is_explained(view):
    asyncio.run(view.take("holiday.mov", 300 * 2**20, None))
    assert "at most 8 MB; this file has 300.0" in view.problem.object and view.uploads == 0


def test_a_clip_that_is_too_short_for_a_longer_look_says_so(view):
    view.context = 2
    bring(view, archive(bar(8)))
    assert view.shown[0].upload == 1
    view.context = 9
    assert "9 frames to look at and 4 more are needed; this clip has 8" in view.problem.object


def test_sessions_share_no_clip_and_no_address_tells_of_it(app, view):
    bring(view, archive(bar()))
    other = app.RolloutExplorer(source="video").video
    assert other.own is None and other.uploads == 0 and other.shown[0].upload == 0
    assert other.figure.whole is not view.figure.whole
    assert not {"footage", "uploads", "begin", "own"} & set(app.VIDEO_SETTINGS)
    assert not set(app.SETTINGS) & set(app.VIDEO_SETTINGS)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_video_is_computed_when_it_is_asked_for_and_the_pendulum_comes_back(app):
    explorer = app.RolloutExplorer()
    assert explorer.video.shown is None and list(explorer.views) == [False]
    explorer.source = "video"
    assert explorer.video.shown is not None
    assert {kind: main.visible for kind, (main, _) in explorer.views.items()} == {False: False, True: True}
    assert explorer.shown[0].source == "pictures"
    explorer.source = "states"
    assert {kind: side.visible for kind, (_, side) in explorer.views.items()} == {False: True, True: False}
    assert explorer.shown[0].source == "states"


def test_without_a_trained_model_the_way_to_one_is_told_and_the_rest_works(app, monkeypatch):
    monkeypatch.setattr(importlib.import_module("video_view"), "MENU", {})
    explorer = app.RolloutExplorer(source="video")
    assert "phibe run video" in explorer.video.problem.object and explorer.video.problem.visible
    assert not explorer.video.figures.visible
    explorer.video.person = 2  # nothing is computed
    assert explorer.video.shown is None
    explorer.source = "states"
    assert explorer.shown[0].source == "states" and not explorer.problem.visible
