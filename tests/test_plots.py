"""Figures: what a video sends to the browser is what each of its pictures shows."""

import io
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from bokeh.models import CustomJS, LinearColorMapper
from bokeh.models.widgets import Slider
from matplotlib.image import imread

from phibe import OU, plots

TIMES = torch.linspace(0, 1, 5, dtype=torch.float64)


@pytest.fixture(scope="module")
def data():
    plots.use()
    return OU.nonreversible().simulate(paths=30, times=TIMES)


def switch(video) -> tuple[list, list]:
    """The sources that a video's slider changes, and the columns that it gives them, frame by frame."""
    slider = next(iter(video.select({"type": Slider})))
    (callback,) = slider.js_property_callbacks["change:value"]
    assert isinstance(callback, CustomJS)
    return callback.args["sources"], callback.args["columns"]


def test_an_animation_holds_the_states_of_every_frame_and_starts_at_the_one_shown(data):
    frames = {str(i): plots.phase_plane(*plots.cloud(data, i, "samples")) for i in range(len(TIMES))}
    sources, columns = switch(plots.scrubber(frames, "time t", shown=2))
    assert len(columns) == len(TIMES)
    for i, frame in enumerate(columns):
        assert np.allclose(np.stack([frame[0]["x₁"], frame[0]["x₂"]], 1), data.states[:, i])
    assert np.allclose(sources[0].data["x₁"], data.states[:, 2, 0])
    assert not np.allclose(sources[0].data["x₁"], data.states[:, 0, 0])


def test_pictures_side_by_side_change_together(data):
    frames = {str(i): [plots.phase_plane(*plots.cloud(data, i, "samples"))] * 2 for i in range(3)}
    sources, columns = switch(plots.scrubber(frames, "time t"))
    assert len(sources) == len(columns[0]) == 4  # dots and tails, twice


def test_arrows_are_as_long_as_the_velocity_says():
    points = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    arrows = plots.quiver(lambda x, t: x + 1, 0.0, "exact", points=points, scale=0.5)
    ends = arrows.array().reshape(2, 6, 2)[:, 1]  # of each arrow the tip; a gap after its five points
    assert np.allclose(ends, points + 0.5 * (points + 1))


def test_a_label_has_the_colour_of_its_first_word():
    assert plots.color("phibe, Δt = 0.1") == plots.color("phibe fit") == plots.COLORS["phibe"]
    assert plots.color("drift alone") == plots.color("regression")
    assert plots.color("no such method") == plots.COLORS["exact"]


