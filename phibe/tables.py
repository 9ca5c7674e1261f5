"""Tables: trajectories as rows of (path, time, coordinates), in .csv files and in named columns; pandas splits them.

Nothing is guessed, and errors name file, line and column: cells stay text until their column is known to be one of
numbers or dates, so that path 007 is not path 7. Read next: `phibe.io`, which opens files of every kind.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phibe.files import refuse_size, replacing
from phibe.trajectories import Label, Labels

PATHS = ("path", "trajectory", "traj", "track", "run", "series", "id", "path_id", "trajectory_id", "track_id", "run_id")
TIMES = ("t", "time", "times", "date", "datetime", "timestamp")
EMPTY = {"", "na", "n/a", "nan", "null", "none", "-"}


class Layout(NamedTuple):
    """How to read a file where its names do not say it: columns of a table, the step of an array without times.

    With `windows` long paths are cut into pieces of so many observations, each with times since its own beginning: for
    one long path of a stationary process.
    """

    path_column: str | None = None
    time_column: str | None = None
    columns: Sequence[str] = ()
    time_step: float | None = None
    windows: int | None = None


def write_csv(path: Path, arrays: dict[str, np.ndarray], more: Sequence[str] = ()) -> Path:
    """A row for each observation: path, time, coordinates and whatever `more` there is of it."""
    import pandas

    states = arrays["states"]
    if states.ndim != 3:
        raise ValueError(f"A .csv holds states that are vectors; these are {states.shape[2:]}. Write a .npz or .zarr.")
    inside = observed(arrays)
    times, extra = np.broadcast_to(arrays["times"], inside.shape)[inside], [arrays[name][inside] for name in more]
    numbers = [column.astype(np.float64) for column in (times, *states[inside].T, *extra)]  # every digit of a float32
    frame = pandas.DataFrame(dict(enumerate([inside.nonzero()[0], *numbers])))
    with replacing(path) as partial:
        frame.to_csv(partial, index=False, header=["path", *arrays["labels"].tolist(), *more])
    return path


class Table(NamedTuple):
    """Columns of numbers, or of text (dtype object), and what to call a row in a message, e.g. `line 7`."""

    columns: dict[str, np.ndarray]
    where: Callable[[int], str]


def read_csv(path: Path) -> Table:
    """The columns of a text file whose first line names them, separated by commas, semicolons or tabs.

    pandas splits it; where a row may be broken or blank, the careful reader of `_rows` finds its line, or has its way.
    """
    import pandas

    text = _text(path)
    stream = io.StringIO(text, newline="")
    header = next((line for line in stream if line.strip(" ,;\t\r\n")), "")
    delimiter = max(",;\t", key=header.count)
    names = _header(header, delimiter, path)
    known = {"sep": delimiter, "header": None, "names": range(len(names) + 1), "dtype": object, "na_filter": False}
    try:
        frame = pandas.read_csv(stream, **known)
        last, beyond = frame[len(names) - 1], frame[len(names)]
        short = bool((last.str.strip() == "").any())  # or empty, or a row of blanks
        doubtful = short or bool((beyond != "").any()) or not isinstance(frame.index, pandas.RangeIndex)
    except ValueError:  # an open quote, or more values than names
        doubtful, frame = True, pandas.DataFrame()
    if doubtful or '"' in text:
        count = sum(1 for _ in _rows(text, delimiter, path))
        if count != len(frame):
            frame = pandas.DataFrame([row for _, row in _rows(text, delimiter, path)], dtype=object)
    if not len(frame):
        raise ValueError(f"{path} has a header and no rows.")
    columns = {name: frame[i].to_numpy(object) for i, name in enumerate(names) if name}
    if delimiter == ";":
        columns = {name: _points(column) for name, column in columns.items()}
    return Table(columns, lambda index: f"line {next(islice(_rows(text, delimiter, path), index, None))[0]}")


def _text(path: Path) -> str:
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
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


def _header(line: str, delimiter: str, path: Path) -> list[str]:
    if delimiter not in line:
        needed = "A table has a time and a coordinate at least, separated by commas, semicolons or tabs."
        raise ValueError(f"{path}: the first line, {line.strip()[:40]!r}, is one column. {needed}")
    try:
        names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, strict=True))]
    except csv.Error as error:
        raise ValueError(f"{path}: the first line, {line.strip()[:40]!r}, cannot be read: {error}.") from error
    if not any(_fails(float, name) for name in names):
        held = f"it holds numbers: {', '.join(names[:4])}"
        raise ValueError(f"{path}: the first line must name the columns, e.g. `path,time,x [m]`; {held}.")
    if twice := {name for name in names if name and names.count(name) > 1}:
        raise ValueError(f"{path}: two columns are called {sorted(twice)[0]!r}.")
    return names


def _rows(text: str, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row below the header that is not blank; ValueError at the first broken one."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
        names = next(rows)[1]
        for line, row in rows:
            if len(row) != len(names):
                counted = f"has {len(row)} values and the header {len(names)} names"
                raise ValueError(f"{path}: line {line} {counted}. A comma inside a number, or a line cut short?")
            yield line, row
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num} cannot be read: {error}.") from error


def _points(column: np.ndarray) -> np.ndarray:
    """Decimal commas made points, in a column that has no points."""
    if not any("," in cell for cell in column) or any("." in cell for cell in column):
        return column
    return np.array([cell.replace(",", ".") for cell in column], dtype=object)


def table_arrays(table: Table, layout: Layout, file: Path) -> dict[str, np.ndarray]:
    """`states`, `times`, `lengths` and `labels` of a table; rows of one path must come in the order of time."""
    paths, time, chosen = _roles(table, layout, file)
    t = numbers(table, time, file)
    if np.isnan(t).any():
        raise ValueError(f"{file}: {table.where(int(np.isnan(t).argmax()))} has no time in column {time!r}.")
    states = np.stack([numbers(table, name, file) for name in chosen], axis=1)
    group = _groups(table, paths, len(t), file)
    order = np.argsort(group, kind="stable")
    t, group = t[order], group[order]
    bad = (np.diff(group) == 0) & ~(np.diff(t) > 0)
    if bad.any():
        i = int(bad.argmax())
        who = "" if paths is None else f" of path {table.columns[paths][order[i]]}"
        fix = "Several paths? Add a column `path`." if paths is None else "Sort the rows and drop repeated times."
        step = f"from {t[i]:g} ({table.where(order[i])}) to {t[i + 1]:g} ({table.where(order[i + 1])})"
        raise ValueError(f"{file}: the time{who} must increase; it goes {step}. {fix}")
    first, *rest = (Label.parse(name) for name in (time, *chosen))
    labels = Labels(Label(first.name, "d") if _dated(table.columns[time]) else first, tuple(rest))
    return padded(states[order], t, np.bincount(group)) | {"labels": np.array(labels.texts())}


def _find(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The column that has the first of the wanted names: as written, or else in any case and without its unit."""
    plain = {Label.parse(name).name.lower(): name for name in names} | {name: name for name in names}
    return next((found for name in wanted if (found := plain.get(name) or plain.get(name.lower()))), None)


