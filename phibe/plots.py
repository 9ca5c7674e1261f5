"""Every figure, as HoloViews objects: truth is black, each method has one colour everywhere.

The functions return the same objects for Bokeh (book and apps, after `use()`) and for matplotlib (report and notebook
widget: `use("matplotlib")`, then `drawn`). Options are written once, in Bokeh's names; `_styled` translates them by the
table `MATPLOTLIB`. HoloViews and Bokeh are imported when they are first used. Read next: `report.py`.
"""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from phibe.calculus import Velocity
from phibe.diagnostics import Diagnosis
from phibe.systems.ou import covariance_root
from phibe.trajectories import Trajectories

if TYPE_CHECKING:
    import holoviews as hv
    from bokeh.models import Column
else:

    class Lazy:
        """A module that is imported when something of it is first asked for."""

        def __init__(self, name: str):
            self.name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self.name), attribute)

    hv = Lazy("holoviews")


COLORS = {
    "exact": "#111111",
    "phibe": "#0072b2",
    "phibe2": "#56b4e9",
    "isotropic": "#cc79a7",
    "stratonovich": "#8c1c3f",
    "symmetric2": "#86a800",
    "symmetric4": "#4b5320",
    "centred": "#7a4fb5",
    "symmetric": "#009e73",
    "regression": "#d55e00",
    "drift": "#d55e00",  # what regression finds
    "persistence": "#8a8f98",
    "ode": "#3d5a80",
    "sde": "#c2185b",
    "calibrated": "#8e24aa",
    "pfi": "#e69f00",
    "mcvd": "#7b4a2d",
    "samples": "#9aa3b2",
    "bound": "#b8860b",
}
"""One colour for each method, by the name it has in API, reports and menus."""


# -- backends --------------------------------------------------------------------------------------------------------


STYLE: dict[str, dict[str, Any]] = {
    "Plot": {"background_fill_color": "#ffffff", "border_fill_color": "#ffffff", "outline_line_color": None},
    "Axis": {
        "axis_line_color": "#5b6472",
        "major_tick_line_color": "#5b6472",
        "minor_tick_line_color": None,
        "axis_label_text_font_style": "normal",
        "axis_label_text_font_size": "13px",
        "axis_label_text_color": "#2b313b",
        "major_label_text_font_size": "12px",
        "major_label_text_color": "#2b313b",
    },
    "Grid": {"grid_line_color": "#e6e8ec"},
    "Legend": {
        **{"border_line_color": None, "background_fill_alpha": 0.8},
        **{"label_text_font_size": "12px", "spacing": 1, "padding": 4},
    },
    "Title": {"text_font_size": "14px", "text_font_style": "normal", "text_color": "#2b313b"},
    "Toolbar": {"logo": None, "autohide": True},
}
"""How Bokeh draws what is around a figure."""

PAPER: Any = {
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), "#5b6472"),
    **dict.fromkeys(("axes.labelcolor", "text.color"), "#2b313b"),
    **dict.fromkeys(("axes.labelsize", "axes.titlesize", "font.size"), 10),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top"), False),
    **{"grid.color": "#7f8894", "grid.alpha": 0.22},
    "svg.fonttype": "none",  # text stays text: small, sharp, and in the fonts of the page
    "svg.hashsalt": "phibe",  # the same figure gives the same bytes
    "text.parse_math": False,  # a column may be called "price [$]"
}
"""How matplotlib draws what is around a figure."""

MATPLOTLIB = {
    **{"line_width": "linewidth", "line_dash": "linestyle", "fill_color": "facecolor", "size": "s"},
    **dict.fromkeys(("responsive", "height", "min_width", "max_width", "default_tools", "toolbar", "hooks")),
}
"""Bokeh's name for an option: matplotlib's; None where matplotlib has none. Other names are common to both."""

SIZE = {"responsive": True, "height": 380, "min_width": 280, "max_width": 760}
WHEEL = {"default_tools": ["save", "pan", "box_zoom", "reset"], "toolbar": "above"}


def use(backend: str = "bokeh") -> None:
    """Load HoloViews with the project's theme; scripts come from the installed files when PANEL_INLINE is set.

    Figures made afterwards can be drawn by each backend that was loaded; a notebook shows them by Bokeh.
    """
    if backend == "matplotlib":
        import_module("holoviews.plotting.mpl")
        return
    inline = os.environ.get("PANEL_INLINE", "").lower() in {"1", "true", "yes"}
    hv.extension("bokeh", logo=False, inline=inline)
    hv.renderer("bokeh").theme = import_module("bokeh.themes").Theme(json={"attrs": STYLE})


