"""Figures: the noisy clock, what is drawn of it, its period, way and seed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from phibe.experiments.video.drawing import ACTIONS, FRONTAL, JOINTS, STRIDE, skeleton
from phibe.experiments.video.figures import Figures, Scenes, frame_times
from phibe.trajectories import Trajectories

QUIET = {"noise": torch.zeros(1), "shadow": torch.zeros(1, 5, dtype=torch.float64)}


def scene(action: str, *, cycle: int = 24, frames: int = 60, direction: float = 1.0, **changes) -> Scenes:
    """One clip whose clock is regular, `cycle` frames a turn, before a still camera, without noise and shadow."""
    staged = Figures(actions=(action,), scenarios=(1,)).scenes(paths=1, times=frame_times(frames), seed=1)
    phase = 2 * math.pi * torch.arange(frames, dtype=torch.float64) / cycle
    motion = torch.stack([phase, torch.zeros(frames), torch.zeros(frames)], -1)[None]
    one = torch.ones(1, dtype=torch.float64)
    usual = {"phase": 0 * one, "direction": direction * one, "amplitude": one, "height": 46 * one, "ground": 58 * one}
    clothes = {"shades": 0.1 * torch.ones(1, 5, dtype=torch.float64), "light": 0 * one, "coat": torch.zeros(1)}
    yaw = {"yaw": 0 * one if FRONTAL[ACTIONS.index(action)] else math.pi / 2 * one}
    return Scenes(
        Trajectories(motion, staged.motion.times), replace(staged.cast, **(QUIET | usual | clothes | yaw | changes))
    )


def silhouette(filmed: Scenes) -> torch.Tensor:
    """Where the figure is, (time, 64, 64): what differs from the same video without it."""
    away = Scenes(filmed.motion, replace(filmed.cast, start=filmed.cast.start - 1e4))
    return ((filmed.render().states - away.render().states)[0, :, 0].abs() > 0.05).double()


def period(signal: torch.Tensor, longest: int) -> int:
    """The lag, from 4 on, at which a signal (time, n) is most like itself."""
    return min(range(4, longest), key=lambda k: float((signal[k:] - signal[:-k]).square().mean()))


# -- the clock ---------------------------------------------------------------------------------------------------------


def clock(sigma: float, times: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """φ − φ₀ − ωt of 120 clips, and its increments in units of σ√Δt with σ = 0.4."""
    scenes = Figures(sigma=sigma, actions=("walking",)).scenes(paths=120, times=times, seed=3)
    excess = scenes.phase - scenes.cast.phase[:, None] - scenes.cast.omega[:, None] * times
    return excess, excess.diff(dim=1) / (0.4 * times.diff().sqrt())


@pytest.mark.parametrize(
    "times", [frame_times(), torch.tensor([0.0, 0.1, 0.5, 0.6, 2.0]).double()], ids=["even", "not"]
)
def test_the_phase_is_a_brownian_motion_with_drift(times):
    """Increments are independent, N(ωΔt, σ²Δt), whatever the steps."""
    excess, steps = clock(0.4, times)
    n = steps.numel()
    assert excess[:, 0].abs().max() < 1e-12
    assert steps.mean().abs() < 4 / math.sqrt(n)
    assert (steps.square().mean() - 1).abs() < 4 * math.sqrt(2 / n)
    assert (steps[:, 1:] * steps[:, :-1]).mean().abs() < 4 / math.sqrt(n)
    assert (clock(0.6, times)[1].square().mean() - 1).abs() > 4 * math.sqrt(2 / n)  # another σ is noticed


def test_the_camera_sways_about_its_place_with_the_stated_spread():
    states = Figures(sway=0.5, patience=0.5).scenes(paths=200, times=frame_times(100), seed=0).motion.states[..., 1:]
    lag = round(0.5 * 25)
    correlation = float((states[:, lag:] * states[:, :-lag]).mean() / states.square().mean())
    assert float(states.square().mean().sqrt()) == pytest.approx(0.5, rel=0.05)
    assert correlation == pytest.approx(math.exp(-lag / 25 / 0.5), abs=0.05)


def test_the_future_is_open_and_without_noise_it_is_not():
    """The same players with other noise part in time; σ = 0 repeats itself."""
    spread = {}
    for sigma in (0.0, 0.4):
        first = Figures(sigma=sigma, sway=0.0).scenes(paths=50, seed=0)
        again = Figures(sigma=sigma, sway=0.0).noise().simulate(paths=50, times=frame_times(), seed=9)
        other = first.cast.phase[:, None] + first.cast.omega[:, None] * frame_times() + again.states[..., 0]
        spread[sigma] = float((other - first.phase)[:, -1].std())
    assert spread[0.0] < 1e-12
    assert spread[0.4] == pytest.approx(0.4 * math.sqrt(2 * 39 / 25), rel=0.3)


# -- what is drawn -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "cycle"), [("boxing", 20), ("handwaving", 26), ("handclapping", 26)])
def test_who_stands_repeats_after_a_cycle(action, cycle):
    video = scene(action, cycle=cycle).render().states[0].flatten(1)
    assert period(video, 32) == cycle
    assert (video[cycle:] - video[:-cycle]).abs().max() < 1e-5


@pytest.mark.parametrize("action", ["walking", "running"])
def test_who_walks_opens_the_legs_twice_in_a_cycle(action):
    """The breadth of the silhouette has half the period of the clock."""
    still = scene(action, cycle=28, frames=60)
    still = Scenes(still.motion, replace(still.cast, start=32 - (still.place - still.cast.start)[0, 30:31]))
    mask = silhouette(still)
    whole = slice(30 - 18, 30 + 18) if action == "walking" else slice(30 - 10, 30 + 10)
    breadth = mask[whole, 36:].amax(1).sum(1)
    assert period(breadth[:, None], min(len(breadth) - 3, 24)) == 14


@pytest.mark.parametrize(("direction", "cycle"), [(1.0, 24), (-1.0, 36)])
def test_a_walker_goes_a_stride_a_cycle_in_its_direction(direction, cycle):
    """The silhouette's middle moves as the hidden place does, and that by 0.75 · 46 pixels times the stride."""
    walk = scene(
        "walking", cycle=cycle, frames=40, direction=direction, start=torch.tensor([32 - 18 * direction]).double()
    )
    mask = silhouette(walk)
    seen = (mask.amax(1)[:, [0, -1]].sum(1) == 0) & (mask.sum((1, 2)) > 50)
    middle = (mask.sum(1) * (torch.arange(64) + 0.5)).sum(1) / mask.sum((1, 2))
    speed = np.polyfit(torch.arange(40)[seen], middle[seen], 1)[0]
    assert seen.sum() > 12
    assert speed == pytest.approx(direction * 0.75 * 46 * float(STRIDE[0]) / cycle, rel=0.12)


