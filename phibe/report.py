"""Report: the quality of a run's flow as `quality.json`, and as `report.html`, one page that loads nothing.

`write_report` opens the run and its data, calls `evaluation.evaluate`, and fills the template report.html beside this
file with figures of `plots`, drawn by matplotlib. Text that comes from a user's file (names of columns, paths, notes)
is escaped by the template, or drawn inside an image, where nothing runs. Read next: `widget.py`.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from phibe import plots
from phibe.ensembles import Marks, integrate, observed, place_marks, time_free
from phibe.evaluation import (
    FEW,
    NAME,
    Distance,
    Quality,
    evaluate,
    excess,
    held_out_paths,
    open_source,
    ratio,
    write_source,
)
from phibe.files import replacing, write_json
from phibe.fitting import refit_thinned
from phibe.flow import Flow
from phibe.io import describe
from phibe.training.runs import Metrics, open_flow, read_config
from phibe.training.tensors import fingerprint
from phibe.trajectories import Trajectories, split_paths

PATIENCE = 120.0
"""Seconds of training up to which a network is fitted again without being asked for, to check intermediate times."""


def write_report(
    folder: str | Path,
    data: Trajectories | None = None,
    *,
    source: str | Path | None = None,
    calibrate: bool | None = None,
    network: nn.Module | None = None,
    **options: Any,
) -> Quality:
    """Write `quality.json` and `report.html` into the run's folder; returns the quality.

    `data` is what the run was fitted to, by default the file that it remembers; `source` is that file, to be remembered
    with the `options` it was read with. `calibrate` fits the same class to every other observation, to check the times
    in between: by default if training took no more than two minutes. `network` is needed if it is a module of your own.

    >>> import phibe, tempfile
    >>> data = phibe.OU.reversible().simulate(paths=60, times=[0.0, 0.1, 0.2, 0.3, 0.4], seed=0)
    >>> folder = tempfile.mkdtemp()
    >>> flow = phibe.fit(data, "affine", "symmetric", out=folder, progress=False)
    >>> quality = phibe.write_report(folder, data)
    >>> quality.objective, (Path(folder) / "report.html").exists()
    ('symmetric', True)
    """
    folder = Path(folder)
    about, flow = read_config(folder), open_flow(folder, network=network)
    data = open_source(folder) if data is None else data
    if source is not None:
        write_source(folder, data, source, **options)
    history = Metrics(folder / "metrics.jsonl").read()
    held_out = _held_out(about, len(data))
    refitted, notes = _refitted(about, data, calibrate, history)
    kind = about.get("objective", {"name": "phibe"})
    if history and held_out is not None:
        notes = [*notes, "The held-out paths also chose which weights to keep: the fit is not quite blind to them."]
    facts = {"objective": kind["name"], "noise": kind.get("noise"), "notes": notes}
    quality = evaluate(flow, data, refitted, held_out=held_out, **facts)
    views = Views.of(flow, data[held_out_paths(data, held_out)], method=flow.method)
    write_json(folder / "quality.json", quality.as_json())
    with replacing(folder / "report.html") as partial:
        partial.write_text(page(quality, views, about=about, history=history, name=folder.name), "utf8")
    return quality


def evaluate_run(folder: str | Path, data: Trajectories, *, network: nn.Module | None = None) -> Quality:
    """What the flow in a folder, a run's or a saved one, is worth on this data: new paths, or those it was fitted to.

    Nothing is written and nothing is fitted. Of new data every fifth path is a reference, for what the flow makes of
    the starts of the others; of the run's own data the held-out paths are.

    >>> import phibe, tempfile
    >>> train, new = (phibe.OU.reversible().simulate(paths=200, times=[0, 0.1, 0.2, 0.3], seed=k) for k in (0, 1))
    >>> folder = phibe.save_flow(phibe.fit(train, "affine", "symmetric", progress=False), tempfile.mkdtemp())
    >>> evaluate_run(folder, new).verdict
    'good'
    """
    about, flow = read_config(folder), open_flow(folder, network=network)
    if (shape := tuple(about["state_shape"])) != data.state_shape:
        raise ValueError(f"The flow in {folder} is of states {shape}; this data has {data.state_shape}. Other columns?")
    note = Path(folder) / NAME
    same = note.exists() and json.loads(note.read_text("utf8")).get("sha256") == fingerprint(data)
    data = data.to(getattr(torch, about["dtype"]))
    if flow.interval and not time_free(flow, data):
        (first, last), (begin, end), step = flow.interval, data.interval, flow.step or 0.0
        if begin < first - step or end > last + step:
            fitted = f"The velocity in {folder} depends on time and was fitted from t = {first:g} to {last:g}"
            raise ValueError(f"{fitted}; this data goes from {begin:g} to {end:g}. Leave out the times beyond?")
    if same:
        held_out, said = _held_out(about, len(data)), "This is the data of the run: its held-out paths are evaluated."
    else:
        held_out, said = held_out_paths(data, None), "All these paths are new to the fit; every fifth is a reference."
    kind = about.get("objective", {"name": "symmetric"})
    return evaluate(flow, data, held_out=held_out, objective=kind["name"], noise=kind.get("noise"), notes=[said])


def _held_out(about: dict[str, Any], paths: int) -> Tensor | None:
    """The paths that the fit kept aside; None if it saw all of them."""
    config = about.get("config", {})
    if not config.get("held_out") or about.get("held_out"):
        return None
    return split_paths(paths, config["held_out"], seed=config.get("seed", 0))[1]


def _refitted(
    about: dict[str, Any], data: Trajectories, calibrate: bool | None, history: list[dict[str, Any]]
) -> tuple[Flow | None, list[str]]:
    """The same class fitted to every other observation, or why that was not done."""
    seconds = history[-1].get("seconds", 0.0) if history else 0.0
    missing = "Intermediate times were not checked:"
    if calibrate is None and seconds > PATIENCE:
        asked = "Ask for it: `phibe report RUN --calibrate true`."
        return None, [f"{missing} training took {seconds:.0f} s, and the check trains once more. {asked}"]
    if calibrate is False:
        return None, [f"{missing} it was not asked for."]
    if data._shortest() < 3:
        return None, ["Intermediate times cannot be checked: some paths have fewer than three observations."]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the warnings of the fit itself were shown when it was made
            return refit_thinned(about, data), []
    except (ValueError, ArithmeticError) as reason:
        return None, [f"{missing} every other observation could not be fitted. {reason}"]


FRAMES, SHOWN = 61, 400
"""Times and paths to show."""


@dataclass(frozen=True)
class Views:
    """States to show at common marks, (path, mark, *state): `observed` paths, and `generated` by the flow from their
    starts; `names` are those of the time and of the coordinates."""

    names: list[str]
    marks: Marks
    observed: Tensor
    generated: Tensor

    @staticmethod
    def of(flow: Flow, data: Trajectories, *, method: str) -> Views:
        """Of the first paths, a few hundred at most (`FEW` of images), at up to `FRAMES` marks from the start on."""
        shown = data[: SHOWN if len(data.state_shape) == 1 else FEW]
        marks = place_marks(shown, FRAMES, elapsed=time_free(flow, data), first=0)
        return Views(
            data.labels.texts(data.state_shape[0]),
            marks,
            observed(shown, marks),
            integrate(flow, shown, marks, method=method),
        )

    def at(self, mark: int) -> str:
        return f"{self.names[0]} = {float(self.marks.times[mark]):.3g}"


# -- figures -----------------------------------------------------------------------------------------------------------


PATHS, COORDINATES, MARKS, STRIP = 12, 4, 4, 8
"""Paths drawn as lines, coordinates and times that marginals are shown of, and frames of a strip."""
WIDE, SMALL = (420, 185), (200, 155)
"""Sizes in pixels."""


class Figure(NamedTuple):
    """An image as the `src` of an HTML element, and what it shows, for who cannot see it."""

    src: str
    alt: str

    @staticmethod
    def of(figure: Any, alt: str, size: tuple[int, int], kind: str = "svg", **options: Any) -> Figure:
        code = base64.b64encode(plots.drawn(figure, size=size, kind=kind, **options)).decode()
        return Figure(f"data:image/{kind}{'+xml' if kind == 'svg' else ''};base64,{code}", alt)


class Section(NamedTuple):
    """A heading with its figures, the meaning of their colours (text, colour), and what to see in them."""

    title: str
    figures: Sequence[Figure]
    key: Sequence[tuple[str, str]]
    caption: str
    kind: str = "wide"
    intro: str = ""


def page(quality: Quality, views: Views, *, about: dict[str, Any], history: Sequence[dict[str, Any]], name: str) -> str:
    """The whole page, of the run of that name."""
    import jinja2

    plots.use("matplotlib")
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html")
    again = (
        "The same class was fitted again to every other observation of the training paths, and is compared here at the "
        "observations that it was not shown."
    )
    few = "No marginal could be compared: there are too few paths at any one time."
    unchecked, time = "Not checked; the reason is at the top.", views.names[0]
    sections = [
        *([_training(history, quality)] if history else []),
        _distances("Marginals at observed times", quality.marginals, quality, time, absent=few),
        _distances("Intermediate times", quality.left_out_times, quality, time, absent=unchecked, intro=again),
        *(_vectors if len(quality.data["state_shape"]) == 1 else _images)(quality, views),
    ]
    held = {"held out": f"{quality.data['held_out_paths']} paths are compared with"}
    data, fitted = (describe(quality.data) | held).items(), _fit_facts(quality, about)
    return template.render(name=name, quality=quality, data=data, sections=sections, fitted=fitted)


def _method(quality: Quality) -> str:
    """The name whose colour the flow has: that of its objective, or the paper's for one that has no colour."""
    return quality.objective if quality.objective in plots.COLORS else "phibe"


