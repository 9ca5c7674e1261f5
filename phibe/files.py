"""Files that are either whole or not there: atomic writes, and named arrays in .npz or .zarr without pickles."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it is flushed to disk and takes the place of `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder) / path.name
        yield partial
        for part in (*partial.rglob("*"), partial):
            _flush(part)
        _take_place(partial, path)
    _flush(path.parent)


def _take_place(new: Path, path: Path) -> None:
    """Rename; a folder cannot be renamed over, so an old one steps aside and comes back if that fails."""
    old = new.with_name("old") if path.is_dir() else None
    if old:
        os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        if old:
            os.replace(old, path)
        raise


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: str | Path, content: Any) -> Path:
    """Write JSON atomically; NaN and Inf are refused, since no other reader would take them back."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
    return Path(path)


def write_arrays(path: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write named arrays to `.npz` or `.zarr`, atomically."""
    path = _known(path)
    with replacing(path) as partial:
        if path.suffix == ".npz":
            np.savez(partial, **arrays)  # type: ignore[arg-type]
        else:
            import zarr

            group = zarr.open_group(partial, mode="w")
            for name, array in arrays.items():
                group.create_array(name, data=array)
    return path


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Named arrays of a `.npz` or `.zarr`; never unpickles."""
    path = _known(path)
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    try:
        if path.suffix == ".npz":
            if not zipfile.is_zipfile(path):
                raise ValueError("it is no zip archive; cut short, or a file of another kind?")
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        import zarr

        return {name: np.asarray(array) for name, array in zarr.open_group(path, mode="r").arrays()}
    except Exception as error:
        raise ValueError(f"{path} is not a readable {path.suffix} file: {error}") from error


def copy(source: str | Path, target: str | Path) -> None:
    with replacing(target) as partial:
        shutil.copyfile(source, partial)


def _known(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in (".npz", ".zarr"):
        raise ValueError(f"Arrays are kept as .npz or .zarr; got {path.name!r}. Choose one of the two endings.")
    return path