def test_the_joints_are_where_the_figure_is_drawn():
    for action in ACTIONS:
        filmed = scene(action, frames=8, start=torch.tensor([30.0]).double())
        for mask, joints in zip(silhouette(filmed), filmed.joints()[0], strict=True):
            rows, columns = mask.amax(1).nonzero(), mask.amax(0).nonzero()
            box = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            ends = torch.cat([joints.amin(0), joints.amax(0)])
            outside = (ends - box) * torch.tensor([1, 1, -1, -1])
            assert (outside > -0.7).all() and (outside < 6).all(), action


def test_a_turn_of_the_camera_moves_the_whole_picture():
    still = scene("boxing", frames=4)
    panned = still.motion.states.clone()
    panned[..., 1], panned[..., 2] = 3.0, -2.0
    moved = Scenes(Trajectories(panned, still.motion.times), still.cast).render().states[0, :, 0]
    before = still.render().states[0, :, 0]
    torch.testing.assert_close(moved[:, :-2, 3:], before[:, 2:, :-3], atol=2e-4, rtol=0)
    assert (moved - before).abs().max() > 0.1


# -- the body ----------------------------------------------------------------------------------------------------------


def bodies(action: str, phases: int = 96) -> torch.Tensor:
    """(phase, joint, 2) over one cycle, from the side."""
    phase = torch.arange(phases, dtype=torch.float64)[None] * 2 * math.pi / phases
    one = torch.ones(1, dtype=torch.float64)
    index = torch.tensor([ACTIONS.index(action)])
    return skeleton(index, phase, yaw=math.pi / 2 * one, amplitude=one, lean=0 * one)[0]


