"""Scrub a double pendulum, or a clip of a person, and its prediction frame by frame."""

from __future__ import annotations

from typing import Any

import panel as pn
import param
import torch
from in_browser import Buttons, copy_link, player
from rollout_figure import RolloutFigure
from rollout_frames import FRAMES, PATHS, STARTS, Columns, Setting, frames, objectives
from rollout_text import equations, failure, reading
from run_list import links
from run_view import SETTINGS as RUN
from run_view import RunView, asked_for
from screens import side_by_side
from theme import from_url, heading, prose, serve, to_url, wrap
from video_view import SETTINGS as VIDEO_SETTINGS
from video_view import VideoExplorer
from working import Working

VIDEO = "video"
SETTINGS = ("source", "path", "start", "objective", "integrator")
WIDE = {"sizing_mode": "stretch_width"}


class RolloutExplorer(Working):
    """The parameters in SETTINGS decide which rollout is computed, on the server; the browser scrubs it alone.

    That of video has a view of its own, which takes the place of the pendulum's.
    """

    source = param.Selector(default="pictures", objects=["pictures", "states", VIDEO], label="Learnt from")
    path = param.Integer(0, bounds=(0, PATHS - 1), label="Test path")
    start = param.Selector(default="from rest", objects=list(STARTS), label="Start")
    objective = param.Selector(default="symmetric", objects=objectives(), label="Objective")
    integrator = param.Selector(default="rk4", objects=["euler", "rk4", "leapfrog"], label="Integrator")
    frame = param.Integer(0, bounds=(0, FRAMES - 1), doc="Where a link opens; from there the browser moves on alone.")
    shown = param.Tuple(length=2, doc="The setting on the screen and its frames.")

    def __init__(self, *, video: dict[str, Any] | None = None, **values: Any):
        super().__init__(**values)
        self.pendulum = self.source if self.source != VIDEO else "pictures"
        self.shown = (self.setting(), frames(self.setting()))
        self.figure = RolloutFigure(self.shown[1], self.shown[0], frame=self.frame)
        self.player = player(FRAMES, self.figure.look)
        self.problem = prose("", visible=False)
        self.figures = self._figures()
        self.video = VideoExplorer(**video or {})
        self.main, self.side = pn.Column(**WIDE), pn.Column(**WIDE)
        self.views: dict[bool, tuple[pn.Column, pn.Column]] = {}
        self._open()

    def setting(self) -> Setting:
        """What the parameters ask of the pendulum, whose source stays while video is shown."""
        return Setting(**{**{name: getattr(self, name) for name in SETTINGS}, "source": self.pendulum})

    # -- effects ---------------------------------------------------------------------------------------------------

    @param.depends(*SETTINGS, watch=True)
    async def _compute(self) -> None:
        """A new rollout; until it is there the old one stays on the screen."""
        self.pendulum = self.source if self.source != VIDEO else self.pendulum
        if self.source != VIDEO:
            await self.work(frames, failure)

    def draw(self, setting: Setting, columns: Columns) -> None:
        self.figure.show(columns, setting)
        self.shown = (setting, columns)

    @param.depends("source", watch=True)
    def _open(self) -> None:
        """Put the view of the source into the page when it is first asked for; from then on it is shown or hidden."""
        video = self.source == VIDEO
        if video not in self.views:
            self.views[video] = (self.video.__panel__(), self.video.controls()) if video else self._pendulum()
            if len(self.views) > 1:  # who has just chosen something else is not surprised by what moves
                (self.video if video else self).player.direction = 0
            for place, view in zip((self.main, self.side), self.views[video], strict=True):
                place.append(view)
            if video:
                self.video.open(at_once=len(self.views) == 1)
        for kind, (main, side) in self.views.items():
            main.visible = side.visible = kind == video

    # -- what is seen ----------------------------------------------------------------------------------------------

    @param.depends("shown")
    def reading(self) -> str:
        return reading(*self.shown)

    @param.depends("shown")
    def key(self) -> str:
        return self.figure.key(self.shown[0].objective)

    @param.depends("shown")
    def equations(self) -> str:
        return equations(self.shown[0])

    def controls(self) -> pn.Column:
        return pn.Column(heading("Learnt from"), Buttons.from_param(self.param.source, **WIDE), self.side, **WIDE)

    def _pendulum(self) -> tuple[pn.Column, pn.Column]:
        """Figures with their text, and the controls."""
        text = wrap(prose(self.reading), prose(self.equations, disable_math=False), basis=(300, 430))
        controls = pn.Column(
            heading("Test path"),
            pn.widgets.IntSlider.from_param(self.param.path, **WIDE),
            Buttons.from_param(self.param.start, **WIDE),
            heading("Flow"),
            pn.widgets.Select.from_param(self.param.objective, **WIDE),
            pn.widgets.Select.from_param(self.param.integrator, **WIDE),
            copy_link(self.figure.look),
            heading("Your runs"),
            prose(links("pictures"), css_classes=["small"]),
            **WIDE,
        )
        return pn.Column(self.problem, self.figures, text, **WIDE), controls

    def _figures(self) -> pn.Column:
        screens, curves = side_by_side(*self.figure.screens), side_by_side(self.figure.plane, self.figure.errors)
        return pn.Column(screens, self.player, prose(self.key, margin=(0, 10)), curves, **WIDE)

    def __panel__(self) -> pn.Column:
        return self.main


if pn.state.served:
    torch.set_num_threads(1)  # many small operations, several sessions
    pn.extension(throttled=True, respect_explicit_sizing=True)
    asked, video = from_url(RolloutExplorer, SETTINGS), from_url(VideoExplorer, VIDEO_SETTINGS)
    if asked.get("source") == VIDEO:  # the frame is that of what is shown
        video |= from_url(VideoExplorer, ["frame"])
    else:
        asked |= from_url(RolloutExplorer, ["frame"])
    app = asked_for("pictures") or RolloutExplorer(video=video, **asked)
    if isinstance(app, RunView):
        to_url(app, RUN)
    else:
        to_url(app, SETTINGS, (app.video, VIDEO_SETTINGS))
    serve("Rollout explorer", controls=app.controls(), main=app)
