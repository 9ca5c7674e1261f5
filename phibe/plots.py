"""Every figure, as HoloViews objects, for book and apps: truth is black, each method has one colour everywhere."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import bokeh.models
import holoviews as hv
import numpy as np
import torch
from bokeh.layouts import column, row
from bokeh.models import Column, CustomJS, CustomJSTickFormatter
from bokeh.models.widgets import Slider, Toggle
from bokeh.themes import Theme
from torch import Tensor

from phibe.calculus import Velocity
from phibe.diagnostics import Diagnosis
from phibe.trajectories import Trajectories

# -- colours ---------------------------------------------------------------------------------------------------------


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


# -- every figure, as holoviews objects, for book and apps -----------------------------------------------------------


STYLE: dict[str, dict[str, Any]] = {
    "Plot": {
        "background_fill_color": "#ffffff",
        "border_fill_color": "#ffffff",
        "outline_line_color": None,
    },
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
        "border_line_color": None,
        "background_fill_alpha": 0.8,
        "label_text_font_size": "12px",
        "spacing": 1,
        "padding": 4,
    },
    "Title": {"text_font_size": "14px", "text_font_style": "normal", "text_color": "#2b313b"},
    "Toolbar": {"logo": None, "autohide": True},
}
THEME = Theme(json={"attrs": STYLE})

SIZE = {"responsive": True, "height": 380, "min_width": 280, "max_width": 760}
WHEEL = {"default_tools": ["save", "pan", "box_zoom", "reset"], "toolbar": "above"}


def use() -> None:
    """Load HoloViews with the project's theme; scripts come from the installed files when PANEL_INLINE is set."""
    inline = os.environ.get("PANEL_INLINE", "").lower() in {"1", "true", "yes"}
    hv.extension("bokeh", logo=False, inline=inline)
    hv.renderer("bokeh").theme = THEME


def color(label: str) -> str:
    """The colour of the method that is a label's first word, as in 'phibe, Δt = 0.1'."""
    return COLORS.get(label.replace(",", " ").split()[0], COLORS["exact"])


# -- curves ------------------------------------------------------------------------------------------------------------


def curves(
    lines: Mapping[str, tuple[Any, Any]],
    *,
    x: str,
    y: str,
    title: str = "",
    log: str = "",
    colors: Mapping[str, str] | None = None,
) -> hv.Overlay:
    """Named curves {label: (x, y)} over one pair of axes; `log` is any of '', 'x', 'y', 'xy'.

    The exact one is dashed, a second one of the same colour dotted, a third dotted and dashed.
    """
    chosen, used = dict(colors or {}), Counter[str]()
    layers = []
    for label, (horizontal, vertical) in lines.items():
        tint = chosen.get(label, color(label))
        dash = "dashed" if label.startswith("exact") else ("solid", "dotted", "dotdash")[used[tint] % 3]
        used[tint] += 1
        style = {"color": tint, "line_dash": dash, "line_width": 2.5}
        layers.append(hv.Curve((_array(horizontal), _array(vertical)), x, y, label=label).opts(**style))
    return hv.Overlay(layers).opts(
        title=title, show_grid=True, legend_position="top_right", **_axes(log), **SIZE, **WHEEL
    )


def rates(
    lines: Mapping[str, tuple[Any, Any]], *, x: str, y: str, slopes: Sequence[float] = (), title: str = ""
) -> hv.Overlay:
    """Errors against a size on logarithmic axes; dotted guides of the given slopes go through the first curve's end."""
    overlay = curves(lines, x=x, y=y, title=title, log="xy")
    marks = [
        hv.Scatter((_array(h), _array(v)), x, y, label=label).opts(color=color(label), size=7)
        for label, (h, v) in lines.items()
    ]
    first = next(iter(lines.values()))
    horizontal, vertical = _array(first[0]), _array(first[1])
    guides = [
        hv.Curve(
            (horizontal, vertical[-1] * (horizontal / horizontal[-1]) ** slope),
            x,
            y,
            label=f"slope {slope:.2g}",
        ).opts(color="#8a8f98", line_dash="dotted", line_width=1.5)
        for slope in slopes
    ]
    return hv.Overlay([*guides, *overlay, *marks]).opts(
        title=title, show_grid=True, legend_position="bottom_right", **_axes("xy"), **SIZE, **WHEEL
    )


def dots(points: Sequence[tuple[float, float]], label: str, *, x: str, y: str, size: float = 5) -> hv.Scatter:
    """Single points over a curve, in the colour of its method."""
    return hv.Scatter(list(points), x, y).opts(color=color(label), size=size, alpha=0.6)


def slope(x: Any, y: Any) -> float:
    """The least-squares slope of log y against log x: the measured order."""
    return float(np.polyfit(np.log(_array(x)), np.log(_array(y)), 1)[0])


