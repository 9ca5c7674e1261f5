"""Measures against closed forms, and standard errors against the errors that are really made."""

import math

import ot
import pytest
import torch
from hypothesis import given
from problems import PAPER, normal, properties, real, stable_systems

from phibe import OU, metrics, theory
from phibe.systems.ou import Gaussian

# -- errors of velocities ----------------------------------------------------------------------------------------------


def _gap():
    """A fixed affine estimate of the reversible process at t = 0.4, and its exact distance from the velocity."""
    ou, t = OU.reversible(), 0.4
    marginal = ou.marginal(t)
    slope = ou.A + 0.5 * ou.S @ ou.S.mT @ torch.linalg.inv(marginal.covariance)
    extra, offset = real([[0.3, -0.2], [0.1, 0.5]]), real([0.2, -0.4])
    start = ou.velocity(torch.zeros(1, 2, dtype=torch.float64), t)[0]
    estimate = lambda x, s: x @ (slope + extra).mT + start + offset  # noqa: E731
    return ou, t, estimate, theory.affine_gap(marginal, extra, offset)


def test_the_velocity_error_is_the_distance_and_its_standard_error_is_calibrated():
    ou, t, estimate, exact = _gap()
    marginal, pulls = ou.marginal(t), []
    for seed in range(200):
        x = marginal.sample(400, generator=torch.Generator().manual_seed(seed))
        found = metrics.velocity_error(estimate, ou.velocity, x, t)
        pulls.append((found.value - exact) / found.error)
    pulls = real(pulls)
    assert float((pulls.abs() < 3).double().mean()) > 0.97
    assert 0.85 < float(pulls.std()) < 1.15
    assert abs(float(pulls.mean())) < 0.3


def test_an_exact_velocity_has_no_error():
    ou = OU.nonreversible()
    x = ou.marginal(1.0).sample(10, generator=torch.Generator().manual_seed(0))
    assert metrics.velocity_error(ou.velocity, ou.velocity, x, 1.0) == (0.0, 0.0)


def test_the_global_error_integrates_over_time_with_a_calibrated_standard_error():
    """v̂ − v = t x, whose mean square is known at each time."""
    ou = OU.reversible()
    times = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)
    estimate = lambda x, t: ou.velocity(x, t) + t[:, None] * x  # noqa: E731
    marginals = [ou.marginal(float(t)) for t in times]
    squares = real(
        [
            float(t**2 * (marginal.mean @ marginal.mean + marginal.covariance.trace()))
            for t, marginal in zip(times, marginals, strict=True)
        ]
    )
    exact = math.sqrt(float(torch.trapezoid(squares, times)))
    pulls = []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        draw = lambda t, g=generator: ou.marginal(t).sample(200, generator=g)  # noqa: E731
        found = metrics.global_velocity_error(estimate, ou.velocity, draw, times)
        pulls.append((found.value - exact) / found.error)
    pulls = real(pulls)
    assert float((pulls.abs() < 3).double().mean()) > 0.97
    assert 0.8 < float(pulls.std()) < 1.2


def test_unequal_times_are_weighted_by_their_gaps():
    constant = lambda x, t: t[:, None].expand_as(x)  # noqa: E731
    zero = lambda x, t: torch.zeros_like(x)  # noqa: E731
    times = real([0.0, 0.1, 1.0])
    found = metrics.global_velocity_error(constant, zero, lambda t: normal(5, 1), times)
    assert found.value == pytest.approx(math.sqrt(float(torch.trapezoid(times**2, times))), rel=1e-12)
    assert found.error == pytest.approx(0.0, abs=1e-12)


def test_images_are_measured_over_all_their_pixels():
    x = normal(50, 1, 4, 4)
    found = metrics.velocity_error(lambda y, t: 2 * y, lambda y, t: y, x, 0.0)
    assert found.value == pytest.approx(math.sqrt(float(x.flatten(1).square().sum(1).mean())), rel=1e-12)


def test_moments_are_those_of_numpy():
    x = normal(30, 3) @ normal(3, 3, seed=1)
    found = metrics.moments(x)
    torch.testing.assert_close(found.mean, x.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.covariance, torch.cov(x.mT), rtol=1e-12, atol=1e-12)


def test_an_estimate_is_written_with_its_error():
    assert str(metrics.Estimate(1.23456, 0.0123)) == "1.235 ± 0.012"


# -- distances between distributions -----------------------------------------------------------------------------------


@properties
@given(ou=stable_systems())
def test_the_distance_between_gaussians_is_that_of_their_optimal_map(ou):
    """The optimal map is linear, T = C^-½(C^½C'C^½)^½C^-½; W₂² is E|x − T x|², and T maps one to the other."""
    a, b = ou.marginal(0.0), ou.marginal(0.7)
    root = _root(a.covariance)
    inverse = torch.linalg.inv(root)
    T = inverse @ _root(root @ b.covariance @ root) @ inverse
    torch.testing.assert_close(T @ a.covariance @ T, b.covariance, rtol=1e-8, atol=1e-8)
    moved = torch.eye(ou.dimension, dtype=torch.float64) - T
    squared = (moved @ a.covariance @ moved.mT).trace() + (a.mean - b.mean).square().sum()
    assert metrics.gaussian_w2(a, b) == pytest.approx(math.sqrt(float(squared)), rel=1e-7)
    assert metrics.gaussian_w2(b, a) == pytest.approx(metrics.gaussian_w2(a, b), rel=1e-7)
    assert metrics.gaussian_w2(a, a) < 1e-6


