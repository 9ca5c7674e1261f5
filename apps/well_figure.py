"""The flow explorer's figures for the double well: a density with particles under it, and the velocity."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, CustomJS, Glyph, Range1d, Span
from bokeh.plotting import figure as Figure
from flow_setting import Columns, second
from in_browser import HERE, source, unsynced
from theme import figure, key, palette
from well_frames import HIGH, LOW

ROWS = ("samples", "flow", second("flow"))
DEPTH = 0.13  # of a row of particles, in units of the density


class WellFigure:
    """Two figures over one axis, drawn as in `FlowFigure`: `frames` is sent once, a script draws the row of `look`."""

    def __init__(self, look: ColumnDataSource, cursors: list[Span]):
        self.look, self.cursors, self.colors = look, cursors, palette()
        self.frames = ColumnDataSource()
        self.sources = {name: source("x", "y") for name in ("density", "exact")}
        self.sources |= {f"{row}_dots": source("x", "y") for row in ROWS}
        self.sources |= {f"{flow}_{name}": source("x", "y") for flow in ROWS[1:] for name in ("bars", "field")}
        self.tinted: dict[str, list[tuple[Glyph, str]]] = {}
        self.x_range = unsynced(Range1d(LOW, HIGH))
        self.density, self.field = self._density(), self._field()
        self._script()

    def show(self, columns: Columns, estimators: tuple[str, ...]) -> None:
        """Send an animation in the colours of its estimators; the browser stays at its frame. {} shows nothing."""
        for parts, estimator in zip(self.tinted.values(), estimators, strict=False):
            for glyph, name in parts:
                setattr(glyph, name, self.colors[estimator])
        if columns:
            self.density.y_range.update(start=-DEPTH * (len(estimators) + 1.3), end=1.12 * columns["density"].max())
        self.frames.data = columns

    def key(self, estimators: tuple[str, ...]) -> str:
        """What the colours mean."""
        flows = {f"{estimator}: flow particles, v̂": (self.colors[estimator], "dot line") for estimator in estimators}
        samples = {"SDE samples": (self.colors["samples"], "dot")}
        return key({**samples, **flows, "exact density ρₜ and v": (self.colors["exact"], "dash")})

    # -- figures ---------------------------------------------------------------------------------------------------

    def _density(self) -> Figure:
        plot = figure(name="density", x_range=self.x_range, y_range=Range1d(0, 1))
        plot.yaxis.axis_label, plot.min_border_left = "density", 62
        ground = {"fill_color": self.colors["exact"], "fill_alpha": 0.1}
        plot.varea("x", 0, "y", source=self.sources["density"], **ground)
        for flow in ROWS[1:]:
            steps = plot.step("x", "y", source=self.sources[f"{flow}_bars"], mode="after", line_width=2)
            self.tinted[flow] = [(steps.glyph, "line_color")]
        self._exact(plot, "density")
        for row in ROWS:
            dots = {"size": 5, "line_color": None, "fill_alpha": 0.6, "fill_color": self.colors["samples"]}
            glyph = plot.scatter("x", "y", source=self.sources[f"{row}_dots"], **dots).glyph
            if row in self.tinted:
                self.tinted[row].append((glyph, "fill_color"))
        unsynced(plot.title).update(name="well clock", text="t", text_font_size="1.1rem")
        return plot

    def _field(self) -> Figure:
        plot = figure(name="field", x_range=self.x_range, y_range=unsynced(Range1d(-1, 1)))
        plot.xaxis.axis_label, plot.yaxis.axis_label, plot.min_border_left = "x", "velocity", 62
        for flow in ROWS[1:]:
            curve = plot.line("x", "y", source=self.sources[f"{flow}_field"], line_width=2.5)
            self.tinted[flow].append((curve.glyph, "line_color"))
        self._exact(plot, "exact")
        return plot

    def _exact(self, plot: Figure, name: str) -> None:
        style = {"line_width": 2.5, "line_dash": [7, 5], "line_color": self.colors["exact"]}
        plot.line("x", "y", source=self.sources[name], **style)

    def _script(self) -> None:
        models = {name: getattr(self, name) for name in ("frames", "look", "sources", "cursors")}
        extra = {"title": self.density.title, "height": self.field.y_range, "low": LOW, "high": HIGH, "depth": DEPTH}
        draw = CustomJS.from_file(HERE / "well_figure.mjs", **models, **extra)
        self.look.js_on_change("change", draw)
        self.frames.js_on_change("data", draw)
        for size in ("inner_width", "inner_height"):
            self.density.js_on_change(size, draw)
