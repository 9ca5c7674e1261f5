"""Screens: what the figures that show animations share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import panel as pn
import torch
from bokeh.models import ColumnDataSource, CustomJS, LinearColorMapper, Range1d, Span
from bokeh.palettes import Greys256
from bokeh.plotting import figure as Figure
from in_browser import unsynced
from theme import HALF, figure, place, wrap
from torch import Tensor


def sendable(pictures: Tensor) -> list[np.ndarray]:
    """A list of pictures (n, 1, height, width) as the browser draws them: the first row at the bottom, a byte each."""
    bright = (pictures[:, 0].clamp(0, 1) * 255).round().to(torch.uint8).flip(1).numpy()
    return [np.ascontiguousarray(picture) for picture in bright]


def screen(title: str, source: ColumnDataSource, *, name: str, high: int = 255) -> Figure:
    """A black figure with the picture of `source` in the square [−2, 2]², white from `high` on."""
    sides = {side: unsynced(Range1d(-2, 2)) for side in ("x_range", "y_range")}
    plot = figure(name=name, title=title, **sides)
    plot.axis.visible = plot.grid.visible = False
    plot.background_fill_color = "black"  # what the window has beside the square picture
    mapper = LinearColorMapper(palette=Greys256, low=0, high=high)
    plot.image("image", source=source, x=-2, y=-2, dw=4, dh=4, color_mapper=mapper)
    return plot


def cursor(plot: Figure, color: str) -> Span:
    """A line over the figure at the time of what is shown."""
    made = unsynced(Span(location=0, level="overlay", dimension="height", line_color=color, line_width=2))
    plot.add_layout(made)
    return made


def redraw(
    draw: CustomJS, *, look: ColumnDataSource, sources: Iterable[ColumnDataSource], screens: list[Figure]
) -> None:
    """Run the script when the reader moves, when new animations come, and when the screens change their size."""
    look.js_on_change("change", draw)
    for source in sources:
        source.js_on_change("data", draw)
    for plot in screens:
        for size in ("inner_width", "inner_height"):
            plot.js_on_change(size, draw)


def side_by_side(*plots: Figure, least: int = 260, height: str = HALF) -> pn.Row:
    """The figures in a row while each can have as many pixels as are the least, all as wide and as high."""
    row = wrap(*(place(plot, height) for plot in plots), basis=[least] * len(plots))
    for part in row:
        part.styles = {**part.styles, "flex": f"1 1 {least}px", "height": height}
    return row