def test_an_animation_of_images_sends_bytes_as_they_are_and_shows_them_like_shares_of_white():
    plots.use()
    pictures = torch.randint(256, (2, 3, 1, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    frames = {str(i): plots.filmstrip({"a": three}) for i, three in enumerate(pictures)}
    video = plots.scrubber(frames, "time t")
    (mapper,) = video.select({"type": LinearColorMapper})
    shades = np.array([list(bytes.fromhex(shade[1:])) for shade in mapper.palette])
    assert np.ptp(shades, axis=1).max() <= 1 and shades[0, 0] == 0 and shades[-1, 1] == 255  # grey, black to white
    assert (mapper.low, mapper.high) == (0, 255)
    _, columns = switch(video)
    for three, frame in zip(pictures, columns, strict=True):
        sent = np.flipud(frame[0]["image"][0])  # Bokeh draws from below
        assert sent.dtype == np.uint8
        assert np.array_equal(sent[1:-1, 1:6], three[0, 0])
        shares = plots.filmstrip({"a": three / 255}).get(0)
        assert np.allclose(np.flipud(shares.dimension_values(2, flat=False)), sent / 255, atol=1 / 255)
    white = [
        plots.filmstrip({"a": videos}).get(0).opts.get().kwargs["clim"] for videos in (pictures[0], pictures[0] / 255)
    ]
    assert white == [(0, 255), (0, 1)]


# -- two backends ------------------------------------------------------------------------------------------------------


def options(figure, backend: str) -> dict:
    return figure.opts.get("style", backend=backend).kwargs


def test_one_function_draws_for_both_backends_in_the_words_of_each(data):
    plots.use("matplotlib")
    dots, line = plots.samples(data.states[:, 0], "phibe", size=4), plots.trails(data, "phibe", dash="dotdash")
    assert options(dots, "bokeh")["size"] == 4 and options(dots, "matplotlib")["s"] == 16
    assert options(line, "bokeh")["line_dash"] == "dotdash" and options(line, "matplotlib")["linestyle"] == "dashdot"
    assert {options(part, name)["color"] for part in (dots, line) for name in ("bokeh", "matplotlib")} == {
        plots.COLORS["phibe"]
    }


def svg(figure, **options) -> tuple[ElementTree.Element, list[str]]:
    """A figure as matplotlib draws it, and the text in it."""
    tree = ElementTree.fromstring(plots.drawn(figure, **options))
    return tree, [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_a_figure_is_a_file_of_its_size_with_the_names_as_they_are():
    plots.use("matplotlib")
    name = "<b>price</b> $x$ [$] & {0}"
    numbers = torch.linspace(-1, 1, 100)
    ends = (-1.0, 1.0)
    tree, text = svg(plots.histogram({"samples": numbers, "phibe": numbers}, x=name, ends=ends), size=(300, 200))
    assert name in text and "density" in text
    assert tree.attrib["viewBox"] == "0 0 300 200"
    again = plots.histogram({"samples": numbers, "phibe": numbers}, x=name, ends=ends)
    assert plots.drawn(again, size=(300, 200)) == plots.drawn(again, size=(300, 200))
    png = plots.drawn(again, size=(300, 200), kind="png")
    assert imread(io.BytesIO(png)).shape == (400, 600, 4)


def test_many_dots_are_one_picture_inside_the_svg(data):
    plots.use("matplotlib")
    tree, _ = svg(plots.phase_plane(plots.samples(data.states.flatten(0, 1), "samples"), equal=False))
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}image"))) == 1
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}use"))) < 60


def test_a_histogram_is_a_density_and_lost_states_are_left_out():
    plots.use("matplotlib")
    values = [0.1, 0.1, 0.6, float("nan"), float("inf")]
    filled, line = plots.histogram({"samples": values, "phibe": [0.6]}, x="x", ends=(0.0, 1.0), bins=2)
    assert type(filled).__name__ == "Area" and type(line).__name__ == "Curve"
    corners = np.array([[0, 0], [0, 4 / 3], [0.5, 4 / 3], [0.5, 2 / 3], [1, 2 / 3], [1, 0]])
    assert np.allclose(filled.array(), corners)
    assert np.allclose(line.array()[:, 1], [0, 0, 0, 2, 2, 0])


def test_a_path_bridges_what_was_not_observed_and_ends_where_it_ends():
    plots.use("matplotlib")
    values = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
    (line,) = plots.paths([0.0, 1.0, 2.0], {"samples": values}, x="t", y="x")
    nan = np.nan
    assert np.array_equal(line.array(), [[0, 1], [2, 3], [nan, nan], [0, 4], [1, 5], [nan, nan]], equal_nan=True)


def test_axes_hold_the_values_but_the_outliers():
    assert plots.ends([0.0, 10.0], margin=0.1) == pytest.approx((-1, 11))
    assert plots.ends([*range(1000), 1e9], outliers=0.01)[1] < 1100
    assert plots.ends([float("nan")]) == (0.0, 1.0)
    assert plots.ends([1.0, 1.0]) == (0.5, 1.5)


def test_the_module_alone_loads_no_library_of_figures():
    code = "import sys, phibe.plots; print({'holoviews', 'bokeh', 'matplotlib', 'panel'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf8").stdout == "set()\n"
