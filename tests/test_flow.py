"""Flows: orders of the integrators, dense solutions, densities, and the interval on which a field was fitted."""

import math

import numpy as np
import pytest
import torch
from problems import PAPER, Logistic, continuity_residual, near, normal, order, real

from phibe import OU, Flow
from phibe.integrators import INTEGRATORS, METHODS
from phibe.linear.affine import fit_affine

LOGISTIC = Logistic.example()
X0 = real([[0.3, 0.8], [0.6, 0.4], [0.05, 0.5]])


def _error(method, substeps, t0=0.0, t1=2.0):
    end = Flow(LOGISTIC.velocity).generate(X0, [t0, t1], method=method, substeps=substeps).states[:, -1]
    return float((end - LOGISTIC.exact(X0, t0, t1)).norm())


# -- orders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "expected"), [("euler", 1), ("heun", 2), ("leapfrog", 2), ("rk4", 4)])
def test_each_integrator_has_its_order(method, expected):
    substeps = [40, 80, 160, 320]
    slope = order([1 / n for n in substeps], [_error(method, n) for n in substeps])
    assert slope == pytest.approx(expected, abs=0.15)
    assert INTEGRATORS[method].order == expected


def test_the_stated_number_of_evaluations_is_what_is_spent():
    calls = []

    def counted(x, t):
        calls.append(t)
        return LOGISTIC.velocity(x, t)

    for method, integrator in INTEGRATORS.items():
        calls.clear()
        Flow(counted).generate(X0, [0.0, 0.5, 1.0], method=method, substeps=3)
        begins_by_rk4 = 3 if method in ("leapfrog", "filtered") else 0  # they have no state before the first
        assert len(calls) == 6 * integrator.evaluations + begins_by_rk4


def test_a_flow_is_integrated_by_its_own_method_unless_told_otherwise():
    def end(flow, **how):
        return flow.generate(X0, [0.0, 2.0], substeps=20, **how).states

    by_rk4, by_euler = Flow(LOGISTIC.velocity), Flow(LOGISTIC.velocity, method="euler")
    assert torch.equal(end(by_rk4), end(by_euler, method="rk4"))
    assert torch.equal(end(by_euler), end(by_rk4, method="euler"))
    assert float((end(by_euler) - end(by_rk4)).abs().max()) > 1e-3


@pytest.mark.parametrize("tolerance", [1e-4, 1e-10])
def test_the_adaptive_method_meets_its_tolerance(tolerance):
    path = Flow(LOGISTIC.velocity).generate(X0, [0.0, 1.0, 3.0], method="adaptive", tolerance=tolerance)
    error = float((path.states[:, -1] - LOGISTIC.exact(X0, 0.0, 3.0)).abs().max())
    assert error < 20 * tolerance


def test_a_looser_tolerance_is_really_looser():
    ends = [
        Flow(LOGISTIC.velocity).generate(X0, [0.0, 3.0], method="adaptive", tolerance=tol).states[:, -1]
        for tol in (1e-3, 1e-10)
    ]
    assert float((ends[0] - ends[1]).abs().max()) > 1e-8


def test_leapfrog_undoes_a_central_difference_where_euler_grows():
    """For a rotation by φ a step, (x₊ − x₋)/(2h) is sin φ/h times a quarter turn; leapfrog turns by φ exactly."""
    angle, h = 0.5, 0.1
    quarter = real([[0.0, -1.0], [1.0, 0.0]])
    flow = Flow(lambda x, t: math.sin(angle) / h * x @ quarter.mT, step=h)
    times = h * torch.arange(60, dtype=torch.float64)
    x0 = real([[1.0, 0.0]])
    turned = [real([[math.cos(k * angle), math.sin(k * angle)]]) for k in range(60)]
    leapfrog = flow.generate(x0, times, method="leapfrog").states.norm(dim=2)
    euler = flow.generate(x0, times, method="euler").states.norm(dim=2)
    assert float((leapfrog - 1).abs().max()) < 0.02  # not zero, since its first step is one of RK4
    torch.testing.assert_close(euler[0, -1], real((1 + math.sin(angle) ** 2) ** (59 / 2)), rtol=1e-10, atol=0)
    path = torch.stack(turned, dim=1)
    exact_step = path[:, 2:] - path[:, :-2] - 2 * h * flow.velocity(path[0, 1:-1], None)[None]
    assert float(exact_step.abs().max()) < 1e-12  # the turn by φ itself is a leapfrog orbit, to rounding


