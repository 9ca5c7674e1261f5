"""Clips: grey videos of unequal length with their labels, read, resized, stored as bytes, cut into trajectories.

The last part reads uploads, which are not trusted: the kind of a file is determined from its first bytes, so that no
playlist can make the decoder open other files; sizes are checked before anything is decoded, and the number of decoded
frames is limited.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phibe.files import read_arrays, read_npz, write_arrays
from phibe.trajectories import Trajectories

# -- reading videos ----------------------------------------------------------------------------------------------------


Fit = Literal["squash", "crop"]
RATE = 25.0
"""Frames a second of KTH, of figures and of what is uploaded."""
COLOUR = 8.0
"""Mean distance of the largest from the smallest of red, green and blue, out of 255, above which a frame is coloured;
grey videos that were compressed as colour stay far below."""


class Video(NamedTuple):
    """Grey frames (time, height, width) as bytes, frames a second, and whether the file ended before its end."""

    frames: np.ndarray
    rate: float
    cut_off: bool


def read_video(path: str | Path, *, colour: Literal["refuse", "grey"] = "refuse", most: int = 2**28) -> Video:
    """The frames of a file, as far as they can be decoded; an error if there are none, or if they take more than
    `most` bytes.

    A coloured video is refused, or made grey when asked for.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    av = pyav()
    frames: list[np.ndarray] = []
    cut_off, reason, rate = False, "it holds no picture", 0.0
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError(f"{path} holds no moving pictures. Another kind of file?")
            stream = container.streams.video[0]
            rate = float(stream.average_rate or stream.guessed_rate or 0)
            for frame in container.decode(stream):
                if not frames and colour == "refuse" and (apart := spread(frame)) > COLOUR:
                    raise ValueError(
                        f"{path} must be grey; its first frame is coloured (red, green and blue are {apart:.0f} of "
                        '255 apart). Pass colour="grey" where it is read, or convert it first?'
                    )
                if (len(frames) + 1) * frame.width * frame.height > most:
                    raise ValueError(
                        f"{path} must be at most {most / 2**20:.0f} MB when decoded; it is more, at {frame.width} × "
                        f"{frame.height} pixels. Cut it or make it smaller first?"
                    )
                frames.append(frame.to_ndarray(format="gray"))
    except av.FFmpegError as error:
        cut_off, reason = True, str(error)
    if not frames:
        raise ValueError(f"{path} cannot be decoded: {reason}. Cut short, or a file of another kind?")
    if len({frame.shape for frame in frames}) > 1:
        raise ValueError(f"{path} changes the size of its frames on the way; one size is needed.")
    return Video(np.stack(frames), rate, cut_off)


def pyav() -> Any:
    """The decoder, which is an extra."""
    try:
        import av
    except ImportError:
        raise ValueError("Videos are decoded by PyAV: `pip install 'phibe[video]'`.") from None
    av.logging.set_level(av.logging.PANIC)  # what goes wrong is said once, by us
    return av


def spread(frame: Any) -> float:
    """How far red, green and blue of a frame are apart, on average."""
    picture = frame.to_ndarray(format="rgb24").astype(np.int16)
    return float((picture.max(-1) - picture.min(-1)).mean())


def shrink(frames: np.ndarray, *, size: int = 64, fit: Fit = "squash") -> np.ndarray:
    """Square frames by area averaging, (time, height, width) → (time, size, size), bytes.

    `squash` takes the whole picture, which makes it narrower; `crop` takes the square in its middle. Each new pixel is
    the mean of the part of the old picture that it covers, weighted by the covered area.
    """
    if fit not in ("squash", "crop"):
        raise ValueError(f'`fit` must be "squash" or "crop"; got {fit!r}.')
    height, width = frames.shape[1:]
    if fit == "crop":
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        frames, height, width = frames[:, top : top + side, left : left + side], side, side
    mean = shares(size, height) @ torch.from_numpy(np.ascontiguousarray(frames)).float() @ shares(size, width).mT
    return mean.round_().clamp_(0, 255).to(torch.uint8).numpy()


