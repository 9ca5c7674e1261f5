"""Uploads: videos of every kind that is taken, and what is said of those that are not."""

import io
import struct

import av
import numpy as np
import pytest

from phibe.experiments.video import clips
from phibe.experiments.video.clips import LARGEST, LONGEST, Clips, check_size, read_upload, shrink

KINDS = {
    **{"mp4": ("libx264", "yuv420p"), "mov": ("mpeg4", "yuv420p"), "avi": ("rawvideo", "gray")},
    **{"webm": ("libvpx", "yuv420p"), "gif": ("gif", "rgb8")},
}


def moving(frames: int = 20, *, width: int = 96, height: int = 64, color=(255, 255, 255)) -> np.ndarray:
    """A bar that goes to the right by two pixels a frame: (time, height, width, 3)."""
    video = np.zeros((frames, height, width, 3), np.uint8)
    for i, picture in enumerate(video):
        picture[:, 20 + 2 * i % (width - 40) :][:, :12] = color
    return video


def encoded(video: np.ndarray, kind: str = "avi", *, rate: int = 25) -> bytes:
    """The bytes of a file with this video."""
    codec, pixels = KINDS[kind]
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = *video.shape[1:3], pixels
        for picture in video:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def archived(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


# -- good ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_video_becomes_the_square_in_its_middle(kind):
    video = moving()
    own = read_upload(encoded(video, kind))
    wanted = shrink(video[..., 0], fit="crop").astype(float)
    assert own.frames.shape == (20, 64, 64) and own.frames.dtype == np.uint8
    assert np.abs(own.frames - wanted).mean() < 12  # lossy ones blur the edges
    assert np.abs(own.frames - wanted[::-1]).mean() > 40
    assert own.changes == ("the square in the middle of 96 × 64 pixels made 64 × 64",)


def test_what_is_kept_without_loss_comes_back_to_the_bit():
    video = moving(width=64)
    np.testing.assert_array_equal(read_upload(encoded(video, "avi")).frames, video[..., 0])
    assert read_upload(encoded(video, "avi")).changes == ()


def test_colour_is_made_grey_and_that_is_said():
    own = read_upload(encoded(moving(color=(255, 0, 0), width=64), "mp4"))
    assert own.changes == ("made grey",)
    assert 40 < own.frames.max() < 130  # red is a dark grey


def test_a_fast_camera_gives_every_second_frame():
    video = moving(20, width=64)
    own = read_upload(encoded(video, "avi", rate=50))
    np.testing.assert_array_equal(own.frames, video[::2, ..., 0])
    assert own.changes == ("one frame of 2, about 25 a second",)


@pytest.mark.parametrize("make", [encoded, lambda video: archived(clip=video[..., 0])])
def test_of_a_long_video_the_first_frames_are_taken(make):
    video = moving(LONGEST + 30, width=64)
    own = read_upload(make(video))
    np.testing.assert_array_equal(own.frames, video[:LONGEST, ..., 0])
    assert f"its first {LONGEST} frames" in own.changes
    assert read_upload(make(video[:LONGEST])).changes == ()


def test_clips_of_an_archive_are_read_as_bytes_and_as_numbers(tmp_path):
    video = moving(width=64)[..., 0]
    path = Clips.of({"person01_walking_d1": video, "person02_boxing_d1": video[::-1]}).save(tmp_path / "clips.npz")
    own = read_upload(path.read_bytes())
    np.testing.assert_array_equal(own.frames, video)
    assert own.changes == ("the first of 2 clips",)
    np.testing.assert_array_equal(read_upload(archived(a=video / 255.0)).frames, video)


def test_a_video_taken_upright_stands_upright(monkeypatch):
    """A phone writes the pictures lying and says by how much to turn them."""

    class Lying:
        rotation, width, height = -90, 64, 64

        def to_ndarray(self, format):
            return np.repeat(np.arange(64, dtype=np.uint8)[:, None], 64, 1)  # dark above

    turned = clips._small(Lying(), 64)
    assert (turned == np.arange(64)[::-1]).all()  # clockwise: dark at the right


# -- bad ones ----------------------------------------------------------------------------------------------------------


def refused(content: bytes, match: str, **options) -> None:
    with pytest.raises(ValueError, match=match):
        read_upload(content, **options)


def test_empty_and_too_large_files_are_refused_by_their_size():
    refused(b"", "empty")
    refused(encoded(moving())[:100] + bytes(LARGEST), "at most 8 MB; this file has 8.0")
    check_size(LARGEST)
    with pytest.raises(ValueError, match="100.0"):
        check_size(100 * 2**20)


@pytest.mark.parametrize("junk", [b"hello", b"#EXTM3U\n/etc/passwd"])
def test_other_files_are_refused_and_playlists_are_not_followed(junk):
    refused(junk, "one of .mp4, .mov, .avi, .webm, .gif, .npz; by its first bytes this file is none of these")


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBPVP8 "])
def test_a_picture_is_called_one(start):
    refused(start + bytes(100), "a single picture")


def test_a_gif_of_one_picture_and_short_videos_are_told_what_is_needed():
    refused(encoded(moving(1), "gif"), "2 frames or more; this one has 1. A single picture")
    refused(encoded(moving(9)), "14 frames or more; this one has 9. Record", least=14)
    assert len(read_upload(encoded(moving(14)), least=14).frames) == 14


def test_a_video_that_breaks_off_is_used_as_far_as_it_goes():
    whole = encoded(moving(width=64))
    own = read_upload(whole[: 2 * len(whole) // 3])
    assert 5 < len(own.frames) < 20
    np.testing.assert_array_equal(own.frames[:5], moving(width=64)[:5, ..., 0])


def test_what_breaks_off_too_early_cannot_be_decoded():
    whole = encoded(moving(), "mp4")  # its index is at the end
    refused(whole[: len(whole) // 2], "cannot be decoded")
    refused(whole[:4] + b"ftyp" + bytes(1000), "cannot be decoded|no moving pictures")


def test_a_header_that_promises_huge_pictures_is_refused_before_they_are_made():
    content = bytearray(encoded(moving(), "gif"))
    content[6:10] = struct.pack("<HH", 20000, 20000)  # 1.6 GB a frame
    refused(bytes(content), "million pixels")
    refused(encoded(moving(1, width=2600, height=2000)), "these are 2600 × 2000")


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch):
    bomb = archived(clip=np.zeros((300, 1024, 1024), np.uint8))
    assert len(bomb) < 2**20
    refused(bomb, "300 MB of numbers")


def test_nothing_is_unpickled():
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    refused(archived(clip=np.array([Trap()], dtype=object)), "cannot be read.*allow_pickle")


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros((5, 8, 8, 3), np.uint8), "grey"),
        (np.zeros((5, 8)), "time, height, width"),
        (np.full((5, 8, 8), np.nan), "finite"),
    ],
)
def test_arrays_that_are_no_clip_are_explained(array, match):
    refused(archived(clip=array), match)


def test_an_archive_that_is_cut_short_is_explained():
    refused(archived(clip=moving()[..., 0])[:-50], "cannot be read")