def test_the_filter_tames_leapfrog_on_a_decay_and_hardly_damps_a_rotation():
    """dx/dt = −x: the alternating solution of leapfrog grows; filtered it dies. A quarter turn in 20 steps survives."""
    x0, times = real([[1.0]]), torch.linspace(0, 20, 101, dtype=torch.float64)
    plain, filtered = (Flow(lambda x, t: -x).generate(x0, times, method=m).states for m in ("leapfrog", "filtered"))
    assert float(plain[0, -1].abs()) > 1e3
    assert float(filtered[0, -1].abs()) < 1e-3
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    steps = torch.arange(801, dtype=torch.float64) * (math.pi / 2 / 20)
    ring = Flow(lambda x, t: x @ turn.mT).generate(real([[1.0, 0.0]]), steps, method="filtered").states.norm(dim=2)
    assert 0.9 < float(ring[0, -1]) < 1.02


def test_leapfrog_starts_again_when_the_step_changes():
    times = torch.cat([torch.linspace(0, 1, 41), torch.linspace(1, 2, 161)[1:]]).double()
    path = Flow(LOGISTIC.velocity).generate(X0, times, method="leapfrog").states[:, -1]
    assert float((path - LOGISTIC.exact(X0, 0.0, 2.0)).norm()) < _error("leapfrog", 80)


def test_by_default_no_step_is_longer_than_that_of_the_data():
    fine = Flow(LOGISTIC.velocity, step=0.01).generate(X0, [0.0, 1.0, 1.005], method="euler").states[:, -1]
    first = Flow(LOGISTIC.velocity).generate(X0, [0.0, 1.0], method="euler", substeps=100).states[:, -1]
    second = Flow(LOGISTIC.velocity).generate(first, [1.0, 1.005], method="euler", substeps=1).states[:, -1]
    torch.testing.assert_close(fine, second, rtol=1e-14, atol=0)
    assert float((fine - LOGISTIC.exact(X0, 0.0, 1.005)).norm()) < 0.01


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_forward_and_backward_return_to_the_start(method):
    flow, times = Flow(LOGISTIC.velocity), torch.linspace(0.3, 1.5, 61, dtype=torch.float64)
    there = flow.generate(X0, times, method=method, substeps=20, tolerance=1e-9)
    back = flow.generate(there.states[:, -1], times.flip(0), method=method, substeps=20, tolerance=1e-9)
    assert torch.equal(back.times, times)  # sorted by time, as all trajectories are
    assert float((back.states[:, 0] - X0).abs().max()) < {"euler": 2e-3, "filtered": 1e-5}.get(method, 1e-6)
    torch.testing.assert_close(back.states[:, 30], LOGISTIC.exact(X0, 0.3, 0.9), rtol=0, atol=2e-3)
    elsewhere = flow.generate(there.states[:, -1], times, method=method, substeps=2).states[:, -1]
    assert float((elsewhere - X0).norm()) > 0.1  # forward twice does not return


def test_the_dense_solution_is_what_generate_gives():
    flow = Flow(LOGISTIC.velocity, interval=(0.1, 2.3))
    solution = flow.solution(X0, tolerance=1e-9)
    times = torch.linspace(0.1, 2.3, 23, dtype=torch.float64)
    path = flow.generate(X0, times, method="adaptive", tolerance=1e-10).states
    torch.testing.assert_close(solution(times), path, rtol=0, atol=1e-7)
    torch.testing.assert_close(solution(1.234), LOGISTIC.exact(X0, 0.1, 1.234), rtol=0, atol=1e-7)
    assert torch.equal(solution(real([1.234]))[:, 0], solution(1.234))
    backward = flow.solution(LOGISTIC.exact(X0, 0.1, 2.3), t0=2.3, t1=0.1, tolerance=1e-9)
    torch.testing.assert_close(backward(times), path, rtol=0, atol=1e-7)


