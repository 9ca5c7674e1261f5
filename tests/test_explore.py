"""The widget of a notebook: moving its slider moves the particles."""

import re

import numpy as np
import pytest
import torch

from phibe import OU, Flow, Trajectories
from phibe.linear.affine import fit_affine
from phibe.trajectories import Labels
from phibe.widget import explore

TIMES = torch.linspace(0, 1, 11, dtype=torch.float64)


@pytest.fixture(scope="module")
def data():
    return OU.nonreversible().simulate(paths=30, times=TIMES, seed=0)


def dots(explorer, which: int = -1) -> np.ndarray:
    """Where the particles are in the picture."""
    path = re.findall(r'class="dots" d="([^"]*)"', explorer.picture.value)[which]
    return np.array([float(n) for n in re.findall(r"M([-\d.]+) ([-\d.]+)h0", path) for n in n]).reshape(-1, 2)


def test_the_slider_moves_the_particles_and_the_data_behind_them(data):
    explorer = explore(fit_affine(data, "symmetric"), data)
    start, seen = dots(explorer), dots(explorer, 0)
    np.testing.assert_allclose(start, seen)  # the flow starts where the data does
    explorer.time.value = 60
    assert np.abs(dots(explorer) - start).max() > 20
    assert np.abs(dots(explorer) - dots(explorer, 0)).max() > 5  # it does not follow single paths
    assert "t = 1" in explorer.picture.value
    assert 'class="arrows"' in explorer.picture.value


def test_another_method_is_integrated_anew(data):
    explorer = explore(Flow(lambda x, t: 3 * torch.stack([-x[:, 1], x[:, 0]], 1), (0.0, 1.0), 0.5), data)
    explorer.time.value = 60
    before = explorer.picture.value
    explorer.method.value = "euler"
    assert explorer.picture.value != before


def test_of_three_coordinates_two_are_chosen():
    flow = Flow(lambda x, t: x * torch.tensor([0.0, 0.0, 1.0]), (0.0, 1.0), 0.1)
    explorer = explore(flow, torch.rand(20, 3) + 1)
    explorer.time.value = 30
    assert "x[0]" in explorer.picture.value
    still = dots(explorer)
    explorer.pair.value = (0, 2)
    assert "x[2]" in explorer.picture.value
    assert not np.allclose(dots(explorer), still)


def test_coordinates_have_the_names_of_the_data(data):
    named = Trajectories(data.states, data.times, labels=Labels.read(["time [s]", "east [m]", "north [m]"]))
    explorer = explore(fit_affine(named, "symmetric"), named)
    assert "east [m]" in explorer.picture.value and "time [s] = 0" in explorer.picture.value
    assert "x[0]" in explore(fit_affine(data, "symmetric"), data.states[:, 0]).picture.value


def test_one_coordinate_is_shown_over_time():
    explorer = explore(Flow(lambda x, t: -x, (0.0, 2.0), 0.1), torch.ones(5, 1))
    explorer.time.value = 30
    assert len(set(dots(explorer)[:, 0])) == 1
    assert explorer.pair.layout.display == "none"


def test_a_flow_that_runs_away_says_so_and_a_flow_without_a_start_too():
    explorer = explore(Flow(lambda x, t: 50 * x**3, (0.0, 1.0), 0.1), torch.ones(5, 2))
    assert "diverges" in explorer.picture.value
    with pytest.raises(ValueError, match=r"explore\(flow, data\)"):
        explore(Flow(lambda x, t: -x, (0.0, 1.0)))
