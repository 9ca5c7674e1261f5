"""Input noise at the start of a sample: a regression finds the restoring term that the theory states."""

import pytest
import torch

from phibe import FitConfig
from phibe.experiments.conditioned import ConditionedTask
from phibe.experiments.training import InputNoise
from phibe.networks.unet import UNet
from phibe.training.loop import VelocityTask, train
from phibe.trajectories import Trajectories


class Linear(torch.nn.Module):
    """v = a x for one coordinate."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x, t):
        return self.a * x


def constant(paths=400):
    """Paths that keep their normal starting points."""
    x = torch.randn(paths, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Trajectories(x.expand(-1, 3, 1).clone(), torch.arange(3, dtype=torch.float64))


@pytest.mark.parametrize("objective", ["regression", "symmetric"])
def test_the_pull_is_that_of_the_density(objective):
    """For a stationary N(0, 1), E[−ε | x + ε] = −σ²/(1 + σ²)·(x + ε); a central difference does not see it."""
    config = FitConfig(steps=300, batch=400, learning_rate=0.02, held_out=0, precision="64-true", normalise=False)
    size = 0.7
    made = train(constant(), InputNoise(VelocityTask(Linear(), objective), size), config=config, progress=False)
    found = float(made.velocity(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)))
    expected = -(size**2) / (1 + size**2) if objective == "regression" else 0.0
    assert found == pytest.approx(expected, abs=0.02)


def test_the_previous_frame_gets_no_noise():
    """Conditioned on the previous field, only the field that a step starts from is changed."""
    task = ConditionedTask(UNet((1, 8, 8), channels=4, multipliers=(1,), blocks=1, condition_channels=1), "regression")
    data = Trajectories(torch.randn(4, 4, 1, 8, 8), torch.arange(4.0, dtype=torch.float64))
    loss = InputNoise(task, 0.5).loss(data, FitConfig(normalise=False))
    seen = []
    loss.loss.forward = lambda x, t, dt, generator=None: seen.append(x) or x.sum()
    x, t, dt = torch.zeros(2, 3, 1, 8, 8), torch.zeros(2, 3), torch.ones(2, 2)
    noise = torch.randn(2, 1, 8, 8)
    loss(x, t, dt, noise)
    assert seen[0][:, 1].equal(0.5 * noise) and not seen[0][:, 0].any() and not seen[0][:, 2].any()


def test_a_size_of_zero_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        InputNoise(VelocityTask("mlp", "regression"), 0.0)