@cache
def shares(new: int, old: int) -> Tensor:
    """How much of each new pixel is made of each old one, along one side: (new, old), rows that add up to one."""
    edges = torch.arange(new + 1, dtype=torch.float64) * old / new
    cells = torch.arange(old, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], cells + 1) - torch.maximum(edges[:-1, None], cells)
    return (overlap.clamp(min=0) * new / old).float()


# -- clips -----------------------------------------------------------------------------------------------------------


NAME = re.compile(r"person(?P<person>\d+)_(?P<action>[a-z]+)_d(?P<scenario>\w)(_s\d+)?")
"""person07_walking_d2_s0: who, what, in which scenario of KTH, which part of that video."""


@dataclass(frozen=True, eq=False)
class Clips:
    """Grey videos: `pixels` (frame, height, width) of all of them, `spans` (clip, 2) where each begins and ends.

    Pixels are bytes, or floats in [0, 1]; they may be a memory map. A choice of clips shares them. A name of the form
    personPP_ACTION_dD… says who does what; of others the action is "" and the person 0.
    """

    pixels: np.ndarray
    spans: np.ndarray
    names: tuple[str, ...]
    rate: float = RATE

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.names) or self.spans.shape[1:] != (2,):
            raise ValueError(f"Each of {len(self.names)} names needs a begin and an end; got {self.spans.shape}.")
        if bad := [name for name, length in zip(self.names, self.lengths, strict=True) if length < 2]:
            raise ValueError(
                f"A clip needs two frames or more; {bad[0]} has {self.lengths[self.names.index(bad[0])]}. Drop it?"
            )

    @staticmethod
    def of(videos: dict[str, np.ndarray], *, rate: float = RATE) -> Clips:
        """Clips of named videos (time, height, width), bytes or floats in [0, 1]; a lone channel is left out."""
        if not videos:
            raise ValueError("There must be one clip at least; got none.")
        checked = {name: _grey(video, name) for name, video in videos.items()}
        shapes = {video.shape[1:] for video in checked.values()}
        if len(shapes) > 1:
            raise ValueError(f"All clips must have frames of one size; got {sorted(shapes)}. Resize them first?")
        if len({video.dtype for video in checked.values()}) > 1:
            checked = {name: _floats(video) for name, video in checked.items()}
        ends = np.cumsum([len(video) for video in checked.values()])
        spans = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)
        return Clips(np.concatenate(list(checked.values())), spans, tuple(checked), rate)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        if not len(self):
            return "Clips(none)"
        kinds = ", ".join(f"{self.actions.count(a)} {a or 'unnamed'}" for a in dict.fromkeys(self.actions))
        return f"Clips({len(self)} of {self.lengths.min()}–{self.lengths.max()} frames, {self.shape}: {kinds})"

    @property
    def shape(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[2]

    @property
    def lengths(self) -> np.ndarray:
        return self.spans[:, 1] - self.spans[:, 0]

    @property
    def actions(self) -> list[str]:
        return [_part(name, "action") for name in self.names]

    @property
    def people(self) -> list[int]:
        return [int(_part(name, "person") or 0) for name in self.names]

    def __getitem__(self, chosen: slice | Sequence[int] | np.ndarray) -> Clips:
        """Some of the clips, in the order asked for, without a copy of their pixels."""
        index = np.arange(len(self))[chosen]
        return Clips(self.pixels, self.spans[index], tuple(self.names[i] for i in index), self.rate)

    def where(self, *, actions: Iterable[str] | None = None, people: Iterable[int] | None = None) -> Clips:
        """The clips of these actions and of these people."""
        wanted = [
            (actions is None or action in set(actions)) and (people is None or person in set(people))
            for action, person in zip(self.actions, self.people, strict=True)
        ]
        return self[np.flatnonzero(wanted)]

    def frames(self, i: int) -> Tensor:
        """One clip, (time, 1, height, width), float32 in [0, 1]."""
        return torch.from_numpy(_floats(self.pixels[slice(*self.spans[i])]))[:, None]

    def trajectories(self, frames: int | None = None) -> Trajectories:
        """All clips whole, ragged where their lengths differ; or the first `frames` of those that have so many."""
        if frames is None:
            return self._padded(self.spans)
        return self._padded(self._long_enough(frames, lambda a, b: [(a, a + frames)]))

    def pieces(self, frames: int, *, stride: int | None = None) -> Trajectories:
        """Paths of exactly `frames` frames: every clip from its beginning on, each `stride` after the one before.

        Pieces do not overlap by default. What is left over at the end of a clip is not used.
        """
        stride = stride or frames
        return self._padded(
            self._long_enough(frames, lambda a, b: [(s, s + frames) for s in range(a, b - frames + 1, stride)])
        )

    def _long_enough(self, frames: int, cut: Callable[[int, int], list[tuple[int, int]]]) -> np.ndarray:
        spans = [span for a, b in self.spans.tolist() if b - a >= frames for span in cut(a, b)]
        if not spans or frames < 2:
            raise ValueError(
                f"`frames` must be from 2 to {max(self.lengths, default=0)}, the longest clip; got {frames}."
            )
        return np.array(spans)

    def _padded(self, spans: np.ndarray) -> Trajectories:
        if not len(spans):
            raise ValueError("There must be one clip at least; got none. Other `people` or `actions`?")
        lengths = spans[:, 1] - spans[:, 0]
        states = torch.zeros(len(spans), int(lengths.max()), 1, *self.shape)
        for path, (first, last) in zip(states, spans.tolist(), strict=True):
            path[: last - first, 0] = torch.from_numpy(_floats(self.pixels[first:last]))
        times = torch.arange(states.shape[1], dtype=torch.float64) / self.rate
        return Trajectories(states, times, None if (lengths == lengths[0]).all() else lengths)

    def save(self, path: str | Path) -> Path:
        """A `.npz` with one array a clip, under its name: what `read_clips` reads."""
        return write_arrays(
            path, {name: self.pixels[slice(*span)] for name, span in zip(self.names, self.spans, strict=True)}
        )


def read_clips(path: str | Path, *, rate: float = RATE) -> Clips:
    """Clips of a `.npz` with one array (time, height, width) a clip, under its name; bytes, or floats in [0, 1]."""
    try:
        return Clips.of(read_arrays(path), rate=rate)
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error


def _part(name: str, part: str) -> str:
    found = NAME.fullmatch(name)
    return found[part] if found else ""


def _floats(video: np.ndarray) -> np.ndarray:
    return video.astype(np.float32) / 255 if video.dtype == np.uint8 else np.asarray(video, np.float32)


def _grey(video: np.ndarray, name: str) -> np.ndarray:
    """The video as (time, height, width), bytes or float32, or what is wrong with it."""
    if video.ndim == 4 and 1 in (video.shape[1], video.shape[3]):
        video = video[:, 0] if video.shape[1] == 1 else video[..., 0]
    if video.ndim == 4 and 3 in (video.shape[1], video.shape[3]):
        raise ValueError(f"Clips must be grey; {name} has three colours, shape {video.shape}. Average them first?")
    if video.ndim != 3 or len(video) < 2 or 0 in video.shape:
        raise ValueError(
            f"A clip must be (time, height, width) with two frames or more; {name} has shape {video.shape}. Drop it?"
        )
    if video.dtype == np.uint8:
        return video
    if video.dtype.kind != "f" or not np.isfinite(video).all() or video.min() < 0 or video.max() > 1:
        raise ValueError(
            f"A clip must hold bytes, or finite floats from 0 to 1; {name} has {video.dtype} from {video.min()} to "
            f"{video.max()}. Divide by 255 first?"
        )
    return video.astype(np.float32)


# -- uploads -----------------------------------------------------------------------------------------------------------


LARGEST = 8 * 2**20
"""Bytes of a file."""
LONGEST = 200
"""Frames that are taken of it."""
PIXELS = 2**22
"""Pixels of a frame."""
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
            f"A video must be at most {LARGEST / 2**20:.0f} MB; this file has {size / 2**20:.1f}. Cut it to some "
            "seconds, or make its pictures smaller?"
        )
    if size == 0:
        raise ValueError("This file is empty. Was it saved completely?")


