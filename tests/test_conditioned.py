"""Conditioned flows: what is not Markov alone is, given the previous observation."""

import math

import pytest
import torch
from torch import nn

from phibe import Trajectories, fit
from phibe.experiments.conditioned import ConditionedFlow, ConditionedTask, fit_conditioned, open_conditioned
from phibe.training.config import FitConfig

STEP, TURN = 0.1, 0.3


class Linear(nn.Module):
    """v(x, t | x₋) = a·x + c·x₋, without or with the condition."""

    def __init__(self, a: float = 0.0, c: float = 0.0):
        super().__init__()
        self.a, self.c = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in (a, c))
        self.state_shape = (1,)

    def forward(self, x, t, condition=None):
        return self.a * x if condition is None else self.a * x + self.c * condition


def oscillation(paths=64, length=40):
    """One coordinate of a rotation by `TURN` a step: x_{n+1} = 2 cos(TURN) x_n − x_{n−1}."""
    generator = torch.Generator().manual_seed(0)
    phase = 2 * math.pi * torch.rand(paths, 1, generator=generator, dtype=torch.float64)
    size = 0.5 + torch.rand(paths, 1, generator=generator, dtype=torch.float64)
    index = torch.arange(length, dtype=torch.float64)
    return Trajectories((size * (phase + TURN * index).cos())[..., None], index * STEP)


def exact() -> Linear:
    """(x_{n+1} − x_n)/h as a function of x_n and x_{n−1}."""
    return Linear((2 * math.cos(TURN) - 1) / STEP, -1 / STEP)


TRAINING = FitConfig(steps=1500, batch=256, learning_rate=0.5, normalise=False, precision="64-true", balance=False)


def test_given_the_previous_state_an_oscillation_is_learned_and_continues(tmp_path):
    data = oscillation()
    flow = fit_conditioned(data, Linear(), "regression", config=TRAINING, out=tmp_path, progress=False)
    learned = [float(flow.network.a), float(flow.network.c)]
    assert learned == pytest.approx([exact().a.item(), exact().c.item()], rel=1e-2)
    made = flow.generate(data.states[:, :2], data.times[1:])
    assert float((made.states - data.states[:, 1:]).abs().max()) < 0.3
    alone = fit(data, Linear(), "regression", config=TRAINING, progress=False).generate(
        data.states[:, 1], data.times[1:]
    )
    assert float((alone.states - data.states[:, 1:]).abs().max()) > 1  # a coordinate alone does not know its direction
    again = open_conditioned(tmp_path, network=Linear())
    assert torch.equal(again.generate(data.states[:, :2], data.times[1:]).states, made.states)


def test_with_the_exact_velocity_euler_is_the_recurrence():
    data = oscillation()
    made = ConditionedFlow(exact(), STEP).generate(data.states[:, :2], data.times[1:])
    torch.testing.assert_close(made.states, data.states[:, 1:])
    assert torch.equal(made.times, data.times[1:])


def test_states_are_had_between_the_observations_and_do_not_move_them():
    data, flow = oscillation(), ConditionedFlow(exact(), STEP)
    whole = flow.generate(data.states[:, :2], data.times[1:6], method="rk4", substeps=8)
    half = torch.arange(9, dtype=torch.float64) * STEP / 2 + data.times[1]
    slow = flow.generate(data.states[:, :2], half, method="rk4", substeps=4)
    torch.testing.assert_close(slow.states[:, ::2], whole.states, rtol=1e-6, atol=1e-8)
    between = (slow.states[:, 1::2] - whole.states[:, :-1]) * (slow.states[:, 1::2] - whole.states[:, 1:])
    assert (between <= 0).all()  # each lies between its neighbours: x' does not change sign in a step
    odd = flow.generate(data.states[:, :2], [0.1, 0.13, 0.2, 0.27], method="rk4", substeps=8)
    torch.testing.assert_close(odd.states[:, 2], whole.states[:, 1], rtol=0, atol=1e-5)


def test_uniform_motion_stays_uniform_between_the_observations_only_if_the_condition_moves_along():
    """v = (x − x₋)/h is right at the observations; half a step on, x − x₋ would be one and a half steps."""
    pace, flow = (
        torch.tensor([[[2.0]], [[-0.5]]], dtype=torch.float64),
        ConditionedFlow(Linear(1 / STEP, -1 / STEP), STEP),
    )
    times = torch.arange(13, dtype=torch.float64) * STEP / 2
    line = 1 + pace * times[:, None]
    history = torch.cat([1 - pace * STEP, torch.ones_like(pace)], dim=1)
    for method in ("euler", "rk4"):
        delayed = flow.generate(history, times, method=method, delayed=True).states
        torch.testing.assert_close(delayed, line)
        assert float((flow.generate(history, times, method=method).states - line).abs().max()) > 0.5
    whole = flow.generate(history, times[::2], delayed=True).states
    assert torch.equal(whole, flow.generate(history, times[::2]).states)  # one Euler step a frame: no difference


@pytest.mark.parametrize(("objective", "width"), [("phibe", 3), ("symmetric", 3), ("phibe2", 4)])
def test_the_condition_is_the_observation_before_the_place(objective, width):
    data = oscillation(paths=4, length=12)
    task = ConditionedTask(exact(), objective)
    assert task.width == width
    loss = task.loss(data, TRAINING)
    x, t, dt = data.windows(width)
    seen = []
    loss.network.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args[0], kwargs["condition"])), with_kwargs=True
    )
    loss(x, t, dt)
    place, condition = seen[0]
    assert torch.equal(place, x[:, 1]) and torch.equal(condition, x[:, 0])


def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="at two places"):
        fit_conditioned(oscillation(), Linear(), "stratonovich")
    with pytest.raises(ValueError, match=r"two states or more, \*state\); got \(3, 1, 1\)"):
        ConditionedFlow(exact(), STEP).generate(torch.ones(3, 1, 1, dtype=torch.float64), [0.0, 0.1])
