"""The widget of a notebook: moving its slider moves the particles."""

import io

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from phibe import OU, Flow, Trajectories
from phibe.linear.affine import fit_affine
from phibe.trajectories import Labels
from phibe.widget import explore

TIMES = torch.linspace(0, 1, 11, dtype=torch.float64)


@pytest.fixture(scope="module")
def data():
    return OU.nonreversible().simulate(paths=30, times=TIMES, seed=0)


def layers(explorer) -> dict[str, np.ndarray]:
    """The points of each kind of layer in the frame shown: observed samples, particles and arrows."""
    found = explorer.figure()
    return {f"{type(part).__name__} {part.label}": part.array() for part in found}


def titles(explorer) -> dict[str, str]:
    return explorer.figure().opts.get("plot", backend="matplotlib").kwargs


def test_the_slider_moves_the_particles_and_the_data_behind_them(data):
    explorer = explore(fit_affine(data, "symmetric"), data)
    start, picture = layers(explorer), explorer.image.value
    np.testing.assert_allclose(start["Points phibe"], start["Points samples"])  # the flow starts where the data does
    explorer.time.value = 60
    end = layers(explorer)
    assert np.abs(end["Points phibe"] - start["Points phibe"]).max() > 1
    assert np.abs(end["Points phibe"] - end["Points samples"]).max() > 0.2  # it does not follow single paths
    np.testing.assert_allclose(end["Points samples"], data.states[:, -1])
    assert titles(explorer)["title"] == "t = 1"
    assert np.abs(imread(io.BytesIO(explorer.image.value)) - imread(io.BytesIO(picture))).mean() > 1e-3
    explorer.time.value = 0
    assert explorer.image.value == picture  # kept, not drawn again


def test_arrows_point_where_the_velocity_leads():
    turn = Flow(lambda x, t: torch.stack([-x[:, 1], x[:, 0]], 1), (0.0, 1.5), 0.1)
    explorer = explore(turn, torch.tensor([[1.0, 0.0]]))
    line = layers(explorer)["Curve exact"]
    np.testing.assert_allclose(line[:2], [[1, 0], [1, 0.1]], atol=1e-6)  # a fifteenth of the interval ahead


def test_another_method_is_integrated_anew(data):
    explorer = explore(Flow(lambda x, t: 3 * torch.stack([-x[:, 1], x[:, 0]], 1), (0.0, 1.0), 0.5), data)
    explorer.time.value = 60
    before = layers(explorer)["Points phibe"], explorer.image.value
    explorer.method.value = "euler"
    assert not np.allclose(layers(explorer)["Points phibe"], before[0])
    assert explorer.image.value != before[1]


def test_of_three_coordinates_two_are_chosen():
    flow = Flow(lambda x, t: x * torch.tensor([0.0, 0.0, 1.0]), (0.0, 1.0), 0.1)
    explorer = explore(flow, torch.rand(20, 3) + 1)
    explorer.time.value = 30
    still = layers(explorer)["Points phibe"]
    assert (titles(explorer)["xlabel"], titles(explorer)["ylabel"]) == ("x[0]", "x[1]")
    explorer.pair.value = (0, 2)
    assert titles(explorer)["ylabel"] == "x[2]"
    assert not np.allclose(layers(explorer)["Points phibe"], still)


def test_coordinates_have_the_names_of_the_data(data):
    named = Trajectories(data.states, data.times, labels=Labels.read(["time {0} [s]", "east [m]", "price [$]"]))
    explorer = explore(fit_affine(named, "symmetric"), named)
    assert titles(explorer)["ylabel"] == "price [$]" and titles(explorer)["title"] == "time {{0}} [s] = 0"
    assert titles(explore(fit_affine(data, "symmetric"), data.states[:, 0]))["xlabel"] == "x[0]"


def test_one_coordinate_is_shown_over_time():
    explorer = explore(Flow(lambda x, t: -x, (0.0, 2.0), 0.1), torch.ones(5, 1))
    explorer.time.value = 30
    assert set(layers(explorer)["Points phibe"][:, 0]) == {1.0}
    assert explorer.pair.layout.display == "none"


def test_a_flow_that_diverges_says_so_and_a_flow_without_a_start_too():
    explorer = explore(Flow(lambda x, t: 50 * x**3, (0.0, 1.0), 0.1), torch.ones(5, 2))
    assert "diverges" in explorer.note.value
    with pytest.raises(ValueError, match=r"explore\(flow, data\)"):
        explore(Flow(lambda x, t: -x, (0.0, 1.0)))
