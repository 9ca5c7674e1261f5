"""What the apps share: the page, colours, figures, settings in the URL, text and links."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import panel as pn
import param
from bokeh.models import CustomJS
from bokeh.plotting import figure as bokeh_figure

from phibe.plots import COLORS

HERE = Path(__file__).parent
LIGHT = {
    "exact": COLORS["exact"],
    "text": "#2b313b",
    "quiet": "#5b6472",
    "grid": "#e9ebef",
    "page": "#ffffff",
    "link": "#1f6fa3",
}
DARK = {
    "exact": "#f4f6f8",
    "text": "#dfe4ea",
    "quiet": "#a5b0bd",
    "grid": "#343b44",
    "page": "#212529",
    "link": "#7cc0e4",
}
TALL = "clamp(300px, min(100vh - 270px, 95vw), 1200px)"
HALF = "clamp(175px, 50vh - 104px, 600px)"


# -- the page ------------------------------------------------------------------------------------------------------


def palette() -> dict[str, str]:
    """Colours by name: the methods as everywhere, truth black (white in the dark), and those of the page."""
    colors = {**COLORS, "difference": "#c2185b"}
    if pn.config.theme == "dark":
        return {**{name: _lighter(color) for name, color in colors.items()}, **DARK}
    return {**colors, **LIGHT}


def _lighter(color: str) -> str:
    """The colour mixed with a third of white."""
    return "#" + "".join(f"{round(int(color[i : i + 2], 16) * 2 / 3 + 85):02x}" for i in (1, 3, 5))


def serve(title: str, *, controls: pn.viewable.Viewable, main: pn.viewable.Viewable) -> None:
    """Show controls to the left (above and folded on a narrow screen), figures to the right; no other host is asked."""
    template = pn.template.BootstrapTemplate(
        title=title,
        site="PhiBE-Flow",
        site_url="/",
        favicon=str(HERE.parent / "book" / "_static" / "favicon.svg"),
        header=[_theme_toggle()],
        header_background="#12344d",
        header_color="#ffffff",
        sidebar=[controls],
        sidebar_width=310,
        main=[main],
        busy_indicator=None,
    )
    template.config.raw_css = [(HERE / "theme.css").read_text("utf8")]
    fold = "if (innerWidth < 992) document.getElementById('sidebar-toggle').click()"
    with pn.state.curdoc.models.freeze():  # else Bokeh counts all models again for each part of the page
        pn.state.curdoc.js_on_event("document_ready", CustomJS(code=fold))
        template.servable()


def _theme_toggle() -> pn.pane.HTML:
    other, sign = ("default", "☀") if pn.config.theme == "dark" else ("dark", "☾")
    go = f"const u = new URL(location); u.searchParams.set('theme', '{other}'); location = u"
    style = "button { color: white; background: none; border: 0; font-size: 1.3rem; cursor: pointer }"
    return pn.pane.HTML(f'<button title="light or dark" onclick="{go}">{sign}</button>', stylesheets=[style])


def figure(**options: Any) -> bokeh_figure:
    """An empty Bokeh figure in the colours of the page that fills its place."""
    colors = palette()
    plot = bokeh_figure(sizing_mode="stretch_both", toolbar_location=None, tools="", **options)
    plot.background_fill_color = plot.border_fill_color = colors["page"]
    plot.outline_line_color = None
    plot.grid.grid_line_color = colors["grid"]
    plot.axis.axis_line_color = plot.axis.major_tick_line_color = colors["quiet"]
    plot.axis.minor_tick_line_color = None
    plot.axis.major_label_text_color = plot.axis.axis_label_text_color = colors["text"]
    plot.axis.major_label_text_font_size = plot.axis.axis_label_text_font_size = "0.82rem"
    plot.axis.axis_label_text_font_style = "normal"
    plot.title.text_color, plot.title.text_font_style = colors["text"], "normal"
    plot.title.text_font_size = "0.88rem"
    plot.min_border_top = 10
    return plot


def key(entries: dict[str, tuple[str, str]]) -> str:
    """A legend as HTML, which wraps on a narrow screen and slows no frame: {text: (colour, marks)}."""
    marks = {
        "dot": '<circle cx="9" cy="6" r="4.5" fill="{0}"/>',
        "ring": '<circle cx="9" cy="6" r="4.5" fill="none" stroke="{0}" stroke-width="2"/>',
        "line": '<path d="M0 6h22" stroke="{0}" stroke-width="3.5"/>',
        "dash": '<path d="M0 6h22" stroke="{0}" stroke-width="2.5" stroke-dasharray="6 4"/>',
    }
    mark = '<svg width="22" height="12" aria-hidden="true">{}</svg> '

    def item(text: str, color: str, kinds: str) -> str:
        return f"<span>{''.join(mark.format(marks[kind].format(color)) for kind in kinds.split())}{text}</span>"

    return f'<div class="key">{"".join(item(text, *look) for text, look in entries.items())}</div>'


def place(plot: bokeh_figure, height: str) -> pn.Column:
    """The figure in a box as wide as there is place: TALL fits the page, two of HALF stand beside it."""
    pane = pn.pane.Bokeh(plot, sizing_mode="stretch_both", margin=0)
    return pn.Column(pane, sizing_mode="stretch_width", margin=0, styles={"height": height})


def share(part: float) -> str:
    """The height of a figure that takes this part of a TALL one."""
    return f"calc({part} * {TALL})"


def wrap(*parts: pn.viewable.Viewable, basis: Iterable[int]) -> pn.Row:
    """The parts side by side while each can have its basis in pixels, else one below the other; the first grows."""
    for i, (part, pixels) in enumerate(zip(parts, basis, strict=True)):
        grow = 3 if i == 0 else 1
        part.param.update(sizing_mode="stretch_width", styles={"flex": f"{grow} 1 {pixels}px", "min-width": "0"})
    return pn.Row(*parts, sizing_mode="stretch_width", styles={"flex-wrap": "wrap", "gap": "8px"})


# -- settings in the URL -------------------------------------------------------------------------------------------


def clean(parameter: param.Parameter, value: Any) -> Any:
    """The allowed value nearest to one that anybody may have typed into a URL; the default where there is none."""
    if isinstance(parameter, param.Selector):
        return next((allowed for allowed in parameter.objects if allowed == value), parameter.default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return parameter.default
    low, high = parameter.bounds
    value = min(max(value, low), high)
    return round(value) if isinstance(parameter, param.Integer) else float(value)


def from_url(view: type[param.Parameterized], names: Iterable[str]) -> dict[str, Any]:
    """The values that the page's URL asks for, cleaned; what else it holds is left alone."""
    query = pn.state.location.query_params if pn.state.location else {}
    return {name: clean(view.param[name], query[name]) for name in names if name in query}


