"""Video in the rollout explorer: choose a clip and a method, play truth and prediction, bring a clip of one's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import panel as pn
import param
import torch
from in_browser import Buttons, copy_link, player
from rollout_text import failure
from screens import side_by_side
from theme import HALF, heading, place, prose, wrap
from torch import Tensor
from upload import Upload
from video_figure import VideoFigure
from video_frames import CLIPS, CONTEXTS, FEW, LENGTH, PEOPLE, Columns, Setting, favourite, frames, menu, predicted
from video_text import MISSING, NAMES, equations, invitation, reading, refused, taken
from working import Working

from phibe.experiments.video.clips import LARGEST, LONGEST, SUFFIXES, check_size, read_upload
from phibe.experiments.video.figures import RATE

SETTINGS = ("clip", "person", "method", "video_objective", "video_integrator", "context", "slow")
FIGURE, OWN = "test figure", "your clip"
SPEEDS = {"1": 1, "½": 2, "¼": 4}
WIDE = {"sizing_mode": "stretch_width"}
SCREEN = "clamp(120px, min(50vh - 104px, 34vw), 600px)"
MENU, FIRST = menu(), favourite()
PAIRS = [(name, how) for method in MENU.values() for name, some in method.items() for how in some]
OBJECTIVES = list(dict.fromkeys(name for name, _ in PAIRS)) or [FIRST.objective]
INTEGRATORS = list(dict.fromkeys(how for _, how in PAIRS)) or [FIRST.integrator]


def _preferred(name: str, names: Iterable[str]) -> str:
    """The one with this name, else the first; nothing if there are none."""
    return name if name in names else next(iter(names), "")


class VideoExplorer(Working):
    """The parameters in SETTINGS, and one's own clip, decide what is computed; the browser scrubs it alone."""

    clip = param.Selector(default=CLIPS[0], objects=list(CLIPS), label="Action")
    person = param.Integer(0, bounds=(0, PEOPLE - 1), label="Person")
    footage = param.Selector(default=FIGURE, objects=[FIGURE, OWN])
    begin = param.Integer(0, bounds=(0, LONGEST), label="From its frame")
    uploads = param.Integer(0, doc="How many clips of one's own were taken; the last one is there.")
    method = param.Selector(
        default=FIRST.method, objects={NAMES.get(name, name): name for name in MENU or [FIRST.method]}
    )
    video_objective = param.Selector(default=FIRST.objective, objects=OBJECTIVES, label="Objective")
    video_integrator = param.Selector(default=FIRST.integrator, objects=INTEGRATORS, label="Integrator")
    context = param.Integer(CONTEXTS[1], bounds=CONTEXTS, label="Frames to look at")
    slow = param.Selector(default=1, objects=SPEEDS, label="Speed")
    frame = param.Integer(0, bounds=(0, max(SPEEDS.values()) * (LENGTH - 1)), doc="Where a link opens.")
    shown = param.Parameter(doc="The setting on the screen and its columns, or None.")

    def __init__(self, **values: Any):
        super().__init__(**values)
        self.own: Tensor | None = None
        self.about, self.asked = "", None
        self.figure = VideoFigure(frame=self.frame)
        self.player = player((LENGTH - 1) * self.slow + 1, self.figure.look, interval=round(1000 / RATE))
        self.problem = prose("", visible=False)
        self.figures = self._figures()
        self._offer()

    def setting(self) -> Setting:
        """What the parameters ask for; an objective or integrator that the method does not have is the first it has."""
        objectives = MENU.get(self.method, {})
        objective = _preferred(self.video_objective, objectives)
        integrator = _preferred(self.video_integrator, objectives.get(objective, []))
        values = {"objective": objective, "integrator": integrator, "context": self.context, "slow": self.slow}
        if self.footage == FIGURE or self.own is None:
            return Setting(clip=self.clip, person=self.person, method=self.method, **values)
        begin = max(0, min(self.begin, len(self.own) - self.context - FEW))
        return Setting(method=self.method, upload=self.uploads, begin=begin, **values)

    # -- effects ---------------------------------------------------------------------------------------------------

    def open(self, *, at_once: bool) -> None:
        """Begin to compute: the first before anything is shown, or beside the server's loop."""
        if not MENU:
            self.figures.visible = False
            return self.say(MISSING)
        if not at_once:
            return pn.state.execute(self.compute)
        self.asked = self.setting()
        try:
            self.draw(self.asked, self._make(self.asked))
        except Exception as problem:
            logging.exception("%s could not be computed", self.asked)
            self.say(failure(problem))

    @param.depends("method", "video_objective", watch=True)
    def _offer(self) -> None:
        """Choices that the method has."""
        setting, objectives = self.setting(), MENU.get(self.method, {})
        if objectives:
            self.param.video_objective.objects = list(objectives)
            self.param.video_integrator.objects = objectives[setting.objective]
            self.param.update(video_objective=setting.objective, video_integrator=setting.integrator)

    @param.depends(*SETTINGS, "footage", "begin", "uploads", watch=True)
    async def _changed(self) -> None:
        if self.asked is not None:
            await self.compute()

    async def compute(self) -> None:
        """A new prediction; until it is there the old one stays. Nothing is computed for a second time."""
        if self.asked != self.setting():
            self.asked = self.setting()
            await self.work(self._make, failure)

    def _make(self, setting: Setting) -> Columns:
        return predicted(setting, self.own) if setting.upload and self.own is not None else frames(setting)

    def draw(self, setting: Setting, columns: Columns) -> None:
        self.figure.show(columns, setting)
        self.player.end = len(columns["rows"]) - 1
        self.shown = (setting, columns)

    async def take(self, name: str, size: int, content: bytes | None) -> None:
        """Show a file that came, or say what is wrong with it; nothing of it is kept but small frames."""
        self.figures.loading = True
        try:
            check_size(size)
            own = await asyncio.to_thread(read_upload, content or b"", least=self.context + FEW)
        except Exception as reason:
            return pn.state.execute(partial(self._refuse, refused(name, reason)), schedule=True)  # wants Bokeh's lock
        self.own, self.about = torch.from_numpy(own.frames)[:, None].float() / 255, taken(name, own)
        self.param.update(footage=OWN, begin=0, uploads=self.uploads + 1)
        self.param.begin.bounds = (0, max(1, len(self.own) - self.context - FEW))
        await self.compute()

    def _refuse(self, trouble: str) -> None:
        self.say(trouble)
        self.figures.loading = False

    # -- what is seen ----------------------------------------------------------------------------------------------

    @param.depends("shown")
    def reading(self) -> str:
        return reading(*self.shown) if self.shown else ""

    @param.depends("shown")
    def key(self) -> str:
        return self.figure.key(self.shown[0]) if self.shown else ""

    @param.depends("shown")
    def equations(self) -> str:
        return equations(self.shown[0]) if self.shown else ""

    @param.depends("uploads")
    def upload_words(self) -> str:
        return self.about or invitation()

    def controls(self) -> pn.Column:
        own = self.param.footage.rx() == OWN
        flow = self.param.method.rx().rx.in_([name for name, objectives in MENU.items() if objectives])
        return pn.Column(
            heading("Clip"),
            Buttons.from_param(self.param.footage, visible=self.param.uploads.rx() > 0, **WIDE),
            pn.Column(
                pn.widgets.Select.from_param(self.param.clip, **WIDE),
                pn.widgets.IntSlider.from_param(self.param.person, **WIDE),
                visible=own.rx.not_(),
                **WIDE,
            ),
            pn.widgets.IntSlider.from_param(self.param.begin, visible=own, **WIDE),
            Upload(self.take, label="Your own clip", accept=",".join(SUFFIXES), most=LARGEST, margin=(5, 10), **WIDE),
            prose(self.upload_words, css_classes=["small"], margin=(0, 10)),
            heading("Method"),
            pn.widgets.Select.from_param(self.param.method, name="", **WIDE),
            pn.Row(
                pn.widgets.Select.from_param(self.param.video_objective, **WIDE),
                pn.widgets.Select.from_param(self.param.video_integrator, **WIDE),
                visible=flow,
                **WIDE,
            ),
            pn.widgets.IntSlider.from_param(self.param.context, **WIDE),
            heading("Speed"),
            Buttons.from_param(self.param.slow, **WIDE),
            copy_link(self.figure.look),
            visible=bool(MENU),
            **WIDE,
        )

    def _figures(self) -> pn.Column:
        screens = side_by_side(*self.figure.screens, least=100, height=SCREEN)
        scores = pn.Column(pn.pane.Bokeh(self.figure.scores), margin=(0, 10))
        below = wrap(place(self.figure.errors, HALF), scores, basis=(340, 300))
        below[0].styles = {**below[0].styles, "height": HALF}
        return pn.Column(screens, self.player, prose(self.key, margin=(0, 10)), below, **WIDE)

    def __panel__(self) -> pn.Column:
        text = wrap(prose(self.reading), prose(self.equations, disable_math=False), basis=(300, 430))
        return pn.Column(self.problem, self.figures, text, **WIDE)
