"""Files that are either whole or not there: atomic writes, and named arrays in .npz, .npy, .nc or .zarr, no pickles."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import numpy as np
from tqdm.auto import tqdm

# -- files that are either whole or not there ------------------------------------------------------------------------


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
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        partial.write_text(text, "utf8", "surrogateescape")  # names of files are what they were, whatever the locale
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


# -- downloads -------------------------------------------------------------------------------------------------------


HASHES = "hashes.json"
"""In the folder of the files: size, SHA-256 and address of each."""
BLOCK = 2**20


def fetch(url: str, folder: str | Path, *, sha256: str | None = None, progress: bool = True) -> Path:
    """The file at `url` in `folder`, downloaded unless it is there, with the hash that it must have.

    Without `sha256` the hash of the first download is taken on trust, remembered in hashes.json, and checked from then
    on. A download that was cut off goes on where it ended, if the server has still the same file.
    """
    folder, name = Path(folder), _name(url)
    known = _hashes(folder).get(name, {})
    wanted = (sha256 or known.get("sha256", "")).lower()
    target, partial = folder / name, folder / f".{name}.part"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _download(url, partial, progress)
        _check(partial, wanted, url)
        os.replace(partial, target)
        _tag(partial).unlink(missing_ok=True)
    found = _check(target, wanted, url)
    write_json(folder / HASHES, _hashes(folder) | {name: {"size": target.stat().st_size, "sha256": found, "url": url}})
    return target


def sha256_of(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(url: str) -> str:
    parts = urlsplit(url)
    name = unquote(parts.path).rpartition("/")[2]
    if parts.scheme not in ("http", "https") or not parts.netloc or name in ("", ".", ".."):
        raise ValueError(f"An address must be http(s)://…/file; got {url!r}.")
    return name


def _hashes(folder: Path) -> dict[str, Any]:
    file = folder / HASHES
    return json.loads(file.read_text("utf8")) if file.exists() else {}


def _check(file: Path, wanted: str, url: str) -> str:
    """The file's hash, which must be the wanted one, if one is; a wrong partial file is removed."""
    found = sha256_of(file)
    if wanted and found != wanted:
        if file.name.endswith(".part"):
            file.unlink()
            _tag(file).unlink(missing_ok=True)
        raise ValueError(
            f"{file} must have SHA-256 {wanted}; it has {found}. Either {url} serves another file now, or it was "
            f"changed on the way. Remove it and its entry in {HASHES} only if you trust the new one."
        )
    return found


def _tag(partial: Path) -> Path:
    """Where the server's name for the version of the file is kept, to go on with the same one."""
    return partial.with_name(f"{partial.name}.tag")


def _download(url: str, partial: Path, progress: bool) -> None:
    """Bring `partial` to its full length, from where it ends."""
    tag = _tag(partial).read_text("utf8") if _tag(partial).exists() else ""
    begun = partial.stat().st_size if partial.exists() and tag else 0
    headers = {"Range": f"bytes={begun}-", "If-Range": tag} if begun else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as reply:
            begun = begun if reply.status == 206 else 0  # 200: all of it, from the beginning
            _tag(partial).write_text(reply.headers.get("ETag") or reply.headers.get("Last-Modified") or "", "utf8")
            length = reply.headers.get("Content-Length")
            total = begun + int(length) if length else None
            with (
                partial.open("ab" if begun else "wb") as file,
                tqdm(
                    total=total, initial=begun, unit="B", unit_scale=True, desc=_name(url), disable=not progress
                ) as bar,
            ):
                while block := reply.read(BLOCK):
                    bar.update(file.write(block))
    except urllib.error.HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{begun}":
            return  # nothing is missing
        raise ValueError(f"{url} cannot be had: the server says {error.code} {error.reason}.") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{url} could not be read to its end ({reason}). No network? Run the same command again to go on, or bring "
            f"the file yourself: {partial.parent / _name(url)}."
        ) from None
    if total is not None and partial.stat().st_size != total:
        raise ValueError(
            f"{url} ended after {partial.stat().st_size} of {total} bytes. Run the same command again to go on."
        )
