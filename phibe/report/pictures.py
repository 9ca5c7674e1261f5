"""Pictures of a report: curves of training and distances, marginals, planes, trajectories, frames; SVG or PNG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phibe.evaluation import Distance, Views
from phibe.plots import COLORS
from phibe.svg import Picture, around, png

DATA, STILL = "#8a94a6", COLORS["persistence"]
BINS, PATHS = 28, 12


def tint(objective: str) -> str:
    return COLORS.get(objective, COLORS["phibe"])


# -- curves ------------------------------------------------------------------------------------------------------------


def training(history: Sequence[dict[str, Any]], objective: str) -> str:
    """The objective on training and on held-out samples against the step."""
    steps = [line["step"] for line in history]
    curves = [[_number(line.get(name)) for line in history] for name in ("train", "held_out")]
    # the first values may be far above all others, and a run-away training objective far below
    height = around(curves[1] if np.isfinite(curves[1]).any() else curves[0], curves[0][len(steps) // 5 :])
    picture = Picture(around(steps, margin=0), height, size=(560, 240), names=("step", "objective"))
    picture.line(steps, curves[0], DATA).line(steps, curves[1], tint(objective))
    return picture.svg(label="objective on training and held-out samples against the step")


def distances(rows: Sequence[Distance], objective: str, time: str) -> str:
    """Distances of the flow, of other data and of standing still, from held-out paths."""
    times = [row.time for row in rows]
    flow, floor, still = ([getattr(row, name) for row in rows] for name in ("flow", "floor", "still"))
    high = 1.08 * max(v for v in (*flow, *floor, *still) if np.isfinite(v))
    picture = Picture(around(times, margin=0.02), (0, high), size=(560, 240), names=(time, "sliced W₂ / spread"))
    picture.line(times, still, STILL, width=1.5, dash="2 4").line(times, floor, DATA)
    picture.line(times, flow, tint(objective)).dots(times, flow, tint(objective), radius=3, alpha=1)
    return picture.svg(label="distance of laws from held-out paths over time")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


# -- laws --------------------------------------------------------------------------------------------------------------


def chosen_marks(views: Views, count: int = 4) -> list[int]:
    """A few of the marks, from the second to the last."""
    last = len(views.marks.times) - 1
    return sorted({round(last * (i + 1) / count) for i in range(count)})


def histogram(views: Views, coordinate: int, mark: int, *, objective: str, names: tuple[str, str]) -> str:
    """One coordinate of the observed states as a filled ground, of the carried ones as a line."""
    seen, made = (_column(part, coordinate) for part in (views.observed, views.carried))
    low, high = around(seen, outliers=0.002)
    edges = np.linspace(low, high, BINS + 1)
    heights = [
        np.histogram(part[:, mark], edges)[0] / max(1, len(part)) / (edges[1] - edges[0]) for part in (seen, made)
    ]
    title = f"{names[1]} = {float(views.marks.times[mark]):.3g}"
    picture = Picture((low, high), (0, 1.1 * max(map(np.max, heights)) or 1), size=(220, 160), names=(names[0], ""))
    picture.title = title
    picture.steps(edges, heights[0], DATA, fill=True).steps(edges, heights[1], tint(objective))
    return picture.svg(label=f"law of {names[0]} at {title}")


def plane(views: Views, pair: tuple[int, int], mark: int, *, objective: str, names: tuple[str, str, str]) -> str:
    """Two coordinates of the observed and of the carried states at one mark."""
    columns = [_column(part, i) for i in pair for part in (views.observed, views.carried)]
    ends = [around(columns[2 * k], outliers=0.002, margin=0.1) for k in (0, 1)]
    title = f"{names[2]} = {float(views.marks.times[mark]):.3g}"
    picture = Picture(*ends, size=(220, 205), names=names[:2], title=title)
    picture.dots(columns[0][:, mark], columns[2][:, mark], DATA, radius=1.8)
    picture.dots(columns[1][:, mark], columns[3][:, mark], tint(objective), radius=1.5)
    return picture.svg(label=f"{names[0]} and {names[1]} at {title}")


def trajectories(views: Views, coordinate: int, *, objective: str, names: tuple[str, str]) -> str:
    """A few held-out paths, and the flow from the same starts."""
    seen, made = (_column(part, coordinate) for part in (views.observed, views.carried))
    times = views.marks.times.numpy()
    ends = around(seen[:PATHS], made[:PATHS], outliers=0.002)
    picture = Picture(around(times, margin=0), ends, size=(560, 220), names=(names[1], names[0]))
    for path in seen[:PATHS]:
        picture.line(times, path, DATA, width=1)
    for path in made[:PATHS]:
        picture.line(times, path, tint(objective), width=1.5, alpha=0.85)
    return picture.svg(label=f"{names[0]} of some paths over time")


def _column(states: Tensor, coordinate: int) -> np.ndarray:
    """One coordinate (of larger states, one number of each), (path, mark)."""
    return states.flatten(2)[..., coordinate].double().numpy()


# -- pictures as states ------------------------------------------------------------------------------------------------


def strip(views: Views, path: int, *, channel: int = 0, count: int = 8) -> tuple[str, str]:
    """Frames of a path side by side, observed and as the flow goes on from the first, in one grey scale."""
    last = len(views.marks.times) - 1
    marks = sorted({round(last * i / (count - 1)) for i in range(count)})
    seen, made = (part[path, marks, channel].double() for part in (views.observed, views.carried))
    low, high = float(torch.nan_to_num(seen, torch.inf).min()), float(torch.nan_to_num(seen, -torch.inf).max())
    scale = high - low or 1.0
    rows = [np.concatenate([*np.pad(((part - low) / scale).nan_to_num(0).numpy(), ((0, 0), (1, 1), (1, 1)))], axis=1)
            for part in (seen, made)]  # fmt: skip
    return png(rows[0]), png(rows[1])
