"""What the command line says of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phibe.linear.basis import Size
from phibe.training.config import FitConfig
from phibe.training.runs import CHECKPOINT, RESULT, Metrics, read_config
from phibe.training.tensors import load_tensors


def describe_run(folder: str | Path) -> str:
    """How far a run is, what it is of, and the settings that are not the defaults."""
    folder, about = Path(folder), read_config(folder)
    network, config, defaults = about["network"], about.get("config", {}), asdict(FitConfig())
    arguments = ", ".join(f"{name}={value}" for name, value in network.get("arguments", {}).items())
    changed = [f"{name}={value}" for name, value in config.items() if defaults.get(name) != value]
    history = Metrics(folder / "metrics.jsonl").read()
    lines = {
        "status": _status(folder, config),
        "network": f"{network['name']}({arguments}){', normalised' if network['normalised'] else ''}",
        "objective": ", ".join(f"{k} {v}" if k != "name" else str(v) for k, v in about.get("objective", {}).items()),
        "state": f"shape {tuple(about['state_shape'])}, times {about['interval']}, step {about['step']:g}",
        "settings": ", ".join(changed) or "the defaults",
    }
    if "trials" in about:
        lines["tried"] = _trials(about["trials"])
    return "\n".join([str(folder), *(f"  {name:10} {text}" for name, text in lines.items()), *_last(history)])


def _status(folder: Path, config: dict[str, Any]) -> str:
    if (folder / RESULT).exists():
        return _result(json.loads((folder / RESULT).read_text("utf8")))
    if (folder / CHECKPOINT).exists():
        step = load_tensors(folder / CHECKPOINT)[1]["progress"]["step"]
        return f"not finished: it goes on at step {step} of {config.get('steps')} when started again"
    return "not finished: no checkpoint yet" if config else "a flow that was saved"


def _result(result: dict[str, Any]) -> str:
    how = f"{'stopped early' if result['stopped_early'] else 'finished'} after {result['steps']} steps"
    best, at = "best ", f" at step {result['best_step']}"
    if result.get("closed_form"):
        how, best, at = "solved in closed form", "", ""
    return how if result["held_out"] is None else f"{how}, {best}held-out objective {result['held_out']:.6g}{at}"


def _trials(trials: list[dict[str, Any]]) -> str:
    """What cross-validation found, in one line."""
    least = min(trials, key=lambda trial: trial["objective"])
    size = Size(**{name: least[name] for name in Size._fields})
    return (
        f"{len(trials)} sizes; the least objective on paths left out, {least['objective']:.5g} ± {least['error']:.2g}, "
        f"has {size}; of the few best, the one whose flow keeps closest to the observed laws is taken"
    )


def _last(history: list[dict[str, Any]], count: int = 5) -> list[str]:
    """A table of the last evaluations."""
    names = ("step", "train", "held_out", "jacobian_dx")
    cells = [[line.get(name) for name in names] for line in history[-count:]]
    rows = [names, *(["-" if cell is None else f"{cell:.5g}" for cell in row] for row in cells)]
    table = ["  " + "".join(f"{cell:>14}" for cell in row) for row in rows]
    return ["  last evaluations", *table] if history else []
