"""Summaries: what is in the folder of a run, and what the objectives are, in a few lines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phibe.linear.folds import Size
from phibe.objectives import OBJECTIVES
from phibe.training.config import FitConfig
from phibe.training.runs import Metrics, load_tensors, read_config


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
        result = json.loads((folder / "result.json").read_text("utf8"))
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
