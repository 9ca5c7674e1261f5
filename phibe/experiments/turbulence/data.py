"""Sets of paths on disk: a system simulated shard by shard into a Zarr store; the published Navier–Stokes files of PFI.

A simulation that was stopped resumes. Read next: `solver.py`, the system.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.files import replacing, write_json, writing
from phibe.io import open_data, save_data
from phibe.trajectories import Trajectories

# -- shards ----------------------------------------------------------------------------------------------------------


class System(Protocol):
    """Anything that simulates; its `repr` must say everything that the paths depend on."""

    def simulate(self, *, paths: int, times: Any, seed: int) -> Trajectories: ...


def generate(
    system: System,
    store: str | Path,
    *,
    paths: int,
    times: Any,
    shard: int = 16,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Write `paths` paths at `times` to the .zarr `store`, `shard` paths at a time, and return its name.

    Every shard has random numbers of its own, from `seed` and its number, and is saved as a whole file in a folder
    beside the store until all are there: a run that was stopped resumes with the next one and ends with the same bits.
    The store appears at the end, with what it was made from in its attributes. `options` go to `simulate`.
    """
    store, times = Path(store), torch.as_tensor(times, dtype=torch.float64)
    if store.suffix != ".zarr" or paths < 1 or shard < 1:
        raise ValueError(f"A store ends in .zarr and has a path or more; got {store.name}, {paths} paths by {shard}.")
    settings = {"system": repr(system), "paths": paths, "shard": shard, "seed": seed, "times": times.tolist()}
    settings = json.loads(json.dumps(settings | options))  # as it will be read back
    if store.exists():
        _compare(store, _attributes(store), settings)
        return store
    parts = store.with_suffix(".parts")
    with writing(parts, "parts of a store"):
        if (parts / "settings.json").exists():
            _compare(parts, json.loads((parts / "settings.json").read_text("utf8")), settings)
        else:
            write_json(parts / "settings.json", settings)
        files = [parts / f"{index:05d}.npz" for index in range(-(-paths // shard))]
        for index, file in enumerate(tqdm(files, desc=store.name, unit="shard", disable=not progress)):
            if not file.exists():
                count = min(shard, paths - index * shard)
                save_data(system.simulate(paths=count, times=times, seed=_seed(seed, index), **options), file)
        _join(files, store, settings)
        shutil.rmtree(parts)
    return store


def _seed(seed: int, index: int) -> int:
    """A seed for each shard, independent of how many there are."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _join(files: list[Path], store: Path, settings: dict[str, Any]) -> None:
    """One store of all shards; a chunk holds one shard's observations at a few times, about eight megabytes."""
    import zarr

    first, last = (open_data(file) for file in (files[0], files[-1]))
    shape = (len(first) * (len(files) - 1) + len(last), *first.states.shape[1:])
    frame = first.states[:, 0].numel() * first.states.element_size()
    chunks = (len(first), max(1, min(shape[1], 2**23 // frame)), *shape[2:])
    with replacing(store) as partial:
        group = zarr.open_group(partial, mode="w", attributes={"settings": settings})
        states = group.create_array("states", shape=shape, chunks=chunks, dtype=first.states.numpy().dtype)
        group.create_array("times", data=first.times.numpy())
        for index, file in enumerate(files):
            part = open_data(file).states.numpy()
            states[index * len(first) : index * len(first) + len(part)] = part


def _attributes(store: Path) -> dict[str, Any]:
    import zarr

    attributes: dict[str, Any] = dict(zarr.open_group(store, mode="r").attrs)
    return attributes.get("settings", {})


def _compare(place: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with data of another kind."""
    for name in sorted({*then, *now}):
        before, after = str(then.get(name)), str(now.get(name))
        if before != after:
            same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
            start = max(same - 20, 0)  # a long text is shown where it differs
            raise ValueError(
                f"{place} holds paths of another run: {name} was {before[start : start + 60]}, now it is "
                f"{after[start : start + 60]}. Choose another name, or remove it first."
            )


# -- the published navier–stokes files of pfi ------------------------------------------------------------------------


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

    Of paths that are the same to the bit one is used: the same path on both sides would invalidate the split. The
    values are those of the files; `scale`, the root mean square over the training paths, is what to divide by. The
    record is also in record.json. The folder appears only when all is written.
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
