"""Trajectories in files: tables and arrays in and out, missing values, and what was understood of a file.

`open_data` reads a .csv (a row for each observation: path, time, coordinates), .npz, .npy, .nc or .zarr; `save_data`
writes them. What cannot be read with certainty is refused: nothing is guessed. Read next: `phibe.trajectories` (what
comes back), `phibe.stores` (data larger than memory), `phibe.diagnostics` (what the data is good for).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from phibe.files import KINDS, open_dataset, read_arrays, refuse_size, write_arrays
from phibe.stores import map_store
from phibe.tables import PATHS, TIMES, Layout, Table, numbers, observed, padded, read_csv, table_arrays, write_csv
from phibe.trajectories import Label, Labels, Trajectories

MISSING = ("error", "drop", "split")
LARGEST = 1e150
"""Beyond it squares overflow."""
FAR, FEW, HELD, GAP = 20.0, 20, 0.02, 10.0
"""Spreads from the median, different values of a coordinate, share of repeated states, median steps: what is odd."""


def open_data(
    file: str | Path | BinaryIO,
    *,
    kind: str | None = None,
    missing: str = "error",
    cache: str | Path | None = None,
    **layout: Any,
) -> Trajectories:
    r"""Trajectories of a path or a binary file: .csv, .npz, .npy and .nc in memory, .zarr as a memory map of a copy.

    A table has a column of times, one for the path if there are several, and the coordinates; `path_column`,
    `time_column` and `columns` name them where the header does not. An array without times needs a `time_step`; one
    long path is cut into `windows` of so many observations, with times since the beginning of each. `missing` says what
    to do with missing values: error, drop (transitions that touch one) or split (the path, there and at gaps in time).
    The copy of a .zarr is kept in `cache`, by default a folder beside the store; a .zarr is a path only. The `kind` of
    a binary file is that of its name, or said: csv, npz, npy, nc.

    >>> from io import BytesIO
    >>> open_data(BytesIO(b"path,time [s],x [m]\na,0,1.5\na,1,2\nb,0,3\nb,1,4\n"), kind="csv")
    Trajectories(2 paths × 2 times, state (1,), t from 0 to 1, torch.float64)
    """
    if isinstance(file, str | Path) and missing == "error" and not layout:  # else it is read into memory
        path = Path(file)
        if path.suffix == ".zarr" and path.is_dir():
            return map_store(path, cache)
    return read_data(file, Layout(**layout), missing=missing, kind=kind)[0]


def read_data(
    file: str | Path | BinaryIO, layout: Layout, *, missing: str = "error", kind: str | None = None
) -> tuple[Trajectories, str]:
    """Trajectories of a file, in memory, and a sentence on missing values, if there were any."""
    if not isinstance(file, str | Path):
        return _read_binary(file, kind, layout, missing)
    path = Path(file)
    if kind:
        raise ValueError(f"The `kind` of {path} is that of its name; {kind!r} can be said of an open file only.")
    if path.suffix not in (".csv", *KINDS):
        fix = "Rename or convert it? Of an open file say the `kind`."
        raise ValueError(f"Trajectories are read from .csv, .npz, .npy, .nc or .zarr; got {path.name!r}. {fix}")
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    if path.is_dir() != (path.suffix == ".zarr"):
        raise ValueError(f"{path} is a {'folder' if path.is_dir() else 'file'}, and no {path.suffix}.")
    if path.suffix == ".csv":
        found = table_arrays(read_csv(path), layout, path)
    elif path.suffix == ".nc":
        found = _from_dataset(path)
    else:
        found = _recognised(read_arrays(path), layout, path)
    arrays, note = treat_missing(found, missing)
    _refuse_huge(arrays["states"], path)
    data = from_arrays(arrays)
    return data if layout.windows is None else windowed(data, layout.windows), note


def _read_binary(file: BinaryIO, kind: str | None, layout: Layout, missing: str) -> tuple[Trajectories, str]:
    """The same of an open file, through a temporary copy; messages know it by its name."""
    name = Path(str(getattr(file, "name", "") or "data"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / (f"{name.stem}.{kind.lstrip('.')}" if kind else name.name)
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        try:
            return read_data(path, layout, missing=missing)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), path.name)) from error


def save_data(data: Trajectories, path: str | Path, **more: Tensor) -> Path:
    """Write to .npz, .zarr, .nc, .csv or (states alone) .npy; the name appears only once all of it is on disk.

    `more` are numbers that belong to the observations, (path, time) each, such as a log-density.

    >>> import tempfile
    >>> data = Trajectories([[[1.5], [2.0]], [[3.0], [4.0]]], [0.0, 1.0])
    >>> file = save_data(data, Path(tempfile.mkdtemp()) / "data.csv")
    >>> file.read_text().split()
    ['path,t,x[0]', '0,0.0,1.5', '0,1.0,2.0', '1,0.0,3.0', '1,1.0,4.0']
    """
    path, arrays = Path(path), {"states": data.states, "times": data.times, **more}
    if data.lengths is not None:
        arrays["lengths"] = data.lengths
    named = {name: array.cpu().numpy() for name, array in arrays.items()}
    if data.labels != Labels() or path.suffix == ".csv":
        named["labels"] = np.array(data.labels.texts(data.state_shape[0]))
    return write_csv(path, named, list(more)) if path.suffix == ".csv" else write_arrays(path, named)


def from_arrays(arrays: dict[str, np.ndarray]) -> Trajectories:
    """From arrays named `states`, `times` and, if there are any, `lengths` and `labels`."""
    text = arrays.get("labels")
    labels = Labels.read(text) if text is not None and text.dtype.kind == "U" else None  # others mean other things
    return Trajectories(arrays["states"], arrays["times"], arrays.get("lengths"), labels=labels)


def windowed(data: Trajectories, length: int) -> Trajectories:
    """Pieces of `length` observations, with times since the beginning of each."""
    pieces = data.cut(length)
    times = pieces._path_times()
    return pieces._with(pieces.states, times - times[:, :1], pieces.lengths)


def _recognised(arrays: dict[str, np.ndarray], layout: Layout, path: Path) -> dict[str, np.ndarray]:
    """`states` and `times` among named arrays: by these names, as the only large one and a `t`, or as a table."""
    large = [name for name, array in arrays.items() if array.ndim >= 3]
    time = next((name for name in arrays if name.lower() in TIMES), None)
    states = "states" if "states" in arrays else large[0] if len(large) == 1 else None
    if states is None and time and {array.shape for array in arrays.values()} == {arrays[time].shape}:
        return table_arrays(Table(arrays, "row {}".format), layout, path)
    if states is None:
        needed = "`states` (path, time, *state) and `times`, or columns of one length, `time` among them"
        held = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"
        raise ValueError(f"{path} must hold {needed}; it holds {held}.")
    found = {"states": arrays[states]} | {name: arrays[name] for name in ("lengths", "labels") if name in arrays}
    if time:
        return found | {"times": arrays[time]}
    shape = arrays[states].shape
    if layout.time_step is None:
        raise ValueError(f"{path} holds states {shape} and no times. Equal steps? Say how long: --time-step 0.1.")
    return found | {"times": layout.time_step * np.arange(shape[1] if len(shape) > 1 else 0)}


def _refuse_huge(states: np.ndarray, path: Path) -> None:
    """Numbers whose squares are infinite would pass as finite here, and fail far from their origin."""
    if states.dtype.kind != "f" or not states.size:
        return
    worst = max(float(np.nanmax(states)), float(np.nanmin(states)), key=abs)
    if LARGEST < abs(worst) < np.inf:
        row, time = (int(i) for i in np.argwhere(states == states.dtype.type(worst))[0][:2])
        fix = "A code for a missing value? Write NaN, and choose --missing."
        raise ValueError(f"{path} has {worst:g} in path {row} at time index {time}: too large to be squared. {fix}")


def _from_dataset(path: Path) -> dict[str, np.ndarray]:
    """`states`, `times`, `labels` of variables over (path, time, …), or over (time,): one path.

    Several variables over (path, time) are the coordinates of one state, with their names and units.
    """
    try:
        dataset = open_dataset(path)
    except Exception as error:
        raise ValueError(f"{path} is not a readable {path.suffix} file: {error}") from error
    with dataset:
        if {"states", "times"} <= set(dataset.variables):
            found = [dataset["states"]]
        else:
            found = [array for array in dataset.values() if array.dims[:2] == ("path", "time")]
            found = found or [array for array in dataset.values() if array.dims == ("time",)]
        times = "times" if "times" in dataset.variables else "time"
        if not found or times not in dataset.variables or (len(found) > 1 and found[0].ndim > 2):
            held = ", ".join(f"{name} {tuple(array.dims)}" for name, array in dataset.variables.items())
            needed = "variables over ('path', 'time', …), or ('time',) for one path, and a `time`"
            raise ValueError(f"{path} must hold {needed}; it holds {held or 'nothing'}. Rename its dimensions?")
        refuse_size(sum(array.nbytes for array in found))
        return _stacked(dataset, found, times)


def _stacked(dataset: Any, found: list[Any], times: str) -> dict[str, np.ndarray]:
    parts = [np.asarray(array) for array in found]
    states = parts[0] if parts[0].ndim > 2 else np.stack(parts, axis=-1)
    arrays = {"states": states if states.ndim > 2 else states[None], "times": np.asarray(dataset.variables[times])}
    if "lengths" in dataset.variables:
        arrays["lengths"] = np.asarray(dataset.variables["lengths"])
    if "labels" in dataset.attrs:
        arrays["labels"] = np.array(dataset.attrs["labels"])
    elif parts[0].ndim <= 2:
        named = [(times, dataset.variables[times]), *((array.name, array) for array in found)]
        units = [str(array.attrs.get("units", "")).partition(" since ")[0] for _, array in named]  # `days since 1990`
        arrays["labels"] = np.array([str(Label(str(n), unit)) for (n, _), unit in zip(named, units, strict=True)])
    return arrays


# -- missing values ----------------------------------------------------------------------------------------------------


def treat_missing(arrays: dict[str, np.ndarray], choice: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays without missing values (NaN), and a sentence on what was done, empty if nothing was.

    `error` refuses them and names the first. `drop` leaves out every transition that touches one: what is before and
    after becomes a path each, and an observation alone between two of them is lost. `split` does so, and cuts where a
    path was not observed for ten median steps, too.
    """
    if choice not in MISSING:
        raise ValueError(f"`missing` must be one of {', '.join(MISSING)}; got {choice!r}.")
    states, shape = arrays["states"], np.shape(arrays["times"])
    array = states.dtype.kind == "f" and states.ndim >= 3 and states.size
    if not array or shape not in (states.shape[1:2], states.shape[:2]):
        return arrays, ""  # nothing that can be missing, or no trajectories, which `Trajectories` will say
    inside = observed(arrays)
    bad = np.isnan(states.reshape(*states.shape[:2], -1)).any(axis=2) & inside
    times = np.broadcast_to(arrays["times"], bad.shape)
    if bad.any() and choice == "error":
        path, index = (int(i) for i in np.argwhere(bad)[0])
        first = f"the first in path {path} at time index {index} (t = {times[path, index]:g})"
        fix = "--missing drop leaves out the transitions that touch one, --missing split cuts at gaps in time too."
        raise ValueError(f"{bad.sum()} of {inside.sum()} observations have a missing value, {first}. {fix}")
    steps = np.diff(times, axis=1)
    joined = (inside & ~bad)[:, 1:] & (inside & ~bad)[:, :-1]  # is this observation one path with the next?
    gaps = joined & (steps > GAP * np.median(steps[inside[:, 1:]])) if choice == "split" else np.zeros_like(joined)
    if not bad.any() and not gaps.any():
        return arrays, ""
    return _pieces(arrays, times, joined & ~gaps, f"{bad.sum()} missing observations, {gaps.sum()} gaps in time")


