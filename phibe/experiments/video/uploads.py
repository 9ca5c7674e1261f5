"""Uploads: a film that somebody else sent, as bytes, made into a small grey clip; what is wrong with it is said.

Nothing of the file is believed: its kind is told from its first bytes, so that no playlist can make the decoder open
other files; sizes are checked before anything is decoded, and only so many frames are.
"""

from __future__ import annotations

import io
import itertools
from typing import Any, NamedTuple

import numpy as np

from phibe.experiments.video.clips import COLOUR, Clips, pyav, shrink, spread
from phibe.files import read_npz

LARGEST = 8 * 2**20
"""Bytes of a file."""
LONGEST = 200
"""Frames that are taken of it."""
PIXELS = 2**22
"""Pixels of a frame."""
RATE = 25.0
UNPACKED = 2**28
"""Bytes of the arrays in an archive."""
SUFFIXES = (".mp4", ".mov", ".avi", ".webm", ".gif", ".npz")
BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
"""What the first part of a .mp4 or .mov is called, after four bytes of its length."""


class Own(NamedTuple):
    """Grey bytes (time, size, size), and in words what was done to what came."""

    frames: np.ndarray
    changes: tuple[str, ...]


def check_size(size: int) -> None:
    """Stop where a file is empty or too large: before it is sent, if its size is known."""
    if size > LARGEST:
        raise ValueError(
            f"A film must be at most {LARGEST / 2**20:.0f} MB; this file has {size / 2**20:.1f}. Cut it to some "
            "seconds, or make its pictures smaller?"
        )
    if size == 0:
        raise ValueError("This file is empty. Was it saved completely?")


def read_upload(content: bytes, *, least: int = 2, size: int = 64) -> Own:
    """The clip in the bytes of a file: the square in the middle of its frames, averaged to size × size, grey.

    Of a film with more frames a second than 25 about so many are taken; of an archive the first clip; of any at most
    200 frames. One with fewer than `least` frames is refused, as is what is no film.
    """
    check_size(len(content))
    kind = _kind(content)
    frames, changes = _archive(content, size) if kind == "npz" else _film(content, kind, size)
    if len(frames) < least:
        raise ValueError(
            f"A clip must have {least} frames or more; this one has {len(frames)}. "
            f"{'A single picture? ' if len(frames) == 1 else ''}Film a little longer?"
        )
    return Own(frames, tuple(changes))


def _kind(content: bytes) -> str:
    """The name of the container in FFmpeg, or npz."""
    if content[:4] == b"RIFF" and content[8:12] == b"AVI ":
        return "avi"
    if content[4:8] in BOXES:
        return "mov"
    starts = {b"\x1aE\xdf\xa3": "matroska", b"GIF87a": "gif", b"GIF89a": "gif", b"PK\x03\x04": "npz"}
    for start, kind in starts.items():
        if content.startswith(start):
            return kind
    picture = content.startswith((b"\x89PNG", b"\xff\xd8\xff", b"BM")) or content[8:12] == b"WEBP"
    what = "a single picture" if picture else "none of these"
    raise ValueError(f"A film must be one of {', '.join(SUFFIXES)}; by its first bytes this file is {what}.")


# -- archives ----------------------------------------------------------------------------------------------------------


def _archive(content: bytes, size: int) -> tuple[np.ndarray, list[str]]:
    """The first clip of what `phibe.experiments.video.clips.read_clips` reads."""
    try:
        arrays = read_npz(io.BytesIO(content), most=UNPACKED)
    except Exception as error:
        raise ValueError(f"This archive cannot be read: {error}") from error
    clips = Clips.of(arrays)
    film = clips.pixels[slice(*clips.spans[0])]
    changes = [f"the first of {len(clips)} clips"] if len(clips) > 1 else []
    if len(film) > LONGEST:
        film, changes = film[:LONGEST], [*changes, f"its first {LONGEST} frames"]
    film = film if film.dtype == np.uint8 else (film * 255).round().astype(np.uint8)
    return shrink(film, size=size, fit="crop"), [*changes, *_shrunk(film.shape[1], film.shape[2], size)]


# -- films -------------------------------------------------------------------------------------------------------------


def _film(content: bytes, kind: str, size: int) -> tuple[np.ndarray, list[str]]:
    """What can be decoded, frame after frame, none of which is kept in its full size."""
    av, reason = pyav(), "it holds no picture"
    small: list[np.ndarray] = []
    changes: list[str] = []
    try:
        with av.open(io.BytesIO(content), format=kind) as container:
            stream = _stream(container)
            stride = _stride(stream)
            for frame in itertools.islice(container.decode(stream), 0, LONGEST * stride + 1, stride):
                if not small:
                    changes += [*_shrunk(frame.height, frame.width, size), *_grey(frame), *_every(stride)]
                small.append(_small(frame, size))
    except av.FFmpegError as error:
        reason = str(error)
        changes.append("what comes before it breaks off")
    if not small:
        raise ValueError(
            f"This film cannot be decoded: {reason}. Cut short, or of more than {PIXELS / 1e6:.1f} million pixels a "
            "frame?"
        )
    if len(small) > LONGEST:
        small, changes = small[:LONGEST], [*changes, f"its first {LONGEST} frames"]
    return np.stack(small), changes


def _stream(container: Any) -> Any:
    """The first moving picture, whose decoder refuses frames that are too large, whatever the header says of them."""
    if not container.streams.video:
        raise ValueError("This file holds no moving pictures, only sound?")
    stream = container.streams.video[0]
    if stream.width * stream.height > PIXELS:
        raise ValueError(
            f"A frame must have at most {PIXELS / 1e6:.1f} million pixels; these are {stream.width} × "
            f"{stream.height}. Make the film smaller first?"
        )
    stream.codec_context.options = {"max_pixels": str(PIXELS)}
    stream.codec_context.thread_count = 1
    return stream


def _stride(stream: Any) -> int:
    """2 for films with 50 or 60 frames a second: of those every second frame is taken."""
    rate = float(stream.average_rate or stream.guessed_rate or RATE)
    return min(max(round(rate / RATE), 1), 10)


def _small(frame: Any, size: int) -> np.ndarray:
    """The square in the middle of a frame, as upright as it was filmed."""
    square = shrink(frame.to_ndarray(format="gray")[None], size=size, fit="crop")[0]
    return np.rot90(square, round(frame.rotation / 90))


# -- in words ----------------------------------------------------------------------------------------------------------


def _shrunk(height: int, width: int, size: int) -> list[str]:
    if (height, width) == (size, size):
        return []
    middle = "the square in the middle of " if height != width else ""
    return [f"{middle}{width} × {height} pixels made {size} × {size}"]


def _grey(frame: Any) -> list[str]:
    return ["made grey"] if spread(frame) > COLOUR else []


def _every(stride: int) -> list[str]:
    return [f"one frame of {stride}, about {RATE:.0f} a second"] if stride > 1 else []
