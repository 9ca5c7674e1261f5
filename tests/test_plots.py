"""Figures: what a film sends to the browser is what each of its pictures shows."""

import numpy as np
import pytest
import torch
from bokeh.models import CustomJS, LinearColorMapper
from bokeh.models.widgets import Slider

from phibe import OU, plots

TIMES = torch.linspace(0, 1, 5, dtype=torch.float64)


@pytest.fixture(scope="module")
def data():
    plots.use()
    return OU.nonreversible().simulate(paths=30, times=TIMES)


def switch(film) -> tuple[list, list]:
    """The sources that a film's slider changes, and the columns that it gives them, frame by frame."""
    slider = next(iter(film.select({"type": Slider})))
    (callback,) = slider.js_property_callbacks["change:value"]
    assert isinstance(callback, CustomJS)
    return callback.args["sources"], callback.args["columns"]


def test_a_film_holds_the_states_of_every_frame_and_starts_at_the_one_shown(data):
    frames = {str(i): plots.phase_plane(*plots.cloud(data, i, "samples")) for i in range(len(TIMES))}
    sources, columns = switch(plots.film(frames, "time t", shown=2))
    assert len(columns) == len(TIMES)
    for i, frame in enumerate(columns):
        assert np.allclose(np.stack([frame[0]["x₁"], frame[0]["x₂"]], 1), data.states[:, i])
    assert np.allclose(sources[0].data["x₁"], data.states[:, 2, 0])
    assert not np.allclose(sources[0].data["x₁"], data.states[:, 0, 0])


def test_pictures_side_by_side_change_together(data):
    frames = {str(i): [plots.phase_plane(*plots.cloud(data, i, "samples"))] * 2 for i in range(3)}
    sources, columns = switch(plots.film(frames, "time t"))
    assert len(sources) == len(columns[0]) == 4  # dots and tails, twice


def test_arrows_are_as_long_as_the_velocity_says():
    points = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    arrows = plots.quiver(lambda x, t: x + 1, 0.0, "exact", points=points, scale=0.5)
    ends = np.array([path[["x₁", "x₂"]].to_numpy()[1] for path in arrows.split(datatype="dataframe")])
    assert np.allclose(ends, points + 0.5 * (points + 1))


def test_a_label_has_the_colour_of_its_first_word():
    assert plots.color("phibe, Δt = 0.1") == plots.color("phibe fit") == plots.COLORS["phibe"]
    assert plots.color("drift alone") == plots.color("regression")
    assert plots.color("no such method") == plots.COLORS["exact"]


def test_a_film_of_pictures_sends_bytes_as_they_are_and_shows_them_like_shares_of_white():
    plots.use()
    pictures = torch.randint(256, (2, 3, 1, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    frames = {str(i): plots.filmstrip({"a": three}) for i, three in enumerate(pictures)}
    film = plots.film(frames, "time t")
    (mapper,) = film.select({"type": LinearColorMapper})
    shades = np.array([list(bytes.fromhex(shade[1:])) for shade in mapper.palette])
    assert np.ptp(shades, axis=1).max() <= 1 and shades[0, 0] == 0 and shades[-1, 1] == 255  # grey, black to white
    assert (mapper.low, mapper.high) == (0, 255)
    _, columns = switch(film)
    for three, frame in zip(pictures, columns, strict=True):
        sent = np.flipud(frame[0]["image"][0])  # Bokeh draws from below
        assert sent.dtype == np.uint8
        assert np.array_equal(sent[1:-1, 1:6], three[0, 0])
        shares = plots.filmstrip({"a": three / 255}).get(0)
        assert np.allclose(np.flipud(shares.dimension_values(2, flat=False)), sent / 255, atol=1 / 255)
    white = [
        plots.filmstrip({"a": films}).get(0).opts.get().kwargs["clim"] for films in (pictures[0], pictures[0] / 255)
    ]
    assert white == [(0, 255), (0, 1)]
