"""The figures of a run: states in a plane or as pictures, histograms, and the distance of distributions over time."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, LinearColorMapper, Range1d, Span, Title
from bokeh.palettes import Greys256
from bokeh.plotting import figure as Figure
from in_browser import HERE, look_at, source, unsynced
from run_frames import Columns
from theme import figure, key, palette

TITLE = "sliced W₂ from held-out paths, in spreads"


class RunFigure:
    """`frames` goes to the browser once for each setting; a script draws the row that `look` names."""

    def __init__(self, kind: str, *, frame: int = 0):
        self.kind, self.colors = kind, palette()
        self.look, self.frames = look_at(frame=frame), ColumnDataSource()
        self.tinted: list[tuple[Any, str]] = []
        self.sources: dict[str, ColumnDataSource] = {}
        self.curves = ColumnDataSource(data={"t": [], "flow": [], "floor": [], "persistence": []})
        self.main = [self._plane()] if kind == "vectors" else [self._screen("truth"), self._screen("guess")]
        self.bars = [self._bars(axis) for axis in ("x", "y")[: 2 if kind == "vectors" else 1]]
        self.marginals = self._marginals()
        self._script()

    def show(self, columns: Columns, objective: str, quality: dict[str, Any]) -> None:
        """Send an animation in the colour of its objective; the browser stays at its frame. {} shows nothing."""
        for glyph, name in self.tinted:
            setattr(glyph, name, self.colors.get(objective, self.colors["phibe"]))
        names = columns.get("names", ["t", "x"])
        self.time.text = names[0] if self.kind == "vectors" else f"observed, {names[0]}"
        self.marginals.xaxis.axis_label = names[0]
        self._curves(quality)
        sent = {name: part for name, part in columns.items() if name not in ("names", "x_range", "y_range")}
        for plot, axis in zip(self.bars, "xy", strict=False):
            if f"{axis}bars_y" in columns:
                high = max(float(np.nanmax(columns[f"{axis}bars{end}_y"])) for end in ("", "2"))
                plot.y_range.update(start=0, end=1.05 * high or 1.0)
                edges = columns[f"{axis}bars2_x"][0]
                plot.x_range.update(start=float(edges[0]), end=float(edges[-1]))
        for side in ("x_range", "y_range"):
            if side in columns:
                getattr(self.main[0], side).update(start=columns[side][0], end=columns[side][1])
        self.frames.data = sent

    def name_axes(self, *labels: str) -> None:
        """The names of the coordinates shown."""
        for plot, label in zip(self.bars, labels, strict=False):
            plot.xaxis.axis_label = label
        if self.kind == "vectors":
            self.main[0].xaxis.axis_label, self.main[0].yaxis.axis_label = labels[0], labels[-1]

    def key(self, objective: str) -> str:
        """What the colours mean."""
        flow = self.colors.get(objective, self.colors["phibe"])
        marks = "dot line" if self.kind == "vectors" else "line"
        return key({"observed": (self.colors["samples"], marks), f"flow ({objective})": (flow, marks)})

    # -- figures ---------------------------------------------------------------------------------------------------

    def _plane(self) -> Figure:
        plot = figure(name="run plane", x_range=Range1d(-1, 1), y_range=Range1d(-1, 1))
        style = {"size": 5, "line_color": None, "fill_alpha": 0.65}
        self.sources["samples"], self.sources["particles"] = source("x", "y"), source("x", "y")
        plot.scatter("x", "y", source=self.sources["samples"], fill_color=self.colors["samples"], **style)
        dots = plot.scatter("x", "y", source=self.sources["particles"], **style)
        arrows = self.sources["arrows"] = source("x", "y", "x1", "y1", "angle")
        ink = self.colors["exact"]
        plot.segment("x", "y", "x1", "y1", source=arrows, line_width=1.4, line_alpha=0.7, line_color=ink)
        head = {"marker": "triangle", "angle": "angle", "size": 6, "line_color": None, "fill_alpha": 0.7}
        plot.scatter("x1", "y1", source=arrows, fill_color=ink, **head)
        self.tinted.append((dots.glyph, "fill_color"))
        plot.min_border_left = 62
        return plot

    def _screen(self, name: str) -> Figure:
        sides = {side: unsynced(Range1d(-1, 1)) for side in ("x_range", "y_range")}
        plot = figure(name=name, title={"truth": "observed", "guess": "the flow"}[name], **sides)
        plot.axis.visible = plot.grid.visible = False
        plot.background_fill_color = "black"
        self.sources[name] = source("image")
        mapper = LinearColorMapper(palette=Greys256, low=0, high=255)
        plot.image("image", source=self.sources[name], x=-1, y=-1, dw=2, dh=2, color_mapper=mapper)
        return plot

    def _bars(self, axis: str) -> Figure:
        plot = figure(x_range=Range1d(-1, 1), y_range=Range1d(0, 1))
        plot.yaxis.axis_label = "density"
        observed, generated = source("x", "x1", "y"), source("x", "y")
        self.sources |= {f"{axis}bars": observed, f"{axis}bars2": generated}
        ground = {"fill_color": self.colors["samples"], "fill_alpha": 0.45, "line_color": None}
        plot.quad(left="x", right="x1", bottom=0, top="y", source=observed, **ground)
        line = plot.step("x", "y", source=generated, mode="after", line_width=2.5)
        self.tinted.append((line.glyph, "line_color"))
        return plot

    def _marginals(self) -> Figure:
        plot = figure(title=TITLE, x_range=Range1d(0, 1), y_range=Range1d(0, 1))
        still = {"line_color": self.colors["persistence"], "line_dash": "dotted", "line_width": 1.5}
        plot.line("t", "persistence", source=self.curves, **still)
        plot.line("t", "floor", source=self.curves, line_color=self.colors["samples"], line_width=2)
        flow = plot.line("t", "flow", source=self.curves, line_width=2.5)
        self.tinted.append((flow.glyph, "line_color"))
        style = {"dimension": "height", "line_color": self.colors["text"], "line_width": 2}
        self.cursor = unsynced(Span(location=0, level="overlay", **style))
        plot.add_layout(self.cursor)
        return plot

    def _curves(self, quality: dict[str, Any]) -> None:
        rows = [row for row in quality.get("marginals", []) if row["flow"] is not None]
        self.curves.data = {name: [row[name] for row in rows] for name in ("flow", "floor", "persistence")} | {
            "t": [row["time"] for row in rows]
        }
        if rows:
            self.marginals.x_range.update(start=min(0.0, rows[0]["time"]), end=rows[-1]["time"])
            high = max(max(row["flow"], row["floor"]) for row in rows)
            self.marginals.y_range.update(
                start=0, end=min(2.5 * high, 1.1 * max(high, *(row["persistence"] for row in rows)))
            )

    def _script(self) -> None:
        self.time = Title(text="t")  # carries the name of time to the script
        clock = unsynced(self.main[0].title)
        clock.update(name="run clock", text="t", text_font_size="1.05rem")
        models = {name: getattr(self, name) for name in ("frames", "look", "sources", "cursor", "time")}
        screens = self.main if self.kind == "pictures" else []
        draw = CustomJS.from_file(HERE / "run_figure.mjs", **models, clock=clock, screens=screens)
        self.look.js_on_change("change", draw)
        self.frames.js_on_change("data", draw)
        for plot in self.main:
            for size in ("inner_width", "inner_height"):
                plot.js_on_change(size, draw)
