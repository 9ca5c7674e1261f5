"""The published Navier–Stokes files of PFI: read safely, repeated paths dropped, split by path, kept as Zarr.

A file is what `torch.save((data, time), name)` writes: vorticity `data` (path, time, height, width) and `time` (time,).
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phibe.files import replacing
from phibe.trajectories import Trajectories


def read_pfi(path: str | Path) -> Trajectories:
    """The paths of one file, (path, time, 1, height, width), as a map of it where possible; nothing in it is run."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    try:
        content = _load(path)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors, and opening it could run code; it is refused. "
            f"({str(error).splitlines()[0]})"
        ) from None
    except Exception as error:
        raise ValueError(f"{path} is not a readable file of torch.save; cut short? ({_line(error)})") from error
    data, time = _pair(content, path)
    try:
        return Trajectories(data.unsqueeze(2), time)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def convert_pfi(
    files: Sequence[str | Path], folder: str | Path, *, held_out: float = 0.2, seed: int = 0
) -> dict[str, Any]:
    """Write the files' distinct paths to `folder`/train.zarr and `folder`/held_out.zarr; the record of what was done.

    Paths that are the same to the bit are kept once, since a path on both sides of the split would spoil it. The values
    are those of the files; `scale`, the root mean square over the training paths, is what to divide by. The record is
    also in record.json. The folder appears only when all is written.
    """
    sources = [read_pfi(file) for file in files]
    _check_alike(files, sources)
    kept, repeated = _distinct(sources)
    for file, data, count in zip(files, sources, repeated, strict=True):
        if count:
            message = f"{file}: {count} of {len(data)} paths are the same as earlier ones and are left out."
            warnings.warn(message, stacklevel=2)
    sides = _split(len(kept), held_out, seed)
    with replacing(folder) as partial:
        partial.mkdir()
        squares = [
            _write(partial / f"{name}.zarr", sources, [kept[i] for i in side])
            for name, side in zip(("train", "held_out"), sides, strict=True)
        ]
        record = {
            "files": [
                {"name": Path(file).name, "paths": len(data), "repeated": count}
                for file, data, count in zip(files, sources, repeated, strict=True)
            ],
            "train": len(sides[0]),
            "held_out": len(sides[1]),
            "split_seed": seed,
            "scale": math.sqrt(squares[0] / (len(sides[0]) * sources[0].states[0].numel())),
        }
        (partial / "record.json").write_text(json.dumps(record, indent=2) + "\n", "utf8")
    return record


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # the older form of a file cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=True)


def _pair(content: Any, path: Path) -> tuple[Tensor, Tensor]:
    wanted = f"{path} must hold a tuple of data (path, time, height, width) and time (time,)"
    if not (isinstance(content, (tuple, list)) and len(content) == 2):
        size = f" of {len(content)}" if isinstance(content, (tuple, list, dict)) else ""
        raise ValueError(f"{wanted}; it holds a {type(content).__name__}{size}.")
    data, time = content
    if not (isinstance(data, Tensor) and isinstance(time, Tensor) and data.ndim == 4 and time.shape == data.shape[1:2]):
        shapes = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in content]
        raise ValueError(f"{wanted}; it holds {shapes[0]} and {shapes[1]}.")
    return data, time


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_alike(files: Sequence[str | Path], sources: list[Trajectories]) -> None:
    if not sources:
        raise ValueError("There is no file to read; name one or more.")
    first = sources[0]
    for file, data in zip(files, sources, strict=True):
        if data.states.shape[1:] != first.states.shape[1:] or not torch.equal(data.times, first.times):
            raise ValueError(
                f"All files must have the same times and the same grid; {files[0]} holds {first}, {file} {data}."
            )


def _distinct(sources: list[Trajectories]) -> tuple[list[tuple[int, int]], list[int]]:
    """(file, path) of every path that was not seen before, and how many of each file were."""
    kept: dict[bytes, tuple[int, int]] = {}
    repeated = [0] * len(sources)
    for number, data in enumerate(sources):
        for path, states in enumerate(data.states):
            digest = hashlib.sha256(states.contiguous().numpy().tobytes()).digest()
            repeated[number] += digest in kept
            kept.setdefault(digest, (number, path))
    return list(kept.values()), repeated


def _split(count: int, held_out: float, seed: int) -> tuple[list[int], list[int]]:
    """Training and held-out numbers, as `Trajectories.split` draws them."""
    away = round(count * held_out)
    if not 0 < away < count:
        raise ValueError(
            f"`held_out` = {held_out:g} leaves {count - away} and {away} of {count} paths; both sides need one."
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(order[away:]), sorted(order[:away])


def _write(store: Path, sources: list[Trajectories], chosen: list[tuple[int, int]]) -> float:
    """Write the chosen paths, one chunk each; the sum of their squares."""
    import zarr

    shape, total = sources[0].states.shape[1:], 0.0
    group = zarr.open_group(store, mode="w")
    states = group.create_array(
        "states", shape=(len(chosen), *shape), chunks=(1, *shape), dtype=sources[0].states.numpy().dtype
    )
    group.create_array("times", data=sources[0].times.numpy())
    for index, (number, path) in enumerate(chosen):
        part = sources[number].states[path]
        states[index] = part.numpy()
        total += float(part.double().square().sum())
    return total