def _pieces(
    arrays: dict[str, np.ndarray], times: np.ndarray, joined: np.ndarray, why: str
) -> tuple[dict[str, np.ndarray], str]:
    """A path for each run of joined observations."""
    if not joined.any():
        raise ValueError(f"{why}: no two neighbouring observations are left. Is a whole column missing?")
    edge = np.diff(joined.astype(np.int8), axis=1, prepend=0, append=0)
    lengths = (edge == -1).nonzero()[1] - (edge == 1).nonzero()[1] + 1
    kept = np.pad(joined, ((0, 0), (0, 1))) | np.pad(joined, ((0, 0), (1, 0)))
    made = padded(arrays["states"][kept], times[kept], lengths)
    note = f"{why}: {len(joined)} paths became {len(lengths)} with {int(joined.sum())} transitions"
    return {name: array for name, array in arrays.items() if name == "labels"} | made, note


# -- what was understood -----------------------------------------------------------------------------------------------


def summary(data: Trajectories) -> dict[str, Any]:
    """What the data is, in numbers, as JSON; `ranges` are least, greatest, mean and spread of a coordinate."""
    steps, lengths = data.steps, data._ends
    return {
        "paths": len(data),
        "observations": [int(lengths.min()), int(lengths.max())],
        "interval": list(data.interval),
        "shared_times": data.shared_times,
        "steps": [float(steps.min()), data.typical_step, float(steps.max())],
        "state_shape": list(data.state_shape),
        "dtype": str(data.states.dtype).removeprefix("torch."),
        "names": data.labels.texts(data.state_shape[0]),
        "ranges": _ranges(data)[:8].tolist(),
    }