def diagnosis(found: Diagnosis) -> hv.Overlay:
    """Bias (solid) and noise (dotted) of each estimator against the step, as shares of the size of the drift."""
    layers = []
    for name in dict.fromkeys(error.objective for error in found.errors):
        rows = [error for error in found.errors if error.objective == name]
        steps = [error.step for error in rows]
        for kind, dash in (("bias", "solid"), ("noise", "dotted")):
            shares = [100 * getattr(error, kind) for error in rows]
            curve = hv.Curve((steps, shares), "step Δt", "% of the drift", label=f"{name}, {kind}")
            layers.append(curve.opts(color=color(name), line_dash=dash, line_width=2.5))
    return hv.Overlay(layers).opts(
        show_grid=True, legend_position="top_left", logx=True, ylim=(0, None), **SIZE, **WHEEL
    )


# -- the phase plane ---------------------------------------------------------------------------------------------------


def trails(data: Trajectories, label: str, *, paths: int = 40, width: float = 1.5, dash: str = "solid") -> hv.Contours:
    """The first paths as lines in the plane of the first two coordinates."""
    return _lines(data.states[:paths], label).opts(line_width=width, line_dash=dash)


def _lines(states: Tensor, label: str) -> hv.Contours:
    paths = [{"x₁": path[:, 0], "x₂": path[:, 1]} for path in _array(states)]
    return hv.Contours(paths, ["x₁", "x₂"], label=label).opts(color=color(label), line_width=1.5, alpha=0.8)


def samples(x: Tensor, label: str, *, count: int = 1500, size: float = 3) -> hv.Points:
    """States as dots in the plane of the first two coordinates."""
    return hv.Points(_array(x[:count, :2]), ["x₁", "x₂"], label=label).opts(color=color(label), size=size, alpha=0.45)


def ellipse(law: Any, label: str, *, sigmas: float = 2.0) -> hv.Contours:
    """The contour of a Gaussian (anything with `mean` and `covariance`) at that many standard deviations."""
    angle = torch.linspace(0, 2 * math.pi, 121, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(law.covariance[:2, :2].double())
    circle = torch.stack([angle.cos(), angle.sin()], dim=1) * values.clamp(min=0).sqrt() * sigmas
    ring = _array(law.mean[:2] + circle @ vectors.mT)
    dash = "dashed" if label.startswith("exact") else "solid"
    return hv.Contours([{"x₁": ring[:, 0], "x₂": ring[:, 1]}], ["x₁", "x₂"], label=label).opts(
        color=color(label), line_width=2.5, line_dash=dash
    )


def arrows(
    velocity: Velocity,
    t: float,
    label: str,
    *,
    low: Sequence[float],
    high: Sequence[float],
    per_side: int = 13,
) -> hv.VectorField:
    """The velocity at time t on a grid of the plane, arrows in proportion to its length."""
    axes = [torch.linspace(low[i], high[i], per_side, dtype=torch.float64) for i in range(2)]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 2)
    v = velocity(grid, torch.full((len(grid),), t, dtype=grid.dtype))
    angle, length = torch.atan2(v[:, 1], v[:, 0]), v.norm(dim=1)
    data = tuple(_array(part) for part in (grid[:, 0], grid[:, 1], angle, length))
    return hv.VectorField(data, ["x₁", "x₂"], ["angle", "length"], label=label).opts(
        color=color(label), magnitude="length", alpha=0.7, pivot="tail", rescale_lengths=True
    )


def quiver(velocity: Velocity, t: float, label: str, *, points: Tensor, scale: float) -> hv.Contours:
    """The velocity at time t as arrows from points (n, 2), `scale` units of the plane long for each unit of speed."""
    v = scale * velocity(points, torch.full((len(points),), t, dtype=points.dtype))
    side = 0.15 * torch.stack([-v[:, 1], v[:, 0]], dim=1)
    tip, neck = points + v, points + 0.7 * v
    return _lines(torch.stack([points, tip, neck + side, tip, neck - side], dim=1), label)


def cloud(data: Trajectories, index: int, label: str, *, law: Any = None, tails: int = 12, tail: int = 8) -> list[Any]:
    """Layers for one observation: all states, the last `tail` steps of a few paths, the 2σ ellipse of the exact law."""
    past = data.states[:tails, max(0, index - tail) : index + 1]
    layers = [samples(data.states[:, index], label), _lines(past, label)]
    return [*layers, ellipse(law, "exact")] if law is not None else layers


def phase_plane(*layers: Any, title: str = "", x: str = "x₁", y: str = "x₂") -> hv.Overlay:
    """Layers over one plane with equal units on both axes, whatever the shape of the window."""
    size = {"responsive": True, "height": 440, "min_width": 280, "max_width": 620}
    return hv.Overlay(list(layers)).opts(
        title=title,
        xlabel=x,
        ylabel=y,
        show_grid=True,
        legend_position="top_left",
        hooks=[_equal_units],
        **size,
        **WHEEL,
    )


