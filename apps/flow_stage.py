"""The flow explorer's figures: the phase plane and the errors over time, drawn frame by frame in the browser."""

from __future__ import annotations

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, Glyph, Range1d, Span
from bokeh.plotting import figure as Figure
from flow_frames import TRAIL, Columns
from in_browser import HERE, look_at, unsynced
from theme import figure, key, palette

ARROWS = ("none", "exact", "fitted", "difference")
CAMERAS = ("follow", "whole")
FADE = (0.2, 0.5)  # opacity of a trail's halves, the older first
CURVES = ("t", "velocity_error", "speed", "law_error", "sample_error")


class Stage:
    """The figures. `frames` goes to the browser once for each setting; a script draws the row that `look` names."""

    def __init__(self, columns: Columns, estimator: str, *, frame: int, arrows: str, camera: str):
        self.colors = palette()
        self.frames, self.curves = ColumnDataSource(), ColumnDataSource(data={name: [] for name in CURVES})
        self.look = look_at(frame=frame, arrows=ARROWS.index(arrows), camera=CAMERAS.index(camera))
        self.sources = {name: _source("x", "y") for name in ("samples", "particles", "law", "flow_law")}
        self.sources |= {f"trail{i}": _source("xs", "ys") for i in range(len(FADE))}
        self.sources |= {"arrows": _source("x", "y", "x1", "y1", "angle")}
        self.tinted: list[tuple[Glyph, str]] = []
        self.cursors: list[Span] = []
        self.plane = self._plane()
        self.errors = (
            self._errors("‖v̂ − v‖ in L²(ρₜ), dotted: ‖v‖", "velocity_error", "speed"),
            self._errors("W₂ from the exact law, dotted: of the samples", "law_error", "sample_error"),
        )
        self.draw = self._script()
        self.show(columns, estimator)

    def show(self, columns: Columns, estimator: str) -> None:
        """Send the frames of a new setting, in the colour of its estimator; the browser stays at the frame it shows."""
        for glyph, name in self.tinted:
            setattr(glyph, name, self.color(estimator))
        for plot, names in zip(self.errors, (CURVES[1:3], CURVES[3:]), strict=True):
            plot.x_range.end = float(columns["t"][-1])
            plot.y_range.update(**_decades(np.concatenate([columns[name] for name in names])))
        self.curves.data = {name: columns[name] for name in CURVES}
        self.frames.data = columns

    def key(self, estimator: str) -> str:
        """What the colours of the phase plane mean."""
        flow = self.color(estimator)
        entries = {"SDE samples": (self.colors["samples"], "dot"), "flow particles": (flow, "dot")}
        return key({**entries, "law of the flow, 2σ": (flow, "line"), "exact law, 2σ": (self.colors["exact"], "dash")})

    def color(self, estimator: str) -> str:
        return self.colors.get(estimator, self.colors["exact"])

    # -- figures ---------------------------------------------------------------------------------------------------

    def _plane(self) -> Figure:
        plot = figure(name="plane", x_range=unsynced(Range1d(-3, 7)), y_range=unsynced(Range1d(-3, 7)))
        plot.xaxis.axis_label, plot.yaxis.axis_label = "x₁", "x₂"
        self._samples(plot)
        self.shafts, self.heads = self._arrows(plot)
        self._particles(plot)
        self._laws(plot)
        unsynced(plot.title).update(name="clock", text="t", text_font_size="1.1rem")
        plot.min_border_left = 62  # wide enough for every tick label, so that the plane does not jump
        return unsynced(plot)

    def _samples(self, plot: Figure) -> None:
        style = {"color": self.colors["samples"], "alpha": 0.65, "size": 5, "line_color": None}
        plot.scatter("x", "y", source=self.sources["samples"], **style)

    def _arrows(self, plot: Figure) -> tuple[Glyph, Glyph]:
        source, alpha = self.sources["arrows"], 0.8
        shafts = plot.segment("x", "y", "x1", "y1", source=source, line_width=1.7, line_alpha=alpha)
        head = {"marker": "triangle", "angle": "angle", "size": 7, "line_color": None, "fill_alpha": alpha}
        return unsynced(shafts.glyph), unsynced(plot.scatter("x1", "y1", source=source, **head).glyph)

    def _particles(self, plot: Figure) -> None:
        for i, alpha in enumerate(FADE):
            lines = plot.multi_line("xs", "ys", source=self.sources[f"trail{i}"], line_width=1.7, line_alpha=alpha)
            self.tinted.append((lines.glyph, "line_color"))
        style = {"size": 5.5, "line_color": None, "fill_alpha": 0.9}
        self.dots = plot.scatter("x", "y", source=self.sources["particles"], **style).glyph
        self.tinted.append((self.dots, "fill_color"))

    def _laws(self, plot: Figure) -> None:
        ring = plot.line("x", "y", source=self.sources["flow_law"], line_width=3.5)
        self.tinted.append((ring.glyph, "line_color"))
        style = {"line_width": 2.5, "line_dash": [7, 5], "line_color": self.colors["exact"]}
        plot.line("x", "y", source=self.sources["law"], **style)

    def _errors(self, title: str, column: str, reference: str) -> Figure:
        """A curve over time, the size to compare it with, and a cursor at the frame on the screen."""
        plot = figure(y_axis_type="log", x_range=Range1d(0, 1), y_range=Range1d(1e-3, 1), title=title)
        plot.xaxis.axis_label, plot.yaxis.ticker.desired_num_ticks = "t", 4
        style = {"line_color": self.colors["quiet"], "line_width": 1.5, "line_dash": "dotted"}
        plot.line("t", reference, source=self.curves, **style)
        curve = plot.line("t", column, source=self.curves, line_width=2)
        self.tinted.append((curve.glyph, "line_color"))
        plot.add_layout(self._cursor())
        return plot

    def _cursor(self) -> Span:
        """A line at a time; on the overlay, so that moving it repaints nothing else."""
        style = {"dimension": "height", "line_color": self.colors["text"], "line_width": 2}
        self.cursors.append(unsynced(Span(location=0, level="overlay", **style)))
        return self.cursors[-1]

    # -- the browser's part ----------------------------------------------------------------------------------------

    def _script(self) -> CustomJS:
        models = {
            name: getattr(self, name) for name in ("frames", "look", "plane", "shafts", "heads", "sources", "cursors")
        }
        colors = [None, self.colors["exact"], None, self.colors["difference"]]
        extra = {"colors": colors, "tint": self.dots, "length": TRAIL, "parts": len(FADE)}
        draw = CustomJS.from_file(HERE / "flow_stage.mjs", **models, **extra)
        self.look.js_on_change("change", draw)
        self.frames.js_on_change("data", draw)
        for size in ("inner_width", "inner_height"):
            self.plane.js_on_change(size, draw)
        return draw


def _source(*columns: str) -> ColumnDataSource:
    return unsynced(ColumnDataSource(data={name: [] for name in columns}))


def _decades(values: np.ndarray) -> dict[str, float]:
    """A logarithmic axis from one power of ten to another around the values that are not zero."""
    shown = values[np.isfinite(values) & (values > 0)]
    low, high = (shown.min(), shown.max()) if len(shown) else (0.1, 1.0)
    high = min(high, 1e4)
    low = min(max(low, high * 1e-4), high / 10)
    return {"start": float(10 ** np.floor(np.log10(low))), "end": float(10 ** np.ceil(np.log10(high * 1.5)))}