def describe(about: dict[str, Any]) -> dict[str, str]:
    """A summary in words: paths, times, steps, states, and the range of each coordinate (of each channel)."""
    (short, long), (first, last), (least, step, most) = (about[key] for key in ("observations", "interval", "steps"))
    time, *names = about["names"]
    number = f"{short}" if short == long else f"{short} to {long}"
    shared = "shared by all paths" if about["shared_times"] else "each path its own"
    varied = f" (median; from {least:g} to {most:g})" if most - least > 1e-6 * most else ""
    rows = {
        "paths": f"{about['paths']}",
        "times": f"{number} a path, from {first:g} to {last:g}, {shared}",
        "step": f"{step:g}{varied}",
        "state": f"shape {tuple(about['state_shape'])}, {about['dtype']}: {', '.join(names[:8])}, over {time}",
    }
    for name, (low, high, mean, spread) in zip(names, about["ranges"], strict=False):
        rows[name] = f"from {low:.4g} to {high:.4g}, mean {mean:.4g}, spread {spread:.4g}"
    return rows if len(names) <= 8 else rows | {"…": f"{len(names) - 8} more"}


def describe_data(data: Trajectories, path: Path, **more: str) -> str:
    """What was understood of a file: a summary, `more` lines by their names, and data warnings."""
    warned = [("warning" if i == 0 else "", text) for i, text in enumerate(data_warnings(data))]
    rows = [*(describe(summary(data)) | more).items(), *warned]
    return "\n".join([str(path), *(f"  {name:10} {text}" for name, text in rows if text)])