def _root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt() @ vectors.mT


def test_gaussians_on_the_same_axes_are_as_far_apart_as_their_standard_deviations():
    a = Gaussian(real([0.0, 1.0]), torch.diag(real([4.0, 9.0])))
    b = Gaussian(real([3.0, 1.0]), torch.diag(real([1.0, 0.0])))
    assert metrics.gaussian_w2(a, b) == pytest.approx(math.sqrt(9 + 1 + 9), rel=1e-12)


@pytest.mark.parametrize("d", [1, 3])
def test_a_shift_moves_the_sliced_distance_by_its_length_over_root_d(d):
    x, shift = normal(500, d), torch.arange(1, d + 1, dtype=torch.float64)
    expected = float(shift.norm()) / math.sqrt(d)
    found = metrics.sliced_w2(x, x + shift, directions=4000 if d > 1 else 8)
    assert found == pytest.approx(expected, rel=1e-12 if d == 1 else 0.03)


def test_in_one_dimension_the_sliced_distance_is_the_optimal_transport():
    x, y = normal(300, 1), 1 + 2 * normal(300, 1, seed=1)
    for few, tolerance in ((300, 1e-10), (200, 0.03)):  # unequal numbers are matched nearly
        exact = math.sqrt(ot.wasserstein_1d(x[:, 0].numpy(), y[:few, 0].numpy(), p=2))
        assert metrics.sliced_w2(x, y[:few]) == pytest.approx(exact, rel=tolerance)


def test_repeating_a_sample_does_not_move_it():
    x = normal(100, 2)
    assert metrics.sliced_w2(x, x.repeat(3, 1)) == 0.0
    assert metrics.sliced_w2(x, x[torch.randperm(100, generator=torch.Generator().manual_seed(0))]) == 0.0


@pytest.mark.parametrize("name", PAPER)
def test_samples_of_one_distribution_are_close_and_of_two_are_not(name):
    marginal, other = PAPER[name].marginal(0.5), PAPER[name].marginal(0.7)
    draw = lambda which, seed: which.sample(3000, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    for distance in (metrics.sliced_w2, metrics.energy_distance):
        same, different = distance(draw(marginal, 0), draw(marginal, 1)), distance(draw(marginal, 0), draw(other, 1))
        assert same < 0.2 * different


@pytest.mark.parametrize("shift", [0.5, 2.0])
def test_the_energy_distance_of_shifted_normals_is_known(shift):
    """X − Y ~ N(m, 2), so E|X − Y| is the mean of a folded normal distribution, and E|X − X'| the same at m = 0."""
    folded = 2 / math.sqrt(math.pi) * math.exp(-(shift**2) / 4) + shift * math.erf(shift / 2)
    exact = 2 * folded - 2 * (2 / math.sqrt(math.pi))
    squares = real(
        [
            metrics.energy_distance(normal(600, 1, seed=2 * i), normal(400, 1, seed=2 * i + 1) + shift) ** 2
            for i in range(40)
        ]
    )
    error = float(squares.std()) / math.sqrt(40)
    assert abs(float(squares.mean()) - exact) < 4 * error
    assert error < 0.05 * exact


def test_the_energy_distance_does_not_depend_on_the_block():
    x, y = normal(150, 3), normal(130, 3, seed=1) + 0.3
    assert metrics.energy_distance(x, y, block=7) == pytest.approx(metrics.energy_distance(x, y), rel=1e-12)
    pairs = [(a, b) for a in range(4) for b in range(4)]
    few_x, few_y = x[:4], y[:4]
    across = sum(float((few_x[a] - few_y[b]).norm()) for a, b in pairs) / 16
    within = [sum(float((z[a] - z[b]).norm()) for a, b in pairs) / 12 for z in (few_x, few_y)]
    by_hand = max(2 * across - sum(within), 0.0)
    assert metrics.energy_distance(few_x, few_y) == pytest.approx(math.sqrt(by_hand), rel=1e-10)


def test_the_same_seed_gives_the_same_slices():
    x, y = normal(50, 3), normal(50, 3, seed=1)
    assert metrics.sliced_w2(x, y, seed=3) == metrics.sliced_w2(x, y, seed=3)
    assert metrics.sliced_w2(x, y, seed=3) != metrics.sliced_w2(x, y, seed=4)


@pytest.mark.parametrize("distance", [metrics.sliced_w2, metrics.energy_distance])
def test_samples_that_cannot_be_compared_are_refused(distance):
    for x, y in ((normal(5, 2), normal(5, 3)), (normal(1, 2), normal(5, 2))):
        with pytest.raises(
            ValueError, match=r"Two samples \(n, \*state\).*two or more states each, are needed; got \("
        ):
            distance(x, y)
