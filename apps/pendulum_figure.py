"""The flow explorer's figures for the double pendulum: the pendulum itself, and a phase portrait of each angle."""

from __future__ import annotations

import math

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, FixedTicker, Glyph, Range1d, Span
from bokeh.plotting import figure as Figure
from flow_setting import Columns, second
from in_browser import HERE, source, unsynced
from theme import figure, key, palette

FLOWS = ("flow", second("flow"))
ENSEMBLES = {"samples": ("sample", ""), FLOWS[0]: ("particle", ""), FLOWS[1]: ("particle", second(""))}
PARTS = ("rods", "tip", *(f"{part}{i}" for i in (1, 2) for part in ("dots", "way", "here")))
TRAIL = 20  # frames a trail looks back
PIS = {-math.pi: "−π", 0.0: "0", math.pi: "π"}


class PendulumFigure:
    """Three figures, drawn as in `FlowFigure`: `frames` is sent once, a script draws the row of `look`."""

    def __init__(self, look: ColumnDataSource, cursors: list[Span]):
        self.look, self.cursors, self.colors = look, cursors, palette()
        self.frames = ColumnDataSource()
        self.sources = {f"{name}_{part}": source("x", "y") for name in ENSEMBLES for part in PARTS}
        self.tinted: dict[str, list[tuple[Glyph, str]]] = {flow: [] for flow in FLOWS}
        self.drawn, self.portraits = self._drawn(), [self._portrait(i) for i in (1, 2)]
        self._script()

    def show(self, columns: Columns, estimators: tuple[str, ...]) -> None:
        """Send an animation in the colours of its estimators; the browser stays at its frame. {} shows nothing."""
        for parts, estimator in zip(self.tinted.values(), estimators, strict=False):
            for glyph, name in parts:
                setattr(glyph, name, self.colors[estimator])
        for i, plot in enumerate(self.portraits if columns else []):
            reach = 1.15 * float(np.abs(columns[f"sample_velocity{i + 1}"]).max())  # a flow beyond it is too fast
            plot.y_range.update(start=-reach, end=reach)
        self.frames.data = columns

    def key(self, estimators: tuple[str, ...]) -> str:
        """What the colours mean."""
        flows = {f"{name}: ensemble, one path": (self.colors[name], "dot line") for name in estimators}
        ensemble = {"SDE: ensemble": (self.colors["samples"], "dot")}
        return key({**ensemble, "one path": (self.colors["exact"], "line"), **flows})

    # -- figures ---------------------------------------------------------------------------------------------------

    def _drawn(self) -> Figure:
        sides = {side: unsynced(Range1d(-2.15, 2.15)) for side in ("x_range", "y_range")}
        plot = figure(name="pendulum", **sides)
        plot.axis.visible = plot.grid.visible = False
        plot.circle(0, 0, radius=2, fill_color=None, line_color=self.colors["grid"], line_width=1.5)
        for name, width in zip(ENSEMBLES, (7, 4.5, 2.5), strict=True):
            trail = plot.line("x", "y", source=self.sources[f"{name}_tip"], line_width=2, line_alpha=0.5)
            rods = plot.line("x", "y", source=self.sources[f"{name}_rods"], line_width=width, line_cap="round")
            joints = plot.scatter("x", "y", source=self.sources[f"{name}_rods"], size=width + 6, line_color=None)
            self._tint(name, (trail.glyph, "line_color"), (rods.glyph, "line_color"), (joints.glyph, "fill_color"))
        unsynced(plot.title).update(name="pendulum clock", text="t", text_font_size="1.1rem")
        return plot

    def _portrait(self, i: int) -> Figure:
        plot = figure(name=f"portrait {i}", x_range=Range1d(-math.pi, math.pi), y_range=Range1d(-1, 1))
        sign = "₁₂"[i - 1]
        plot.xaxis.axis_label, plot.yaxis.axis_label, plot.min_border_left = (
            f"θ{sign} (rad)",
            f"dθ{sign}/dt (rad/s)",
            55,
        )
        plot.xaxis.ticker, plot.xaxis.major_label_overrides = FixedTicker(ticks=list(PIS)), PIS
        for name, size in zip(ENSEMBLES, (6.5, 4.5, 4.5), strict=True):
            dots = {"size": size, "line_color": None, "fill_alpha": 0.65, "fill_color": self.colors["samples"]}
            cloud = plot.scatter("x", "y", source=self.sources[f"{name}_dots{i}"], **dots)
            if name in FLOWS:
                self._tint(name, (cloud.glyph, "fill_color"))
        for name, width in zip(ENSEMBLES, (3.5, 3, 2), strict=True):
            way = plot.line("x", "y", source=self.sources[f"{name}_way{i}"], line_width=width)
            edge = {"size": 12, "line_color": self.colors["page"], "line_width": 1.5}
            here = plot.scatter("x", "y", source=self.sources[f"{name}_here{i}"], **edge)
            self._tint(name, (way.glyph, "line_color"), (here.glyph, "fill_color"))
        return plot

    def _tint(self, name: str, *parts: tuple[Glyph, str]) -> None:
        """Parts of a flow take its estimator's colour when an animation is shown; those of the one path are black."""
        if name in FLOWS:
            self.tinted[name] += parts
        else:
            for glyph, property_ in parts:
                setattr(glyph, property_, self.colors["exact"])

    def _script(self) -> None:
        models = {name: getattr(self, name) for name in ("frames", "look", "sources", "cursors", "drawn")}
        extra = {"title": self.drawn.title, "ensembles": ENSEMBLES, "length": TRAIL}
        draw = CustomJS.from_file(HERE / "pendulum_figure.mjs", **models, **extra)
        self.look.js_on_change("change", draw)
        self.frames.js_on_change("data", draw)
        for size in ("inner_width", "inner_height"):
            self.drawn.js_on_change(size, draw)
