"""Tables: trajectories as rows of (path, time, coordinates), read from and written to .csv."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from phibe.files import KINDS, open_dataset, read_arrays, refuse_size, replacing, write_arrays
from phibe.stores import map_store
from phibe.trajectories import Label, Labels, Trajectories

# -- tables ----------------------------------------------------------------------------------------------------------


DELIMITERS = (",", ";", "\t")
PATHS = ("path", "trajectory", "traj", "track", "run", "series", "id", "path_id", "trajectory_id", "track_id", "run_id")
TIMES = ("t", "time", "times", "date", "datetime", "timestamp")
MISSING = ("", "na", "n/a", "nan", "null", "none", "-")


class Table(NamedTuple):
    """Columns of text or numbers by their header, and for each row what to call it in a message, e.g. `line 7`."""

    columns: dict[str, Any]
    rows: Sequence[int]
    row: str = "line"

    def where(self, index: int) -> str:
        return f"{self.row} {self.rows[index]}"


# -- from a file -------------------------------------------------------------------------------------------------------


def read_csv(path: Path) -> Table:
    """The columns of a text file whose first line names them, separated by commas, semicolons or tabs."""
    text = _text(path)
    header = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(DELIMITERS, key=header.count)
    if delimiter not in header:
        raise ValueError(
            f"{path}: the first line, {header[:40]!r}, is one column. A table needs a time and a coordinate at least, "
            "separated by commas, semicolons or tabs."
        )
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        numbered = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num} cannot be read: {error}.") from error
    names = _header(numbered[0][1], path)
    for line, row in numbered[1:]:
        if len(row) != len(names):
            raise ValueError(
                f"{path}: line {line} has {len(row)} values and the header {len(names)} names. A comma inside a "
                "number, a line cut short, or another delimiter?"
            )
    if len(numbered) < 2:
        raise ValueError(f"{path} has a header and no rows.")
    cells: dict[str, Sequence[str]] = dict(zip(names, zip(*(row for _, row in numbered[1:]), strict=True), strict=True))
    if delimiter == ";":
        cells = {name: _points(column) for name, column in cells.items()}
    return Table({name: column for name, column in cells.items() if name}, [line for line, _ in numbered[1:]])


def _text(path: Path) -> str:
    refuse_size(8 * path.stat().st_size)  # cells take about so much more room than their text
    content = path.read_bytes()
    if not content.strip():
        raise ValueError(f"{path} is empty.")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{path} is text in UTF-16. Save it as UTF-8.")
    if b"\0" in content:
        raise ValueError(f"{path} is no text: byte {content.index(bytes(1))} is zero. Is it of another kind than .csv?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: byte {error.start} is {content[error.start]:#x}.") from error


def _header(names: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in names]
    if all(_is_number(name) for name in names):
        raise ValueError(
            f"{path}: the first line must name the columns, e.g. `path,time,x [m]`; it holds numbers: "
            f"{', '.join(names[:4])}."
        )
    if twice := {name for name in names if name and names.count(name) > 1}:
        raise ValueError(f"{path}: two columns are called {sorted(twice)[0]!r}.")
    return names


def _points(column: Sequence[str]) -> Sequence[str]:
    """Decimal commas made points, in a column that has no points."""
    if not any("," in cell for cell in column) or any("." in cell for cell in column):
        return column
    return [cell.replace(",", ".") for cell in column]


# -- from columns ------------------------------------------------------------------------------------------------------


def table_arrays(
    table: Table, *, path: str | None, time: str | None, columns: Sequence[str], file: Path
) -> dict[str, np.ndarray]:
    """`states`, `times`, `lengths` and `labels` of a table; rows of one path must come in the order of time."""
    paths, times, chosen = _roles(table, path, time, columns, file)
    t = numbers(table, times, file)
    if np.isnan(t).any():
        raise ValueError(f"{file}: {table.where(int(np.isnan(t).argmax()))} has no time in column {times!r}.")
    states = np.stack([numbers(table, name, file) for name in chosen], axis=1)
    group = _groups(table, paths, len(t), file)
    order = np.argsort(group, kind="stable")
    _check_order(t[order], group[order], order, table=table, paths=paths, file=file)
    labels = [_time_label(table, times), *(str(Label.parse(name)) for name in chosen)]
    return padded(states[order], t[order], np.bincount(group)) | {"labels": np.array(labels)}


def _roles(
    table: Table, path: str | None, time: str | None, columns: Sequence[str], file: Path
) -> tuple[str | None, str, list[str]]:
    """Names of the path column (None: one path), of the time and of the coordinates."""
    plain = {Label.parse(name).name.lower(): name for name in table.columns} | {name: name for name in table.columns}
    for name in (*([path] if path else []), *([time] if time else []), *columns):
        if name not in plain and name.lower() not in plain:
            raise ValueError(f"{file} has no column {name!r}; it has {', '.join(map(repr, table.columns))}.")

    def find(asked: str | None, known: Iterable[str]) -> str | None:
        if asked:
            return plain.get(asked) or plain[asked.lower()]
        return next((plain[name] for name in known if name in plain), None)

    paths, times = find(path, PATHS), find(time, TIMES)
    if times is None:
        raise ValueError(
            f"{file} has no column of times; it has {', '.join(map(repr, table.columns))}. Call it `time`, or name it "
            "with --time-column."
        )
    chosen = [str(find(name, ())) for name in columns] or [n for n in table.columns if n not in (paths, times)]
    if not chosen:
        raise ValueError(f"{file} has a time and no coordinate: {', '.join(map(repr, table.columns))}.")
    return paths, times, chosen


def numbers(table: Table, name: str, file: Path) -> np.ndarray:
    """A column as float64, NaN where a cell is empty or says NA; dates in days since the first of them."""
    cells = table.columns[name]
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind not in "fiub":
            raise ValueError(f"{file}: column {name!r} holds {cells.dtype}, and numbers are needed.")
        return cells.astype(np.float64)
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        known = ["nan" if cell.strip().lower() in MISSING else cell for cell in cells]
    try:
        return np.array(known, dtype=np.float64)
    except ValueError:
        if _dated(cells):
            return _days(cells)
        bad = next(i for i, cell in enumerate(known) if not _is_number(cell))
        raise ValueError(
            f"{file}: {table.where(bad)} has {cells[bad][:40]!r} in column {name!r}, and a number is needed. Text that "
            "is no coordinate? Choose the others with --columns."
        ) from None


def _dated(cells: Sequence[str]) -> bool:
    return bool(re.match(r"\d{4}-\d\d-\d\d", cells[0].strip()))


def _days(cells: Sequence[str]) -> np.ndarray:
    try:
        dates = np.array([cell.strip() for cell in cells], dtype="datetime64[ms]")
    except ValueError as error:
        raise ValueError(f"a date that cannot be read: {error}") from error
    return (dates - dates.min()) / np.timedelta64(1, "D")


def _time_label(table: Table, name: str) -> str:
    cells = table.columns[name]
    label = Label.parse(name)
    dated = not isinstance(cells, np.ndarray) and _dated(cells)
    return str(Label(label.name, "d")) if dated else str(label)


def _groups(table: Table, paths: str | None, count: int, file: Path) -> np.ndarray:
    """For each row the number of its path, in the order in which they first appear."""
    if paths is None:
        return np.zeros(count, dtype=np.int64)
    cells = np.asarray(table.columns[paths])
    if cells.dtype.kind == "U" and (empty := np.char.strip(cells) == "").any():
        raise ValueError(f"{file}: {table.where(int(empty.argmax()))} belongs to no path: {paths!r} is empty.")
    _, first, group = np.unique(cells, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group]


def _check_order(
    t: np.ndarray, group: np.ndarray, order: np.ndarray, *, table: Table, paths: str | None, file: Path
) -> None:
    bad = (np.diff(group) == 0) & ~(np.diff(t) > 0)
    if bad.any():
        i = int(bad.argmax())
        who = "" if paths is None else f" of path {table.columns[paths][order[i]]}"
        fix = "Several paths? Add a column `path`." if paths is None else "Sort the rows and drop repeated times."
        raise ValueError(
            f"{file}: the time{who} must increase; it goes from {t[i]:g} ({table.where(order[i])}) to {t[i + 1]:g} "
            f"({table.where(order[i + 1])}). {fix}"
        )


def padded(states: np.ndarray, t: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Paths that follow one another in rows, (row, *state) and (row,), as `states` (path, time, *state) and `times`.

    Shorter ones repeat their last state, and then there are `lengths`. Times that all paths share are kept once.
    """
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    column = np.arange(lengths.max())
    index = starts[:, None] + np.minimum(column, lengths[:, None] - 1)
    inside, times = column < lengths[:, None], t[index]
    grid = times[lengths.argmax()]
    arrays = {"states": states[index], "times": grid if (times == grid)[inside].all() else times}
    return arrays if inside.all() else arrays | {"lengths": lengths}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- to a file ---------------------------------------------------------------------------------------------------------


