"""What the apps do in the browser alone: a player, buttons that only redraw, and a link to what is on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import panel as pn
from bokeh.document import Document
from bokeh.models import ColumnDataSource, CustomJS, Model

HERE = Path(__file__).parent
CALM = "if (matchMedia('(prefers-reduced-motion: reduce)').matches) { player.direction = 0 }"
AGAIN = "if (cb_obj.direction == 1 && cb_obj.value >= cb_obj.end) { cb_obj.value = cb_obj.start }"
STAY = """
const [frame, end] = [look.data.frame[0], look.data.end[0]]
look.data.end[0] = cb_obj.end
cb_obj.value = Math.round(frame * cb_obj.end / end)
cb_obj.properties.value.change.emit() // the slider takes its new end with it
"""
COPY = """
const [url, button] = [new URL(window.location), cb_obj.origin]
for (const name of names) url.searchParams.set(name, look.data[name][0])
const say = (text) => { button.label = text; setTimeout(() => { button.label = "Copy link" }, 1500) }
const copied = navigator.clipboard?.writeText(url.href) ?? Promise.reject()
copied.then(() => say("Copied"), () => window.prompt("Copy this address", url.href))
"""


def unsynced(model: Model) -> Model:
    """The model, with what scripts change on it kept in the browser."""
    model.syncable = False
    return model


def look_at(**values: int) -> ColumnDataSource:
    """What the browser shows, one number a column: widgets change it there, and a figure's script draws it."""
    return unsynced(ColumnDataSource(data={name: [value] for name, value in values.items()}))


def source(*columns: str) -> ColumnDataSource:
    """What a figure's script fills, frame by frame, in the browser."""
    return unsynced(ColumnDataSource(data={name: [] for name in columns}))


def script(*files: str, **models: Any) -> CustomJS:
    """A script of this folder's files, one after the other: what is before the last is there for it to use."""
    return CustomJS(args=models, code="\n".join((HERE / file).read_text("utf8") for file in files), module=True)


class Scripted:
    """A widget with `scripts` for its Bokeh model's properties and events, and perhaps kept from telling the server.

    They are attached when the model is made: `jscallback` makes Bokeh walk the whole document for each.
    """

    scripts: ClassVar[dict[str, CustomJS]] = {}
    private = False

    def _get_model(self, doc: Document, *args: Any, **kwargs: Any) -> Model:
        model = super()._get_model(doc, *args, **kwargs)  # type: ignore[misc]
        for name, script in self.scripts.items():
            attach = model.js_on_change if name in model.properties() else model.js_on_event
            attach(name, script)
        return unsynced(model) if self.private else model

    def steer(self, look: ColumnDataSource, column: str, name: str) -> Any:
        """Let a property of the model set a column of `look`, in the browser."""
        code = f"look.data.{column}[0] = cb_obj.{name}; look.change.emit()"
        self.scripts = {**self.scripts, name: CustomJS(args={"look": look}, code=code)}
        return self


class Buttons(Scripted, pn.widgets.RadioButtonGroup):
    """One of a few, side by side and narrow enough for a sidebar."""

    def __init__(self, **options: Any):
        look = {
            "button_type": "primary",
            "button_style": "outline",
            "stylesheets": [".bk-btn { padding: .35rem .2rem }"],
        }
        super().__init__(**{**look, **options})


class Range(Scripted, pn.widgets.IntRangeSlider):
    """A range of whole numbers that stays in the browser: it sets two columns of `look`."""

    private = True

    def steer_ends(self, look: ColumnDataSource, low: str, high: str) -> Range:
        code = f"[look.data.{low}[0], look.data.{high}[0]] = cb_obj.value; look.change.emit()"
        self.scripts = {**self.scripts, "value": CustomJS(args={"look": look}, code=code)}
        return self


class Player(Scripted, pn.widgets.Player):
    """A play button and a slider. Where it stands is the browser's business; it waits for who prefers no motion."""

    private = True

    def _get_model(self, doc: Document, *args: Any, **kwargs: Any) -> Model:
        model = super()._get_model(doc, *args, **kwargs)
        doc.js_on_event("document_ready", CustomJS(args={"player": model}, code=CALM))
        return model


class Button(Scripted, pn.widgets.Button):
    """A button that acts in the browser."""


def player(frames: int, look: ColumnDataSource, *, interval: int = 50) -> Player:
    """A player of the frames, from the one that `look` names, which it starts to play if that is the first.

    If their number changes, it stays at the same part of the whole.
    """
    frame = look.data["frame"][0]
    widget = Player(
        start=0,
        end=frames - 1,
        value=frame,
        direction=int(frame == 0),
        interval=interval,
        show_loop_controls=False,
        visible_buttons=["play", "pause"],
        stylesheets=[(HERE / "player.css").read_text("utf8")],
        sizing_mode="stretch_width",
        height=46,
        margin=(0, 10),
    )
    look.data["end"] = [frames - 1]
    stay = CustomJS(args={"look": look}, code=STAY)
    widget.scripts = {"direction": CustomJS(code=AGAIN), "end": stay}
    return widget.steer(look, "frame", "value")


def copy_link(look: ColumnDataSource, *names: str) -> Button:
    """A button that copies the page's address, with the frame on the screen and what else of `look` is named."""
    button = Button(name="Copy link", sizing_mode="stretch_width")
    button.scripts = {"button_click": CustomJS(args={"look": look, "names": ["frame", *names]}, code=COPY)}
    return button
