"""Verdicts of the video experiment: which flow is best, in which measures it beats the others, a row of the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from phibe.experiments.report import Report
from phibe.objectives import OBJECTIVES

RECIPE = "phibe conditioned, euler"
"""What the paper's code does: told the frame before, one Euler step a frame."""
MEASURES = ("MSE × 100", "Fréchet", "PSNR", "SSIM")
"""The columns of the paper's table; its Fréchet distance is the FVD, ours is that of the features in the report."""


def flows(report: Report) -> list[str]:
    """The labels of all flows, in the order of the report."""
    return [label for label in report["methods"] if label.split()[0] in OBJECTIVES]


def best(report: Report) -> str:
    """The label of the flow with the least square error against the films."""
    return min(flows(report), key=lambda label: report["methods"][label]["standard"]["mse"])


def by_euler(label: str) -> str:
    """The same flow with one Euler step, and so one evaluation, a frame."""
    return f"{label.split(',')[0]}, euler"


def nearest(report: Report) -> str:
    """The label of the flow with the least Fréchet distance to the films: its films are most like true ones, whether or
    not they are like those that came."""
    return min(flows(report), key=lambda label: report["methods"][label]["frechet"]["standard"]["value"])


def numbers(entry: dict[str, Any], kind: str = "standard") -> list[float] | None:
    """The four measures of a method, `standard` or `adjusted`; None where there are none."""
    scores = entry[kind]
    if scores is None:
        return None
    return [100 * scores["mse"], entry["frechet"][kind]["value"], scores["psnr_published"], scores["ssim"]]


def better(report: Report, label: str, *, than: tuple[str, ...] = ("pfi", "mcvd")) -> list[str]:
    """The measures in which one future of a method is better than one of each of the others."""
    sign = np.array([-1, -1, 1, 1])
    mine, *others = (sign * np.array(numbers(report["methods"][name])) for name in (label, *than))
    won = np.all([mine > other for other in others], axis=0)
    return [name.removesuffix(" × 100") for name, yes in zip(MEASURES, won, strict=True) if yes]


def drift(entry: dict[str, Any], *, last: int = 0) -> float:
    """How far, in pixels, the figure is from the true one, on average over all frames or the `last` ones; NaN where no
    frame shows both."""
    apart = np.array(entry["motion"]["drift"], dtype=float)[-last:]
    seen = apart[np.isfinite(apart)]
    return float(seen.mean()) if len(seen) else float("nan")


def cells(entry: dict[str, Any]) -> list[str]:
    """A row of the paper's table: the four measures against the films, then against what the codec makes of them."""
    return [cell for kind in ("standard", "adjusted") for cell in written(numbers(entry, kind))]


def written(values: list[float] | None) -> list[str]:
    """The four measures with the paper's digits; dashes for none."""
    if values is None:
        return ["–"] * 4
    return [f"{value:{form}}" for value, form in zip(values, (".4f", ".1f", ".2f", ".4f"), strict=True)]


def falls_behind(curve: list[float], still: list[float]) -> int | None:
    """The first frame, from 1, at which an error is no longer below another, after it was so once; 1 if it never is,
    None if it always stays so from then on."""
    ahead = np.array(curve) < np.array(still)
    if not ahead.any():
        return 1
    first = int(ahead.argmax())
    behind = np.flatnonzero(~ahead[first:])
    return int(first + behind[0] + 1) if len(behind) else None