def to_url(view: param.Parameterized, names: Iterable[str], *others: tuple[param.Parameterized, Iterable[str]]) -> None:
    """From now on the URL holds the settings that are not the default ones, so that it restores them.

    `others` are views within this one, whose settings have names of their own.
    """
    parts = ((view, list(names)), *((other, list(its)) for other, its in others))

    def write(*_: Any) -> None:
        settings = [(part, name) for part, its in parts for name in its]
        changed = {name: getattr(part, name) for part, name in settings if _differs(part, name)}
        theme = {"theme": "dark"} if pn.config.theme == "dark" else {}
        pn.state.location.search = f"?{urlencode({**changed, **theme})}" if changed or theme else ""

    for part, its in parts:
        part.param.watch(write, its)


def _differs(view: param.Parameterized, name: str) -> bool:
    return getattr(view, name) != view.param[name].default


# -- text ----------------------------------------------------------------------------------------------------------

PROSE = """
p { margin: 0 0 .5rem; line-height: 1.5; max-width: 75ch; }
:host { font: 1rem/1.5 var(--bs-font-sans-serif) }
:host(.small) { font-size: .88rem }
.maths { overflow-x: auto; overflow-y: hidden; font-size: .95rem }
@media (max-width: 479.98px) { .maths { font-size: .8rem } }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .88rem }
.note { border-left: 4px solid #d55e00; padding: .4rem .8rem; background: rgba(213, 94, 0, .1); }
"""


def prose(html: Any, **options: Any) -> pn.pane.HTML:
    """Text, equations and links below a figure; `html` may be a parameter or a bound function."""
    link = f"a {{ color: {palette()['link']} }}"
    return pn.pane.HTML(html, stylesheets=[PROSE, link], sizing_mode="stretch_width", **options)


def heading(text: str) -> pn.pane.HTML:
    """A quiet title over a group of controls."""
    style = "div { font-size: .8rem; letter-spacing: .06em; text-transform: uppercase; opacity: .75; margin-top: 4px }"
    return pn.pane.HTML(f"<div>{text}</div>", stylesheets=[style], margin=(4, 10, 0, 10))


def equation(tex: str) -> str:
    """A line of mathematics, set by the MathJax that comes with Bokeh."""
    return f'<p class="maths">\\({tex}\\)</p>'


def chapter(file: str, title: str) -> str:
    """A link to a chapter of the book that is served beside the apps."""
    return f'<a href="/book/notebooks/{file}.html">{title}</a>'
