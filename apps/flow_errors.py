"""The flow explorer's errors over time: of the velocity and of the distribution, one curve for each flow."""

from __future__ import annotations

import numpy as np
from bokeh.models import ColumnDataSource, Glyph, Range1d, Span
from bokeh.plotting import figure as Figure
from flow_setting import PENDULUM, WELL, Columns, Setting, second
from in_browser import unsynced
from theme import figure, palette

PLOTS = (("velocity_error", "speed"), ("marginal_error", "sample_error"))
CURVES = tuple(name for error, reference in PLOTS for name in (error, second(error), reference))
VELOCITY = "‖v̂ − v‖ in L²(ρₜ), dotted: ‖v‖"
LAW = "W₂ from the exact one, dotted: samples"
FRESH = "W₂ from fresh paths, dotted: of the data"
PATH = "Off single paths, dotted: two draws of the SDE"
SLICED = "Sliced W₂, dotted: two SDE ensembles"


class Errors:
    """Two figures. The `cursors` are at the frame on the screen, where a figure's script moves them."""

    def __init__(self):
        self.colors = palette()
        self.curves = ColumnDataSource(data={name: [] for name in ("t", *CURVES)})
        self.cursors: list[Span] = []
        self.lines: tuple[list[Glyph], list[Glyph]] = ([], [])
        self.figures = [self._figure(*names) for names in PLOTS]

    def show(self, columns: Columns, setting: Setting) -> None:
        """Draw the curves of an animation, each in the colour of its estimator."""
        absent = np.full(len(columns["t"]), np.nan, np.float32)
        pendulum = setting.process == PENDULUM
        taken = {"velocity_error": "path_error", "speed": "divergence"} if pendulum else {}
        taken |= {second(name): second(other) for name, other in taken.items()}
        curves = {name: columns.get(taken.get(name, name), absent) for name in CURVES}
        for glyphs, estimator in zip(self.lines, setting.estimators, strict=False):
            for glyph in glyphs:
                glyph.line_color = self.colors[estimator]
        titles = (PATH, SLICED) if pendulum else (VELOCITY, FRESH if setting.process == WELL else LAW)
        for plot, title, (error, reference) in zip(self.figures, titles, PLOTS, strict=True):
            plot.title.text, plot.x_range.end = title, float(columns["t"][-1])
            plot.y_range.update(**_decades(np.stack([curves[error], curves[second(error)], curves[reference]])))
        self.curves.data = {"t": columns["t"], **curves}

    def _figure(self, error: str, reference: str) -> Figure:
        """The curve of each flow, the size to compare it with, and a cursor."""
        plot = figure(y_axis_type="log", x_range=Range1d(0, 1), y_range=Range1d(1e-3, 1), title=" ")
        plot.xaxis.axis_label, plot.yaxis.ticker.desired_num_ticks = "t", 4
        style = {"line_color": self.colors["quiet"], "line_width": 1.5, "line_dash": "dotted"}
        plot.line("t", reference, source=self.curves, **style)
        for glyphs, name, width in zip(self.lines, (error, second(error)), (2.8, 1.5), strict=True):
            glyphs.append(
                plot.line("t", name, source=self.curves, line_width=width).glyph
            )  # where they agree, both show
        plot.add_layout(self._cursor())
        return plot

    def _cursor(self) -> Span:
        """A line at a time; on the overlay, so that moving it repaints nothing else."""
        style = {"dimension": "height", "line_color": self.colors["text"], "line_width": 2}
        self.cursors.append(unsynced(Span(location=0, level="overlay", **style)))
        return self.cursors[-1]


def _decades(values: np.ndarray) -> dict[str, float]:
    """A logarithmic axis from one power of ten to another around the values that are not zero."""
    shown = values[np.isfinite(values) & (values > 0)]
    low, high = (shown.min(), shown.max()) if len(shown) else (0.1, 1.0)
    high = min(high, 1e4)
    low = min(max(low, high * 1e-4), high / 10)
    return {"start": float(10 ** np.floor(np.log10(low))), "end": float(10 ** np.ceil(np.log10(high * 1.5)))}
