"""Scrub a double pendulum and its prediction frame by frame, learnt from states or from pictures alone."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import panel as pn
import param
import torch
from in_browser import Buttons, copy_link, player
from rollout_frames import FRAMES, PATHS, STARTS, Columns, Setting, frames, objectives
from rollout_stage import Stage
from rollout_words import equations, failure, reading
from run_list import links
from run_view import SETTINGS as RUN
from run_view import RunView, asked_for
from theme import HALF, from_url, heading, place, prose, serve, to_url, wrap

SETTINGS = ("source", "path", "start", "objective", "integrator")
WIDE = {"sizing_mode": "stretch_width"}


class RolloutExplorer(pn.viewable.Viewer):
    """The parameters in SETTINGS decide which rollout is computed, on the server; the browser scrubs it alone."""

    source = param.Selector(default="pictures", objects=["pictures", "states"], label="Learnt from")
    path = param.Integer(0, bounds=(0, PATHS - 1), label="Test path")
    start = param.Selector(default="from rest", objects=list(STARTS), label="Start")
    objective = param.Selector(default="symmetric", objects=objectives(), label="Objective")
    integrator = param.Selector(default="rk4", objects=["euler", "rk4", "leapfrog"], label="Integrator")
    frame = param.Integer(0, bounds=(0, FRAMES - 1), doc="Where a link opens; from there the browser moves on alone.")
    shown = param.Tuple(length=2, doc="The setting on the screen and its frames.")

    def __init__(self, **values):
        super().__init__(**values)
        self.shown = (self.setting(), frames(self.setting()))
        self.stage = Stage(self.shown[1], self.shown[0], frame=self.frame)
        self.player = player(FRAMES, self.stage.look)
        self.problem = prose("", visible=False)
        self.figures = self._figures()

    def setting(self) -> Setting:
        return Setting(**{name: getattr(self, name) for name in SETTINGS})

    # -- effects ---------------------------------------------------------------------------------------------------

    @param.depends(*SETTINGS, watch=True)
    async def _compute(self) -> None:
        """A new rollout, worked out beside the server's loop; the old one stays on the screen until then."""
        setting, columns, trouble = self.setting(), None, ""
        self.figures.loading = True
        try:
            columns = await asyncio.to_thread(frames, setting)
        except Exception as problem:
            logging.exception("%s could not be computed", setting)
            trouble = failure(problem)
        pn.state.execute(partial(self._show, setting, columns, trouble), schedule=True)  # figures want Bokeh's lock

    def _show(self, setting: Setting, columns: Columns | None, trouble: str) -> None:
        if setting != self.setting():
            return  # a later call is on its way
        if columns is not None:
            self.stage.show(columns, setting)
            self.shown = (setting, columns)
        self.problem.param.update(object=trouble, visible=bool(trouble))
        self.figures.loading = False

    # -- what is seen ----------------------------------------------------------------------------------------------

    @param.depends("shown")
    def reading(self) -> str:
        return reading(*self.shown)

    @param.depends("shown")
    def key(self) -> str:
        return self.stage.key(self.shown[0].objective)

    @param.depends("shown")
    def equations(self) -> str:
        return equations(self.shown[0])

    def controls(self) -> pn.Column:
        return pn.Column(
            heading("Learnt from"),
            Buttons.from_param(self.param.source, **WIDE),
            heading("Test path"),
            pn.widgets.IntSlider.from_param(self.param.path, **WIDE),
            Buttons.from_param(self.param.start, **WIDE),
            heading("Flow"),
            pn.widgets.Select.from_param(self.param.objective, **WIDE),
            pn.widgets.Select.from_param(self.param.integrator, **WIDE),
            copy_link(self.stage.look),
            heading("Your runs"),
            prose(links("pictures"), css_classes=["small"]),
            **WIDE,
        )

    def _figures(self) -> pn.Column:
        screens = wrap(*(place(plot, HALF) for plot in self.stage.screens), basis=(260, 260))
        curves = wrap(*(place(plot, HALF) for plot in (self.stage.plane, self.stage.errors)), basis=(260, 260))
        for part in (*screens, *curves):
            part.styles = {**part.styles, "flex": "1 1 260px", "height": HALF}
        return pn.Column(screens, self.player, prose(self.key, margin=(0, 10)), curves, **WIDE)

    def __panel__(self) -> pn.Column:
        words = wrap(prose(self.reading), prose(self.equations, disable_math=False), basis=(300, 430))
        return pn.Column(self.problem, self.figures, words, **WIDE)


if pn.state.served:
    torch.set_num_threads(1)  # many small operations, several sessions
    pn.extension(throttled=True, respect_explicit_sizing=True)
    app = asked_for("pictures") or RolloutExplorer(**from_url(RolloutExplorer, [*SETTINGS, "frame"]))
    to_url(app, RUN if isinstance(app, RunView) else SETTINGS)
    serve("Rollout explorer", controls=app.controls(), main=app)