def write_table(path: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    """Rows of path, time, coordinates and whatever else there is of each observation, with a header, to a .csv."""
    states, path = arrays["states"], Path(path)
    if states.ndim != 3:
        raise ValueError(f"A .csv holds states that are vectors; these are {states.shape[2:]}. Write a .npz or .zarr.")
    count, steps = states.shape[:2]
    lengths = arrays.get("lengths", np.full(count, steps))
    inside = np.arange(steps) < lengths[:, None]
    more = {n: a[inside] for n, a in arrays.items() if n not in ("states", "times", "lengths", "labels")}
    number = np.broadcast_to(np.arange(count)[:, None], (count, steps))[inside]
    columns = [number, np.broadcast_to(arrays["times"], (count, steps))[inside], *states[inside].T, *more.values()]
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *arrays["labels"].tolist(), *more])
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return path


# -- missing values --------------------------------------------------------------------------------------------------


CHOICES = ("error", "drop", "split")
GAP = 10
"""A step of so many median ones is a gap at which `split` cuts."""


def settle(arrays: dict[str, np.ndarray], choice: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays without missing values (NaN), and a sentence on what was done, empty if nothing was.

    `error` refuses them and names the first. `drop` leaves out every transition that touches one: what is before and
    after becomes a path each, and an observation alone between two of them is lost. `split` does so, and cuts where a
    path was not observed for ten median steps, too.
    """
    if choice not in CHOICES:
        raise ValueError(f"`missing` must be one of {', '.join(CHOICES)}; got {choice!r}.")
    states, shape = arrays["states"], np.shape(arrays["times"])
    if (
        states.dtype.kind != "f"
        or states.ndim < 3
        or not states.size
        or shape not in (states.shape[1:2], states.shape[:2])
    ):
        return arrays, ""  # nothing that can be missing, or no trajectories, which `Trajectories` will say
    inside = observed(arrays)
    bad = np.isnan(states.reshape(*states.shape[:2], -1)).any(axis=2) & inside
    if bad.any() and choice == "error":
        raise ValueError(_message(arrays, bad, int(inside.sum())))
    times = np.broadcast_to(arrays["times"], bad.shape)
    steps = np.diff(times, axis=1)
    joined = (inside & ~bad)[:, 1:] & (inside & ~bad)[:, :-1]  # is this observation one path with the next?
    gaps = joined & (steps > GAP * np.median(steps[inside[:, 1:]])) if choice == "split" else np.zeros_like(joined)
    if not bad.any() and not gaps.any():
        return arrays, ""
    return _pieces(arrays, times, joined & ~gaps, f"{bad.sum()} missing observations, {gaps.sum()} gaps in time")


def observed(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """(path, time): is there an observation, or padding?"""
    paths, steps = arrays["states"].shape[:2]
    return np.arange(steps) < np.asarray(arrays.get("lengths", np.full(paths, steps)))[:, None]


def _pieces(
    arrays: dict[str, np.ndarray], times: np.ndarray, joined: np.ndarray, why: str
) -> tuple[dict[str, np.ndarray], str]:
    """A path for each run of joined observations."""
    if not joined.any():
        raise ValueError(f"{why}: no two neighbouring observations are left. Is a whole column missing?")
    edge = np.diff(joined.astype(np.int8), axis=1, prepend=0, append=0)
    lengths = (edge == -1).nonzero()[1] - (edge == 1).nonzero()[1] + 1
    none = np.zeros((len(joined), 1), dtype=bool)
    kept = np.concatenate([joined, none], axis=1) | np.concatenate([none, joined], axis=1)
    made = padded(arrays["states"][kept], times[kept], lengths)
    note = f"{why}: {len(joined)} paths became {len(lengths)} with {int(joined.sum())} transitions"
    return {name: array for name, array in arrays.items() if name == "labels"} | made, note


def _message(arrays: dict[str, np.ndarray], bad: np.ndarray, total: int) -> str:
    path, index = (int(i) for i in np.argwhere(bad)[0])
    t = np.broadcast_to(arrays["times"], bad.shape)[path, index]
    return (
        f"{int(bad.sum())} of {total} observations have a missing value, the first in path {path} at time index "
        f"{index} (t = {t:g}). Choose what to do: --missing drop leaves out the transitions that touch one, --missing "
        "split cuts paths there and at gaps in time."
    )


# -- reading ---------------------------------------------------------------------------------------------------------


LARGEST = 1e150
"""Beyond it squares overflow."""


class Layout(NamedTuple):
    """How to read a file where its names do not say it: columns of a table, the step of an array without times.

    With `windows` long paths are cut into pieces of so many observations, each with times since its own beginning: for
    one long path of a process at rest.
    """

    path_column: str | None = None
    time_column: str | None = None
    columns: Sequence[str] = ()
    time_step: float | None = None
    windows: int | None = None


def open_data(
    path: str | Path, *, missing: str = "error", cache: str | Path | None = None, **layout: Any
) -> Trajectories:
    """Trajectories of a file: .csv, .npz, .npy and .nc into memory, .zarr as a memory map of a copy.

    A table has a column of times, one for the path if there are several, and the coordinates; `path_column`,
    `time_column` and `columns` name them where the header does not. An array without times needs a `time_step`; one
    long path is cut into `windows` of so many observations, with times since the beginning of each. `missing` says what
    to do with missing values: error, drop (transitions that touch one) or split (the path, there and at gaps in time).
    The copy of a .zarr is kept in `cache`, by default a folder beside the store.
    """
    path = Path(path)
    if path.suffix == ".zarr" and missing == "error" and not layout and path.is_dir():
        return map_store(path, cache)
    return read_data(path, Layout(**layout), missing=missing)[0]


def save_data(data: Trajectories, path: str | Path, **more: Tensor) -> Path:
    """Write to .npz, .zarr, .nc, .csv or (states alone) .npy; the name appears only once all of it is on disk.

    `more` are numbers that belong to the observations, (path, time) each, such as a log-density.
    """
    arrays = {"states": data.states, "times": data.times, **more}
    if data.lengths is not None:
        arrays["lengths"] = data.lengths
    named = {name: array.cpu().numpy() for name, array in arrays.items()}
    if data.labels != Labels() or Path(path).suffix == ".csv":
        labels = Labels(data.labels.time, tuple(data.labels.coordinates(data.state_shape[0])))
        named["labels"] = np.array(labels.texts())
    return write_table(path, named) if Path(path).suffix == ".csv" else write_arrays(path, named)


def from_arrays(arrays: dict[str, np.ndarray]) -> Trajectories:
    """From arrays named `states`, `times` and, if there are any, `lengths` and `labels`."""
    text = arrays.get("labels")
    labels = Labels.read(text) if text is not None and text.dtype.kind == "U" else None  # others mean other things
    return Trajectories(arrays["states"], arrays["times"], arrays.get("lengths"), labels=labels)


def read_data(path: str | Path, layout: Layout, *, missing: str = "error") -> tuple[Trajectories, str]:
    """Trajectories of a .csv, .npz, .npy, .nc or .zarr, and a sentence on missing values, if there were any."""
    path = Path(path)
    if path.suffix not in (".csv", *KINDS):
        raise ValueError(
            f"Trajectories are read from .csv, .npz, .npy, .nc or .zarr; got {path.name!r}. Rename or convert it?"
        )
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    if path.is_dir() != (path.suffix == ".zarr"):
        raise ValueError(f"{path} is a {'folder' if path.is_dir() else 'file'}, and no {path.suffix}.")
    arrays, note = settle(_arrays(path, layout), missing)
    _refuse_huge(arrays["states"], path)
    data = from_arrays(arrays)
    return data if layout.windows is None else windowed(data, layout.windows), note


def windowed(data: Trajectories, length: int) -> Trajectories:
    """Pieces of `length` observations, with times since the beginning of each."""
    pieces = data.cut(length)
    times = pieces._path_times()
    return pieces._with(pieces.states, times - times[:, :1], pieces.lengths)


def _arrays(path: Path, layout: Layout) -> dict[str, np.ndarray]:
    if path.suffix == ".csv":
        return _from_table(read_csv(path), path, layout)
    if path.suffix == ".nc":
        return from_dataset(_opened(path), path)
    return recognised(read_arrays(path), path, layout)


def _from_table(table: Table, path: Path, layout: Layout) -> dict[str, np.ndarray]:
    return table_arrays(table, path=layout.path_column, time=layout.time_column, columns=layout.columns, file=path)


def recognised(arrays: dict[str, np.ndarray], path: Path, layout: Layout) -> dict[str, np.ndarray]:
    """`states` and `times` among named arrays: by these names, as the only large one and a `t`, or as a table."""
    large = [name for name, array in arrays.items() if array.ndim >= 3]
    time = next((name for name in arrays if name.lower() in TIMES), None)
    states = "states" if "states" in arrays else large[0] if len(large) == 1 else None
    if states is None and time and {array.shape for array in arrays.values()} == {arrays[time].shape}:
        return _from_table(Table(dict(arrays), range(len(arrays[time])), "row"), path, layout)
    if states is None:
        raise ValueError(
            f"{path} must hold `states` (path, time, *state) and `times`, or columns of one length, `time` among them; "
            f"it holds {', '.join(f'{name} {array.shape}' for name, array in arrays.items()) or 'nothing'}."
        )
    found = {"states": arrays[states]} | {name: arrays[name] for name in ("lengths", "labels") if name in arrays}
    if time is None and layout.time_step is None:
        raise ValueError(
            f"{path} holds states {arrays[states].shape} and no times. Equal steps? Say how long: --time-step 0.1."
        )
    steps = arrays[states].shape[1] if arrays[states].ndim > 1 else 0
    return found | {"times": arrays[time] if time else (layout.time_step or 0.0) * np.arange(steps)}


def _refuse_huge(states: np.ndarray, path: Path) -> None:
    """Numbers whose squares are infinite would pass as finite here, and fail far from their origin."""
    if states.dtype.kind != "f" or not states.size:
        return
    low, high = float(np.nanmin(states)), float(np.nanmax(states))
    worst = low if -low > high else high
    if LARGEST < abs(worst) < np.inf:
        index = [int(i) for i in np.argwhere(states == states.dtype.type(worst))[0]]
        raise ValueError(
            f"{path} has {worst:g} in path {index[0]} at time index {index[1]}: too large to be squared. A code for a "
            "missing value? Write NaN, and choose --missing."
        )


# -- datasets of xarray ------------------------------------------------------------------------------------------------


def _opened(path: Path) -> Any:
    try:
        return open_dataset(path)
    except Exception as error:
        raise ValueError(f"{path} is not a readable {path.suffix} file: {error}") from error


def from_dataset(dataset: Any, path: Path) -> dict[str, np.ndarray]:
    """`states`, `times`, `labels` of variables over (path, time, …), or over (time,): one path.

    Several variables over (path, time) are the coordinates of one state, with their names and units.
    """
    with dataset:
        if {"states", "times"} <= set(dataset.variables):
            found = [dataset["states"]]
        else:
            found = [array for array in dataset.values() if array.dims[:2] == ("path", "time")]
            found = found or [array for array in dataset.values() if array.dims == ("time",)]
        times = "times" if "times" in dataset.variables else "time"
        if not found or times not in dataset.variables or (len(found) > 1 and found[0].ndim > 2):
            held = ", ".join(f"{name} {tuple(array.dims)}" for name, array in dataset.variables.items())
            raise ValueError(
                f"{path} must hold variables over ('path', 'time', …), or ('time',) for one path, and a `time`; it "
                f"holds {held or 'nothing'}. Rename its dimensions first."
            )
        refuse_size(sum(array.nbytes for array in found))
        return _stacked(dataset, found, times)


def _stacked(dataset: Any, found: list[Any], times: str) -> dict[str, np.ndarray]:
    parts = [np.asarray(array) for array in found]
    states = parts[0] if parts[0].ndim > 2 else np.stack(parts, axis=-1)
    states = states if states.ndim > 2 else states[None]
    labels = [_label(dataset.variables[times], times), *(_label(array, str(array.name)) for array in found)]
    arrays = {"states": states, "times": np.asarray(dataset.variables[times])}
    if "lengths" in dataset.variables:
        arrays["lengths"] = np.asarray(dataset.variables["lengths"])
    if "labels" in dataset.attrs:
        arrays["labels"] = np.array(dataset.attrs["labels"])
    elif parts[0].ndim <= 2:
        arrays["labels"] = np.array(labels)
    return arrays


def _label(array: Any, name: str) -> str:
    """Name and unit; `days since 1990-01-01` are days."""
    return str(Label(name, str(array.attrs.get("units", "")).partition(" since ")[0]))