def _ranges(data: Trajectories) -> Tensor:
    """Least, greatest, mean and spread of each coordinate (of each channel of larger states), (C, 4)."""
    size, found = data.state_shape[0], []
    for chunk in data.chunks():
        x = chunk.states[chunk._observed()].flatten(1).unflatten(1, (size, -1)).double()
        count = torch.full((size,), x[:, 0].numel(), dtype=torch.float64)
        found.append(torch.stack([x.amin((0, 2)), x.amax((0, 2)), x.sum((0, 2)), x.square().sum((0, 2)), count]))
    every = torch.stack(found)
    low, high, (total, square, count) = every[:, 0].amin(0), every[:, 1].amax(0), every[:, 2:].sum(0)
    mean = total / count
    return torch.stack([low, high, mean, (square / count - mean**2).clamp(min=0).sqrt()], 1)


def data_warnings(data: Trajectories) -> list[str]:
    """A sentence for each doubt: constant or coarsely rounded coordinates, outliers, repeated states, odd times."""
    data = data[:: max(1, data.states.numel() // 5_000_000)]
    x = data.states[data._observed()].double()
    columns, names = (x, data.labels.texts(x.shape[1])[1:]) if x.ndim == 2 else (x.flatten()[:, None], ["the state"])
    found = [_odd_values(data, name, column) for name, column in zip(names, columns.unbind(1), strict=True)]
    return [text for text in (_row_numbers(data), _gaps(data), *found, _repeats(data)) if text]


def _row_numbers(data: Trajectories) -> str:
    first = data._path_times()[0][data._observed()[0]]
    counted = torch.equal(first - first[0], torch.arange(len(first), dtype=first.dtype)) and first[0] in (0.0, 1.0)
    if len(first) < 3 or not (data.shared_times and counted):
        return ""
    return f"the times are {first[0]:g}, {first[1]:g}, {first[2]:g}, …: numbers of rows? Velocities are per row"


def _gaps(data: Trajectories) -> str:
    long = (data._path_times().diff(dim=1) > GAP * data.typical_step) & data._observed(2)
    if not long.any():
        return ""
    path, index = long.nonzero()[0].tolist()
    first = f"the first in path {path} after time index {index}"
    return f"{int(long.sum())} steps are longer than {GAP:g} median ones, {first}: gaps? --missing split cuts there"


def _odd_values(data: Trajectories, name: str, values: Tensor) -> str:
    """Of one coordinate of a vector, or of a larger state as a whole."""
    if bool((values == values[0]).all()):
        return f"{name} is {float(values[0]):g} everywhere: a constant has no velocity. Leave it out (--columns)?"
    different = len(values[:: max(1, len(values) // 100_000)].unique())
    if different < FEW and len(values) > 50 * FEW:
        return f"{name} takes only {different} different values: rounded, or a category?"
    middle = values.median()
    spread = 1.4826 * (values - middle).abs().median()
    far = (values - middle).abs() > FAR * spread
    places = data._observed().nonzero()
    if not (float(spread) > 0 and far.any() and len(values) == len(places)):
        return ""
    path, index = places[int(far.int().argmax())].tolist()
    first = f"the first {float(values[far][0]):g} in path {path} at time index {index}"
    found = f"{name} has {int(far.sum())} values further than {FAR:g} spreads from its median, {first}"
    return f"{found}: outliers, or codes for missing ones?"


def _repeats(data: Trajectories) -> str:
    still = (data.states.diff(dim=1) == 0).flatten(2).all(dim=2)[data._observed(2)]
    share = float(still.double().mean())
    if share < HELD:
        return ""
    return f"{share:.0%} of the transitions repeat the state exactly: filled forward, or observed too often?"


def read_starts(path: Path) -> Tensor:
    """States (n, *state) to start from: the columns of a table that are no path and no time, or an array."""
    if path.suffix == ".csv":
        table = read_csv(path)
        names = [name for name in table.columns if Label.parse(name).name.lower() not in (*PATHS, *TIMES)]
        return torch.from_numpy(np.stack([numbers(table, name, path) for name in names], axis=1))
    arrays = read_arrays(path)
    name = "x0" if "x0" in arrays else next(iter(arrays), "x0")
    if "times" in arrays or (len(arrays) != 1 and name != "x0"):
        held = f"it holds {sorted(arrays)}. Trajectories? Use --paths-of."
        raise ValueError(f"{path} must hold one array x0 of states; {held}")
    return torch.as_tensor(arrays[name].copy())


def parse_times(text: str) -> Tensor:
    """`first:last:step`, both ends included, or values between commas.

    >>> parse_times("0:1:0.5")
    tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    try:
        if ":" not in text:
            return torch.tensor([float(part) for part in text.strip("[]() ").split(",")], dtype=torch.float64)
        first, last, step = (float(part) for part in text.split(":"))
        count = round((last - first) / step)
        if count < 1 or abs(first + count * step - last) > 1e-6 * abs(step):
            raise ValueError
        return torch.linspace(first, last, count + 1, dtype=torch.float64)
    except (ValueError, ZeroDivisionError, OverflowError):
        ways = "first:last:step, a whole number of steps, as 0:1:0.1, or values as 0,0.5,2"
        raise ValueError(f"--times must be {ways}; got {text!r}.") from None