@pytest.mark.parametrize("ends", [(0.1, 0.7), (1 / 3, 1.1)])
def test_the_ends_of_an_interval_belong_to_it(ends):
    flow = Flow(LOGISTIC.velocity, interval=ends)
    exact = LOGISTIC.exact(X0, *ends)
    torch.testing.assert_close(flow.solution(X0)(ends[1]), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        flow.generate(X0, ends, method="rk4", substeps=20).states[:, 1], exact, rtol=0, atol=1e-5
    )


def test_numpy_and_float32_starts_are_taken_as_they_are():
    flow = Flow(lambda x, t: -x * t[:, None])
    double = flow.generate(np.ones((2, 1)), np.linspace(0, 1, 11), method="rk4").states
    single = flow.generate(torch.ones(2, 1), np.linspace(0, 1, 11), method="rk4").states
    assert single.dtype == torch.float32
    torch.testing.assert_close(double[:, -1], torch.full((2, 1), math.exp(-0.5)).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=0)


# -- what the flow does to marginals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPER)
def test_the_flow_carries_the_start_to_the_marginal_at_each_time(name):
    ou = PAPER[name]
    x0 = ou.marginal(0.0).sample(4000, generator=torch.Generator().manual_seed(0))
    path = Flow(ou.velocity).generate(x0, [0.0, 0.5, 1.5], method="rk4", substeps=30).states
    for i, t in enumerate([0.5, 1.5], start=1):
        marginal, x = ou.marginal(t), path[:, i]
        error = (x.mean(0) - marginal.mean) / (marginal.covariance.diagonal() / len(x)).sqrt()
        covariance = torch.cov(x.mT)
        scale = (
            (marginal.covariance.diagonal()[:, None] * marginal.covariance.diagonal() + marginal.covariance**2) / len(x)
        ).sqrt()
        assert float(error.abs().max()) < 4
        assert float(((covariance - marginal.covariance) / scale).abs().max()) < 4


@pytest.mark.parametrize("name", PAPER)
def test_the_density_along_the_exact_flow_is_the_density(name):
    ou, t = PAPER[name], 0.8
    x = near(ou, t)
    flow = Flow(ou.velocity, interval=(0.0, 2.0))
    found = flow.log_density(x, t, start=lambda y: ou.log_density(y, 0.0), steps=40)
    torch.testing.assert_close(found, ou.log_density(x, t), rtol=0, atol=1e-4)
    drift = Flow(ou.drift).log_density(x, t, start=lambda y: ou.log_density(y, 0.0), steps=10)
    assert float((drift - ou.log_density(x, t)).abs().max()) > 0.1
    at_start = flow.log_density(x, 0.0, start=lambda y: ou.log_density(y, 0.0))
    torch.testing.assert_close(at_start, ou.log_density(x, 0.0))


def test_the_density_of_a_nonlinear_flow_is_that_of_the_change_of_variables():
    x, t = torch.sigmoid(normal(6, 2)), 1.3
    start = lambda y: LOGISTIC.log_density(y, 0.0)  # noqa: E731
    errors = []
    for steps in (10, 20, 40):
        found = Flow(LOGISTIC.velocity).log_density(x, t, start=start, t0=0.0, steps=steps)
        errors.append(float((found - LOGISTIC.log_density(x, t)).norm()))
    assert errors[-1] < 1e-6
    assert order([1 / 10, 1 / 20, 1 / 40], errors) == pytest.approx(4, abs=0.3)


def test_hutchinsons_density_is_right_within_its_standard_error():
    ou, t = OU([[-1.0, 2.0, 0.0], [0.5, -1.5, 0.3], [0.0, -1.0, -1.0]], torch.eye(3)), 0.7
    x = near(ou, t, n=4)
    start = lambda y: ou.log_density(y, 0.0)  # noqa: E731
    copies = x.repeat(300, 1)
    single = Flow(ou.velocity).log_density(copies, t, start=start, steps=12, probes=1).reshape(300, 4)
    error = (single.mean(0) - ou.log_density(x, t)) / (single.std(0) / math.sqrt(300))
    assert float(error.abs().max()) < 4
    several = Flow(ou.velocity).log_density(x, t, start=start, steps=12, probes=200)
    assert float((several - ou.log_density(x, t)).abs().max()) < 5 * float(single.std()) / math.sqrt(200)
    assert torch.equal(several, Flow(ou.velocity).log_density(x, t, start=start, steps=12, probes=200))  # seeded


