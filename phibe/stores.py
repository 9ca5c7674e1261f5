"""Stores: trajectories larger than memory, kept in Zarr (chunks, compressed) and trained from a memory map of a copy.

Training reads single transitions at random, which a chunked store answers slowly and a memory map at once. The copy is
written piece by piece, is valid (checked once) and complete, or is not there.
Read next: training/sampling (how batches are drawn from such a map without reading all of it).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phibe.files import beside, open_dataset
from phibe.trajectories import Labels, Trajectories


def map_store(store: Path, cache: str | Path | None = None) -> Trajectories:
    """The trajectories of a .zarr as a memory map of a copy that random access can read.

    The copy is made once, in `cache` (by default a folder beside the store), a few megabytes at a time, and made again
    when the store has changed. A store is one of `save_data`, or of xarray with one array (path, time, …).
    """
    folder = Path(cache or store.with_suffix(".cache")) / _stamp(store)
    if not folder.exists():
        _copy(store, folder)
    # "r+", not a copy-on-write map: kernels refuse such a map of a file larger than memory
    states = torch.from_numpy(np.load(folder / "states.npy", mmap_mode="r+"))
    times = torch.from_numpy(np.load(folder / "times.npy"))
    ends = folder / "lengths.npy"
    lengths = torch.from_numpy(np.load(ends)) if ends.exists() else None
    labels = Labels.read(json.loads((folder / "labels.json").read_text("utf8")))
    return Trajectories.__new__(Trajectories)._set(states, times, lengths, labels)  # valid: checked when it was copied


def _copy(store: Path, folder: Path) -> None:
    """Copy the store's arrays into `folder`, which appears only when they are complete and valid."""
    states, times, lengths, labels = _arrays(store)
    new = not folder.parent.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        room = shutil.disk_usage(folder.parent).free
        if states.dtype.itemsize * math.prod(states.shape) > room:
            left = f"there are {room / 2**30:.3g} GB left for a copy"
            raise ValueError(f"{store} holds states {states.shape}, and {left}.")
        with beside(folder) as temporary:
            partial = temporary / folder.name
            partial.mkdir()
            _write(states, times, lengths, partial=partial)
            (partial / "labels.json").write_text(json.dumps(labels), "utf8")
            _take_place(partial, folder)
    except BaseException:
        if new:
            folder.parent.rmdir()
        raise


def _write(states: Any, times: Any, lengths: Any, *, partial: Path) -> None:
    dtype = states.dtype if states.dtype in (np.float32, np.float64) else np.float64
    kept = np.lib.format.open_memmap(partial / "states.npy", mode="w+", dtype=dtype, shape=states.shape)
    for region in _regions(states):
        kept[region] = np.asarray(states[region])
    checked = Trajectories(kept, times, lengths)
    np.save(partial / "times.npy", checked.times.numpy())
    if checked.lengths is not None:
        np.save(partial / "lengths.npy", checked.lengths.numpy())
    kept.flush()


def _take_place(partial: Path, folder: Path) -> None:
    """Give the copy its name; when another process was faster, its copy stays. Copies of an older store go."""
    try:
        os.rename(partial, folder)
    except OSError:
        if not folder.exists():
            raise
    for other in folder.parent.iterdir():
        if other != folder and re.fullmatch(r"[0-9a-f]{16}", other.name) and (other / "labels.json").exists():
            shutil.rmtree(other, ignore_errors=True)


def _arrays(store: Path) -> tuple[Any, Any, Any, list[str]]:
    """States (to be read piece by piece), times, lengths and labels of a store, of `save_data` or of xarray."""
    import zarr

    try:
        group = zarr.open_group(store, mode="r")
        names = sorted(group.array_keys())
        if {"states", "times"} <= set(names):
            lengths = np.asarray(group["lengths"]) if "lengths" in names else None
            labels: Any = group.attrs.get("labels") or ()
            return group["states"], np.asarray(group["times"]), lengths, [str(label) for label in labels]
    except Exception as error:
        raise ValueError(f"{store} is not a readable .zarr file: {error}") from error
    try:
        arrays = open_dataset(store).values()
    except (KeyError, ValueError, TypeError):  # arrays without names for their dimensions
        arrays = ()
    found = [array for array in arrays if array.dims[:2] == ("path", "time") and "time" in array.coords]
    if len(found) != 1:
        needed = "`states` and `times`, or one array with dimensions ('path', 'time', …) and a `time` coordinate"
        raise ValueError(f"{store} must hold {needed}; it holds {', '.join(names) or 'nothing'}.")
    return found[0], np.asarray(found[0].coords["time"]), None, []


def _regions(array: Any, megabytes: int = 32) -> Iterator[tuple[slice, slice]]:
    """Pieces of (path, time), whole chunks of the store each, of about that size."""
    (paths, steps), chunks = array.shape[:2], array.chunks or array.encoding["chunks"]
    most = megabytes * 2**20 // (array.dtype.itemsize * math.prod(array.shape[2:]))  # observations
    stride = min(steps, chunks[1] * max(1, most // chunks[1]))
    block = min(paths, chunks[0] * max(1, most // (stride * chunks[0])))
    for i, j in product(range(0, paths, block), range(0, steps, stride)):
        yield slice(i, min(i + block, paths)), slice(j, min(j + stride, steps))


def _stamp(store: Path) -> str:
    """A name for the store's present content: the names, sizes and times of its files."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    facts = [(str(path.relative_to(store)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
