"""The flow explorer's phase plane for processes with two coordinates, drawn frame by frame in the browser."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, CustomJS, Glyph, Range1d, Span
from bokeh.plotting import figure as Figure
from flow_frames import TRAIL
from flow_setting import Columns, second
from in_browser import HERE, source, unsynced
from theme import figure, key, palette

ARROWS = ("none", "exact", "fitted", "difference")
CAMERAS = ("follow", "whole")
FADE = (0.2, 0.5)  # opacity of a trail's halves, the older first


class FlowFigure:
    """The figure. `frames` goes to the browser once for each setting; a script draws the row that `look` names."""

    def __init__(self, look: ColumnDataSource, cursors: list[Span]):
        self.look, self.cursors, self.colors = look, cursors, palette()
        self.frames = ColumnDataSource()
        self.sources = {name: source("x", "y") for name in ("samples", "marginal")}
        for flow in ("flow", second("flow")):
            self.sources |= {f"{flow}_dots": source("x", "y"), f"{flow}_marginal": source("x", "y")}
            self.sources |= {f"{flow}_trail{i}": source("xs", "ys") for i in range(len(FADE))}
        self.sources |= {"arrows": source("x", "y", "x1", "y1", "angle", "color")}
        self.tinted: dict[str, list[tuple[Glyph, str]]] = {}
        self.plane = self._plane()
        self._script()

    def show(self, columns: Columns, estimators: tuple[str, ...]) -> None:
        """Send an animation in the colours of its estimators; the browser stays at its frame. {} shows nothing."""
        for parts, estimator in zip(self.tinted.values(), estimators, strict=False):
            for glyph, name in parts:
                setattr(glyph, name, self.colors[estimator])
        self.frames.data = columns

    def key(self, estimators: tuple[str, ...]) -> str:
        """What the colours mean."""
        flows = {
            f"{estimator}: flow particles, 2σ": (self.colors[estimator], mark)
            for estimator, mark in zip(estimators, ("dot line", "ring line"), strict=False)
        }
        samples = {"SDE samples": (self.colors["samples"], "dot")}
        return key({**samples, **flows, "exact distribution, 2σ": (self.colors["exact"], "dash")})

    # -- the figure ------------------------------------------------------------------------------------------------

    def _plane(self) -> Figure:
        plot = figure(name="plane", x_range=unsynced(Range1d(-3, 7)), y_range=unsynced(Range1d(-3, 7)))
        plot.xaxis.axis_label, plot.yaxis.axis_label = "x₁", "x₂"
        style = {"color": self.colors["samples"], "alpha": 0.65, "size": 5, "line_color": None}
        plot.scatter("x", "y", source=self.sources["samples"], **style)
        self._arrows(plot)
        self.dots = self._flow(plot, "flow", size=5.5, line_color=None, fill_alpha=0.9)
        self.rings = self._flow(plot, second("flow"), size=8, line_width=1.5, fill_color=None)
        style = {"line_width": 2.5, "line_dash": [7, 5], "line_color": self.colors["exact"]}
        plot.line("x", "y", source=self.sources["marginal"], **style)
        unsynced(plot.title).update(name="clock", text="t", text_font_size="1.1rem")
        plot.min_border_left = 62  # wide enough for every tick label, so that the plane does not jump
        return unsynced(plot)

    def _arrows(self, plot: Figure) -> None:
        arrows, alpha = self.sources["arrows"], 0.8
        plot.segment("x", "y", "x1", "y1", source=arrows, line_width=1.7, line_alpha=alpha, line_color="color")
        head = {"marker": "triangle", "angle": "angle", "size": 7, "line_color": None, "fill_alpha": alpha}
        plot.scatter("x1", "y1", source=arrows, fill_color="color", **head)

    def _flow(self, plot: Figure, flow: str, **style) -> Glyph:
        """A flow's trails, particles and ellipse; a second one's particles are rings: the first's stay in sight."""
        parts = self.tinted.setdefault(flow, [])
        for i, alpha in enumerate(FADE):
            trail = self.sources[f"{flow}_trail{i}"]
            lines = plot.multi_line("xs", "ys", source=trail, line_width=1.7, line_alpha=alpha)
            parts.append((lines.glyph, "line_color"))
        dots = plot.scatter("x", "y", source=self.sources[f"{flow}_dots"], **style).glyph
        parts.append((dots, "fill_color" if "fill_alpha" in style else "line_color"))
        ellipse = plot.line("x", "y", source=self.sources[f"{flow}_marginal"], line_width=3.5)
        parts.append((ellipse.glyph, "line_color"))
        return dots

    # -- the browser's part ----------------------------------------------------------------------------------------

    def _script(self) -> None:
        models = {name: getattr(self, name) for name in ("frames", "look", "plane", "sources", "cursors")}
        colors = {name: self.colors[name] for name in ("exact", "difference")}
        extra = {"colors": colors, "dots": self.dots, "rings": self.rings, "length": TRAIL, "parts": len(FADE)}
        draw = CustomJS.from_file(HERE / "flow_figure.mjs", **models, **extra)
        self.look.js_on_change("change", draw)
        self.frames.js_on_change("data", draw)
        for size in ("inner_width", "inner_height"):
            self.plane.js_on_change(size, draw)
