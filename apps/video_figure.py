"""The rollout explorer's figures of video: truth, prediction and difference, the error over time, the scores so far."""

from __future__ import annotations

import numpy as np
from bokeh.models import BasicTickFormatter, BoxAnnotation, ColumnDataSource, Div, Glyph, Range1d
from bokeh.plotting import figure as Figure
from in_browser import look_at, script, source, unsynced
from screens import cursor, redraw, screen
from theme import figure, key, palette
from video_frames import Columns, Setting

TITLES = {"truth": "truth", "guess": "prediction", "difference": "difference × 2"}
CURVES = {"still": ("persistence", "solid"), "codec": ("exact", "dashed")}
"""Colours and dashes of what a method is compared with."""


class VideoFigure:
    """The figures. `whole` and `rows` go to the browser once for each setting; a script draws what `look` names."""

    def __init__(self, *, frame: int):
        self.colors = palette()
        self.whole, self.rows = ColumnDataSource(), ColumnDataSource()
        self.look = look_at(frame=frame)
        self.pictures = {name: source("image") for name in TITLES}
        self.screens = [
            screen(title, self.pictures[name], name=f"video {name}", high=128 if name == "difference" else 255)
            for name, title in TITLES.items()
        ]
        unsynced(self.screens[1].title)
        self.tinted: list[Glyph] = []
        self.errors = self._errors()
        self.scores = unsynced(Div(name="scores", styles={"color": self.colors["text"]}))
        models = {name: getattr(self, name) for name in ("whole", "rows", "look", "screens", "pictures", "cursor")}
        draw = script("images.mjs", "video_figure.mjs", clock=self.errors.title, scores=self.scores, **models)
        redraw(draw, look=self.look, sources=[self.whole, self.rows], screens=self.screens)

    def show(self, columns: Columns, setting: Setting) -> None:
        """Send the frames of a new setting, in the colour of its method."""
        for glyph in self.tinted:
            glyph.line_color = self.color(setting)
        highest = max(float(np.nanmax(columns[name])) for name in ("guess", *CURVES))
        self.errors.y_range.update(start=0, end=1.1 * highest + 1e-6)
        self.errors.x_range.update(start=float(columns["t"][0]), end=float(columns["t"][-1]))
        self.rows.data = {"guess": columns["rows"]}
        self.whole.data = {name: column for name, column in columns.items() if name != "rows"}

    def color(self, setting: Setting) -> str:
        return self.colors.get(setting.objective or setting.method, self.colors["difference"])

    def key(self, setting: Setting) -> str:
        """What the colours of the curves mean."""
        references = {
            "persistence": (self.colors["persistence"], "line"),
            "the codec alone": (self.colors["exact"], "dash"),
        }
        return key({setting.label: (self.color(setting), "line"), **references})

    def _errors(self) -> Figure:
        plot = figure(title="MSE of each frame", x_range=Range1d(0, 1), y_range=Range1d(0, 1))
        plot.xaxis.axis_label = "seconds after the last frame that is seen"
        plot.yaxis.formatter = BasicTickFormatter(use_scientific=False)
        plot.add_layout(BoxAnnotation(right=0, fill_color=self.colors["quiet"], fill_alpha=0.12, line_color=None))
        for name, (color, dash) in CURVES.items():
            plot.line("t", name, source=self.whole, line_color=self.colors[color], line_dash=dash, line_width=1.5)
        self.tinted.append(plot.line("t", "guess", source=self.whole, line_width=2.5).glyph)
        self.cursor = cursor(plot, self.colors["text"])
        unsynced(plot.title).update(name="video clock")
        return plot
