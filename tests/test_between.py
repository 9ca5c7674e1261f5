"""Between a flow and its SDE: the marginals are the same for every share, but only with the noise that goes with it."""

import pytest
import torch
from problems import normal

from phibe.between import Between, FieldNoise
from phibe.systems import OU
from phibe.trajectories import Trajectories

SYSTEM = OU.nonreversible()
TIMES = torch.linspace(0, 1, 51, dtype=torch.float64)


def process(share, *, noise=True):
    def stir(x, h, generator):
        return h**0.5 * torch.randn(x.shape, dtype=x.dtype, generator=generator) @ SYSTEM.S.mT

    return Between(SYSTEM.velocity, lambda x, t: (x - SYSTEM.mu) @ SYSTEM.A.mT, share, stir if noise else None)


def covariance(made):
    return made.states[:, -1].T.cov()


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_marginals_are_those_of_the_process(share):
    start = SYSTEM.simulate(paths=20_000, times=TIMES[:2], seed=0).states[:, 0]
    made = process(share).generate(start, TIMES, generator=torch.Generator().manual_seed(1))
    law = SYSTEM.marginal(1.0)
    torch.testing.assert_close(made.states[:, -1].mean(0), law.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(covariance(made), law.covariance, atol=0.012, rtol=0.03)


def test_without_noise_the_law_is_too_narrow():
    start = SYSTEM.simulate(paths=5000, times=TIMES[:2], seed=0).states[:, 0]
    leaning = covariance(process(0.4, noise=False).generate(start, TIMES))
    assert float(leaning.trace()) < 0.9 * float(SYSTEM.marginal(1.0).covariance.trace())


def test_the_same_generator_draws_the_same_paths_and_substeps_are_steps():
    start = normal(5, 2)
    one, two = (process(0.5).generate(start, TIMES, generator=torch.Generator().manual_seed(2)) for _ in range(2))
    assert one.states.equal(two.states)
    fine = process(0.5).generate(start, TIMES[::5], substeps=5, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(fine.states, one.states[:, ::5])


def test_residuals_of_fields_have_their_power_back():
    """Increments of a known spectrum around a known drift."""
    generator = torch.Generator().manual_seed(0)
    power = 1 / (1 + torch.arange(5.0).double() ** 2) * torch.ones(1, 8, 1)
    given = FieldNoise(power.double(), 0.5)
    x = torch.randn(64, 1, 8, 8, generator=generator).double()
    paths = [x]
    for _ in range(8):
        paths.append(paths[-1] - 0.5 * paths[-1] + given(paths[-1], 0.5, generator))
    data = Trajectories(torch.stack(paths, 1), 0.5 * torch.arange(9, dtype=torch.float64))
    found = FieldNoise.of_residuals(lambda x, t: -x, data)
    assert found.step == 0.5
    torch.testing.assert_close(found.power.mean(1), power.mean(1), rtol=0.1, atol=0)
    half = torch.stack([found(x, 0.125, generator) for _ in range(20)])
    torch.testing.assert_close(half.var(), (found.power.double() * WEIGHTS).sum() / 64 / 4, rtol=0.1, atol=0)


WEIGHTS = torch.tensor([1.0, 2, 2, 2, 1]).double()  # waves of a real field that the half spectrum stands for


def test_a_share_beyond_the_sde_is_refused():
    with pytest.raises(ValueError, match="from 0"):
        process(1.5)
    with pytest.raises(ValueError, match="channels, height, width"):
        FieldNoise.of_residuals(lambda x, t: x, Trajectories(torch.zeros(2, 3, 2), torch.arange(3.0)))