def read_upload(content: bytes, *, least: int = 2, size: int = 64) -> Own:
    """The clip in the bytes of a file: the square in the middle of its frames, averaged to size × size, grey.

    Of a video with more frames a second than 25 about so many are taken; of an archive the first clip; of any at most
    200 frames. One with fewer than `least` frames is refused, as is what is no video.
    """
    check_size(len(content))
    kind = _kind(content)
    frames, changes = _archive(content, size) if kind == "npz" else _decoded(content, kind, size)
    if len(frames) < least:
        raise ValueError(
            f"A clip must have {least} frames or more; this one has {len(frames)}. "
            f"{'A single picture? ' if len(frames) == 1 else ''}Record a little longer?"
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
    raise ValueError(f"A video must be one of {', '.join(SUFFIXES)}; by its first bytes this file is {what}.")


# -- archives ----------------------------------------------------------------------------------------------------------


def _archive(content: bytes, size: int) -> tuple[np.ndarray, list[str]]:
    """The first clip of what `phibe.experiments.video.clips.read_clips` reads."""
    try:
        arrays = read_npz(io.BytesIO(content), most=UNPACKED)
    except Exception as error:
        raise ValueError(f"This archive cannot be read: {error}") from error
    clips = Clips.of(arrays)
    video = clips.pixels[slice(*clips.spans[0])]
    changes = [f"the first of {len(clips)} clips"] if len(clips) > 1 else []
    if len(video) > LONGEST:
        video, changes = video[:LONGEST], [*changes, f"its first {LONGEST} frames"]
    video = video if video.dtype == np.uint8 else (video * 255).round().astype(np.uint8)
    return shrink(video, size=size, fit="crop"), [*changes, *_shrunk(video.shape[1], video.shape[2], size)]


# -- uploaded videos ---------------------------------------------------------------------------------------------------


def _decoded(content: bytes, kind: str, size: int) -> tuple[np.ndarray, list[str]]:
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
                    changes += [*_shrunk(frame.height, frame.width, size), *_greyed(frame), *_every(stride)]
                small.append(_small(frame, size))
    except av.FFmpegError as error:
        reason = str(error)
        changes.append("what comes before it breaks off")
    if not small:
        raise ValueError(
            f"This video cannot be decoded: {reason}. Cut short, or of more than {PIXELS / 1e6:.1f} million pixels a "
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
            f"{stream.height}. Make the video smaller first?"
        )
    stream.codec_context.options = {"max_pixels": str(PIXELS)}
    stream.codec_context.thread_count = 1
    return stream


def _stride(stream: Any) -> int:
    """2 for videos with 50 or 60 frames a second: of those every second frame is taken."""
    rate = float(stream.average_rate or stream.guessed_rate or RATE)
    return min(max(round(rate / RATE), 1), 10)


def _small(frame: Any, size: int) -> np.ndarray:
    """The square in the middle of a frame, as upright as it was recorded."""
    square = shrink(frame.to_ndarray(format="gray")[None], size=size, fit="crop")[0]
    return np.rot90(square, round(frame.rotation / 90))


# -- as text -----------------------------------------------------------------------------------------------------------


def _shrunk(height: int, width: int, size: int) -> list[str]:
    if (height, width) == (size, size):
        return []
    middle = "the square in the middle of " if height != width else ""
    return [f"{middle}{width} × {height} pixels made {size} × {size}"]


def _greyed(frame: Any) -> list[str]:
    return ["made grey"] if spread(frame) > COLOUR else []


def _every(stride: int) -> list[str]:
    return [f"one frame of {stride}, about {RATE:.0f} a second"] if stride > 1 else []