def _styled(figure: Any, **options: Any) -> Any:
    """The element or overlay with these options of Bokeh's, and the same for matplotlib if that is loaded."""
    for backend in hv.Store.renderers:
        figure = figure.opts(**(_translated(options) if backend == "matplotlib" else options), backend=backend)
    return figure


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in matplotlib's names: a dot's size is an area there, not a width."""
    named = {word: value for name, value in options.items() if (word := MATPLOTLIB.get(name, name))}
    if "s" in named:
        named["s"] **= 2
    if named.get("linestyle") == "dotdash":
        named["linestyle"] = "dashdot"
    return named


def drawn(figure: hv.Overlay, *, size: tuple[int, int] = (440, 200), kind: str = "svg", **options: Any) -> bytes:
    """The figure as a file, `size` pixels wide and high (doubled in a png), by matplotlib on a transparent ground.

    `options` are further ones of matplotlib. Many dots are one image inside the SVG; legends are left to the page.
    """
    import matplotlib
    from matplotlib import pyplot

    inches = tuple(side / 72 for side in size)
    figure = figure.opts(backend="matplotlib", aspect="auto", fig_inches=inches, show_legend=False, **options)
    grid = hv.Store.lookup_options("matplotlib", figure, "plot").kwargs.get("show_grid", False)
    with matplotlib.rc_context(PAPER):
        picture = hv.Store.renderers["matplotlib"].get_plot(figure).state
        picture.set_layout_engine("constrained")
        for axes in picture.axes:
            axes.grid(grid)  # HoloViews takes it from the layers, not from their overlay
            for dots in (part for part in axes.collections if len(part.get_offsets()) > 50):
                dots.set_rasterized(True)
        file, date = io.BytesIO(), {"Date": None} if kind == "svg" else {}
        picture.savefig(file, format=kind, dpi=144, transparent=kind == "svg", metadata=date)
        pyplot.close(picture)
    return file.getvalue()


def color(label: str) -> str:
    """The colour of the method that is a label's first word, as in 'phibe, Δt = 0.1'."""
    return COLORS.get(label.replace(",", " ").split()[0], COLORS["exact"])


# -- curves ------------------------------------------------------------------------------------------------------------


Lines = Mapping[str, tuple[Any, Any]]
"""Named curves, {label: (x, y)}."""


def curves(
    lines: Lines,
    *,
    x: str,
    y: str,
    title: str = "",
    log: str = "",
    colors: Mapping[str, str] | None = None,
    dashes: Mapping[str, str] | None = None,
) -> hv.Overlay:
    """Named curves over one pair of axes; `log` is any of '', 'x', 'y', 'xy'.

    The exact one is dashed, a second one of the same colour dotted, a third dotted and dashed, if `dashes` does not say
    otherwise.
    """
    layers, used = [], Counter[str]()
    for label, (horizontal, vertical) in lines.items():
        tint = (colors or {}).get(label, color(label))
        dash = "dashed" if label.startswith("exact") else ("solid", "dotted", "dotdash")[used[tint] % 3]
        used[tint] += 1
        style = {"color": tint, "line_dash": (dashes or {}).get(label, dash), "line_width": 2.5}
        layers.append(_styled(hv.Curve((_array(horizontal), _array(vertical)), x, y, label=label), **style))
    return _framed(layers, title=title, legend_position="top_right", logx="x" in log, logy="y" in log)


def rates(lines: Lines, *, x: str, y: str, slopes: Sequence[float] = ()) -> hv.Overlay:
    """Errors against a size on logarithmic axes; dotted guides of the given slopes go through the first curve's end."""
    marks = [
        _styled(hv.Scatter((_array(h), _array(v)), x, y, label=label), color=color(label), size=7)
        for label, (h, v) in lines.items()
    ]
    across, up = (_array(part) for part in next(iter(lines.values())))
    style = {"color": COLORS["persistence"], "line_dash": "dotted", "line_width": 1.5}
    falls = {f"slope {slope:.2g}": up[-1] * (across / across[-1]) ** slope for slope in slopes}
    guides = [_styled(hv.Curve((across, fall), x, y, label=label), **style) for label, fall in falls.items()]
    layers = [*guides, *curves(lines, x=x, y=y), *marks]
    return _framed(layers, legend_position="bottom_right", logx=True, logy=True)


