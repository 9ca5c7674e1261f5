"""Spectra and the measures of forecasts, on fields and distributions whose answers are known."""

import math

import pytest
import torch
from problems import normal, real

from phibe.experiments.turbulence.spectra import (
    energy_spectrum,
    enstrophy_spectrum,
    log_spectral_error,
    spectral_distance,
)
from phibe.metrics import crps, histogram_distance, relative_mse, spread_skill, stability

N = 16


def waves(a, b, phase=0.3, n=N):
    """cos(a x + b y + phase) on the grid of n × n points."""
    side = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    return torch.cos(a * side[:, None] + b * side + phase)


# -- spectra ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(3, 0), (0, 5), (-2, 6)])
def test_a_wave_is_in_the_shell_of_its_length_and_nowhere_else(a, b):
    found = enstrophy_spectrum(2 * waves(a, b))
    shell = round(math.hypot(a, b))
    expected = torch.zeros(len(found.k), dtype=torch.float64)
    expected[shell] = 1.0  # ½⟨ω²⟩ with an amplitude of 2
    assert torch.allclose(found.total, expected, atol=1e-12)
    assert torch.allclose(found.mean * found.modes, expected, atol=1e-12)
    assert torch.allclose(energy_spectrum(2 * waves(a, b)).total, expected / (a * a + b * b), atol=1e-12)


def test_the_shells_hold_each_mode_of_the_full_transform_once():
    k = torch.fft.fftfreq(N, 1 / N, dtype=torch.float64)
    radius = torch.hypot(k[:, None], k).round().long().flatten()
    field = normal(N, N)
    full = torch.fft.fft2(field, norm="forward").abs().square().flatten() / 2
    found = enstrophy_spectrum(field)
    assert torch.equal(found.modes, torch.bincount(radius).double())
    assert torch.allclose(found.mean, torch.bincount(radius, weights=full) / torch.bincount(radius), atol=1e-14)


@pytest.mark.parametrize("shape", [(N, N), (15, 18)])
def test_totals_add_up_to_half_the_mean_square(shape):
    fields = normal(3, 2, *shape)
    assert torch.allclose(enstrophy_spectrum(fields).total.sum(-1), fields.square().mean((-2, -1)) / 2)
    assert not torch.allclose(enstrophy_spectrum(fields).mean.sum(-1), fields.square().mean((-2, -1)) / 2, rtol=0.5)


def test_the_energy_is_that_of_the_velocity_of_the_vorticity():
    k = torch.fft.fftfreq(N, 1 / N, dtype=torch.float64)
    field = waves(1, 2) + 0.5 * waves(4, -3) + 0.2 * waves(0, 6)
    stream = torch.fft.fft2(field) / (k[:, None] ** 2 + k**2).clamp(min=1)  # ω = −Δψ, and the mean is zero
    u, v = torch.fft.ifft2(1j * k * stream).real, torch.fft.ifft2(-1j * k[:, None] * stream).real
    assert energy_spectrum(field).total.sum() == pytest.approx(float((u * u + v * v).mean() / 2), rel=1e-12)


def test_the_spectrum_of_white_noise_is_flat():
    found = enstrophy_spectrum(normal(400, N, N)).mean.mean(0)
    assert torch.allclose(found, torch.full_like(found, 0.5 / N**2), rtol=0.15)  # ½ of a variance 1, in N² modes
    rough = enstrophy_spectrum(normal(400, N, N).cumsum(-1)).mean.mean(0)
    assert rough[1] > 3 * rough[7]  # that of a walk along x is not


