"""Watch a probability flow carry particles through the marginals of a process, and see where a fit goes wrong."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import panel as pn
import param
import torch
from flow_errors import Errors
from flow_figure import ARROWS, CAMERAS, FlowFigure
from flow_frames import frames
from flow_setting import EXACT, FRAMES, NONE, PENDULUM, WELL, Columns, Setting
from flow_text import character, equations, failure, reading
from in_browser import Buttons, copy_link, look_at, player
from pendulum_figure import PendulumFigure
from run_list import links
from run_view import SETTINGS as RUN
from run_view import RunView, asked_for
from theme import HALF, TALL, from_url, heading, place, prose, serve, share, to_url, wrap
from well_figure import WellFigure

from phibe.integrators import METHODS
from phibe.objectives import OBJECTIVES

DRIFT, NOISE = ("a11", "a12", "a21", "a22"), ("s11", "s21", "s22")
BOTH = ("process", "paths", "seed", "estimator", "compare", "integrator")
PLANE, LINE = ("observations", "horizon", "knots"), ("well_observations", "well_horizon", "degree")
SETTINGS = (*BOTH, *DRIFT, *NOISE, *PLANE, *LINE, "seconds")
LOOK = ("arrows", "camera")
TWO_BY_TWO = ".bk-btn-group { display: grid; grid-template-columns: 1fr 1fr } .bk-btn { padding: .35rem .2rem }"
TWO_BY_TWO += " .bk-btn:last-child:nth-child(odd) { grid-column: 1 / -1 }"
WIDE = {"sizing_mode": "stretch_width"}


def _entry(default: float, low: float, high: float, label: str) -> param.Number:
    return param.Number(default, bounds=(low, high), step=0.1, label=label)


class FlowExplorer(pn.viewable.Viewer):
    """The parameters in SETTINGS decide what is computed, on the server; those in LOOK what the browser draws of it."""

    process = param.Selector(
        default="non-reversible", objects=["non-reversible", "reversible", "custom", WELL, PENDULUM]
    )
    a11, a12 = _entry(-2, -4, 4, "A₁₁"), _entry(-1, -4, 4, "A₁₂")
    a21, a22 = _entry(-1, -4, 4, "A₂₁"), _entry(-2, -4, 4, "A₂₂")
    s11, s21, s22 = _entry(1, 0.1, 2, "S₁₁"), _entry(0, -2, 2, "S₂₁"), _entry(0.7, 0.1, 2, "S₂₂")
    paths = param.Selector(default=1000, objects=[30, 100, 300, 1000, 3000], label="Paths")
    observations = param.Selector(
        default=4800, objects=[12, 24, 60, 120, 240, 600, 1200, 2400, 4800], label="Observations"
    )
    horizon = param.Number(10.0, bounds=(1, 25), step=0.5, label="Horizon T")
    well_observations = param.Selector(default=60, objects=[12, 24, 60, 120, 240, 480], label="Observations")
    well_horizon = param.Number(3.0, bounds=(1, 10), step=0.5, label="Horizon T")
    seconds = param.Selector(default=4, objects=[4, 8], label="Seconds")
    seed = param.Integer(0, bounds=(0, 999), label="Seed")
    estimator = param.Selector(default="phibe", objects=[*OBJECTIVES, EXACT], label="Estimator")
    compare = param.Selector(default=NONE, objects=[NONE, *OBJECTIVES, EXACT], label="Compare with")
    knots = param.Selector(
        default=30, objects={"10": 10, "30": 30, "100": 100, "each time": 0}, label="Knots of the field in time"
    )
    degree = param.Selector(default=3, objects=[3, 5, 7], label="Degree of the field in x")
    integrator = param.Selector(default="rk4", objects=list(METHODS), label="Integrator")
    arrows = param.Selector(default="fitted", objects=list(ARROWS), label="Velocity arrows")
    camera = param.Selector(default="follow", objects=list(CAMERAS), label="Camera")
    frame = param.Integer(0, bounds=(0, FRAMES - 1), doc="Where a link opens; from there the browser moves on alone.")
    shown = param.Tuple(length=2, doc="The setting on the screen and its frames.")

    def __init__(self, **values):
        super().__init__(**values)
        self.look = look_at(frame=self.frame, arrows=ARROWS.index(self.arrows), camera=CAMERAS.index(self.camera))
        self.errors = Errors()
        kinds = (FlowFigure, WellFigure, PendulumFigure)
        self.figure, self.well, self.pendulum = (kind(self.look, self.errors.cursors) for kind in kinds)
        self.player = player(FRAMES, self.look)
        self.problem = prose("", visible=False)
        self.plane = place(self.figure.plane, TALL)
        self.line = pn.Column(place(self.well.density, share(0.62)), place(self.well.field, share(0.38)), **WIDE)
        portraits = pn.Column(*(place(plot, share(0.5)) for plot in self.pendulum.portraits))
        self.pendulum_view = wrap(pn.Column(place(self.pendulum.drawn, TALL)), portraits, basis=(260, 240))
        self._draw(self.setting(), frames(self.setting()))
        self.figures = self._figures()

    def setting(self) -> Setting:
        """What the parameters ask for; those that the chosen process does not know keep their defaults."""
        values = {name: getattr(self, name) for name in BOTH}
        if self.process == WELL:
            own = {"observations": self.well_observations, "horizon": self.well_horizon, "degree": self.degree}
            return Setting(**values, **own)
        if self.process == PENDULUM:
            del values["paths"]
            return Setting(**values, horizon=float(self.seconds))
        values |= {name: getattr(self, name) for name in PLANE}
        if self.process != "custom":
            return Setting(**values)
        drift, noise = ((self.a11, self.a12), (self.a21, self.a22)), ((self.s11, 0.0), (self.s21, self.s22))
        return Setting(drift=drift, noise=noise, **values)

    # -- effects ---------------------------------------------------------------------------------------------------

    @param.depends(*SETTINGS, watch=True)
    async def _compute(self) -> None:
        """New frames, worked out beside the server's loop; the old ones stay on the screen until then."""
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
            self._draw(setting, columns)
        self.problem.param.update(object=trouble, visible=bool(trouble))
        self.figures.loading = False

    def _draw(self, setting: Setting, columns: Columns) -> None:
        """Show the animation on the figure that it is made for, and empty and hide the others."""
        self.errors.show(columns, setting)
        for view, figure in ((self.plane, self.figure), (self.line, self.well), (self.pendulum_view, self.pendulum)):
            view.visible = figure is self._stage(setting)
            figure.show(columns if view.visible else {}, setting.estimators)
        self.shown = (setting, columns)

    def _stage(self, setting: Setting) -> FlowFigure | WellFigure | PendulumFigure:
        return {WELL: self.well, PENDULUM: self.pendulum}.get(setting.process, self.figure)

    # -- what is seen ----------------------------------------------------------------------------------------------

    @param.depends("process", *DRIFT, *NOISE, "horizon")
    def character(self) -> str:
        return character(self.setting())

    @param.depends("shown")
    def reading(self) -> str:
        return reading(*self.shown)

    @param.depends("shown")
    def key(self) -> str:
        setting = self.shown[0]
        return self._stage(setting).key(setting.estimators)

    @param.depends("shown")
    def equations(self) -> str:
        return equations(self.shown[0])

    def controls(self) -> pn.Column:
        custom, well, pendulum = (self.param.process.rx() == name for name in ("custom", WELL, PENDULUM))
        plane = self.param.process.rx().rx.in_((WELL, PENDULUM)).rx.not_()
        matrices = (self._row(pn.widgets.FloatSlider, *names) for names in (DRIFT[:2], DRIFT[2:], NOISE))
        return pn.Column(
            heading("Process"),
            Buttons.from_param(self.param.process, stylesheets=[TWO_BY_TWO], **WIDE),
            pn.Column(*matrices, visible=custom, **WIDE),
            prose(self.character, css_classes=["small"]),
            heading("Data"),
            self._row(pn.widgets.Select, "paths", "observations", visible=plane),
            self._row(pn.widgets.Select, "paths", "well_observations", visible=well),
            self._row(pn.widgets.FloatSlider, "horizon", visible=plane),
            self._row(pn.widgets.FloatSlider, "well_horizon", visible=well),
            self._row(pn.widgets.Select, "seconds", visible=pendulum),
            self._row(pn.widgets.IntSlider, "seed"),
            heading("Flow"),
            self._row(pn.widgets.Select, "estimator", "compare"),
            self._row(pn.widgets.Select, "knots", visible=plane),
            self._row(pn.widgets.Select, "degree", visible=well),
            self._row(pn.widgets.Select, "integrator"),
            pn.Column(
                heading("Arrows"),
                self._buttons("arrows"),
                heading("Camera"),
                self._buttons("camera"),
                visible=plane,
                **WIDE,
            ),
            copy_link(self.look),
            heading("Your runs"),
            prose(links("vectors"), css_classes=["small"]),
            **WIDE,
        )

    def _row(self, kind: type[pn.widgets.Widget], *names: str, visible: object = True) -> pn.Row:
        return pn.Row(*(kind.from_param(self.param[name], **WIDE) for name in names), visible=visible, **WIDE)

    def _buttons(self, name: str) -> Buttons:
        return Buttons.from_param(self.param[name], **WIDE).steer(self.look, name, "active")

    def _figures(self) -> pn.Row:
        errors = (place(plot, HALF) for plot in self.errors.figures)
        figure = pn.Column(prose(self.key, margin=(0, 10)), self.plane, self.line, self.pendulum_view, self.player)
        return wrap(figure, pn.Column(*errors), basis=(500, 300))

    def __panel__(self) -> pn.Column:
        text = wrap(prose(self.reading), prose(self.equations, disable_math=False), basis=(300, 430))
        return pn.Column(self.problem, self.figures, text, **WIDE)


if pn.state.served:
    torch.set_num_threads(1)  # many small operations, several sessions
    pn.extension(throttled=True, respect_explicit_sizing=True)
    app = asked_for("vectors") or FlowExplorer(**from_url(FlowExplorer, [*SETTINGS, *LOOK, "frame"]))
    to_url(app, RUN if isinstance(app, RunView) else [*SETTINGS, *LOOK])
    serve("Flow explorer", controls=app.controls(), main=app)