def dots(points: Sequence[tuple[float, float]], label: str, *, x: str, y: str, size: float = 5) -> hv.Scatter:
    """Single points over a curve, in the colour of its method."""
    return _styled(hv.Scatter(list(points), x, y), color=color(label), size=size, alpha=0.6)


def diagnosis(found: Diagnosis) -> hv.Overlay:
    """Bias (solid) and noise (dotted) of each estimator against the step, in per cent of the RMS of the drift."""
    lines, dashes = {}, {}
    for name in dict.fromkeys(error.objective for error in found.errors):
        rows = [error for error in found.errors if error.objective == name]
        for kind, dash in (("bias", "solid"), ("noise", "dotted")):
            label = f"{name}, {kind}"
            lines[label] = [row.step for row in rows], [100 * getattr(row, kind) for row in rows]
            dashes[label] = dash
    figure = curves(lines, x="step Δt", y="% of the drift", log="x", dashes=dashes)
    return _styled(figure, legend_position="top_left", ylim=(0, None))


def paths(times: Any, values: Mapping[str, Any], *, x: str, y: str) -> hv.Overlay:
    """Single paths over time: {label: (path, time)}, a line for each path; NaN where there is no observation."""
    layers = []
    for label, rows in values.items():
        known = [np.stack([_array(times), row], 1)[np.isfinite(row)] for row in _array(rows)]
        curve = hv.Curve(_joined(known), "time", "value", label=label)
        layers.append(_styled(curve, color=color(label), line_width=1.2, alpha=0.8))
    return _framed(layers, xlabel=x, ylabel=y)


def histogram(
    values: Mapping[str, Any], *, x: str, ends: tuple[float, float], bins: int = 28, title: str = ""
) -> hv.Overlay:
    """Densities of {label: numbers} in common bins from `ends` to `ends`: the first filled, the others as lines."""
    edges = np.linspace(*ends, bins + 1)
    layers: list[Any] = []
    for label, numbers in values.items():
        known = _array(numbers)[np.isfinite(_array(numbers))]
        density = np.histogram(known, edges)[0] / max(1, len(known)) / (edges[1] - edges[0])
        outline = np.repeat(edges, 2), np.concatenate([[0.0], np.repeat(density, 2), [0.0]])
        if layers:
            layers.append(_styled(hv.Curve(outline, "value", "density", label=label), color=color(label)))
        else:
            area = hv.Area(outline, "value", "density", label=label)
            layers.append(_styled(area, fill_color=color(label), alpha=0.45, line_width=0))
    return _framed(layers, title=title, xlabel=x, ylabel="density", xlim=ends, ylim=(0, None))


# -- the phase plane ---------------------------------------------------------------------------------------------------


def trails(data: Trajectories, label: str, *, width: float = 1.5, dash: str = "solid") -> hv.Curve:
    """The first 40 paths as lines in the plane of the first two coordinates."""
    return lines(data.states[:40], label, width=width, dash=dash)


def lines(states: Tensor, label: str, *, width: float = 1.5, dash: str = "solid", alpha: float = 0.8) -> hv.Curve:
    """A line through the first two coordinates of each path (path, time, state)."""
    style = {"color": color(label), "line_width": width, "line_dash": dash, "alpha": alpha, "padding": 0.1}
    return _styled(hv.Curve(_joined(_array(states)[..., :2]), "x₁", "x₂", label=label), **style)


def _joined(parts: Any) -> np.ndarray:
    """Lines (point, 2) as one with gaps: HoloViews takes milliseconds for each line that it is given alone."""
    gap = np.full((1, 2), np.nan)
    return np.concatenate([row for part in parts for row in (part, gap)])


def samples(x: Tensor, label: str, *, size: float = 3) -> hv.Points:
    """The first 1,500 states as dots in the plane of the first two coordinates."""
    return _styled(
        hv.Points(_array(x[:1500, :2]), ["x₁", "x₂"], label=label), color=color(label), size=size, alpha=0.45
    )


