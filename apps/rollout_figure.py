"""The rollout explorer's figures: truth and prediction as pictures, their paths in a plane, the error over time."""

from __future__ import annotations

import numpy as np
from bokeh.models import ColumnDataSource, Glyph, Range1d
from bokeh.plotting import figure as Figure
from in_browser import look_at, script, unsynced
from rollout_frames import Columns, Setting
from screens import cursor, redraw, screen
from theme import figure, key, palette

AXES = {"pictures": ("latent z₁", "latent z₂"), "states": ("θ₁ (rad)", "θ₂ (rad)")}
TRAIL = 15


class RolloutFigure:
    """The figures. `frames` goes to the browser once for each setting; a script draws the row that `look` names."""

    def __init__(self, columns: Columns, setting: Setting, *, frame: int):
        self.colors = palette()
        self.frames, self.curves = ColumnDataSource(), ColumnDataSource()
        self.look = look_at(frame=frame)
        self.pictures = {name: unsynced(ColumnDataSource(data={"image": []})) for name in ("truth", "guess")}
        self.dots = {name: unsynced(ColumnDataSource(data={"x": [], "y": []})) for name in ("truth", "guess")}
        self.trails = {name: unsynced(ColumnDataSource(data={"x": [], "y": []})) for name in ("truth", "guess")}
        self.tinted: list[tuple[Glyph, str]] = []
        self._curves(columns)
        titles = {"truth": "the simulator", "guess": "the flow"}
        self.screens = [screen(title, self.pictures[name], name=name) for name, title in titles.items()]
        self.plane, self.errors = self._plane(), self._errors()
        self._script()
        self.show(columns, setting)

    def show(self, columns: Columns, setting: Setting) -> None:
        """Send the frames of a new setting, in the colour of its objective; the browser stays at its frame."""
        for glyph, name in self.tinted:
            setattr(glyph, name, self.colors.get(setting.objective, self.colors["exact"]))
        self._curves(columns)
        self.plane.xaxis.axis_label, self.plane.yaxis.axis_label = AXES[setting.source]
        for axis, side in enumerate((self.plane.x_range, self.plane.y_range)):
            side.update(**_around(columns["truth_plane"][:, axis], columns["guess_plane"][:, axis]))
        self.errors.y_range.update(start=0, end=1.1 * float(np.maximum(columns["error"], columns["still"]).max()))
        self.frames.data = {name: columns[name] for name in ("t", "truth", "guess")} | _planes(columns)

    def key(self, objective: str) -> str:
        """What the colours of plane and curve mean."""
        flow = self.colors.get(objective, self.colors["exact"])
        entries = {"truth": (self.colors["exact"], "dash"), "flow": (flow, "line")}
        return key({**entries, "persistence": (self.colors["persistence"], "line")})

    def _curves(self, columns: Columns) -> None:
        self.curves.data = {name: columns[name] for name in ("t", "error", "still")} | _planes(columns)

    # -- figures ---------------------------------------------------------------------------------------------------

    def _plane(self) -> Figure:
        plot = figure(title="where they are", x_range=Range1d(-1, 1), y_range=Range1d(-1, 1))
        exact = {"line_color": self.colors["exact"], "line_alpha": 0.45, "line_width": 1.5, "line_dash": [6, 4]}
        plot.line("truth_x", "truth_y", source=self.curves, **exact)
        way = plot.line("guess_x", "guess_y", source=self.curves, line_alpha=0.45, line_width=1.5)
        ahead = plot.line("x", "y", source=self.trails["guess"], line_width=3.5)
        plot.line("x", "y", source=self.trails["truth"], line_color=self.colors["exact"], line_width=2.5)
        dot = plot.scatter("x", "y", source=self.dots["guess"], size=11, line_color=None)
        plot.scatter("x", "y", source=self.dots["truth"], size=9, line_color=None, color=self.colors["exact"])
        self.tinted += [(way.glyph, "line_color"), (ahead.glyph, "line_color"), (dot.glyph, "fill_color")]
        return plot

    def _errors(self) -> Figure:
        plot = figure(title="pose error in degrees", x_range=Range1d(0, 3), y_range=Range1d(0, 1))
        plot.xaxis.axis_label = "seconds"
        still = {"line_color": self.colors["persistence"], "line_width": 1.5}
        plot.line("t", "still", source=self.curves, **still)
        curve = plot.line("t", "error", source=self.curves, line_width=2.5)
        self.tinted.append((curve.glyph, "line_color"))
        self.cursor = cursor(plot, self.colors["text"])
        unsynced(plot.title).update(name="clock")
        return plot

    def _script(self) -> None:
        models = {
            name: getattr(self, name) for name in ("frames", "look", "screens", "pictures", "dots", "trails", "cursor")
        }
        draw = script("images.mjs", "rollout_figure.mjs", clock=self.errors.title, length=TRAIL, **models)
        redraw(draw, look=self.look, sources=[self.frames], screens=self.screens)


def _planes(columns: Columns) -> Columns:
    return {f"{n}_{axis}": columns[f"{n}_plane"][:, i] for n in ("truth", "guess") for i, axis in enumerate("xy")}


def _around(*values: np.ndarray) -> dict[str, float]:
    low, high = min(v.min() for v in values), max(v.max() for v in values)
    margin = 0.06 * (high - low) + 1e-3
    return {"start": float(low - margin), "end": float(high + margin)}
