"""The video experiment: methods with known answers, footage that is split and refused rightly, runs that go on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import normal

from phibe import Trajectories
from phibe.experiments.conditioned import ConditionedFlow
from phibe.experiments.report import MissingData, keep
from phibe.experiments.video import run as video
from phibe.experiments.video.clips import Clips, read_clips
from phibe.experiments.video.methods import Evaluation, assemble, augment, in_units, integrate, learn, restore, rolls
from phibe.experiments.video.metrics import mse, ssim
from phibe.experiments.video.run import choose_test_clips, encode, open_latents, source_clips, split
from phibe.flow import Flow
from phibe.training.runs import Fitted

SMOKE, STEP, SHAPE = video.CONFIGS["smoke"], 1 / 25, (4, 8, 8)
FLOWS = ("phibe conditioned", "regression conditioned", "symmetric augmented")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("video")
    return out, video.VIDEO.run("smoke", out=out)


def latents(paths=3, frames=6) -> Trajectories:
    """Latents that wander: (path, time, 4, 8, 8), float64."""
    return Trajectories(normal(paths, frames, *SHAPE).cumsum(1), torch.arange(frames, dtype=torch.float64) * STEP)


def flow(name):
    """A flow whose network has random weights, in the units of wandering latents; in float64."""
    data = augment(latents()) if name.endswith("augmented") else latents()
    network = in_units(assemble(name, SHAPE, SMOKE).double(), data).eval().requires_grad_(False)
    return ConditionedFlow(network, STEP) if name.endswith("conditioned") else Flow(Fitted(network), step=STEP)


# -- the run -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_method_is_measured_and_the_best_future_is_no_worse_than_one(ran):
    _, report = ran
    found = report["methods"]
    others = {"pfi", "mcvd", "persistence", "constant velocity", "last frame", "mean frame", "codec"}
    assert set(found) == {f"{name}, euler" for name in FLOWS} | others
    assert [found[f"{name}, euler"]["evaluations"] for name in FLOWS] == [1, 1, 1]
    assert (found["pfi"]["evaluations"], found["mcvd"]["evaluations"]) == (2, 0.5)
    for name in ("pfi", "mcvd"):
        best, one = found[name]["best"], found[name]["few"]
        assert (best["samples"], one["samples"]) == (3, 1)
        assert best["mse"] <= one["mse"] and best["ssim"] >= one["ssim"]
        assert min(found[name]["diversity"]) > 0
    assert found["persistence"]["best"] is None and found["codec"]["adjusted"] is None


@pytest.mark.slow
def test_the_report_holds_the_measures_of_the_videos_themselves(ran):
    out, report = ran
    videos = read_clips(out / "fits" / "test.npz").trajectories(14).states
    last, truth = videos[:, 3:4].expand(-1, 10, -1, -1, -1), videos[:, 4:]
    found = report["methods"]["last frame"]
    assert found["standard"]["mse"] == pytest.approx(float((last - truth).square().mean()), rel=1e-5)
    assert found["ssim"] == pytest.approx(ssim(last, truth).mean(0).tolist(), rel=1e-5)
    assert found["mse"] == pytest.approx(mse(last, truth).mean(0).tolist(), rel=1e-5)
    assert found["mse"] != pytest.approx(report["methods"]["persistence"]["mse"], rel=1e-2)  # that one is decoded
    mean = videos[:, :4].mean(1, keepdim=True).expand_as(truth)
    assert report["methods"]["mean frame"]["mse"] == pytest.approx(mse(mean, truth).mean(0).tolist(), rel=1e-5)
    distance = found["frechet"]["standard"]
    assert distance["name"] == "figure Fréchet distance" and distance["floor"] > 0
    assert "FVD" not in json.dumps(report.results)


@pytest.mark.slow
def test_the_kept_videos_are_those_that_were_measured(ran):
    out, report = ran
    codec, _, _ = open_latents(SMOKE, out / "fits")
    evaluation = Evaluation(read_clips(out / "fits" / "test.npz"), codec, video.feature_network(SMOKE), SMOKE)
    kept = video.load_file(out / "weights.safetensors")
    shown = {name.removeprefix("clips."): frames for name, frames in kept.items() if name.startswith("clips.")}
    assert set(shown) == (set(report["methods"]) | {"truth"}) - set(video.STILLS)
    assert shown["truth"].dtype == torch.uint8 and shown["truth"].shape == (1, 14, 64, 64)
    torch.testing.assert_close(
        shown["codec"].float() / 255, evaluation.reconstructed[:1, 4:, 0], rtol=0, atol=0.51 / 255
    )


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_trains_nothing_twice(ran, tmp_path, monkeypatch):
    _, whole = ran
    work = video.work

    def stopped(name, **options):
        if name == "pfi":
            raise KeyboardInterrupt
        work(name, **options)

    monkeypatch.setattr(video, "work", stopped)
    with pytest.raises(KeyboardInterrupt):
        video.VIDEO.run("smoke", out=tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("weights.safetensors")}
    assert len(times) == 1 + len(FLOWS)
    monkeypatch.setattr(video, "work", work)
    monkeypatch.setattr(video, "fit_vq", None)  # would fail if it were called
    again = video.VIDEO.run("smoke", out=tmp_path)
    assert untimed(again.results) == untimed(whole.results)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def untimed(results):
    if not isinstance(results, dict):
        return results
    return {name: untimed(part) for name, part in results.items() if name != "milliseconds"}


@pytest.mark.slow
def test_the_committed_methods_are_had_back(ran, tmp_path, monkeypatch):
    out, _ = ran
    monkeypatch.setattr("phibe.experiments.report.ARTIFACTS", tmp_path)
    monkeypatch.setitem(video.CONFIGS, "laptop", SMOKE)
    keep(out, "video")
    codec, train, validation = open_latents(SMOKE, out / "fits")
    frames = read_clips(out / "fits" / "test.npz").frames(0)
    torch.testing.assert_close(video.committed_codec().encode(frames), codec.encode(frames), rtol=0, atol=1e-2)
    history, times = train.states[:2, :4], torch.arange(6, dtype=torch.float64) * STEP
    for name in (*FLOWS, "pfi", "mcvd", "persistence", "constant velocity"):
        kept = rolls(name, video.committed_method(name), SMOKE)
        trained = rolls(name, learn(name, train, validation, config=SMOKE, out=out / "fits" / name), SMOKE)
        assert kept.keys() == trained.keys()
        for label, roll in kept.items():
            a, b = (r.frames(history, times) for r in (roll, trained[label]))
            assert float((a - b).square().mean()) < 1e-3 * float(b.var()), label


@pytest.mark.slow
def test_what_the_codec_loses_of_the_context_is_added_to_what_it_makes_of_the_rest(ran):
    out, report = ran
    codec, _, _ = open_latents(SMOKE, out / "fits")
    states = read_clips(out / "fits" / "test.npz").trajectories(14).states
    rebuilt, found = codec.decode_paths(codec.encode_paths(states)), report["methods"]["codec"]
    better = (rebuilt[:, 4:] + (states - rebuilt)[:, :4].mean(1, keepdim=True)).clamp(0, 1)
    assert found["detailed"]["mse"] == pytest.approx(float((better - states[:, 4:]).square().mean()), rel=1e-4)
    assert found["detailed"]["mse"] < 0.9 * found["standard"]["mse"]


# -- methods -----------------------------------------------------------------------------------------------------------


def test_an_augmented_state_holds_where_the_frame_before_was():
    data = latents()
    states = augment(data).states
    z, w = states.chunk(2, dim=2)
    torch.testing.assert_close(z - STEP * w, data.states[:, :-1])
    assert not torch.allclose(z + STEP * w, data.states[:, :-1])
    ragged = Trajectories(data.states, data.times, torch.tensor([6, 4, 3]))
    assert augment(ragged).lengths.tolist() == [5, 3, 2]


def test_a_velocity_is_measured_in_sizes_of_an_increment():
    data = latents(paths=40)
    network = in_units(assemble("regression conditioned", SHAPE, SMOKE).double(), data)
    expected = data.states.diff(dim=1).square().mean((0, 1, 3, 4)).sqrt() / STEP
    torch.testing.assert_close(network.velocity_scale.flatten(), expected)


@pytest.mark.parametrize("name", FLOWS)
def test_slow_motion_shows_the_frames_of_a_rollout_in_half_steps(name):
    """Between two frames there are two steps instead of one: whole frames are those of an ordinary rollout with two
    substeps, to the bit of rounding, and not those of one with a single step."""
    model, history = flow(name), latents().states
    times = torch.arange(5, dtype=torch.float64) * STEP + 0.36
    half = torch.arange(9, dtype=torch.float64) * STEP / 2 + 0.36
    slow = integrate(model, history, half)
    assert slow.shape == (3, 9, *SHAPE)
    torch.testing.assert_close(slow[:, ::2], integrate(model, history, times, substeps=2), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(slow[:, ::2], integrate(model, history, times), rtol=1e-3, atol=1e-3)


def test_a_motion_without_change_is_continued_by_constant_velocity_and_stopped_by_persistence():
    start, pace = normal(2, 1, *SHAPE), normal(2, 1, *SHAPE, seed=1)
    times = torch.arange(8, dtype=torch.float64) * STEP
    line = Trajectories(start + pace * times.reshape(-1, 1, 1, 1), times)
    made = {}
    for name in ("constant velocity", "persistence"):
        (roll,) = rolls(name, learn(name, line, line, config=SMOKE, out=None), SMOKE).values()
        assert roll.evaluations == 0 and not roll.random
        made[name] = roll.frames(line.states[:, :3], times[2:])
    torch.testing.assert_close(made["constant velocity"], line.states[:, 2:])
    torch.testing.assert_close(made["persistence"], line.states[:, 2:3].expand(-1, 6, *SHAPE))
    assert not torch.allclose(made["persistence"], line.states[:, 2:])


def test_what_runs_away_stays_finite():
    for name in FLOWS:
        far = integrate(flow(name), 1e3 * latents().states, torch.arange(40, dtype=torch.float64) * STEP)
        assert torch.isfinite(far).all()


def test_weights_of_another_method_are_refused():
    tensors = flow("regression conditioned").network.state_dict()
    restore("phibe conditioned", tensors, shape=SHAPE, step=STEP, config=SMOKE)
    with pytest.raises(RuntimeError, match="size mismatch"):
        restore("symmetric augmented", tensors, shape=SHAPE, step=STEP, config=SMOKE)


# -- footage -----------------------------------------------------------------------------------------------------------


def clips(persons=25, size=64, frames=14) -> Clips:
    videos = np.random.default_rng(0).integers(0, 255, (persons, frames, size, size), dtype=np.uint8)
    return Clips.of({f"person{i:02d}_walking_d{1 + k}": videos[i - 1] for i in range(1, persons + 1) for k in (0, 1)})


def test_no_person_is_on_two_sides_and_the_last_fifth_is_the_test():
    sides = split(clips(), validation=0.1, test=0.2)
    assert set(sides["test"].people) == {21, 22, 23, 24, 25}
    assert set(sides["validation"].people) == {19, 20}
    assert set(sides["train"].people) == set(range(1, 19))
    assert sum(map(len, sides.values())) == 50
    nameless = Clips.of({f"video {i}": np.zeros((4, 8, 8), np.uint8) for i in range(10)})
    assert {side: len(part) for side, part in split(nameless, validation=0.1, test=0.2).items()} == {
        "train": 7,
        "validation": 1,
        "test": 2,
    }
    with pytest.raises(ValueError, match="leave none of 2 people"):
        split(clips(2), validation=0.1, test=0.2)


def test_clips_of_another_size_or_length_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"64 × 64 pixels; those of .*small\.npz have 32 × 32.*shrink"):
        source_clips(replace(SMOKE, data=str(clips(4, 32).save(tmp_path / "small.npz"))))
    with pytest.raises(MissingData, match="nowhere"):
        video.VIDEO_REAL.run(
            "laptop", out=tmp_path / "run", config=replace(video.REAL_CONFIGS["laptop"], data="nowhere.npz")
        )
    assert len(source_clips(replace(SMOKE, data=str(clips(4).save(tmp_path / "clips.npz"))))) == 8
    with pytest.raises(ValueError, match=r"four clips or more of 4 \+ 10 frames; among 8 test clips are 0"):
        choose_test_clips(clips(4, frames=13), SMOKE)


def test_latents_of_the_mirrored_video_are_those_of_a_video_of_the_mirror():
    torch.manual_seed(0)
    codec, some = video.VQCodec(**SMOKE.codec), clips(2)
    both, plain = (encode(codec, some, mirrored=m, length=5) for m in (True, False))
    assert (len(both), len(plain)) == (24, 12)  # 14 frames are 5 + 5 + 4
    assert plain.lengths.tolist() == [5, 5, 4] * 4
    torch.testing.assert_close(plain.times[:3, 0], torch.tensor([0.0, 0.2, 0.4], dtype=torch.float64))
    mirrored = codec.encode(some.frames(0)[:5].flip(-1))
    torch.testing.assert_close(both.states[3], mirrored, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(both.states[0], plain.states[0])
    assert not torch.allclose(both.states[3], both.states[0].flip(-1), rtol=1e-2)  # the codec knows left from right