def ellipse(marginal: Any, label: str) -> hv.Curve:
    """The contour of a Gaussian (anything with `mean` and `covariance`) at two standard deviations."""
    angle = torch.linspace(0, 2 * math.pi, 121, dtype=torch.float64)
    circle = 2 * torch.stack([angle.cos(), angle.sin()], dim=1)
    ring = marginal.mean[:2] + circle @ covariance_root(marginal.covariance[:2, :2].double()).mT
    return lines(ring[None], label, width=2.5, dash="dashed" if label.startswith("exact") else "solid", alpha=1.0)


def quiver(velocity: Velocity, t: float, label: str, *, points: Tensor, scale: float) -> hv.Curve:
    """The velocity at time t as arrows from points (n, 2), `scale` units of the plane long for each unit of speed."""
    return steps(points, points + scale * velocity(points, torch.full((len(points),), t, dtype=points.dtype)), label)


def steps(points: Tensor, tips: Tensor, label: str) -> hv.Curve:
    """Arrows from points (n, 2) of the plane to their tips."""
    v = tips - points
    side, neck = 0.15 * torch.stack([-v[:, 1], v[:, 0]], dim=1), points + 0.7 * v
    return lines(torch.stack([points, tips, neck + side, tips, neck - side], dim=1), label)


def cloud(data: Trajectories, index: int, label: str, *, marginal: Any = None, tail: int = 8) -> list[Any]:
    """Layers for one observation: all states, the last `tail` steps of 12 paths, the exact marginal at 2σ."""
    past = data.states[:12, max(0, index - tail) : index + 1]
    layers = [samples(data.states[:, index], label), lines(past, label)]
    return [*layers, ellipse(marginal, "exact")] if marginal is not None else layers


def phase_plane(*layers: Any, title: str = "", x: str = "x₁", y: str = "x₂", equal: bool = True) -> hv.Overlay:
    """Layers over one plane; by default with `equal` units on both axes, whatever the shape of the window."""
    size = {"height": 440, "max_width": 620, "hooks": [_equal_units] if equal else []}
    return _framed(layers, title=title, xlabel=x, ylabel=y, legend_position="top_left", **size)


def _equal_units(plot: Any, element: Any) -> None:
    """Keeps a unit of x as long as one of y, in the browser, whenever the figure's frame gets a new shape."""
    from bokeh.models import CustomJS

    figure = plot.state
    if "equal units" in figure.tags:
        return
    figure.tags = [*figure.tags, "equal units"]
    (left, right), (low, high) = ((side.start, side.end) for side in (figure.x_range, figure.y_range))
    middle = {"x": (left + right) / 2, "y": (low + high) / 2, "width": right - left, "height": high - low}
    keep = CustomJS(
        args={"figure": figure, **middle},
        code="""
            const unit = Math.max(width / figure.inner_width, height / figure.inner_height) / 2
            figure.x_range.setv({start: x - unit * figure.inner_width, end: x + unit * figure.inner_width})
            figure.y_range.setv({start: y - unit * figure.inner_height, end: y + unit * figure.inner_height})
        """,
    )
    figure.js_on_change("inner_width", keep)
    figure.js_on_change("inner_height", keep)


def beside(*figures: Any) -> hv.Layout:
    """Figures in a row that share no axes."""
    shown = [figure.opts(responsive=True, min_width=240) for figure in figures]
    return hv.Layout(shown).cols(len(shown)).opts(shared_axes=False)


def filmstrip(
    rows: Mapping[str, Tensor], *, height: int = 110, columns: Sequence[str] = (), limit: float | None = None
) -> hv.Overlay:
    """Images (n, 1, h, w) side by side, a row for each name, the first row on top, with names for the columns.

    Grey ones, bytes (an eighth of the page's weight) or in [0, 1], or with a `limit` fields in [−limit, limit], from
    blue over white to red.
    """
    frames = [np.asarray(f[:, 0].detach().cpu()) for f in rows.values()]
    white = 255 if frames[0].dtype == np.uint8 else 1
    edge = 0.35 * white if limit is None else np.nan
    bands = [np.concatenate(list(np.pad(f, ((0, 0), (1, 1), (1, 1)), constant_values=edge)), axis=1) for f in frames]
    tall, wide = bands[0].shape
    whole, each = np.concatenate(bands, axis=0), wide / max(1, len(columns))
    image = hv.Image(whole, bounds=(0, 0, wide, tall * len(bands)), kdims=["frame", "row"], vdims=["value"])
    names = [((len(bands) - i - 0.5) * tall, name) for i, name in enumerate(rows)]
    above = [((i + 0.5) * each, name) for i, name in enumerate(columns)] or 0
    size = {"height": height * len(bands) + 30, "max_width": 900, "show_grid": False}
    shades = {"cmap": "gray", "clim": (0, white)} if limit is None else {"cmap": "RdBu_r", "clim": (-limit, limit)}
    style = {"yticks": names, "xticks": above, "xlabel": "", "ylabel": ""}
    return _framed([_styled(image, **shades, **style)], **size)


