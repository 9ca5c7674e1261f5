"""Working: a view whose frames are worked out beside the server's loop, the old ones staying until then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import panel as pn


class Working(pn.viewable.Viewer):
    """A view that has a `setting()`, `figures` and a `problem` to show, and can `draw(setting, columns)`."""

    figures: pn.viewable.Viewable
    problem: pn.pane.HTML

    async def work(self, make: Callable[[Any], Any], explain: Callable[[Exception], str]) -> None:
        """Draw what `make` returns for the present setting, unless that is another by then; or explain why not."""
        setting, columns, trouble = self.setting(), None, ""
        self.figures.loading = True
        try:
            columns = await asyncio.to_thread(make, setting)
        except Exception as problem:
            trouble = explain(problem)
            if not isinstance(problem, ValueError):  # that is the reader's to know, not ours
                logging.exception("%s could not be computed", setting)
        pn.state.execute(partial(self._show, setting, columns, trouble), schedule=True)  # figures want Bokeh's lock

    def _show(self, setting: Any, columns: Any, trouble: str) -> None:
        if setting != self.setting():
            return  # a later call is on its way
        if columns is not None:
            self.draw(setting, columns)
        self.say(trouble)
        self.figures.loading = False

    def say(self, trouble: str) -> None:
        """Show a problem, or hide that of before."""
        self.problem.param.update(object=trouble, visible=bool(trouble))
