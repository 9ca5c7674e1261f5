"""The Acrobot: equations of motion, order of its scheme, energy with and without noise."""

import math

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from problems import normal, order

from phibe.experiments.pendulum.acrobot import Acrobot, brownian, frame_times, on_circles, wrap

STILL = Acrobot(0.0, 0.0)


def gymnasium_drift(x: torch.Tensor, variant: str) -> np.ndarray:
    env = AcrobotEnv()
    env.book_or_nips = variant
    return np.array([env._dsdt(np.append(state, 0.0))[:4] for state in x.numpy()])


def test_the_equations_of_motion_are_those_of_gymnasium():
    x = 2 * normal(50, 4)
    np.testing.assert_allclose(Acrobot().drift(x), gymnasium_drift(x, "book"), atol=1e-12)
    assert np.abs(Acrobot().drift(x).numpy() - gymnasium_drift(x, "nips")).max() > 0.1  # another variant differs


def test_the_energy_is_constant_along_the_drift_and_has_the_right_minimum():
    x = 2 * normal(50, 4)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(STILL.energy(x).sum(), x)
    assert (slope * STILL.drift(x)).sum(-1).abs().max() < 1e-11
    assert STILL.drift(torch.zeros(1, 4, dtype=torch.float64)).abs().max() == 0
    assert (slope * Acrobot(g=5.0).drift(x)).sum(-1).abs().max() > 1  # with another gravity it is not


def test_the_energy_is_conserved_without_noise_and_better_with_more_substeps():
    drift = {}
    for substeps in (1, 4):
        energy = STILL.energy(STILL.simulate(paths=200, substeps=substeps, seed=1).states)
        drift[substeps] = float((energy - energy[:, :1]).abs().max() / (energy.max() - energy.min()))
    assert drift[4] < 1e-6
    assert drift[1] > 50 * drift[4]  # fourth order


def pooled(noise):
    """The noise of steps of twice the length: ΔB adds up, ∫(B − B₀) of the second half starts where the first ended."""
    (first, second), (area1, area2) = (part.unflatten(0, (-1, 2)).unbind(1) for part in noise[:2])
    h = noise[2]
    return first + second, area1 + area2 + h * first, 2 * h


def end_of(acrobot: Acrobot, x, noise):
    for dB, area in zip(*noise[:2], strict=True):
        x = acrobot.step(x, noise[2], (dB, area))
    return x


def euler_maruyama(acrobot: Acrobot, x, noise):
    for dB in noise[0]:
        x = x + noise[2] * acrobot.drift(x) + torch.cat([torch.zeros_like(dB), acrobot.sigma1 * dB], dim=-1)
    return x


def test_the_scheme_has_strong_order_one_and_a_half():
    """On one Brownian path seen at several steps; the noise is strong, so that its error is the one seen."""
    acrobot, steps, paths = Acrobot(4.0, 4.0), 2**11, 400
    generator = torch.Generator().manual_seed(3)
    h = 0.5 / steps
    levels = [(*(torch.stack(part) for part in zip(*(brownian(paths, h, generator=generator) for _ in range(steps)),
                                                   strict=True)), h)]  # fmt: skip
    x = acrobot.draw_start(paths, generator=generator)
    while len(levels[-1][0]) > 32:
        levels.append(pooled(levels[-1]))
    exact = end_of(acrobot, x, levels[0])
    sizes = [level[2] for level in levels[3:]]
    errors = [float((end_of(acrobot, x, level) - exact).square().sum(1).mean().sqrt()) for level in levels[3:]]
    simple = [float((euler_maruyama(acrobot, x, level) - exact).square().sum(1).mean().sqrt()) for level in levels[3:]]
    assert 1.35 < order(sizes, errors) < 1.75, errors
    assert 0.8 < order(sizes, simple) < 1.25, simple  # Euler–Maruyama, with additive noise, is of order one
    assert errors[0] < simple[0] / 20


def test_the_noise_of_a_step_has_the_exact_covariance():
    dB, area = brownian(200_000, 0.3, generator=torch.Generator().manual_seed(0))
    moments = [(dB * dB).mean(), (dB * area).mean(), (area * area).mean()]
    assert [float(m) for m in moments] == pytest.approx([0.3, 0.3**2 / 2, 0.3**3 / 3], rel=0.01)


def test_the_energy_grows_at_the_rate_of_ito():
    """E[energy(t)] − E[energy(0)] = ∫E[heating], within three standard errors; without the d₁ it would not."""
    acrobot = Acrobot(2.0, 1.0)
    data = acrobot.simulate(paths=4000, times=frame_times(61), seed=4)
    gained = acrobot.energy(data.states[:, -1]) - acrobot.energy(data.states[:, 0])
    heat = torch.trapezoid(acrobot.heating(data.states), data.times, dim=1)
    gap = gained - heat
    error = float(gap.std()) / math.sqrt(len(gap))
    assert abs(float(gap.mean())) < 3 * error
    assert abs(float((gained - 0.5 * heat).mean())) > 10 * error


def test_only_the_velocities_have_noise():
    sigma = Acrobot(0.3, 0.7).diffusion(torch.zeros(2, 4, dtype=torch.float64))
    assert sigma.shape == (2, 4, 4)
    np.testing.assert_allclose(sigma[0], np.diag([0, 0, 0.09, 0.49]), atol=1e-15)


def test_starts_and_frames_are_those_of_the_paper():
    data = Acrobot().simulate(paths=500, seed=5)
    assert tuple(data.states.shape) == (500, 240, 4)
    assert data.interval == pytest.approx((0.0, 239 / 30))
    start = data.states[:, 0].abs()
    assert start[:, :2].max() <= math.pi and start[:, :2].max() > 3.1
    assert start[:, 2:].max() <= 0.1
    assert data.states.diff(dim=1)[..., :2].abs().max() < 1  # not wrapped: nothing jumps
    assert data.states[..., :2].abs().max() > 2 * math.pi


def test_the_seed_decides():
    one, same, other = (Acrobot().simulate(paths=3, seed=seed).states for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


def test_wrapped_angles_and_circles_agree():
    x = 10 * normal(100, 4, seed=6)
    turned = x + 2 * math.pi * torch.tensor([1.0, -3.0, 0.0, 0.0], dtype=x.dtype)
    torch.testing.assert_close(wrap(turned[:, :2]), wrap(x[:, :2]))
    torch.testing.assert_close(on_circles(turned), on_circles(x))
    assert wrap(x[:, :2]).abs().max() <= math.pi


def test_neither_paths_nor_start_is_an_error():
    with pytest.raises(ValueError, match="either `paths` or `start`"):
        Acrobot().simulate()