# -- scrubbing -----------------------------------------------------------------------------------------------------


def scrubber(frames: Mapping[str, Any], name: str, *, shown: int = 0) -> Column:
    """Figures of the same layers at several values of `name`, sent to the browser once and switched there by a slider.

    A frame is an overlay, or several to stand side by side; give them common axes (`xlim`, `ylim`). The result is a
    Bokeh layout, already in the project's style, for `pn.pane.Bokeh`.
    """
    from bokeh import layouts, models
    from bokeh.models import widgets

    pictures = [frame if isinstance(frame, (list, tuple)) else [frame] for frame in frames.values()]
    plots = [hv.renderer("bokeh").get_plot(overlay) for overlay in pictures[shown]]
    sources = [layer.handles["source"] for plot in plots for layer in plot.subplots.values()]
    columns = [_columns(plots, picture) for picture in pictures]
    label = models.CustomJSTickFormatter(args={"names": list(frames)}, code="return names[Math.round(tick)]")
    wide: dict[str, Any] = {"sizing_mode": "stretch_width"}
    slider = widgets.Slider(start=0, end=len(frames) - 1, value=shown, title=name, format=label, **wide)
    slider.js_on_change("value", models.CustomJS(args={"sources": sources, "columns": columns}, code=_SWITCH))
    play = widgets.Toggle(label="▶", width=44, align="end")
    play.js_on_change("active", models.CustomJS(args={"slider": slider}, code=_PLAY))
    figures = layouts.row(*(plot.state for plot in plots), stylesheets=[_WRAP], **wide)
    for kind, style in STYLE.items():
        for part in figures.select({"type": getattr(models, kind)}):
            part.update(**style)
    return layouts.column(figures, layouts.row(play, slider, **wide), **wide)


def _columns(plots: Sequence[Any], picture: Sequence[hv.Overlay]) -> list[dict[str, Any]]:
    """The columns of each layer's source for this picture, as the plots of a like picture draw it."""
    found = []
    for plot, overlay in zip(plots, picture, strict=True):
        for layer, element in zip(plot.subplots.values(), overlay, strict=True):
            style = layer.style[layer.cyclic_index]
            shades = {"cmap": style["cmap"]} if "cmap" in style else {}  # an image would get HoloViews' own
            found.append(layer.get_data(element, {}, shades)[0])
    return found


_SWITCH = "columns[cb_obj.value].forEach((data, k) => { sources[k].data = data })"
_PLAY = """
    clearInterval(slider.timer)
    const next = () => { slider.value = slider.value < slider.end ? slider.value + 1 : slider.start }
    if (cb_obj.active) slider.timer = setInterval(next, 120)
    cb_obj.label = cb_obj.active ? "❚❚" : "▶"
"""
_WRAP = ":host { flex-wrap: wrap; } :host > * { flex: 1 1 280px; }"


def _framed(layers: Sequence[Any], **options: Any) -> hv.Overlay:
    """Layers over one pair of axes, in the size and with the tools of every figure."""
    if "title" in options:  # HoloViews formats titles
        options["title"] = options["title"].replace("{", "{{").replace("}", "}}")
    return _styled(hv.Overlay(list(layers)), **{"show_grid": True, **SIZE, **WHEEL, **options})


def ends(*values: Any, margin: float = 0.06, outliers: float = 0.0) -> tuple[float, float]:
    """Ends of an axis that holds all finite values but that share of them at either side."""
    known = np.concatenate([_array(part).reshape(-1) for part in values])
    known = known[np.isfinite(known)]
    if not len(known):
        return 0.0, 1.0
    low, high = (float(np.quantile(known, q)) for q in (outliers, 1 - outliers))
    room = margin * (high - low) or 0.5 * (abs(low) or 1.0)
    return low - room, high + room


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=float)
