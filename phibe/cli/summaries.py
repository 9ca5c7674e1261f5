"""Summaries: what is in a file of trajectories, or in the folder of a run, in a few lines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phibe.cli.suspicions import suspicions
from phibe.linear.folds import Size
from phibe.objectives import OBJECTIVES, estimate_noise
from phibe.training.config import FitConfig
from phibe.training.runs import Metrics, load_tensors, read_config
from phibe.trajectories import Trajectories


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
    doubts = [f"  {'look at' if i == 0 else '':10} {text}" for i, text in enumerate(suspicions(data))]
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