def test_many_coordinates_are_estimated_and_few_are_exact():
    """A field with a diagonal Jacobian: there every probe gives the exact divergence, so both must agree."""
    wide = Flow(lambda x, t: -x)
    x = normal(2, 70)
    start = lambda y: -0.5 * (y**2).sum(1)  # noqa: E731
    found = wide.log_density(x, 0.5, start=start, t0=0.0, steps=20)
    torch.testing.assert_close(found, start(x * math.exp(0.5)) + 0.5 * 70, rtol=1e-6, atol=0)


# -- the fitted interval -----------------------------------------------------------------------------------------------


def test_outside_the_observed_interval_is_an_error_unless_asked_for():
    ou = OU.reversible()
    flow = fit_affine(ou.simulate(paths=500, times=[0.1, 0.2, 0.4]))
    x0 = near(ou, 0.1)
    for times in ([0.1, 0.5], [0.0, 0.4], [0.4, 0.05]):
        with pytest.raises(ValueError, match=r"fitted on \[0\.1, 0\.4\].*Stay inside, or pass `extrapolate=True`"):
            flow.generate(x0, times)
    with pytest.raises(ValueError, match=r"fitted on \[0\.1, 0\.4\]"):
        flow.log_density(x0, 0.5, start=lambda y: ou.log_density(y, 0.1))
    with pytest.raises(ValueError, match=r"fitted on \[0\.1, 0\.4\]"):
        flow.solution(x0, t1=0.6)
    with pytest.raises(ValueError, match=r"covers \[0\.1, 0\.4\]; asked for t from 0\.5"):
        flow.solution(x0)(0.5)
    beyond = flow.generate(x0, [0.4, 0.9], method="rk4", substeps=50, extrapolate=True).states[:, -1]
    last = flow.velocity.matrices[-1], flow.velocity.offsets[-1]
    held = Flow(lambda x, t: x @ last[0].mT + last[1]).generate(x0, [0.4, 0.9], method="rk4", substeps=50)
    torch.testing.assert_close(beyond, held.states[:, -1])  # the field is held fixed beyond the end


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x0", "times", "options", "message"),
    [
        (X0, [0.0, 1.0], {"method": "rk5"}, "one of euler, heun, rk4, leapfrog, filtered, adaptive; got 'rk5'"),
        (X0, [0.0], {}, "`times` must be two or more values that all increase or all decrease"),
        (X0, [0.0, 1.0, 0.5], {}, "all increase or all decrease"),
        (X0, [0.0, 1.0], {"substeps": 0}, "`substeps` must be at least 1; got 0"),
        (X0[0], [0.0, 1.0], {}, r"`x0` must be floats of shape \(n, \*state\).*got .* shape \(2,\)\. One state"),
        (torch.ones(2, 2, dtype=torch.long), [0.0, 1.0], {}, "`x0` must be floats"),
        (real([[0.1, 0.2], [0.1, float("nan")]]), [0.0, 1.0], {}, "`x0` must be finite; sample 1 is not"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(x0, times, options, message):
    with pytest.raises(ValueError, match=message):
        Flow(LOGISTIC.velocity).generate(x0, times, **options)


def test_a_flow_that_diverges_says_when():
    with pytest.raises(ValueError, match=r"diverges: sample 1 is no longer finite at t = 2\. Take more `substeps`"):
        Flow(lambda x, t: x**3).generate(real([[0.0], [3.0]]), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def test_a_solution_without_an_interval_asks_for_one():
    with pytest.raises(ValueError, match=r"no interval of its own: pass `t0` and `t1`"):
        Flow(LOGISTIC.velocity).solution(X0)


def test_the_known_flow_carries_its_known_density():
    x = torch.sigmoid(normal(6, 2))
    assert continuity_residual(LOGISTIC.log_density, LOGISTIC.velocity, x, 0.9) < 1e-12
    assert continuity_residual(LOGISTIC.log_density, lambda y, t: 1.1 * LOGISTIC.velocity(y, t), x, 0.9) > 1e-2
