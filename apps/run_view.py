"""Any fitted run in the apps: its data against what the flow generates, at each observed time."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from html import escape
from typing import Any

import panel as pn
import param
from in_browser import copy_link, player
from run_figure import RunFigure
from run_frames import Columns, Setting, frames, views
from run_list import listed
from theme import HALF, TALL, chapter, equation, heading, place, prose, share, wrap

from phibe.integrators import METHODS
from phibe.report import FRAMES
from phibe.training.runs import read_config

SETTINGS = ("run", "method", "first", "second")
WIDE = {"sizing_mode": "stretch_width"}


class RunView(pn.viewable.Viewer):
    """One of the listed runs. `first` and `second` are the coordinates shown, of pictures the path and the channel."""

    run = param.Selector(label="Run")
    method = param.Selector(default="rk4", objects=list(METHODS), label="Integrator")
    first = param.Integer(0, bounds=(0, 399))
    second = param.Integer(1, bounds=(0, 399))
    frame = param.Integer(0, bounds=(0, FRAMES - 1), doc="Where a link opens.")
    shown = param.Parameter(doc="The columns on the screen, or the reason why there are none.")

    def __init__(self, kind: str, **values: Any):
        self.kind, self.runs = kind, listed(kind)
        self.param.run.objects = list(self.runs)
        values.setdefault("run", next(iter(self.runs), None))
        values.setdefault("second", 1 if kind == "vectors" else 0)
        super().__init__(**values)
        self.figure = RunFigure(kind, frame=self.frame)
        self.player = player(FRAMES, self.figure.look)
        self.problem = prose("", visible=False)
        self.figures = self._figures()
        self._show(self.setting(), *self._work(self.setting()))

    def setting(self) -> Setting | None:
        run = self.runs.get(self.run)
        return run and Setting(run, self.method, self.first, self.second)

    # -- effects ---------------------------------------------------------------------------------------------------

    @param.depends(*SETTINGS, watch=True)
    async def _compute(self) -> None:
        """New frames, worked out beside the server's loop."""
        setting = self.setting()
        self.figures.loading = True
        found = await asyncio.to_thread(self._work, setting)
        pn.state.execute(partial(self._show, setting, *found), schedule=True)

    def _work(self, setting: Setting | None) -> tuple[Columns | None, str]:
        """The frames, or why there are none."""
        if setting is None:
            return None, "There is no run of this kind yet. <code>phibe fit data.csv</code> makes one under runs/."
        try:
            return frames(setting), ""
        except ValueError as reason:
            return None, escape(str(reason))
        except Exception:
            logging.exception("%s could not be shown", setting)
            return None, "This run cannot be shown; the server's log says why."

    def _show(self, setting: Setting | None, columns: Columns | None, trouble: str) -> None:
        if setting != self.setting():
            return  # a later call is on its way
        quality = setting.run.quality() if setting else {}
        self.figure.show(columns or {}, self.objective(), quality)
        if columns and setting:
            names = columns["names"][1:]
            pair = (setting.first, setting.second) if self.kind == "vectors" else (setting.second,)
            self.figure.name_axes(*(names[i % len(names)] for i in pair))
        self.problem.param.update(object=f'<p class="note">{trouble}</p>' if trouble else "", visible=bool(trouble))
        self.figures.visible, self.figures.loading = columns is not None, False
        self.shown = columns

    # -- what is seen ----------------------------------------------------------------------------------------------

    def objective(self) -> str:
        setting = self.setting()
        return read_config(setting.run.folder).get("objective", {}).get("name", "phibe") if setting else "phibe"

    @param.depends("shown")
    def reading(self) -> str:
        """The verdict of the report, in its own words."""
        setting = self.setting()
        quality = setting.run.quality() if setting else {}
        if not quality:
            name = escape(str(self.run))
            return (
                f"<p>Nobody has judged this run yet: <code>phibe report runs/{name}</code> does.</p>" if setting else ""
            )
        items = "".join(f"<li>{escape(finding['text'].replace('`', ''))}</li>" for finding in quality["findings"])
        link = f'<a href="/report/{escape(setting.run.name)}">The whole report</a>'
        verdict = escape(quality["verdict"].capitalize())
        return f"<p><b>{verdict}.</b> {escape(quality['motion'])} {link}.</p><ul>{items}</ul>"

    @param.depends("shown")
    def key(self) -> str:
        return self.figure.key(self.objective())

    def controls(self) -> pn.Column:
        return pn.Column(
            heading("Your runs"),
            pn.widgets.Select.from_param(self.param.run, **WIDE),
            heading("Shown"),
            pn.Row(*self._choices(), **WIDE),
            heading("Flow"),
            pn.widgets.Select.from_param(self.param.method, **WIDE),
            copy_link(self.figure.look),
            **WIDE,
        )

    def _choices(self) -> list[pn.widgets.Widget]:
        """Two coordinates by their names, or a path and a channel."""
        names, paths = ["x[0]", "x[1]"], 1
        if self.shown is not None and (setting := self.setting()):
            names, paths = self.shown["names"][1:], len(views(setting)[0].observed)
        if self.kind == "pictures":
            return [pn.widgets.IntInput.from_param(self.param.first, name="Path", end=paths - 1, **WIDE)]
        options = {name: i for i, name in enumerate(names)}
        return [
            pn.widgets.Select.from_param(self.param[which], name=axis, options=options, **WIDE)
            for which, axis in (("first", "Across"), ("second", "Up"))
        ]

    def _figures(self) -> pn.Row | pn.Column:
        """The plane with the rest beside it, or pictures side by side with the rest below them."""
        small, key = [*self.figure.bars, self.figure.marginals], prose(self.key, margin=(0, 10))
        if self.kind == "vectors":
            side = pn.Column(*(place(plot, share(1 / len(small))) for plot in small))
            return wrap(pn.Column(key, place(self.figure.main[0], TALL), self.player), side, basis=(480, 300))
        rows = [wrap(*(place(plot, HALF) for plot in pair), basis=(260, 260)) for pair in (self.figure.main, small)]
        for part in (*rows[0], *rows[1]):
            part.styles = {**part.styles, "flex": "1 1 260px", "height": HALF}
        return pn.Column(rows[0], self.player, key, rows[1], **WIDE)

    def __panel__(self) -> pn.Column:
        ode = equation(r"\dot x = v(x, t)")
        how = "The flow starts from the first state of each path and is shown at the times it was observed at."
        more = f"<p>{how} Explained in {chapter('11_your_own_data', 'Your own data')}.</p>"
        text = prose(ode + more, disable_math=False)
        return pn.Column(self.problem, self.figures, wrap(prose(self.reading), text, basis=(430, 300)), **WIDE)


def asked_for(kind: str) -> RunView | None:
    """The view of a run, if the page's address asks for one; the name is only looked up among those listed."""
    query = pn.state.location.query_params if pn.state.location else {}
    if "run" not in query:
        return None
    known = listed(kind)
    name = str(query["run"])
    chosen = {"run": name} if name in known else {}
    numbers = {key: query[key] for key in ("first", "second", "frame") if isinstance(query.get(key), int)}
    safe = {key: value for key, value in numbers.items() if 0 <= value < (FRAMES if key == "frame" else 400)}
    method = {"method": query["method"]} if query.get("method") in METHODS else {}
    return RunView(kind, **chosen, **safe, **method)
