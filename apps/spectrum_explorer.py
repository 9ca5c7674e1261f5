"""Pick a start and a method for turbulence; scrub the field, its error and its spectrum, and draw again."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import panel as pn
import param
import torch
from in_browser import Buttons, Range, copy_link, player
from jobs import Jobs, Superseded
from rollout_text import failure
from spectrum_figure import SpectrumFigure, screen
from spectrum_frames import Rollout, Setting, drawn, frames, known, menu, saved
from spectrum_text import equations, missing, no_choice, progress, reading, title
from theme import from_url, heading, place, prose, serve, to_url, wrap

SETTINGS = ("clip", "interval", "method", "integrator", "draw")
LOOK = ("frame", "low", "high")
WIDE = {"sizing_mode": "stretch_width"}
HIGH = "clamp(180px, 25vh, 400px)"
ROW = {"gap": "8px", "max-width": "max(340px, 300vh - 1380px)"}  # the three pictures leave room for the curves
MENU = menu()


def _choice(objects: Any, wanted: Any, label: str) -> param.Selector:
    """A parameter with these objects and, if it is one of them, the wanted default."""
    objects = list(objects)
    return param.Selector(
        default=wanted if wanted in objects else next(iter(objects), None), objects=objects, label=label
    )


class SpectrumExplorer(pn.viewable.Viewer):
    """The parameters in SETTINGS decide which rollout is computed, on the server; the browser scrubs it alone."""

    clip = param.Selector(default=1, objects=list(range(1, MENU.clips + 1)), label="Test clip")
    interval = _choice(MENU.intervals, 0.1, "Sampling interval")
    method = _choice(MENU.methods, "symmetric", "Method")
    integrator = _choice(MENU.integrators, "rk4", "Integrator")
    draw = param.Integer(1, bounds=(1, 9999), doc="Which of the draws of a method with chance.")
    frame = param.Integer(
        0, bounds=(0, MENU.frames - 1), doc="Where a link opens; from there the browser goes on alone."
    )
    low = param.Integer(1, bounds=(1, MENU.shells), doc="The first of the chosen shells, where a link opens.")
    high = param.Integer(MENU.shells, bounds=(1, MENU.shells), doc="The last of them.")
    shown = param.Tuple(length=2, doc="The setting on the screen and its rollout.")

    def __init__(self, **values):
        super().__init__(**values)
        self.high = max(self.low, self.high)
        self.jobs = Jobs()
        asked = self.setting()
        first = asked if known(asked) else asked.still  # at once, until the first rollout is there
        self.shown = (first, frames(first))
        look = {name: getattr(self, name) for name in LOOK}
        self.figure = SpectrumFigure(self.shown[1], first, step=saved().config.intervals[0], **look)
        self.player = player(MENU.frames, self.figure.look)
        self.player.param.update(interval=100, loop_policy="loop")  # still going when the first rollout is there
        self.status = prose(title(first, False), margin=(0, 10))
        self.problem = prose("", visible=False)

    def setting(self) -> Setting:
        """What the parameters ask for; what a method leaves no choice of is the same for all."""
        offered = MENU.methods[self.method]
        integrator = self.integrator if self.integrator in offered else next(iter(offered), "")
        setting = Setting(self.clip, self.interval, self.method, integrator, self.draw)
        return setting if drawn(setting) else replace(setting, draw=1)

    # -- effects ---------------------------------------------------------------------------------------------------

    @param.depends(*SETTINGS, watch=True)
    async def compute(self) -> None:
        """A new rollout, worked out beside the server's loop; the old one stays on the screen until then."""
        setting, rollout, trouble = self.setting(), None, ""
        try:
            rollout = await self.jobs.take(partial(frames, setting), partial(self._tell, setting))
        except Superseded:
            return
        except Exception as problem:
            logging.exception("%s could not be computed", setting)
            trouble = failure(problem)
        pn.state.execute(partial(self._show, setting, rollout, trouble), schedule=True)  # figures want Bokeh's lock

    def _tell(self, setting: Setting, done: float) -> None:
        text = progress(setting, done, round(saved().config.horizon / setting.interval))
        pn.state.execute(partial(self._say, setting, text), schedule=True)

    def _say(self, setting: Setting, text: str) -> None:
        if setting == self.setting():
            self.status.object = text

    def _show(self, setting: Setting, rollout: Rollout | None, trouble: str) -> None:
        if setting != self.setting():
            return  # a later call is on its way
        if rollout is not None:
            self.figure.show(rollout, setting)
            self.shown = (setting, rollout)
        self.status.object = title(self.shown[0], drawn(self.shown[0]))
        self.problem.param.update(object=trouble, visible=bool(trouble))

    def again(self, *_: Any) -> None:
        """Another draw, which ends one that is under way."""
        self.draw = self.draw % self.param.draw.bounds[1] + 1

    # -- what is seen ----------------------------------------------------------------------------------------------

    @param.depends("shown")
    def reading(self) -> str:
        return reading(*self.shown)

    @param.depends("shown")
    def key(self) -> str:
        return self.figure.key(*self.shown)

    @param.depends("shown")
    def equations(self) -> str:
        return equations(self.shown[0])

    @param.depends("method")
    def no_choice(self) -> str:
        return no_choice(self.method, MENU.methods[self.method])

    @param.depends("method")
    def fixed(self) -> bool:
        return bool(self.no_choice())

    @param.depends(*SETTINGS)
    def certain(self) -> bool:
        return not drawn(self.setting())

    def controls(self) -> pn.Column:
        shells = Range(name="Chosen shells k", start=1, end=MENU.shells, value=(self.low, self.high), **WIDE)
        again = pn.widgets.Button(name="New draw", disabled=self.certain, on_click=self.again, **WIDE)
        return pn.Column(
            heading("Start: test clip"),
            Buttons.from_param(self.param.clip, **WIDE),
            heading("Sampling interval"),
            Buttons.from_param(self.param.interval, **WIDE),
            heading("Method"),
            pn.widgets.Select.from_param(self.param.method, name="", **WIDE),
            pn.widgets.Select.from_param(self.param.integrator, disabled=self.fixed, **WIDE),
            prose(self.no_choice, css_classes=["small"]),
            again,
            heading("Spectrum"),
            shells.steer_ends(self.figure.look, "low", "high"),
            copy_link(self.figure.look, "low", "high"),
            **WIDE,
        )

    def __panel__(self) -> pn.Column:
        figure = self.figure
        screens = pn.Row(*map(screen, figure.screens.values()), styles=ROW, margin=(0, 10), **WIDE)
        curves = wrap(
            *(place(plot, HIGH) for plot in (figure.spectrum, figure.errors, figure.shells)), basis=(250,) * 3
        )
        for part in curves:
            part.styles = {**part.styles, "flex": "1 1 250px", "height": HIGH}
        said = pn.Column(pn.pane.Bokeh(figure.now, **WIDE), prose(self.reading), **WIDE)
        text = wrap(said, prose(self.equations, disable_math=False), basis=(300, 430))
        return pn.Column(
            self.problem, self.status, screens, self.player, prose(self.key, margin=(0, 10)), curves, text, **WIDE
        )


if pn.state.served:
    torch.set_num_threads(1)  # many small operations, several sessions
    pn.extension(throttled=True, respect_explicit_sizing=True)
    if MENU.methods:
        app = SpectrumExplorer(**from_url(SpectrumExplorer, [*SETTINGS, *LOOK]))
        to_url(app, SETTINGS)
        pn.state.onload(app.compute)
        pn.state.on_session_destroyed(app.jobs.stop)
        serve("Spectrum explorer", controls=app.controls(), main=app)
    else:
        serve("Spectrum explorer", controls=pn.Column(), main=prose(missing()))