def _equal_units(plot: Any, element: Any) -> None:
    """Keeps a unit of x as long as one of y, in the browser, whenever the figure's frame gets a new shape."""
    figure = plot.state
    if "equal units" in figure.tags:
        return
    figure.tags = [*figure.tags, "equal units"]
    across, up = ((side.start, side.end) for side in (figure.x_range, figure.y_range))
    keep = CustomJS(
        args={
            "figure": figure,
            "x": sum(across) / 2,
            "y": sum(up) / 2,
            "width": across[1] - across[0],
            "height": up[1] - up[0],
        },
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
    return (
        hv.Layout([f.opts(responsive=True, min_width=240) for f in figures]).cols(len(figures)).opts(shared_axes=False)
    )


# -- pictures ----------------------------------------------------------------------------------------------------------


def filmstrip(
    rows: Mapping[str, Tensor],
    *,
    title: str = "",
    height: int = 110,
    columns: Sequence[str] = (),
    limit: float | None = None,
) -> hv.Overlay:
    """Pictures (n, 1, h, w) side by side, a row for each name, the first row on top, with names for the columns.

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
    size = {"responsive": True, "height": height * len(bands) + 30, "min_width": 280, "max_width": 900}
    shades = {"cmap": "gray", "clim": (0, white)} if limit is None else {"cmap": "RdBu_r", "clim": (-limit, limit)}
    style = {"yticks": names, "xticks": above, "xlabel": "", "ylabel": "", "title": title}
    return hv.Overlay([image.opts(**shades, **style)]).opts(**size, **WHEEL)


# -- films -------------------------------------------------------------------------------------------------------------


def film(frames: Mapping[str, Any], name: str, *, shown: int = 0) -> Column:
    """Pictures of the same layers at several values of `name`, sent to the browser once and switched there by a slider.

    A frame is an overlay, or several to stand side by side; give them common axes (`xlim`, `ylim`). The result is a
    Bokeh layout, already in the project's style, for `pn.pane.Bokeh`.
    """
    pictures = [frame if isinstance(frame, (list, tuple)) else [frame] for frame in frames.values()]
    stages = [hv.renderer("bokeh").get_plot(overlay) for overlay in pictures[shown]]
    sources = [layer.handles["source"] for stage in stages for layer in stage.subplots.values()]
    columns = [_columns(stages, picture) for picture in pictures]
    label = CustomJSTickFormatter(args={"names": list(frames)}, code="return names[Math.round(tick)]")
    slider = Slider(start=0, end=len(frames) - 1, value=shown, title=name, format=label, sizing_mode="stretch_width")
    slider.js_on_change("value", CustomJS(args={"sources": sources, "columns": columns}, code=_SWITCH))
    play = Toggle(label="▶", width=44, align="end")
    play.js_on_change("active", CustomJS(args={"slider": slider}, code=_PLAY))
    figures = row(*(stage.state for stage in stages), sizing_mode="stretch_width", stylesheets=[_WRAP])
    for kind, style in STYLE.items():
        for part in figures.select({"type": getattr(bokeh.models, kind)}):
            part.update(**style)
    return column(figures, row(play, slider, sizing_mode="stretch_width"), sizing_mode="stretch_width")


def _columns(stages: Sequence[Any], picture: Sequence[hv.Overlay]) -> list[dict[str, Any]]:
    """The columns of each layer's source for this picture, as the plots of a like picture draw it."""
    stacks = [
        zip(stage.subplots.values(), overlay, strict=True) for stage, overlay in zip(stages, picture, strict=True)
    ]
    return [layer.get_data(element, {}, _shades(layer))[0] for stack in stacks for layer, element in stack]


def _shades(layer: Any) -> dict[str, Any]:
    """The colours of an image, which HoloViews would otherwise set anew to its own."""
    return {name: value for name, value in layer.style[layer.cyclic_index].items() if name == "cmap"}


_SWITCH = "columns[cb_obj.value].forEach((data, k) => { sources[k].data = data })"
_PLAY = """
    clearInterval(slider.timer)
    const next = () => { slider.value = slider.value < slider.end ? slider.value + 1 : slider.start }
    if (cb_obj.active) slider.timer = setInterval(next, 120)
    cb_obj.label = cb_obj.active ? "❚❚" : "▶"
"""
_WRAP = ":host { flex-wrap: wrap; } :host > * { flex: 1 1 280px; }"


# -- helpers -----------------------------------------------------------------------------------------------------------


def _axes(log: str) -> dict[str, bool]:
    return {"logx": "x" in log, "logy": "y" in log}


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=float)
