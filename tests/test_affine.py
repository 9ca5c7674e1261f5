"""Affine flows: the maps of the integrators, and the marginals under the true velocity."""

import pytest
import torch

from phibe import OU, Flow
from phibe.bases import InTime, lift, polynomials
from phibe.integrators import METHODS
from phibe.linear.affine import fit_affine
from phibe.linear.basis import fit_basis
from phibe.theory import affine_coefficients, flow_map, pushforward

TIMES = torch.cat([torch.linspace(0, 1, 41), torch.linspace(1.05, 2, 20)]).double()  # the step changes on the way


@pytest.mark.parametrize("method", METHODS)
def test_the_map_of_an_affine_flow_is_what_its_trajectories_do(method):
    ou = OU.nonreversible()
    x0 = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    marched = Flow(ou.velocity).generate(x0, TIMES, method=method, substeps=1, tolerance=1e-6).states
    matrix, offset = flow_map(ou.velocity, TIMES, 2, method=method)
    mapped = (x0 @ matrix.mT + offset[:, None]).movedim(0, 1)
    error = 1e-3 if method == "adaptive" else 1e-11  # the adaptive one chooses its steps by the points it is given
    torch.testing.assert_close(mapped, marched, rtol=0, atol=error)


def test_the_true_velocity_transports_the_marginals_and_the_drift_does_not():
    ou = OU.nonreversible()
    exact, start = ou.marginal(TIMES), ou.marginal(0.0)
    reached = pushforward(start, *flow_map(ou.velocity, TIMES, 2))
    torch.testing.assert_close(reached.covariance, exact.covariance, rtol=0, atol=1e-5)
    torch.testing.assert_close(reached.mean, exact.mean, rtol=0, atol=1e-5)
    drifted = pushforward(start, *flow_map(lambda x, t: ou.drift(x), TIMES, 2))
    assert (drifted.covariance - exact.covariance)[-1].norm() > 0.2


def test_coefficients_of_an_affine_velocity_are_read_off():
    ou = OU.reversible()
    matrix, offset = affine_coefficients(ou.velocity, TIMES, 2)
    x = torch.randn(len(TIMES), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close((matrix @ x[..., None])[..., 0] + offset, ou.velocity(x, TIMES))


def test_a_flow_that_diverges_becomes_infinite_instead_of_failing():
    times = torch.linspace(0, 500, 501, dtype=torch.float64)
    for method in ("euler", "leapfrog", "filtered"):
        matrix, _ = flow_map(lambda x, t: 9 * x, times, 2, method=method)
        assert not torch.isfinite(matrix[-1]).all()


@pytest.mark.parametrize("objective", ["phibe", "isotropic"])
def test_knots_from_moments_equal_the_basis_fit_on_all_transitions(objective):
    data = OU.nonreversible().simulate(paths=60, times=torch.linspace(0, 1, 25).double(), seed=3)
    knots = torch.tensor([0.0, 0.1, 0.3, 0.9], dtype=torch.float64)
    field = fit_affine(data, objective, knots=knots).velocity
    basis = fit_basis(data, lift(InTime(polynomials(1), knots)), objective).velocity
    x = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    t = torch.linspace(0, 1, 50, dtype=torch.float64)
    torch.testing.assert_close(field(x, t), basis(x, t), rtol=1e-7, atol=1e-7)
