"""Reading: trajectories from files as they come, tables and arrays, with what was done to them on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phibe.files import KINDS, open_dataset, read_arrays, refuse_size
from phibe.labels import Label
from phibe.missing import settle
from phibe.tables import TIMES, Table, read_csv, table_arrays
from phibe.trajectories import Trajectories

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
    data = Trajectories.of(arrays)
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
