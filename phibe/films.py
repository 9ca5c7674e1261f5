"""Films: files of moving pictures decoded to grey frames through PyAV, and frames made small by area averaging."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

Fit = Literal["squash", "crop"]
COLOUR = 8.0
"""Mean distance of the largest from the smallest of red, green and blue, out of 255, above which a frame is coloured;
grey films that were compressed as colour stay far below."""


class Film(NamedTuple):
    """Grey frames (time, height, width) as bytes, frames a second, and whether the file ended before its end."""

    frames: np.ndarray
    rate: float
    cut_off: bool


def read_film(path: str | Path, *, colour: Literal["refuse", "grey"] = "refuse", most: int = 2**28) -> Film:
    """The frames of a file, as far as they can be decoded; an error if there are none, or if they take more than
    `most` bytes.

    A coloured film is refused, or made grey when asked for.
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
    return Film(np.stack(frames), rate, cut_off)


def pyav() -> Any:
    """The decoder, which is an extra."""
    try:
        import av
    except ImportError:
        raise ValueError("Films are decoded by PyAV: `pip install 'phibe[video]'`.") from None
    av.logging.set_level(av.logging.PANIC)  # what goes wrong is said once, by us
    return av


def spread(frame: Any) -> float:
    """How far red, green and blue of a frame are apart, on average."""
    picture = frame.to_ndarray(format="rgb24").astype(np.int16)
    return float((picture.max(-1) - picture.min(-1)).mean())


def shrink(frames: np.ndarray, *, size: int = 64, fit: Fit = "squash") -> np.ndarray:
    """Square frames by area averaging, (time, height, width) → (time, size, size), bytes.

    `squash` takes the whole picture, which makes it narrower; `crop` takes the square in its middle. Each new pixel is
    the mean of the part of the old picture that it covers, parts of pixels by their share.
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
