"""Files that are either whole or not there, and folders that belong to one process while it writes them.

`replacing` writes a file beside its place and renames it; `writing` marks a folder as ours and locks it. Arrays are
kept without pickles. Next: `phibe.trajectories`.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

KINDS = (".npz", ".npy", ".nc", ".zarr")
STORE = "phibe"
"""Attribute of a .zarr written here, which may be replaced."""

# -- files that are either whole or not there ------------------------------------------------------------------------


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it is flushed to disk and takes the place of `path`.

    A file replaces a file; a folder replaces an empty one or a store of `write_arrays`; nothing else is replaced.
    """
    path = Path(path)
    check_target(path, folder=path.is_dir())
    with beside(path) as temporary:
        partial = temporary / path.name
        yield partial
        for part in (*partial.rglob("*"), partial):
            _flush(part)
        check_target(path, folder=partial.is_dir())
        _take_place(partial, path)
    _flush(path.parent)


def check_target(path: str | Path, *, folder: bool = False) -> None:
    """Refuse a path at which something is that must not be replaced by a file, or by a `folder`."""
    path = Path(path)
    if path.exists() and not (path.is_dir() if folder else path.is_file()):
        kind = "folder" if folder else "file"
        raise ValueError(f"{path} is no {kind}, and one is to be written. Choose another name.")
    if folder and _strangers(path) and not _is_store(path):
        raise ValueError(f"{path} holds files that phibe did not write, and stays. Choose another name, or remove it.")


def _is_store(folder: Path) -> bool:
    """Whether `write_arrays` wrote this .zarr, and nobody put anything else into it."""
    attributes = read_object(folder / "zarr.json").get("attributes") or {}
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(folder).as_posix() for path in files)
    return STORE in attributes and all(re.fullmatch(r"([^/]+/)?zarr\.json|[^/]+/c(/\d+)*", name) for name in names)


def read_object(path: Path) -> dict[str, Any]:
    """What a file of JSON says, or nothing if it is none."""
    try:
        found = json.loads(path.read_text("utf8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _take_place(new: Path, path: Path) -> None:
    """Rename; a folder cannot be renamed over, so an old one steps aside and comes back if that fails."""
    old = new.with_name(OLD + new.name)
    if path.is_dir():
        os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        if old.exists():
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


# -- temporary folders -------------------------------------------------------------------------------------------------

OLD = "replaced "
"""Begins the name of what steps aside for a new folder."""
HOST, TOKEN = re.sub(r"[^\w.-]", "-", platform.node())[:30], secrets.token_hex(4)
TEMPORARY = re.compile(r"\..*\.(\d+)-([0-9a-f]{8})@([\w.-]*)\.\w{8}\.part")
"""Name of a temporary folder: what it is for, process number, token of the process, machine, and random letters."""


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, removed in the end; those that killed processes left there go first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    prefix = f".{path.name[:40]}.{os.getpid()}-{TOKEN}@{HOST}."
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix, suffix=".part") as name:
        yield Path(name)


def sweep(folder: Path) -> None:
    """Remove the temporary folders of killed processes; what one of them was just replacing comes back."""
    for left in folder.glob(".*.part"):
        if (found := TEMPORARY.fullmatch(left.name)) and not _lives(int(found[1]), *found.groups()[1:]):
            with suppress(OSError):  # another process may be removing it too
                for new in list(left.iterdir()):
                    if (old := left / (OLD + new.name)).exists() and not (folder / new.name).exists():
                        os.replace(old, folder / new.name)
                shutil.rmtree(left)


def _lives(number: int, token: str, host: str) -> bool:
    """Whether a process may still be there: on another machine nobody can say."""
    if host != HOST or number == os.getpid():
        return host != HOST or token == TOKEN
    try:
        os.kill(number, 0)
    except OSError as error:  # PermissionError: it is there, and somebody else's
        return not isinstance(error, ProcessLookupError)
    return True


# -- folders of one kind, written by one process at a time -------------------------------------------------------------

MARK = ".phibe"
"""File in a folder of ours: a line with its kind and, while it is written, one with who does; it is also the lock."""


@contextmanager
def writing(folder: str | Path, kind: str, *, keys: Iterable[str] = ()) -> Iterator[None]:
    """Mark the folder as one of this kind, and keep every other process out until the end.

    The lock is the kernel's, on the mark: it goes with the process, however that ends. Further see `check_folder`.
    """
    folder = Path(folder)
    check_folder(folder, kind, keys=keys)
    folder.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(folder / MARK, os.O_RDWR | os.O_CREAT, 0o644)) as mark:
        if not lock(mark.fileno(), folder):
            raise ValueError(f"{folder} is being written by {_writer(folder)}. Wait for it, or choose another folder.")
        check_folder(folder, kind, keys=keys)  # again: another process may just have ended
        _sign(mark.fileno(), f"{kind}\nprocess {os.getpid()} on {HOST}\n")
        try:
            yield
        finally:
            _sign(mark.fileno(), f"{kind}\n")


def check_folder(folder: str | Path, kind: str, *, keys: Iterable[str] = ()) -> None:
    """Refuse a folder that is neither new nor empty nor marked as one of this kind.

    Folders of earlier versions have no mark: they are known by a config.json that has all these `keys`.
    """
    folder, keys = Path(folder), set(keys)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is no folder, and one is to be written. Choose another name.")
    found, strangers = _mark(folder)[0], _strangers(folder)
    if not strangers or found == kind or (not found and keys and keys <= read_object(folder / "config.json").keys()):
        return
    what = found or f"files that phibe did not write there ({', '.join(strangers[:3])}{' …' if strangers[3:] else ''})"
    raise ValueError(f"{folder} must be new, empty or hold {kind}; it holds {what}. Choose another folder.")


def _strangers(folder: Path) -> list[str]:
    """What is in a folder beside its mark and temporary folders."""
    names = sorted(os.listdir(folder)) if folder.exists() else []
    return [name for name in names if name != MARK and not TEMPORARY.fullmatch(name)]


def _mark(folder: Path) -> tuple[str, str]:
    """Kind of the folder and who writes it, each empty if it is not said."""
    mark = folder / MARK
    kind, writer, *_ = [*(mark.read_text("utf8", "replace").splitlines() if mark.is_file() else []), "", ""]
    return kind, writer


def _sign(mark: int, text: str) -> None:
    """Write over the old text at once: nobody ever reads an empty mark."""
    os.ftruncate(mark, os.pwrite(mark, text.encode(), 0))


def _writer(folder: Path) -> str:
    """Who has the lock; who just got it may not yet have signed."""
    for _ in range(20):
        if writer := _mark(folder)[1]:
            return writer
        time.sleep(0.05)
    return "another process"


def lock(handle: int, path: Path) -> bool:
    """Lock an open file until it is closed; False if another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warnings.warn(f"{path} cannot be locked ({error}). Let no other process write there.", stacklevel=4)
    return True


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

            group = zarr.open_group(partial, mode="w", attributes={STORE: True})
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
    names = array.dtype.names
    return {name: np.array(array[name]) for name in names} if names else {"states": array}


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


READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]]
READERS = dict(zip(KINDS, (read_npz, _read_npy, _read_netcdf, _read_zarr), strict=True))


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
        full = f"it holds {size / 2**30:.3g} GB of numbers, and this machine has {memory / 2**30:.3g} GB of memory"
        raise ValueError(f"{full}. A .zarr of arrays `states` and `times` is read piece by piece.")


def _known(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in KINDS:
        raise ValueError(f"Arrays are kept as .npz, .npy, .nc or .zarr, tables as .csv; got {path.name!r}.")
    return path
