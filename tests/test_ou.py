"""The Ornstein–Uhlenbeck process: exact marginals, exact sampling, exact velocity."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    PAPER,
    continuity_residual,
    kinetic,
    near,
    properties,
    real,
    reversible_systems,
    stable_systems,
)
from torch.func import jvp

from phibe import OU, Flow

# -- the velocity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "t"), [("reversible", 0.3), ("nonreversible", 5.0)])
def test_the_velocity_carries_the_marginals(name, t):
    ou = PAPER[name]
    x = near(ou, t)
    assert continuity_residual(ou.log_density, ou.velocity, x, t) < 1e-10
    assert continuity_residual(ou.log_density, ou.drift, x, t) > 1e-2  # the drift alone does not


@properties
@given(ou=stable_systems())
def test_the_velocity_of_any_stable_system_carries_its_marginals(ou):
    for t in (0.0, 0.4, 1.5):
        x = near(ou, t)
        assert continuity_residual(ou.log_density, ou.velocity, x, t) < 1e-10
        assert continuity_residual(ou.log_density, ou.drift, x, t) > 1e-2


@pytest.mark.parametrize("t", [0.0, 0.3])
def test_noise_in_one_direction_is_enough_for_a_velocity(t):
    ou = kinetic()
    x = near(ou, t)
    assert torch.linalg.matrix_rank(ou.S @ ou.S.mT) == 1
    assert continuity_residual(ou.log_density, ou.velocity, x, t) < 1e-10
    assert continuity_residual(ou.log_density, ou.drift, x, t) > 1e-2
    assert torch.equal(ou.velocity(x, t)[:, 0], ou.drift(x)[:, 0])  # no noise, no correction


def test_a_vector_of_times_gives_each_sample_its_own_marginal():
    ou = OU.nonreversible()
    t = real([0.5, 0.1, 0.5, 2.0])
    x = near(ou, 0.5, n=4)
    for f in (ou.velocity, ou.score, ou.log_density):
        one_by_one = torch.stack([f(x[i : i + 1], float(t[i]))[0] for i in range(4)])
        torch.testing.assert_close(f(x, t), one_by_one, rtol=1e-13, atol=1e-13)


EQUAL_AND_DISTINCT = [[0.0] * 5, [0.7] * 5, [0.0, 0.3, 2.0, 0.3, 1.1]]


@pytest.mark.parametrize("times", EQUAL_AND_DISTINCT)
@pytest.mark.parametrize("name", PAPER)
def test_each_sample_has_its_own_derivative_in_time(name, times):
    _assert_differentiable_in_time(PAPER[name], real(times))


@properties
@given(ou=stable_systems(st.just(3)))
def test_each_sample_has_its_own_derivative_in_time_for_any_stable_system(ou):
    for times in EQUAL_AND_DISTINCT:
        _assert_differentiable_in_time(ou, real(times))


def _assert_differentiable_in_time(ou, t):
    """∂ₜ log ρ + ∇·v + v·∇log ρ = 0, and ∂ₜv = −½ΣC⁻¹(ṁ + ĊC⁻¹(x − m)) with ṁ = A(m − μ), Ċ = AC + CAᵀ + Σ."""
    x, weight = near(ou, 0.7, n=len(t)), torch.linspace(-1, 2, len(t), dtype=torch.float64)
    assert float(_transport(ou.log_density, ou.velocity, x, t).abs().max()) < 1e-8
    assert float(_transport(ou.log_density, lambda x, t: ou.drift(x), x, t).abs().max()) > 1e-2
    marginal, noise = ou.marginal(t), ou.S @ ou.S.mT
    change = ou.A @ marginal.covariance + marginal.covariance @ ou.A.mT + noise
    inner = (ou.A @ (marginal.mean - ou.mu)[..., None])[..., 0] - (change @ marginal.score(x)[..., None])[..., 0]
    exact = 0.5 * (noise @ marginal.covariance.inverse() @ -inner[..., None])[..., 0]
    near_zero = 1e-8 * float(1 + exact.abs().max())
    forward = jvp(lambda s: ou.velocity(x, s), (t,), (weight,))[1]  # each sample with a tangent of its own
    torch.testing.assert_close(forward, weight[:, None] * exact, rtol=0, atol=2 * near_zero)
    for i in range(ou.dimension):
        torch.testing.assert_close(
            _slope(lambda s, i=i: ou.velocity(x, s)[:, i], t), exact[:, i], rtol=0, atol=near_zero
        )


def _transport(log_density, velocity, x, t):
    """The left side of the continuity equation at each sample, by reverse mode throughout."""
    v = velocity(x, t)
    divergence = sum(_slope(lambda z, i=i: velocity(z, t)[:, i], x)[:, i] for i in range(x.shape[1]))
    gradient = _slope(lambda z: log_density(z, t), x)
    return _slope(lambda s: log_density(x, s), t) + divergence + (v * gradient).sum(1)


def _slope(f, at):
    at = at.clone().requires_grad_()
    return torch.autograd.grad(f(at).sum(), at)[0]


# -- the marginals -----------------------------------------------------------------------------------------------------


def test_the_constants_of_the_circulating_process_are_those_of_the_paper():
    ou = OU.nonreversible()
    turn = ou.circulation()
    torch.testing.assert_close(ou.stationary().covariance, real([[5, -2], [-2, 3]]) / 16, rtol=0, atol=1e-14)
    torch.testing.assert_close(turn, real([[2, 5], [-3, -2]]) / 11, rtol=0, atol=1e-14)
    torch.testing.assert_close(turn @ turn, -torch.eye(2, dtype=torch.float64) / 11, rtol=0, atol=1e-14)
    assert ou.period() == pytest.approx(2 * math.pi * math.sqrt(11), rel=1e-13)
    assert not ou.is_reversible


def test_the_marginals_of_the_reversible_process_are_those_of_the_paper():
    ou, t = OU.reversible(), 0.7
    marginal = ou.marginal(t)
    variance = [math.exp(-2 * t) + (1 - math.exp(-2 * t)) / 4, math.exp(-8 * t) + (1 - math.exp(-8 * t)) / 16]
    mean = [4 * (1 - math.exp(-t)), 4 * (1 - math.exp(-4 * t))]
    torch.testing.assert_close(marginal.mean, real(mean), rtol=1e-14, atol=0)
    torch.testing.assert_close(marginal.covariance, torch.diag(real(variance)), rtol=1e-14, atol=1e-16)
    x = near(ou, t)
    velocity = ou.drift(x) + 0.25 * (x - real(mean)) / real(variance)
    torch.testing.assert_close(ou.velocity(x, t), velocity, rtol=1e-13, atol=1e-13)
    assert ou.is_reversible
    assert ou.period() == math.inf


@properties
@given(ou=stable_systems())
def test_the_marginals_solve_the_moment_equations(ou):
    for t in (0.0, 0.5, 3.0):
        (m, C), (dm, dC) = jvp(lambda s: _pair(ou.marginal(s)), (real(t),), (real(1.0),))
        lyapunov = ou.A @ C + C @ ou.A.mT + ou.S @ ou.S.mT
        torch.testing.assert_close(dm, ou.A @ (m - ou.mu), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(dC, lyapunov, rtol=1e-9, atol=1e-9)


@properties
@given(ou=stable_systems())
def test_the_stationary_distribution_solves_the_lyapunov_equation_and_is_the_limit(ou):
    B = ou.stationary().covariance
    noise = ou.S @ ou.S.mT
    torch.testing.assert_close(ou.A @ B + B @ ou.A.mT, -noise, rtol=1e-10, atol=1e-10 * float(B.norm()))
    late = ou.marginal(200.0)
    torch.testing.assert_close(late.covariance, B, rtol=1e-9, atol=1e-9 * float(B.norm()))
    torch.testing.assert_close(late.mean, ou.mu, rtol=1e-9, atol=1e-9)
    P, t = torch.linalg.matrix_exp(ou.A * 0.8), 0.8  # the closed form of the paper's theorem
    torch.testing.assert_close(ou.marginal(t).covariance, P @ (ou.C0 - B) @ P.mT + B, rtol=1e-9, atol=1e-9)


@properties
@given(ou=stable_systems())
def test_two_steps_are_one_long_step(ou):
    for s, t in ((0.01, 0.3), (0.5, 4.0), (0.0, 1.0)):
        (P_s, Q_s), (P_t, Q_t), (P, Q) = (ou.transition(h) for h in (s, t, s + t))
        torch.testing.assert_close(P, P_t @ P_s, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(Q, Q_t + P_t @ Q_s @ P_t.mT, rtol=1e-10, atol=1e-10)


def test_a_stiff_system_keeps_its_digits_over_a_long_step():
    ou = OU([[-1000.0, 3.0], [0.0, -0.01]], [[1.0, 0.0], [0.2, 0.5]])
    P, Q = ou.transition(1e4)
    assert float(P.norm()) < 1e-30
    torch.testing.assert_close(Q, ou.stationary().covariance, rtol=1e-10, atol=0)


@properties
@given(ou=stable_systems())
def test_the_circulation_preserves_the_stationary_distribution(ou):
    B, turn = ou.stationary().covariance, ou.circulation()
    scale = float(B.norm() * ou.A.norm())
    torch.testing.assert_close(turn @ B + B @ turn.mT, torch.zeros_like(B), rtol=0, atol=1e-9 * scale)
    x = ou.stationary().sample(4, generator=torch.Generator().manual_seed(0))
    limit = ou.velocity(x, 300.0)  # v → 𝓑(x − μ)
    torch.testing.assert_close(limit, (x - ou.mu) @ turn.mT, rtol=1e-7, atol=1e-7 * float(1 + limit.norm()))


@properties
@given(ou=reversible_systems())
def test_detailed_balance_is_recognised_and_stops_the_circulation(ou):
    assert ou.is_stable
    assert ou.is_reversible
    assert float(ou.circulation().norm()) < 1e-9 * float(ou.A.norm() * torch.linalg.cond(ou.stationary().covariance))
    assert ou.period() == math.inf


@properties
@given(ou=stable_systems())
def test_reversible_means_that_drift_times_noise_is_symmetric(ou):
    product = ou.A @ ou.S @ ou.S.mT
    asymmetry = float((product - product.mT).norm() / (1 + product.norm()))
    assert ou.is_reversible == (asymmetry < 1e-12)
    if asymmetry > 1e-3:
        assert ou.period() < math.inf
        assert float(ou.circulation().norm()) > 1e-5
    assert ou.dimension > 1 or ou.is_reversible


def test_the_orbits_of_the_flow_close_after_one_period():
    ou = OU.nonreversible()
    x0 = ou.mu + real([[0.6, 0.0], [0.1, -0.4]])
    times = torch.linspace(30, 75, 451, dtype=torch.float64)  # the marginal is stationary from t = 30 on
    orbit = Flow(ou.velocity).generate(x0, times, method="rk4").states - ou.mu
    inverse = torch.linalg.inv(ou.stationary().covariance)
    level = torch.einsum("pti,ij,ptj->pt", orbit, inverse, orbit)
    torch.testing.assert_close(level, level[:, :1].expand_as(level), rtol=1e-6, atol=0)  # each stays on its ellipse
    assert _measured_period(orbit[0, :, 1], times) == pytest.approx(2 * math.pi * math.sqrt(11), rel=0.01)


def _measured_period(signal, times):
    """Time between the first two upward crossings of zero, by linear interpolation."""
    i = ((signal[:-1] < 0) & (signal[1:] >= 0)).nonzero().ravel()[:2]
    share = signal[i] / (signal[i] - signal[i + 1])
    return float((times[i] + share * (times[i + 1] - times[i])).diff())


def _pair(marginal):
    return marginal.mean, marginal.covariance


# -- sampling ----------------------------------------------------------------------------------------------------------


@properties
@given(ou=stable_systems())
def test_simulated_paths_have_the_exact_means_and_covariances(ou):
    n, times = 4000, real([0.0, 0.03, 1.0])  # unequal steps, one of them long
    data = ou.simulate(paths=n, times=times, seed=1)
    marginals = [ou.marginal(float(t)) for t in times]
    for x, marginal in zip(data.states.unbind(1), marginals, strict=True):
        _assert_within_standard_errors(
            x, x, marginal.mean, marginal.mean, marginal.covariance, marginal.covariance, marginal.covariance
        )
    lagged = marginals[1].covariance @ torch.linalg.matrix_exp(ou.A * 0.97).mT  # Cov(X_s, X_t) = C_s e^{Aᵀ(t−s)}
    covariances = (marginals[1].covariance, marginals[2].covariance, lagged)
    _assert_within_standard_errors(*data.states[:, 1:].unbind(1), marginals[1].mean, marginals[2].mean, *covariances)


def _assert_within_standard_errors(x, y, mean_x, mean_y, C_x, C_y, C_xy, limit=5.0):
    n = len(x)
    mean_error = (x.mean(0) - mean_x) / (C_x.diagonal() / n).sqrt()
    cross = (x - mean_x).mT @ (y - mean_y) / n
    cross_error = (cross - C_xy) / ((C_x.diagonal()[:, None] * C_y.diagonal() + C_xy**2) / n).sqrt()
    assert float(mean_error.abs().max()) < limit
    assert float(cross_error.abs().max()) < limit


def test_a_wrong_covariance_would_be_noticed():
    ou = OU.nonreversible()
    x = ou.simulate(paths=4000, times=[0.0, 1.0]).states[:, 1]
    marginal = ou.marginal(1.0)
    with pytest.raises(AssertionError):
        _assert_within_standard_errors(x, x, marginal.mean, marginal.mean, *[marginal.covariance * 1.3] * 3)


def test_degenerate_noise_is_sampled_exactly():
    ou = kinetic()
    data = ou.simulate(paths=20_000, times=[0.0, 0.001, 2.0], seed=3)
    marginal = ou.marginal(2.0)
    x = data.states[:, 2]
    _assert_within_standard_errors(x, x, marginal.mean, marginal.mean, *[marginal.covariance] * 3)
    assert bool((torch.linalg.eigvalsh(ou.stationary().covariance) > 0).all())


def test_without_noise_the_paths_are_those_of_the_drift():
    ou = OU([[-0.3, 2.0], [-1.0, -0.4]], torch.zeros(2, 1), mu=[1.0, 2.0])
    data = ou.simulate(paths=5, times=[0.0, 0.4, 3.0])
    for i, t in enumerate([0.4, 3.0], start=1):
        exact = ou.mu + (data.states[:, 0] - ou.mu) @ torch.linalg.matrix_exp(ou.A * t).mT
        torch.testing.assert_close(data.states[:, i], exact, rtol=1e-12, atol=1e-12)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    ou, times = OU.nonreversible(), [0.0, 0.1, 0.5]
    first = ou.simulate(paths=50, times=times, seed=7).states
    assert torch.equal(first, ou.simulate(paths=50, times=times, seed=7).states)
    assert torch.equal(first, ou.simulate(paths=50, times=times, generator=torch.Generator().manual_seed(7)).states)
    assert not torch.equal(first, ou.simulate(paths=50, times=times, seed=8).states)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0, 2.0]], [[1.0]]), r"`A` must be square, \(d, d\); got shape \(1, 2\)"),
        ((torch.eye(2), torch.eye(3)), r"`S` must be finite with shape \(2, r\) to match `A`; got shape \(3, 3\)"),
        (([[float("nan")]], [[1.0]]), r"`A` must be finite"),
    ],
)
def test_a_wrong_matrix_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        OU(*arguments)


def test_a_wrong_mean_is_named():
    with pytest.raises(ValueError, match=r"`mu` must be finite with shape \(2,\)"):
        OU(-torch.eye(2), torch.eye(2), mu=[1.0])


def test_an_unstable_drift_has_no_stationary_distribution():
    ou = OU([[1.0, 0.0], [0.0, -4.0]], torch.eye(2))
    with pytest.raises(ValueError, match=r"negative real part; they are .*Did you mean −A"):
        ou.stationary()
    assert not ou.is_stable
    x = near(ou, 0.5)
    assert continuity_residual(ou.log_density, ou.velocity, x, 0.5) < 1e-10  # its marginals are fine all the same


def test_times_do_not_run_backwards():
    with pytest.raises(ValueError, match=r"must not be negative; got -0\.1\. Are the times sorted"):
        OU.reversible().simulate(paths=3, times=[0.0, 0.2, 0.1])
    with pytest.raises(ValueError, match="must not be negative"):
        OU.reversible().marginal(-1.0)


@pytest.mark.parametrize("step", [0.1, 0.01, 0.001])
def test_a_transition_is_exact_to_rounding_also_one_at_a_time(step):
    propagator, noise = OU([[-4.0]], [[1.0]]).transition(step)
    assert abs(float(propagator) - math.exp(-4 * step)) < 1e-15  # torch.linalg.matrix_exp alone: 8e-11 at 0.01
    assert abs(float(noise) + math.expm1(-8 * step) / 8) < 1e-15