def test_limbs_keep_their_length_from_the_side():
    for action in ("walking", "running"):
        body = bodies(action)
        for a, b in (("hip", "knee"), ("far knee", "far ankle"), ("pelvis", "neck")):
            length = (body[:, JOINTS.index(a)] - body[:, JOINTS.index(b)]).norm(dim=1)
            torch.testing.assert_close(length, length[:1].expand_as(length))


def test_a_foot_is_on_the_ground_and_runners_fly():
    feet = [JOINTS.index(name) for name in ("ankle", "toe", "far ankle", "far toe")]
    height = {action: bodies(action)[:, feet, 1].amin(1) for action in ACTIONS}
    assert all(height[action].abs().max() < 1e-12 for action in ("walking", "boxing", "handwaving", "handclapping"))
    assert height["jogging"].min() > -1e-12 and 0.01 < height["jogging"].max() < height["running"].max()


def test_the_foot_that_bears_a_walker_stands_still():
    """While it bears, its way against the body is the body's way over the ground, to a tenth of a stride."""
    body = bodies("walking")
    ankle = body[8:44, JOINTS.index("ankle"), 0]
    way = torch.arange(8, 44) / 96
    slip = {
        s: float((ankle + s * way).max() - (ankle + s * way).min()) for s in (float(STRIDE[0]), 2 * float(STRIDE[0]))
    }
    assert slip[float(STRIDE[0])] < 0.1 * float(STRIDE[0])
    assert slip[2 * float(STRIDE[0])] > 0.25 * float(STRIDE[0])  # at twice the stride it would slide


def test_left_and_right_are_half_a_cycle_apart():
    body = bodies("running")
    knee, far = body[:, JOINTS.index("knee")], body[:, JOINTS.index("far knee")]
    torch.testing.assert_close(knee.roll(48, 0), far)
    assert (knee - far).abs().max() > 0.1


# -- seeds, ranges, errors ---------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_a_part_is_the_same_as_in_the_whole():
    videos = Figures().simulate(paths=6, times=frame_times(12), seed=4).states
    scenes = Figures().scenes(paths=6, times=frame_times(12), generator=torch.Generator().manual_seed(4))
    assert torch.equal(videos, scenes.render(block=5).states)
    assert torch.equal(videos[2:4], scenes[2:4].render().states)
    assert torch.equal(videos[-1:], scenes[-1].render().states)
    assert not torch.equal(videos, Figures().simulate(paths=6, times=frame_times(12), seed=5).states)


def test_videos_are_grey_in_range_and_all_actions_come():
    scenes = Figures().scenes(paths=60, times=frame_times(2), seed=0)
    videos = scenes.render()
    assert videos.states.shape == (60, 2, 1, 64, 64) and videos.states.dtype == torch.float32
    assert videos.states.min() >= 0 and videos.states.max() <= 1
    assert set(scenes.actions) == set(ACTIONS)
    zooms = (scenes.zoom - 1).abs().amax(1) > 1e-9
    assert torch.equal(zooms, scenes.cast.scenario == 2)


def test_noise_is_what_changes_in_a_still_video():
    still = scene("handwaving", cycle=10**9, frames=30, noise=torch.tensor([0.02]))
    change = still.render().states.diff(dim=1)
    assert float(change.std()) == pytest.approx(0.02 * math.sqrt(2), rel=0.02)
    assert float((change[..., 1:] * change[..., :-1]).mean() / change.square().mean()) == pytest.approx(0.174, abs=0.02)


def test_clips_carry_the_labels():
    scenes = Figures(actions=("boxing", "running")).scenes(paths=4, times=frame_times(5), seed=2)
    clips = scenes.clips()
    assert clips.actions == scenes.actions and clips.people == [1, 2, 3, 4]
    torch.testing.assert_close(clips.trajectories().states, scenes.render().states, atol=0.51 / 255, rtol=0)


def test_unknown_actions_are_refused():
    with pytest.raises(ValueError, match="walking, jogging"):
        Figures(actions=("dancing",))
    with pytest.raises(ValueError, match="scenarios"):
        Figures(scenarios=(5,))
