"""Shards: many paths of a system, simulated a few at a time into one Zarr store; a run that was stopped goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tqdm.auto import tqdm

from phibe.files import replacing, write_json
from phibe.trajectories import Trajectories


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

    Every shard has random numbers of its own, from `seed` and its number, and is kept as a whole file in a folder
    beside the store until all are there: a run that was stopped goes on with the next one and ends with the same bits.
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
    if (parts / "settings.json").exists():
        _compare(parts, json.loads((parts / "settings.json").read_text("utf8")), settings)
    else:
        write_json(parts / "settings.json", settings)
    files = [parts / f"{index:05d}.npz" for index in range(-(-paths // shard))]
    for index, file in enumerate(tqdm(files, desc=store.name, unit="shard", disable=not progress)):
        if not file.exists():
            count = min(shard, paths - index * shard)
            system.simulate(paths=count, times=times, seed=_seed(seed, index), **options).save(file)
    _join(files, store, settings)
    shutil.rmtree(parts)
    return store


def _seed(seed: int, index: int) -> int:
    """A seed for each shard, independent of how many there are."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _join(files: list[Path], store: Path, settings: dict[str, Any]) -> None:
    """One store of all shards; a chunk holds one shard's observations at a few times, about eight megabytes."""
    import zarr

    first, last = (Trajectories.open(file) for file in (files[0], files[-1]))
    shape = (len(first) * (len(files) - 1) + len(last), *first.states.shape[1:])
    frame = first.states[:, 0].numel() * first.states.element_size()
    chunks = (len(first), max(1, min(shape[1], 2**23 // frame)), *shape[2:])
    with replacing(store) as partial:
        group = zarr.open_group(partial, mode="w", attributes={"settings": settings})
        states = group.create_array("states", shape=shape, chunks=chunks, dtype=first.states.numpy().dtype)
        group.create_array("times", data=first.times.numpy())
        for index, file in enumerate(files):
            part = Trajectories.open(file).states.numpy()
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
