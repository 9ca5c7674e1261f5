"""Random shifts: a sample is moved as a whole; a network without places has the same loss everywhere."""

import pytest
import torch

from phibe.experiments.training import RandomShift, shift
from phibe.networks.unet import UNet
from phibe.objectives import OBJECTIVES
from phibe.training.config import FitConfig
from phibe.training.loop import VelocityTask, train
from phibe.training.sampling import Samples
from phibe.trajectories import Trajectories

SHAPE = (1, 8, 8)
SHARES = torch.tensor([[0.0, 0.0], [0.25, 0.5], [0.99, 0.13]])


@pytest.fixture
def data():
    states = torch.randn(4, 6, *SHAPE, generator=torch.Generator().manual_seed(0)).double()
    return Trajectories(states, torch.arange(6, dtype=torch.float64))


@pytest.mark.parametrize("middle", [(1,), (3, 2)])
def test_a_shift_is_a_roll(middle):
    x = torch.randn(3, *middle, 4, 8)
    for moved, field, to in zip(shift(x, SHARES), x, SHARES, strict=True):
        assert moved.equal(field.roll((int(to[0] * 4), int(to[1] * 8)), dims=(-2, -1)))


@pytest.mark.parametrize("objective", ["phibe", "symmetric"])
def test_the_loss_of_a_network_without_places_does_not_see_them(data, objective):
    """A U-Net on whole pixels with circular padding commutes with every shift; one with zeros at its rim does not."""
    width = OBJECTIVES[objective].width
    sample = Samples(data, width=width).take(torch.arange(3))
    change = {}
    for padding in ("circular", "zeros"):
        network = UNet(SHAPE, channels=4, multipliers=(1,), blocks=1, padding=padding, time=False).double()
        task = RandomShift(VelocityTask(network, objective))
        loss = task.loss(data, FitConfig(precision="64-true", normalise=False))
        here, there = loss(*sample, torch.zeros(3, 2)), loss(*sample, SHARES)
        change[padding] = float((here - there).abs().max())
    assert change["circular"] < 1e-9 < 1e-6 < change["zeros"]


def test_training_goes_through_the_loop_and_is_another_run(data, tmp_path):
    config = FitConfig(steps=2, batch=2, evaluate_every=1, held_out=0.25)
    task = VelocityTask(UNet(SHAPE, channels=4, multipliers=(1,), blocks=1, time=False), "symmetric")
    moved = train(data, RandomShift(task), config=config, out=tmp_path, progress=False)
    x, t = data.states[:, 0], data.times[:1].expand(4)
    assert not moved.velocity(x, t).equal(train(data, task, config=config, progress=False).velocity(x, t))
    with pytest.raises(ValueError, match="another run|objective"):
        train(data, task, config=config, out=tmp_path, progress=False)


def test_states_without_a_grid_are_refused():
    line = Trajectories(torch.zeros(3, 4, 2), torch.arange(4.0))
    with pytest.raises(ValueError, match="channels, height, width"):
        train(line, RandomShift(VelocityTask("mlp", "symmetric")), config=FitConfig(steps=1), progress=False)
