"""The spectrum explorer's figures: truth, rollout and their difference as pictures, spectra, errors over lead time."""

from __future__ import annotations

from typing import Any

import numpy as np
import panel as pn
from bokeh.models import BoxAnnotation, ColumnDataSource, CustomJS, Div, Glyph, LinearColorMapper, Range1d, Span
from bokeh.palettes import RdBu11, interp_palette
from bokeh.plotting import figure as Figure
from in_browser import HERE, look_at, source, unsynced
from spectrum_frames import LEVELS, STILL, Rollout, Setting, truth
from theme import PROSE, figure, key, palette

FIELDS = {"truth": "truth", "guess": "generated", "difference": "difference"}
SHADES = interp_palette(RdBu11, 2 * LEVELS + 1)
CURVES = ("t", "error", "still")
SHOWN = 3.0
"""The largest error that has room in a figure; what diverges leaves it."""


class SpectrumFigure:
    """The figures. `frames` goes to the browser once for each rollout; a script draws the row that `look` names."""

    def __init__(self, rollout: Rollout, setting: Setting, *, step: float, **look: int):
        self.colors, self.step = palette(), step
        self.look = look_at(**look)
        self.frames, self.curves = ColumnDataSource(), ColumnDataSource(data=_curves(rollout))
        self.mean = truth()
        self.pictures = {name: source("image") for name in FIELDS}
        self.lines = {name: source("k", "power") for name in ("truth", "guess")}
        self.bands = source("t", "truth", "guess")
        self.mapper = LinearColorMapper(palette=SHADES, low=-0.5, high=2 * LEVELS + 0.5)
        self.tinted: list[Glyph] = []
        self.cursors: list[Span] = []
        self.now = unsynced(Div(name="now", sizing_mode="stretch_width", stylesheets=[PROSE], margin=(5, 10, 0, 10)))
        self.now.styles = {"font-size": "1rem"}
        self.screens = {name: self._screen(name) for name in FIELDS}
        self.spectrum, self.errors, self.shells = self._spectrum(), self._errors(), self._shells()
        for plot in (*self.screens.values(), self.spectrum, self.errors, self.shells):
            unsynced(plot)  # a wider label moves its axis, which is nobody else's business
        self._script()
        self.show(rollout, setting)

    def show(self, rollout: Rollout, setting: Setting) -> None:
        """Send the frames of a new rollout, in the colour of its method; the browser stays at its lead time."""
        for glyph in self.tinted:
            glyph.line_color = self.color(setting.method)
        columns = rollout.columns
        self.curves.data = _curves(rollout)
        self.errors.y_range.end = 1.1 * min(SHOWN, float(max(columns["error"].max(), columns["still"].max())))
        self.frames.data = columns

    def color(self, method: str) -> str:
        """The colour of a method, whatever its share or condition."""
        return self.colors[method.split()[0]]

    def key(self, setting: Setting, rollout: Rollout) -> str:
        """What the colours of pictures and curves mean."""
        own = {setting.label: (self.color(setting.method), "line")}
        truths = {"mean of the truth": (self.colors["exact"], "line"), "true field": (self.colors["exact"], "dash")}
        still = {} if setting.method == STILL else {"persistence": (self.colors[STILL], "line")}
        return key({**own, **truths, **still}).replace("</div>", f"{_scale(rollout.limit)}</div>")

    # -- figures ---------------------------------------------------------------------------------------------------

    def _screen(self, name: str) -> Figure:
        plot = figure(name=name, x_range=Range1d(0, 1), y_range=Range1d(0, 1), aspect_ratio=1)
        plot.sizing_mode = "scale_width"
        plot.axis.visible = plot.grid.visible = False
        plot.min_border = plot.min_border_top = 0
        self.pictures[name].name = f"{name} picture"
        plot.image("image", source=self.pictures[name], x=0, y=0, dw=1, dh=1, color_mapper=self.mapper)
        return plot

    def _spectrum(self) -> Figure:
        low, high = float(self.mean.min()), float(self.mean.max())
        ranges = {"x_range": Range1d(0.9, 1.1 * len(self.mean)), "y_range": Range1d(low / 20, high * 20)}
        plot = figure(title="enstrophy spectrum", x_axis_type="log", y_axis_type="log", **ranges)
        plot.xaxis.axis_label = "shell k"
        plot.xaxis.ticker = [1, 2, 4, 8, 16, 32, 64]
        self.band = unsynced(BoxAnnotation(name="band", fill_alpha=0.14, fill_color=self.colors["bound"]))
        plot.add_layout(self.band)
        exact = {"line_color": self.colors["exact"]}
        plot.line(np.arange(1, len(self.mean) + 1), self.mean, line_width=2.5, **exact)
        plot.line("k", "power", source=self.lines["truth"], line_width=1.2, line_dash=[5, 3], **exact)
        self._tint(plot.line("k", "power", source=self.lines["guess"], line_width=2.5))
        return plot

    def _errors(self) -> Figure:
        plot = self._over_time("relative mean square error")
        plot.line("t", "still", source=self.curves, line_color=self.colors[STILL], line_width=1.5)
        self._tint(plot.line("t", "error", source=self.curves, line_width=2.5))
        return plot

    def _shells(self) -> Figure:
        plot = self._over_time("log₁₀-spectral error")
        unsynced(plot.y_range), unsynced(plot.title)
        dashed = {"line_color": self.colors["exact"], "line_dash": [5, 3]}
        plot.line("t", "truth", source=self.bands, line_width=1.2, **dashed)
        self._tint(plot.line("t", "guess", source=self.bands, line_width=2.5))
        return plot

    def _over_time(self, title: str) -> Figure:
        plot = figure(title=title, x_range=Range1d(0, self.curves.data["t"][-1]), y_range=Range1d(0, 1))
        plot.xaxis.axis_label = "lead time"
        cursor = unsynced(Span(dimension="height", line_color=self.colors["text"], line_width=2, level="overlay"))
        plot.add_layout(cursor)
        self.cursors.append(cursor)
        return plot

    def _tint(self, renderer: Any) -> None:
        self.tinted.append(renderer.glyph)

    def _script(self) -> None:
        names = ("frames", "look", "pictures", "lines", "bands", "band", "cursors", "now", "step")
        models = {name: getattr(self, name) for name in names}
        constants = {"mean": np.log10(self.mean).tolist(), "shown": SHOWN, "shells": self.shells}
        draw = CustomJS.from_file(HERE / "spectrum_figure.mjs", **models, **constants)
        self.look.js_on_change("change", draw)
        self.frames.js_on_change("data", draw)
        self.spectrum.js_on_change("inner_width", draw)  # the first time, when it has found its place


def _curves(rollout: Rollout) -> dict[str, np.ndarray]:
    return {name: rollout.columns[name] for name in CURVES}


def _scale(limit: float) -> str:
    """The colours of the three pictures, with the two ends named."""
    shades = ", ".join(SHADES[:: 2 * LEVELS // 8])
    style = f"display: inline-block; width: 90px; height: 11px; background: linear-gradient(90deg, {shades})"
    return f'<span>−{limit:.1f} <span style="{style}"></span> +{limit:.1f} in all three pictures</span>'


def screen(plot: Figure) -> pn.Column:
    """A picture below its name."""
    name = pn.pane.HTML(f"<div>{FIELDS[plot.name]}</div>", margin=0, sizing_mode="stretch_width")
    pane = pn.pane.Bokeh(plot, sizing_mode="scale_width", aspect_ratio=1, margin=0)
    return pn.Column(name, pane, sizing_mode="stretch_width", margin=0)
