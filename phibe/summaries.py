"""Summaries: what is in a file of trajectories or in the folder of a run, in a few lines, and what looks odd there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phibe.files import read_arrays
from phibe.io import PATHS, TIMES, numbers, read_csv
from phibe.linear.basis import Size
from phibe.objectives import OBJECTIVES, estimate_noise
from phibe.training.config import FitConfig
from phibe.training.runs import Metrics, load_tensors, read_config
from phibe.trajectories import Label, Trajectories


def describe_data(data: Trajectories, path: Path) -> str:
    """What was understood: paths, times, steps, states and their ranges."""
    steps = (data._path_times().diff(dim=1)[data._observed(2)]) if not data.shared_times else data.times.diff()
    low, high = float(steps.min()), float(steps.max())
    even = high - low <= 1e-6 * high
    lengths = (
        "" if data.lengths is None else f", {int(data.lengths.min())} to {int(data.lengths.max())} of them observed"
    )
    lines = {
        "paths": f"{len(data)}",
        "times": f"{data.states.shape[1]} a path{lengths}, from {data.interval[0]:g} to {data.interval[1]:g}, "
        + ("shared by all paths" if data.shared_times else "each path its own"),
        "step": f"{data.typical_step:g}" + ("" if even else f" (median; from {low:g} to {high:g})"),
        "state": f"shape {data.state_shape}, {str(data.states.dtype).removeprefix('torch.')}" + _names(data),
        "noise": f"{estimate_noise(data):g} (mean |Δx|²/Δt of a coordinate)",
    }
    doubts = [f"  {'look at' if i == 0 else '':10} {text}" for i, text in enumerate(data_warnings(data))]
    return "\n".join([str(path), *_rows(lines), *_rows(_ranges(data)), *doubts])


def _names(data: Trajectories) -> str:
    if not data.labels.state:
        return ""
    return f": {', '.join(map(str, data.labels.state))}, over {data.labels.time}"


def _ranges(data: Trajectories) -> dict[str, str]:
    """Mean, spread and ends of each coordinate (of each channel of larger states), eight at most."""
    size = data.state_shape[0]
    low, high = torch.full((size,), torch.inf), torch.full((size,), -torch.inf)
    total, square, count = torch.zeros(size).double(), torch.zeros(size).double(), 0
    for chunk in data.chunks():
        x: Tensor = (
            chunk.states[chunk._observed()].flatten(2)
            if data.states.ndim > 3
            else chunk.states[chunk._observed()][..., None]
        )
        low, high = torch.minimum(low, x.amin((0, 2))), torch.maximum(high, x.amax((0, 2)))
        total, square, count = (
            total + x.double().sum((0, 2)),
            square + x.double().square().sum((0, 2)),
            count + x[:, 0].numel(),
        )
    mean = total / count
    spread = (square / count - mean**2).clamp(min=0).sqrt()
    names = data.labels.coordinates(size)
    rows = {
        str(names[i]): f"from {low[i]:.4g} to {high[i]:.4g}, mean {mean[i]:.4g}, spread {spread[i]:.4g}"
        for i in range(min(size, 8))
    }
    return rows if size <= 8 else rows | {"…": f"{size - 8} more"}


def describe_objectives() -> str:
    """A table of the objectives: observations they look at, order of the bias in Δt, noise, cost, assumptions."""
    rows = [("objective", "width", "order", "variance", "cost", "assumes")]
    for name, kind in OBJECTIVES.items():
        rows.append((name, str(kind.width), kind.order, f"{kind.variance:g}", kind.cost, kind.assumes))
    widths = (13, 6, 24, 9, 20, 0)
    return "\n".join(" ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows)


def describe_run(folder: Path) -> str:
    """How far a run is, what it is of, and the settings that are not the defaults."""
    about = read_config(folder)
    defaults, config = asdict(FitConfig()), about.get("config", {})
    changed = {name: value for name, value in config.items() if defaults.get(name) != value}
    network = about["network"]
    arguments = ", ".join(f"{name}={value}" for name, value in network.get("arguments", {}).items())
    history = Metrics(folder / "metrics.jsonl").read()
    lines = {
        "status": _status(folder, history, config),
        "network": f"{network['name']}({arguments}){', normalised' if network['normalised'] else ''}",
        "objective": ", ".join(f"{k} {v}" if k != "name" else str(v) for k, v in about.get("objective", {}).items()),
        "state": f"shape {tuple(about['state_shape'])}, times {about['interval']}, step {about['step']:g}",
        "settings": ", ".join(f"{name}={value}" for name, value in changed.items()) or "the defaults",
    }
    if "trials" in about:
        lines["tried"] = _trials(about["trials"])
    return "\n".join([str(folder), *_rows(lines), *_last(history)])


def _trials(trials: list[dict[str, Any]]) -> str:
    """What cross-validation found, in one line."""
    least = min(trials, key=lambda trial: trial["objective"])
    size = Size(**{name: least[name] for name in Size._fields})
    return (
        f"{len(trials)} sizes; the least objective on paths left out, {least['objective']:.5g} ± {least['error']:.2g}, "
        f"has {size}; of the few best, the one whose flow keeps closest to the observed laws is taken"
    )


def _status(folder: Path, history: list[dict[str, Any]], config: dict[str, Any]) -> str:
    if (folder / "result.json").exists():
        result = json.loads((folder / "result.json").read_text())
        if result.get("closed_form"):
            return "solved in closed form" + (
                "" if result["held_out"] is None else f", held-out objective {result['held_out']:.6g}"
            )
        how = "stopped early" if result["stopped_early"] else "finished"
        best = (
            ""
            if result["held_out"] is None
            else f", best held-out objective {result['held_out']:.6g} at step {result['best_step']}"
        )
        return f"{how} after {result['steps']} steps{best}"
    if (folder / "checkpoint.safetensors").exists():
        step = load_tensors(folder / "checkpoint.safetensors")[1]["progress"]["step"]
        return f"not finished: it goes on at step {step} of {config.get('steps')} when started again"
    return "not finished: no checkpoint yet" if config else "a flow that was saved"


def _last(history: list[dict[str, Any]], count: int = 5) -> list[str]:
    if not history:
        return []
    names = ["step", "train", "held_out", "jacobian_dx"]
    rows = [
        names,
        *([f"{line[name]:.5g}" if line.get(name) is not None else "-" for name in names] for line in history[-count:]),
    ]
    return ["  last evaluations", *("  " + "".join(f"{cell:>14}" for cell in row) for row in rows)]


def _rows(lines: dict[str, str]) -> list[str]:
    return [f"  {name:10} {text}" for name, text in lines.items()]


# -- data warnings -----------------------------------------------------------------------------------------------------

FAR, FEW, HELD, GAP = 20.0, 20, 0.02, 10.0
"""Spreads from the median, different values of a coordinate, share of held states, median steps: where doubt begins."""


def data_warnings(data: Trajectories) -> list[str]:
    """A sentence for each doubt: constant or coarsely rounded coordinates, outliers, repeated states, odd times."""
    data = data[:: max(1, data.states.numel() // 5_000_000)]
    return [*_times(data), *_coordinates(data), *_repeats(data)]


def _times(data: Trajectories) -> list[str]:
    found = []
    first = data._path_times()[0][data._observed()[0]]
    rows = torch.arange(len(first), dtype=first.dtype)
    if (
        len(first) > 2
        and data.shared_times
        and bool((first - first[0] == rows).all())
        and float(first[0]) in (0.0, 1.0)
    ):
        found.append(
            f"the times are {first[0]:g}, {first[1]:g}, {first[2]:g}, …: numbers of rows? Velocities are per row"
        )
    steps = data._path_times().diff(dim=1)
    long = (steps > GAP * data.typical_step) & data._observed(2)
    if long.any():
        path, index = (int(i) for i in long.nonzero()[0])
        found.append(
            f"{int(long.sum())} steps are longer than {GAP:g} median ones, the first in path {path} after time index "
            f"{index}: gaps? --missing split cuts there"
        )
    return found


def _coordinates(data: Trajectories) -> list[str]:
    """Of the coordinates of a vector; larger states are looked at as a whole."""
    x = data.states[data._observed()].double()
    columns = x if x.ndim == 2 else x.flatten()[:, None]
    names = data.labels.coordinates(columns.shape[1]) if x.ndim == 2 else ["the state"]
    return [text for name, column in zip(names, columns.unbind(1), strict=True) for text in _column(data, name, column)]


def _column(data: Trajectories, name: object, values: Tensor) -> list[str]:
    if bool((values == values[0]).all()):
        return [f"{name} is {float(values[0]):g} everywhere: a constant has no velocity. Leave it out (--columns)?"]
    different = len(values[:: max(1, len(values) // 100_000)].unique())
    if different < FEW and len(values) > 50 * FEW:
        return [f"{name} takes only {different} different values: rounded, or a category?"]
    middle = values.median()
    spread = 1.4826 * (values - middle).abs().median()
    far = (values - middle).abs() > FAR * spread
    if float(spread) > 0 and far.any() and len(values) == int(data._observed().sum()):
        path, index = (int(i) for i in data._observed().nonzero()[int(far.int().argmax())])
        return [
            f"{name} has {int(far.sum())} values further than {FAR:g} spreads from its median, the first "
            f"{float(values[far][0]):g} in path {path} at time index {index}: outliers, or codes for missing ones?"
        ]
    return []


def _repeats(data: Trajectories) -> list[str]:
    still = (data.states.diff(dim=1) == 0).flatten(2).all(dim=2)[data._observed(2)]
    share = float(still.double().mean())
    if share < HELD:
        return []
    return [f"{share:.0%} of the transitions repeat the state exactly: filled forward, or observed too often?"]


# -- starts and times to generate from ---------------------------------------------------------------------------------


def read_starts(path: Path) -> Tensor:
    """States (n, *state): the columns of a table that are no path and no time, or an array."""
    if path.suffix == ".csv":
        if not path.exists():
            raise ValueError(f"There is no file {path}.")
        table = read_csv(path)
        names = [name for name in table.columns if Label.parse(name).name.lower() not in (*PATHS, *TIMES)]
        return torch.from_numpy(np.stack([numbers(table, name, path) for name in names], axis=1))
    arrays = read_arrays(path)
    name = "x0" if "x0" in arrays else next(iter(arrays), "x0")
    if "times" in arrays or (len(arrays) != 1 and name != "x0"):
        raise ValueError(
            f"{path} must hold one array x0 of states; it holds {sorted(arrays)}. Trajectories? Use --paths-of."
        )
    return torch.as_tensor(arrays[name].copy())


def parse_times(text: str) -> Tensor:
    """`first:last:step`, both ends included, or values between commas."""
    try:
        if ":" not in text:
            return torch.tensor([float(part) for part in text.strip("[]() ").split(",")], dtype=torch.float64)
        first, last, step = (float(part) for part in text.split(":"))
        count = round((last - first) / step)
        if count < 1 or abs(first + count * step - last) > 1e-6 * abs(step):
            raise ValueError
        return torch.linspace(first, last, count + 1, dtype=torch.float64)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(
            f"--times must be first:last:step, a whole number of steps, as 0:1:0.1, or values as 0,0.5,2; got {text!r}."
        ) from None
