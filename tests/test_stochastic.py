"""Between a flow and its SDE: the marginals are the same for every weight θ, with the noise that belongs to it."""

import math

import pytest
import torch
from problems import normal

from phibe.experiments.turbulence.noise import CalibratedFamily, FieldNoise
from phibe.experiments.turbulence.spectra import enstrophy_spectrum, over_shells
from phibe.stochastic import StochasticFamily
from phibe.systems.ou import OU
from phibe.trajectories import Trajectories

SYSTEM = OU.nonreversible()
TIMES = torch.linspace(0, 1, 51, dtype=torch.float64)


def process(theta, *, noise=True):
    def gaussian(x, h, generator):
        return h**0.5 * torch.randn(x.shape, dtype=x.dtype, generator=generator) @ SYSTEM.S.mT

    drift = lambda x, t: (x - SYSTEM.mu) @ SYSTEM.A.mT  # noqa: E731
    return StochasticFamily(SYSTEM.velocity, drift, theta, gaussian if noise else None)


def covariance(made):
    return made.states[:, -1].T.cov()


@pytest.mark.parametrize("theta", [0.0, 0.4, 1.0])
def test_the_marginals_are_those_of_the_process(theta):
    start = SYSTEM.simulate(paths=20_000, times=TIMES[:2], seed=0).states[:, 0]
    made = process(theta).generate(start, TIMES, generator=torch.Generator().manual_seed(1))
    exact = SYSTEM.marginal(1.0)
    torch.testing.assert_close(made.states[:, -1].mean(0), exact.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(covariance(made), exact.covariance, atol=0.012, rtol=0.03)


def test_without_noise_the_marginals_are_too_narrow():
    start = SYSTEM.simulate(paths=5000, times=TIMES[:2], seed=0).states[:, 0]
    narrow = covariance(process(0.4, noise=False).generate(start, TIMES))
    assert float(narrow.trace()) < 0.9 * float(SYSTEM.marginal(1.0).covariance.trace())


def test_the_same_generator_draws_the_same_paths_and_substeps_are_steps():
    start = normal(5, 2)
    one, two = (process(0.5).generate(start, TIMES, generator=torch.Generator().manual_seed(2)) for _ in range(2))
    assert one.states.equal(two.states)
    fine = process(0.5).generate(start, TIMES[::5], substeps=5, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(fine.states, one.states[:, ::5])


def fields(power, generator, *, paths=64, steps=8):
    """Paths of x′ = x/2 + noise of that power at the interval 0.5, stationary from the start."""
    given = FieldNoise(power, 0.5)
    x = given(torch.zeros(paths, 1, 8, 8).double(), 0.5 / (1 - 0.25), generator)
    made = [x]
    for _ in range(steps):
        made.append(made[-1] / 2 + given(x, 0.5, generator))
    return Trajectories(torch.stack(made, 1), 0.5 * torch.arange(steps + 1, dtype=torch.float64))


def test_residuals_of_fields_have_their_power_back():
    """Increments of a known spectrum around a known drift."""
    generator = torch.Generator().manual_seed(0)
    power = 1 / (1 + torch.arange(5.0).double() ** 2) * torch.ones(1, 8, 1)
    data = fields(power.double(), generator)
    found = FieldNoise.of_residuals(lambda x, t: -x, data)
    assert found.step == 0.5
    torch.testing.assert_close(found.power.mean(1), power.mean(1), rtol=0.1, atol=0)
    half = torch.stack([found(data.states[:, 0], 0.125, generator) for _ in range(20)])
    torch.testing.assert_close(half.var(), (found.power.double() * WEIGHTS).sum() / 64 / 4, rtol=0.1, atol=0)


def shells():
    """A power that is the same for all waves of a shell."""
    return over_shells(torch.linspace(2, 0.5, 5).double() * torch.ones(1, 8, 1).double(), 8)


@pytest.mark.parametrize(
    ("theta", "method", "kept"), [(1.0, "euler", 0.5), (1.0, "rk4", math.exp(-0.5)), (0.4, "rk4", math.exp(-0.2))]
)
def test_the_calibrated_noise_is_what_a_step_dissipates(theta, method, kept):
    """When stationary, the power is N/(1 − ¼); a step that keeps a part c of each field takes 1 − c² of that."""
    data = fields(shells(), torch.Generator().manual_seed(0), paths=128)
    process = CalibratedFamily(lambda x, t: 0 * x, lambda x, t: -x, theta)
    found = FieldNoise.of_balance(process, data, method=method)
    torch.testing.assert_close(found.power.mean(1), (shells() / 0.75 * (1 - kept**2)).mean(1), rtol=0.15, atol=0)
    torch.testing.assert_close(found.power, over_shells(found.power, 8))


def test_calibrated_noise_preserves_the_spectrum_however_wrong_the_drift_and_the_noise_of_the_sde_does_not():
    generator = torch.Generator().manual_seed(0)
    data = fields(shells(), generator, paths=128)
    parts = (lambda x, t: 0.05 * x, lambda x, t: -6 * x, 0.5)
    calibrated = CalibratedFamily(*parts, FieldNoise.of_balance(CalibratedFamily(*parts), data))
    plain = StochasticFamily(*parts, FieldNoise.of_residuals(parts[1], data))
    times = 0.5 * torch.arange(41, dtype=torch.float64)
    ends = [p.generate(data.states[:, 0], times, generator=generator).states[:, -20:] for p in (calibrated, plain)]
    truth = data.states.flatten(0, 1)
    near, far = (
        enstrophy_spectrum(end).mean.mean((0, 1, 2)) / enstrophy_spectrum(truth).mean.mean((0, 1)) for end in ends
    )
    torch.testing.assert_close(near, torch.ones_like(near), rtol=0.2, atol=0)
    assert float((far - 1).abs().max()) > 0.5


def test_a_step_that_dissipates_nothing_gets_no_noise():
    data = fields(shells(), torch.Generator().manual_seed(0))
    growing = CalibratedFamily(lambda x, t: x, lambda x, t: x, 0.3)
    assert float(FieldNoise.of_balance(growing, data).power.abs().max()) == 0


WEIGHTS = torch.tensor([1.0, 2, 2, 2, 1]).double()  # waves of a real field that the half spectrum stands for


def test_a_weight_beyond_the_sde_is_refused():
    with pytest.raises(ValueError, match="from 0"):
        process(1.5)
    flat = Trajectories(torch.zeros(2, 3, 2), torch.arange(3.0))
    with pytest.raises(ValueError, match="channels, height, width"):
        FieldNoise.of_residuals(lambda x, t: x, flat)
    with pytest.raises(ValueError, match="channels, height, width"):
        FieldNoise.of_balance(process(0.5), flat)