def test_the_spectral_error_is_the_logarithm_of_the_ratio():
    truth = normal(50, 3, N, N)
    assert torch.allclose(log_spectral_error(truth * 10**0.5, truth), torch.ones(3, N // 2 - 1, dtype=torch.float64))
    assert torch.allclose(spectral_distance(0.1 * truth, truth), torch.full((3,), 2.0, dtype=torch.float64))
    smooth = torch.fft.rfft2(truth)
    smooth[..., 5:-4, :], smooth[..., 5:] = smooth[..., 5:-4, :] / 10, smooth[..., 5:] / 10
    smooth = torch.fft.irfft2(smooth)
    assert spectral_distance(smooth, truth, highest=3).max() < 1e-12
    assert spectral_distance(smooth, truth).min() > 0.5


def test_a_shell_that_the_truth_does_not_have_is_named():
    with pytest.raises(ValueError, match="nothing in shell 1: .* lower `highest`"):
        log_spectral_error(normal(2, N, N), torch.zeros(2, N, N, dtype=torch.float64))


# -- forecasts --------------------------------------------------------------------------------------------------------


def test_the_relative_error_of_three_known_forecasts():
    truth, other = normal(4000, 2, 3), normal(4000, 2, 3, seed=1)
    assert torch.equal(relative_mse(truth, truth), torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(relative_mse(0 * truth, truth), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(relative_mse(other, truth), torch.full((2,), 2.0, dtype=torch.float64), rtol=0.05)
    later = torch.stack([truth[:, 0], other[:, 1]], dim=1)
    assert relative_mse(later, truth)[0] == 0 < 1.5 < relative_mse(later, truth)[1]


def test_the_distance_of_histograms_is_the_shift_and_the_scale():
    x = normal(50_000, 1, 1)
    assert histogram_distance(x + 0.5, x) == pytest.approx(0.5, abs=1e-9)
    assert histogram_distance(3 * x, x) == pytest.approx(2 * math.sqrt(2 / math.pi), rel=0.02)  # 2 E|X|
    assert histogram_distance(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))], x) == 0


def ensemble(members, spread=1.0, paths=20_000):
    """Members and truth around forecasts of their own: exchangeable when the spread is 1."""
    centre = 3 * normal(paths, 1, 1)
    return centre + spread * normal(members, paths, 1, 1, seed=1), centre + normal(paths, 1, 1, seed=2)


def test_spread_is_skill_when_the_truth_could_be_a_member():
    assert spread_skill(*ensemble(2)).item() == pytest.approx(1, abs=0.03)
    assert spread_skill(*ensemble(2, spread=0.5)).item() < 0.75


def gaussian_crps(mean, deviation, x):
    """CRPS of N(mean, deviation²) in closed form."""
    z = (x - mean) / deviation
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return deviation * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


@pytest.mark.parametrize("members", [2, 5])
def test_the_score_of_a_gaussian_ensemble_is_the_closed_form_for_any_number_of_members(members):
    truth = 0.7 * normal(8000, 1, 1)
    exact = float(gaussian_crps(0.4, 1.5, truth).mean())
    made = 0.4 + 1.5 * normal(members, 8000, 1, 1, seed=1)
    assert crps(made, truth).item() == pytest.approx(exact, rel=0.04)
    biased = (made - truth).abs().mean() - (made[:, None] - made).abs().mean() / 2  # pairs of a member with itself
    assert float(biased) > 1.1 * exact


def test_the_score_is_least_for_the_true_distribution():
    truth = normal(8000, 1, 1)
    scores = [crps(s * normal(20, 8000, 1, 1, seed=1), truth).item() for s in (0.5, 1.0, 2.0)]
    assert scores[1] < min(scores[0], scores[2])


def test_a_rollout_is_stable_while_it_is_finite_and_as_large_as_the_truth():
    truth = normal(6, 40, 50)
    good = stability(1.3 * normal(6, 80, 50, seed=1), truth)
    assert good.stable and good.finite == 1 and good.ratio.shape == (80,)
    grown = truth.clone()
    grown[:, -1] *= 5
    assert not stability(grown, truth).stable and stability(grown, truth, factor=10).stable
    assert not stability(0.3 * truth, truth).stable  # blurred away
    lost = truth.clone()
    lost[2, 30] = real(math.nan)
    assert stability(lost, truth).finite == pytest.approx(5 / 6) and not stability(lost, truth).stable
    assert torch.isfinite(stability(lost, truth).ratio).all()


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"\(path, time, \*state\); got \(2, 3, 1\) and \(2, 4, 1\)"):
        relative_mse(normal(2, 3, 1), normal(2, 4, 1))
    with pytest.raises(ValueError, match=r"two members or more"):
        crps(normal(1, 2, 3, 1), normal(2, 3, 1))
