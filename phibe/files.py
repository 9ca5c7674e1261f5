"""Files that are either whole or not there: atomic writes, and named arrays in .npz, .npy, .nc or .zarr, no pickles."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

KINDS = (".npz", ".npy", ".nc", ".zarr")


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


def copy(source: str | Path, target: str | Path) -> None:
    with replacing(target) as partial:
        shutil.copyfile(source, partial)


# -- named arrays ------------------------------------------------------------------------------------------------------


def write_arrays(path: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write named arrays to `.npz`, `.nc` or `.zarr`, or those named `states` alone to `.npy`, atomically."""
    path = _known(path)
    with replacing(path) as partial:
        if path.suffix == ".npz":
            np.savez(partial, **arrays)  # type: ignore[arg-type]
        elif path.suffix == ".npy":
            np.save(partial, arrays["states"])
        elif path.suffix == ".nc":
            _dataset(arrays).to_netcdf(partial, engine="h5netcdf")
        else:
            import zarr

            group = zarr.open_group(partial, mode="w")
            for name, array in arrays.items():
                if array.dtype.kind == "U":  # text is an attribute: arrays of it have no standard form
                    group.attrs[name] = array.tolist()
                else:
                    group.create_array(name, data=array)
    return path


def _dataset(arrays: dict[str, np.ndarray]) -> Any:
    """The arrays as a dataset of xarray: dimensions path, time, and those of the state; text as attributes."""
    import xarray

    states = [f"axis{i}" for i in range(arrays["states"].ndim - 2)] if "states" in arrays else []
    dims = {"times": ["path", "time"][-arrays["times"].ndim :]} if "times" in arrays else {}
    text = {name: array.tolist() for name, array in arrays.items() if array.dtype.kind == "U"}
    numbers = {name: array for name, array in arrays.items() if name not in text}
    named = {n: (dims.get(n, ["path", "time", *states][: a.ndim]), a) for n, a in numbers.items()}
    return xarray.Dataset(named, attrs=text)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Named arrays of a file (of a .npy one, `states`); never unpickles, and refuses what memory could not hold."""
    path = _known(path)
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    try:
        return READERS[path.suffix](path)
    except Exception as error:
        raise ValueError(f"{path} is not a readable {path.suffix} file: {error}") from error


def read_npz(file: Path | BinaryIO, *, most: int | None = None) -> dict[str, np.ndarray]:
    """Named arrays of an archive, of `most` bytes at most when unpacked, or of what memory could hold."""
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no zip archive; cut short, or a file of another kind?")
    with zipfile.ZipFile(file) as archive:
        refuse_size(sum(part.file_size for part in archive.infolist()), most)
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    """A map, so that a header which promises more than the file holds is refused, and nothing is read before use."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.names:
        return {name: np.array(array[name]) for name in array.dtype.names}
    return {"states": array}


def _read_netcdf(path: Path) -> dict[str, np.ndarray]:
    with open_dataset(path) as dataset:
        refuse_size(dataset.nbytes)
        text = {name: np.array(value) for name, value in dataset.attrs.items() if name == "labels"}
        return {str(name): np.asarray(variable) for name, variable in dataset.variables.items()} | text


def _read_zarr(path: Path) -> dict[str, np.ndarray]:
    import zarr

    group = zarr.open_group(path, mode="r")
    refuse_size(sum(array.nbytes for _, array in group.arrays()))
    text = {name: np.array(value) for name, value in group.attrs.items() if name == "labels"}
    return {name: np.asarray(array) for name, array in group.arrays()} | text


READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    **{".npz": read_npz, ".npy": _read_npy},
    **{".nc": _read_netcdf, ".zarr": _read_zarr},
}


def open_dataset(path: Path) -> Any:
    """A dataset of xarray, not yet read; times stay the numbers that they are in the file."""
    import xarray

    if path.suffix == ".zarr":
        return xarray.open_zarr(path, chunks=None, consolidated=False, decode_times=False)
    with path.open("rb") as file:
        engine = "scipy" if file.read(3) == b"CDF" else "h5netcdf"
    return xarray.open_dataset(path, engine=engine, decode_times=False)


def refuse_size(size: int, most: int | None = None) -> None:
    """Stop before reading what would not fit: a large store belongs into a .zarr, a small file may lie or expand."""
    if most is not None and size > most:
        raise ValueError(f"it holds {size / 2**20:.0f} MB of numbers; at most {most / 2**20:.0f} are allowed.")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory // 2:
        raise ValueError(
            f"it holds {size / 2**30:.3g} GB of numbers, and this machine has {memory / 2**30:.3g} GB of memory. Keep "
            "larger data in a .zarr of arrays `states` and `times`, which is read piece by piece."
        )


def _known(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in KINDS:
        raise ValueError(
            f"Arrays are kept as .npz, .npy, .nc or .zarr, tables as .csv; got {path.name!r}. Choose one of these."
        )
    return path