def _roles(table: Table, layout: Layout, file: Path) -> tuple[str | None, str, list[str]]:
    """Names of the path column (None: one path), of the time and of the coordinates."""
    names, (path_column, time_column, columns, *_) = list(table.columns), layout
    held = ", ".join(map(repr, names))
    for name in (path_column, time_column, *columns):
        if name and _find(names, [name]) is None:
            raise ValueError(f"{file} has no column {name!r}; it has {held}.")
    paths = _find(names, [path_column] if path_column else PATHS)
    time = _find(names, [time_column] if time_column else TIMES)
    if time is None:
        fix = "Call it `time`, or name it with --time-column."
        raise ValueError(f"{file} has no column of times; it has {held}. {fix}")
    chosen = [str(_find(names, [name])) for name in columns] or [n for n in names if n not in (paths, time)]
    if not chosen:
        raise ValueError(f"{file} has a time and no coordinate: {held}.")
    return paths, time, chosen


def numbers(table: Table, name: str, file: Path) -> np.ndarray:
    """A column as float64, NaN where a cell is empty or says NA; dates in days since the first of them."""
    cells = table.columns[name]
    if cells.dtype != object:
        if cells.dtype.kind not in "fiub":
            raise ValueError(f"{file}: column {name!r} holds {cells.dtype}, and numbers are needed.")
        return cells.astype(np.float64)
    dated = _dated(cells)
    kind, none, dtype = (np.datetime64, "NaT", "datetime64[ms]") if dated else (float, "nan", "float64")
    try:
        found = cells.astype(dtype)
    except ValueError:
        known = [none if cell.strip().lower() in EMPTY else cell for cell in cells]
        bad = next((i for i, cell in enumerate(known) if _fails(kind, cell)), None)
        if bad is not None:
            number = "and a number is needed. Text that is no coordinate? Choose the others with --columns."
            why = "a date that cannot be read." if dated else number
            raise ValueError(f"{file}: {table.where(bad)} has {cells[bad][:40]!r} in column {name!r}, {why}") from None
        found = np.array(known, dtype=dtype)
    return (found - np.fmin.reduce(found)) / np.timedelta64(1, "D") if dated else found


def _dated(cells: np.ndarray) -> bool:
    return cells.dtype == object and re.match(r"\s*\d{4}-\d\d-\d\d", cells[0]) is not None


def _fails(kind: Callable[[str], Any], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return True
    return False


def _groups(table: Table, paths: str | None, count: int, file: Path) -> np.ndarray:
    """For each row the number of its path, in the order in which they first appear."""
    import pandas

    if paths is None:
        return np.zeros(count, dtype=np.int64)
    group, names = pandas.factorize(table.columns[paths])
    if (lost := np.isin(group, [-1, *(i for i, name in enumerate(names) if not str(name).strip())])).any():
        raise ValueError(f"{file}: {table.where(int(lost.argmax()))} belongs to no path: {paths!r} is empty.")
    return group


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


def observed(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """(path, time): is there an observation, or padding?"""
    paths, steps = arrays["states"].shape[:2]
    return np.arange(steps) < np.asarray(arrays.get("lengths", np.full(paths, steps)))[:, None]
