"""Summaries."""

from __future__ import annotations

from phibe.objectives import OBJECTIVES


def describe_objectives() -> str:
    """A table of the objectives: observations they look at, order of the bias in Δt, noise, cost, assumptions."""
    rows = [("objective", "width", "order", "variance", "cost", "assumes")]
    for name, kind in OBJECTIVES.items():
        rows.append((name, str(kind.width), kind.order, f"{kind.variance:g}", kind.cost, kind.assumes))
    widths = (13, 6, 24, 9, 20, 0)
    return "\n".join(" ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows)


def _rows(lines: dict[str, str]) -> list[str]:
    return [f"  {name:10} {text}" for name, text in lines.items()]
