"""Clips: ragged videos with labels, read from a .npz, cut into paths; frames made small by exact area averages."""

import numpy as np
import pytest
import torch

from phibe.experiments.video.clips import Clips, read_clips, shares, shrink


def videos(**lengths: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.integers(0, 256, (n, 8, 6), dtype=np.uint8) for name, n in lengths.items()}


NAMED = videos(person01_walking_d1_s0=9, person02_boxing_d4_s3=5, person02_walking_dX_s0=12, cat=3)


@pytest.fixture
def saved(tmp_path):
    np.savez_compressed(tmp_path / "clips.npz", **NAMED)
    return tmp_path / "clips.npz"


def test_a_file_of_clips_is_read_as_ragged_trajectories(saved):
    clips = read_clips(saved)
    data = clips.trajectories()
    assert clips.names == tuple(NAMED) and data.lengths.tolist() == [9, 5, 12, 3]
    for path, video in zip(data.states, NAMED.values(), strict=True):
        np.testing.assert_array_equal((path[: len(video), 0] * 255).round().numpy(), video)
    assert clips.actions == ["walking", "boxing", "walking", ""] and clips.people == [1, 2, 2, 0]
    assert data.state_shape == (1, 8, 6) and data.states.dtype == torch.float32


def test_floats_are_kept_and_what_is_saved_is_read(tmp_path):
    halves = {name: video[:, None] / np.float64(510) for name, video in NAMED.items()}  # with a lone channel
    clips = Clips.of(halves)
    again = read_clips(clips.save(tmp_path / "halves.npz"))
    assert torch.equal(again.trajectories().states, clips.trajectories().states)
    np.testing.assert_allclose(again.frames(1)[:, 0], NAMED["person02_boxing_d4_s3"] / 510, atol=1e-7)
    mixed = Clips.of({"a": NAMED["cat"], "b": NAMED["cat"] / 255})
    torch.testing.assert_close(mixed.frames(0), mixed.frames(1))


def test_a_choice_shares_the_pixels(saved):
    clips = read_clips(saved)
    chosen = clips.where(actions=["walking"], people=[2])
    assert chosen.names == ("person02_walking_dX_s0",) and chosen.pixels is clips.pixels
    assert torch.equal(chosen.frames(0), clips.frames(2))
    assert clips[[3, 0]].names == ("cat", "person01_walking_d1_s0")
    assert len(clips.where(people=[7])) == 0
    with pytest.raises(ValueError, match="one clip at least"):
        clips.where(people=[7]).trajectories()


def test_pieces_have_the_length_asked_for_and_stay_inside_their_clip(saved):
    clips = read_clips(saved)
    assert clips.trajectories(9).states.shape[:2] == (2, 9)
    pieces = clips.pieces(4).states
    starts = [(0, 0), (0, 4), (1, 0), (2, 0), (2, 4), (2, 8)]
    assert torch.equal(pieces, torch.stack([clips.frames(i)[a : a + 4] for i, a in starts]))
    assert len(clips.pieces(4, stride=1).states) == 6 + 2 + 9
    with pytest.raises(ValueError, match="from 2 to 12"):
        clips.pieces(13)


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (np.zeros((5, 8, 6, 3), np.uint8), "three colours"),
        (np.zeros((1, 8, 6), np.uint8), "two frames or more"),
        (np.zeros((8, 6), np.uint8), "must be .time, height, width."),
        (np.full((3, 8, 6), 200.0), "Divide by 255"),
        (np.full((3, 8, 6), np.nan), "finite floats"),
        (np.zeros((3, 8, 6), np.int64), "int64"),
        (np.zeros((3, 9, 6), np.uint8), "one size"),
    ],
)
def test_what_is_no_grey_clip_is_named(tmp_path, video, message):
    np.savez(tmp_path / "a.npz", **NAMED, odd=video)
    with pytest.raises(ValueError, match=f"a.npz.*{message}"):
        read_clips(tmp_path / "a.npz")


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="There is no file"):
        read_clips(tmp_path / "none.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="cut.npz is not a readable"):
        read_clips(tmp_path / "cut.npz")


# -- small frames ------------------------------------------------------------------------------------------------------


def test_area_averages_keep_the_mean_and_are_exact():
    """Each old pixel counts as much as it covers: columns add up to new/old, rows to one."""
    for new, old in ((64, 160), (64, 120), (3, 7), (5, 5), (8, 4)):
        weights = shares(new, old).double()
        torch.testing.assert_close(weights.sum(1), torch.ones(new).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(weights.sum(0), torch.full((old,), new / old).double(), atol=1e-6, rtol=0)
    picture = torch.rand(2, 12, 20) * 255
    pooled = torch.nn.functional.avg_pool2d(picture.floor(), (3, 5))
    small = shrink(picture.byte().numpy(), size=4)
    assert np.abs(small - pooled.numpy()).max() <= 0.5 + 1e-4
    area = torch.nn.functional.interpolate(picture[:, None], size=(5, 5), mode="area")  # whole pixels, not shares
    assert (shares(5, 12) @ picture @ shares(5, 20).mT - area[:, 0]).abs().max() > 1


def test_the_fit_must_be_known():
    with pytest.raises(ValueError, match="squash"):
        shrink(np.zeros((2, 4, 4), np.uint8), fit="stretch")  # type: ignore[arg-type]
