"""Tables: trajectories as rows of (path, time, coordinates), read from and written to .csv."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phibe.files import refuse_size, replacing
from phibe.labels import Label

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
    with replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *arrays["labels"].tolist(), *more])
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return path
