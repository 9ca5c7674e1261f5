"""The page of a report: one HTML text with its style and pictures inside, which asks for nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

from phibe.evaluation import Distance, Quality, Views, excess, ratio
from phibe.report import pictures
from phibe.svg import key

STYLE = (Path(__file__).parent / "report.css").read_text("utf8")
SIGNS = {"good": "✓", "usable with care": "!", "not trustworthy": "✗"}
WORDS = {
    "good": "Good: on paths that the fit has not seen, its laws are those of the data.",
    "usable with care": "Usable with care: something could not be shown, or is not as it should be.",
    "not trustworthy": "Not trustworthy: do not use what this flow generates.",
}


def page(
    quality: Quality,
    views: Views,
    *,
    about: dict[str, Any],
    history: Sequence[dict[str, Any]],
    name: str,
    names: Sequence[str],
) -> str:
    """The whole page; `names` are those of the time and of the coordinates."""
    parts = [
        _verdict(quality),
        _section("The data", _data(quality, names)),
        _section("Training", _training(history, quality)) if history else "",
        _section("Laws at observed times", _laws(quality.laws, quality, names[0])),
        _section("Times in between", _between(quality, names[0])),
        *_states(quality, views, names),
        _section("What was fitted", _fitted(quality, about)),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:"><link rel="icon" href="data:,">'
    )
    head += f"<title>Quality of {escape(name)}</title><style>{STYLE}</style>"
    top = f'<header><p class="kind">PhiBE-Flow, quality report</p><h1>{escape(name)}</h1></header>'
    body = f"<main>{top}{''.join(parts)}</main>"
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>'


# -- words -------------------------------------------------------------------------------------------------------------


def _verdict(quality: Quality) -> str:
    mark = SIGNS[quality.verdict]
    items = "".join(
        f'<li class="{_slug(f.grade)}"><b>{escape(f.about)}: {escape(f.grade)}.</b> {_code(f.text)}</li>'
        for f in quality.findings
    )
    notes = "".join(f"<p>{_code(note)}</p>" for note in (quality.motion, *quality.notes) if note)
    return (
        f'<section class="verdict {_slug(quality.verdict)}"><h2><span aria-hidden="true">{mark}</span> '
        f"{escape(quality.verdict.capitalize())}</h2><p>{WORDS[quality.verdict]}</p><ul>{items}</ul>{notes}"
        f"<details><summary>How the verdict is made</summary><p>{escape(quality.criteria)}</p></details></section>"
    )


def _data(quality: Quality, names: Sequence[str]) -> str:
    about = quality.data
    short, long = about["observations"]
    low, step, high = about["steps"]
    rows = {
        "paths": f"{about['paths']:,}, {about['held_out_paths']:,} of them looked at as held-out ones",
        "observations": f"{short:,} a path" if short == long else f"{short:,} to {long:,} a path",
        "times": f"{about['interval'][0]:.6g} to {about['interval'][1]:.6g}, "
        + ("shared by all paths" if about["shared_times"] else "each path its own"),
        "step": f"{step:.4g}" if high - low <= 1e-6 * high else f"{step:.4g} (median; {low:.4g} to {high:.4g})",
        "state": "shape " + " × ".join(map(str, about["state_shape"])),
    }
    if len(about["state_shape"]) == 1:
        for label, (least, most, mean, spread) in zip(names[1:], about["ranges"], strict=False):
            rows[label] = f"{least:.4g} to {most:.4g}, mean {mean:.4g}, spread {spread:.4g}"
    return _table(rows)


def _training(history: Sequence[dict[str, Any]], quality: Quality) -> str:
    picture = pictures.training(history, quality.objective)
    legend = [("training samples", pictures.DATA), ("held-out samples", pictures.tint(quality.objective))]
    held = [(line["held_out"], line["step"]) for line in history if line.get("held_out") is not None]
    best = f" The weights are those of step {min(held)[1]:,}, where the held-out one is least." if held else ""
    text = (
        f"The objective in the units of training; that of no motion is 0.{best} A training curve that goes on falling "
    )
    return _figure(picture, legend, text + "while the held-out one rises has begun to fit noise.")


def _laws(rows: Sequence[Distance], quality: Quality, time: str) -> str:
    if not rows:
        return "<p>No law could be compared: there are too few paths at any one time.</p>"
    legend = [
        ("the flow", pictures.tint(quality.objective)),
        ("floor: other paths of the data", pictures.DATA),
        ("dotted: standing still", pictures.STILL),
    ]
    clock = f"{time} since the start of a path" if quality.time_free else time
    text = (
        "Sliced W₂ from held-out paths, in standard deviations of the data: root mean square "
        f"{ratio(list(rows)):.2f} times the floor, {excess(list(rows)):.3f} beyond it. Where the flow is at the floor "
        f"it cannot be told from the data with {rows[0].paths} paths."
    )
    return _figure(pictures.distances(rows, quality.objective, clock), legend, text)


def _between(quality: Quality, time: str) -> str:
    if not quality.between:
        return "<p>Not checked; the reason is at the top.</p>"
    text = (
        "<p>The same class was fitted again to every other observation of the training paths, and is compared here at "
        "the observations that it was not shown.</p>"
    )
    return text + _laws(quality.between, quality, time)


def _fitted(quality: Quality, about: dict[str, Any]) -> str:
    network = about["network"]
    arguments = ", ".join(f"{name}={value}" for name, value in network.get("arguments", {}).items())
    rows = {
        "objective": quality.objective,
        "class": f"{network['name']}({arguments})" + (", normalised" if network.get("normalised") else ""),
        "velocity": "the same at all times" if quality.time_free else "depends on time",
        "integrated with": quality.method,
    }
    settings = about.get("config", {})
    chosen = ", ".join(f"{name}={value}" for name, value in settings.items())
    return _table(rows | ({"settings": chosen} if chosen else {}))


# -- pictures of states ------------------------------------------------------------------------------------------------


def _states(quality: Quality, views: Views, names: Sequence[str]) -> list[str]:
    legend = [("held-out paths", pictures.DATA), ("the flow from their starts", pictures.tint(quality.objective))]
    if len(quality.data["state_shape"]) > 1:
        return [_section("Frames", _frames(views))]
    size, time, marks = quality.data["state_shape"][0], names[0], pictures.chosen_marks(views)
    look = {"objective": quality.objective}
    marginals = [
        pictures.histogram(views, i, k, names=(names[1 + i], time), **look) for i in range(min(size, 4)) for k in marks
    ]
    planes = [
        pictures.plane(views, pair, k, names=(names[1 + pair[0]], names[1 + pair[1]], time), **look)
        for pair in list(combinations(range(min(size, 3)), 2))
        for k in marks
    ]
    paths = [pictures.trajectories(views, i, names=(names[1 + i], time), **look) for i in range(min(size, 4))]
    still = "Single paths need not agree: the flow carries the law, not the noise of a path."
    found = [_section("Marginals", _figure(_grid(marginals), legend, "Observed (filled) and generated (line)."))]
    if planes:
        found.append(_section("Pairs of coordinates", _figure(_grid(planes), legend, "Each dot is a path.")))
    return [*found, _section("Trajectories", _figure("".join(paths), legend, still))]


def _frames(views: Views) -> str:
    rows = []
    for path in range(min(3, len(views.observed))):
        seen, made = pictures.strip(views, path)
        rows.append(f'<img src="{seen}" alt="observed frames"><img src="{made}" alt="generated frames">')
    return _figure(
        "<br>".join(rows), [], "Of each path the upper strip is observed; the lower is the flow from its start."
    )


# -- small parts -------------------------------------------------------------------------------------------------------


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _figure(picture: str, legend: Sequence[tuple[str, str]], caption: str) -> str:
    row = f'<p class="key">{key(legend)}</p>' if legend else ""
    return f"<figure>{row}{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _grid(parts: Sequence[str]) -> str:
    return f'<div class="grid">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def _table(rows: dict[str, str]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
    return f"<table>{body}</table>"


def _code(text: str) -> str:
    """Escaped, with what is between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _slug(grade: str) -> str:
    return grade.split()[0]