def _training(history: Sequence[dict[str, Any]], quality: Quality) -> Section:
    """The objective on training and on held-out samples against the step."""
    if len(history) < 2:
        return Section("Training", [], [], "The objective was evaluated once only: there is no curve to show.")
    method, steps = _method(quality), [line["step"] for line in history]
    train, held = (np.array([line.get(name) for line in history], float) for name in ("train", "held_out"))
    lines = {"samples": (steps, train), method: (steps, held)}
    # the first values may be far above all others, and a diverging training objective far below
    ylim = plots.ends(held if np.isfinite(held).any() else train, train[len(train) // 5 :])
    figure = plots.curves(lines, x="step", y="objective")
    seen = [(value, step) for value, step in zip(held, steps, strict=True) if np.isfinite(value)]
    best = f" The weights are those of step {min(seen)[1]:,}, where the held-out one is least." if seen else ""
    text = (
        f"The objective in the units of training; that of no motion is 0.{best} Where the training curve goes on "
        "falling while the held-out one rises, the network has begun to fit noise."
    )
    key = [("training samples", plots.COLORS["samples"]), ("held-out samples", plots.COLORS[method])]
    drawn = Figure.of(figure, "objective on training and held-out samples against the step", WIDE, ylim=ylim)
    return Section("Training", [drawn], key, text)


def _distances(
    title: str, rows: list[Distance], quality: Quality, time: str, *, absent: str, intro: str = ""
) -> Section:
    """Distances of the flow, of other paths of the data and of the persistence forecast, from held-out paths."""
    if not rows:
        return Section(title, [], [], absent)
    method, times = _method(quality), [row.time for row in rows]
    values = {"persistence": "persistence", "samples": "floor", method: "flow"}
    lines = {label: (times, [getattr(row, name) for row in rows]) for label, name in values.items()}
    known = [y for _, column in lines.values() for y in column if np.isfinite(y)]
    clock = f"{time} since the start of a path" if quality.time_free else time
    dashes = {"persistence": "dotted"}
    figure = plots.curves(lines, x=clock, y="sliced W₂ / standard deviation", dashes=dashes)
    ylim, alt = (0.0, 1.08 * max(known, default=1.0)), "distance of marginals from held-out paths over time"
    text = (
        "Sliced W₂ from held-out paths, in standard deviations of the data: root mean square "
        f"{ratio(rows):.2f} times the floor, {excess(rows):.3f} beyond it. Where the flow is at the floor "
        f"it cannot be told from the data with {rows[0].paths} paths."
    )
    key = [
        ("the flow", plots.COLORS[method]),
        ("floor: other paths of the data", plots.COLORS["samples"]),
        ("dotted: persistence forecast", plots.COLORS["persistence"]),
    ]
    return Section(title, [Figure.of(figure, alt, WIDE, ylim=ylim)], key, text, intro=intro)


Parts = dict[str, Tensor]
"""States (path, mark, coordinate): the observed ones, `samples`, and the generated ones under their method's name."""


def _vectors(quality: Quality, views: Views) -> list[Section]:
    """Marginals of coordinates and of pairs of them at a few times, and some paths over time."""
    method, size, seen = _method(quality), quality.data["state_shape"][0], (views.marks.places >= 0).sum(0)
    usual = (seen >= seen.max() / 4).nonzero()[1:, 0].tolist()  # late times that few paths reach say little
    marks = [usual[k] for k in _evenly(len(usual), MARKS + 1)[1:]]
    parts, shown = {"samples": views.observed, method: views.generated}, range(min(size, COORDINATES))
    key = [("held-out paths", plots.COLORS["samples"]), ("the flow from their starts", plots.COLORS[method])]
    marginals = [_marginal(views, parts, i, k) for i in shown for k in marks]
    found = [Section("Marginals", marginals, key, "Where the line follows the filled area, the two agree.", "grid")]
    if planes := [_plane(views, parts, pair, k) for pair in combinations(shown[:3], 2) for k in marks]:
        text = "Each dot is a path: both colours should fill the same region, with the same density."
        found.append(Section("Pairs of coordinates", planes, key, text, "grid"))
    text = "Single paths need not agree: the flow has the marginals of the data, not the noise of a path."
    return [*found, Section("Trajectories", [_paths(views, parts, i) for i in shown], key, text)]


def _evenly(length: int, count: int) -> list[int]:
    """At most `count` indices, from the first to the last."""
    return sorted({round((length - 1) * i / (count - 1)) for i in range(count)})


def _marginal(views: Views, parts: Parts, i: int, mark: int) -> Figure:
    """Densities of one coordinate at one mark."""
    name, at, ends = views.names[1 + i], views.at(mark), plots.ends(views.observed[..., i], outliers=0.002)
    numbers = {label: x[:, mark, i] for label, x in parts.items()}
    bins = max(8, min(28, round(len(views.observed) ** 0.5)))
    figure = plots.histogram(numbers, x=name, ends=ends, bins=bins, title=at)
    return Figure.of(figure, f"distribution of {name} at {at}", SMALL)


def _plane(views: Views, parts: Parts, pair: tuple[int, int], mark: int) -> Figure:
    """Two coordinates of each path at one mark."""
    (x, y), at = (views.names[1 + i] for i in pair), views.at(mark)
    xlim, ylim = (plots.ends(views.observed[..., i], outliers=0.002, margin=0.1) for i in pair)
    layers = [plots.samples(part[:, mark, list(pair)], label, size=3.5) for label, part in parts.items()]
    figure = plots.phase_plane(*layers, title=at, x=x, y=y, equal=False)
    return Figure.of(figure, f"{x} and {y} at {at}", SMALL, xlim=xlim, ylim=ylim)


def _paths(views: Views, parts: Parts, i: int) -> Figure:
    """A few paths, and the flow from the same starts."""
    time, name = views.names[0], views.names[1 + i]
    values = {label: x[:PATHS, :, i] for label, x in parts.items()}
    figure, ylim = plots.paths(views.marks.times, values, x=time, y=name), plots.ends(*values.values(), outliers=0.002)
    return Figure.of(figure, f"{name} of some paths over {time}", WIDE, ylim=ylim)


def _images(_: Quality, views: Views) -> list[Section]:
    """Frames of a few paths, observed above generated, in one grey scale."""
    marks, figures = _evenly(len(views.marks.times), STRIP), []
    for path in range(min(3, len(views.observed))):
        seen, made = (part[path, marks, :1].double() for part in (views.observed, views.generated))
        low, high = plots.ends(seen, margin=0)
        rows = {name: ((x - low) / (high - low)).nan_to_num(0) for name, x in (("observed", seen), ("flow", made))}
        times = [f"{float(views.marks.times[k]):.3g}" for k in marks]
        height = round(2 * 560 / len(marks) * seen.shape[2] / seen.shape[3]) + 40
        strip, alt = plots.filmstrip(rows, columns=times), "observed frames above generated frames"
        figures.append(Figure.of(strip, alt, (620, height), kind="png", ylabel=""))
    text = (
        f"Of each path the upper row is observed, the lower is the flow from its first frame; below the frames is "
        f"{views.names[0]}. Details may differ, as the flow has no noise; both should look like frames of one video."
    )
    return [Section("Frames", figures, [], text, "frames")]


def _fit_facts(quality: Quality, about: dict[str, Any]) -> list[tuple[str, str]]:
    network, settings = about["network"], about.get("config", {})
    parts = network.get("arguments", {}), settings
    arguments, chosen = (", ".join(f"{name}={value}" for name, value in part.items()) for part in parts)
    rows = [
        ("objective", quality.objective),
        ("class", f"{network['name']}({arguments})" + (", normalised" if network.get("normalised") else "")),
        ("velocity", "the same at all times" if quality.time_free else "depends on time"),
        ("integrated with", quality.method),
    ]
    return [*rows, ("settings", chosen)] if chosen else rows
