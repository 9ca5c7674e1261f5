"""Errors of velocities, distances between distributions, scores of forecasts.

Velocities are compared in L²(ρ_t)   [paper: velocity-field error], with standard errors; distributions are given by
samples or moments; forecasts are (path, time, *state) beside a truth of that shape. Read next: `ensembles.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.calculus import Velocity, dot
from phibe.systems.ou import Gaussian

# -- errors of velocities ----------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A number measured from samples, and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.error:.2g}"


@torch.no_grad()
def velocity_error(estimate: Velocity, truth: Velocity, x: Tensor, t: float) -> Estimate:
    """‖v̂ − v‖ in L²(ρ_t) over samples x ~ ρ_t (n, *state), with its standard error   [paper: error at time t]."""
    squares = _square_gap(estimate, truth, x, t)
    return _root(Estimate(float(squares.mean()), float(squares.std()) / math.sqrt(len(squares))))


@torch.no_grad()
def global_velocity_error(
    estimate: Velocity, truth: Velocity, sample: Callable[[float], Tensor], times: Any
) -> Estimate:
    """‖v̂ − v‖ in L²(ρ ⊗ [0, T]), the integral by the trapezoidal rule over `times`   [paper: velocity-field error].

    `sample(t)` draws independent states of ρ_t; the standard error is that of the samples, not of the time grid.
    """
    times = torch.as_tensor(times, dtype=torch.float64)
    unit = torch.eye(len(times), dtype=torch.float64)
    weights = torch.trapezoid(unit, times).tolist()
    squares = [_square_gap(estimate, truth, sample(float(t)), float(t)) for t in times]
    total = sum(w * float(s.mean()) for w, s in zip(weights, squares, strict=True))
    variance = sum(w**2 * float(s.var()) / len(s) for w, s in zip(weights, squares, strict=True))
    return _root(Estimate(total, math.sqrt(variance)))


def _root(square: Estimate) -> Estimate:
    """The root of a measured number, with its standard error."""
    value = math.sqrt(square.value)
    return Estimate(value, square.error / (2 * value) if value else 0.0)


def _square_gap(estimate: Velocity, truth: Velocity, x: Tensor, t: float) -> Tensor:
    time = torch.full((len(x),), t, dtype=x.dtype, device=x.device)
    gap = estimate(x, time) - truth(x, time)
    return dot(gap, gap).double()


# -- distances between distributions -----------------------------------------------------------------------------------


def moments(x: Tensor) -> Gaussian:
    """The Gaussian with the mean and (unbiased) covariance of samples (n, *state), flattened."""
    flat = x.flatten(1).double()
    centred = flat - flat.mean(0)
    return Gaussian(flat.mean(0), centred.mT @ centred / (len(flat) - 1))


def gaussian_w2(a: Any, b: Any) -> float:
    """Wasserstein-2 distance between two Gaussians (anything with `mean` and `covariance`).

    W₂² = |m − m'|² + tr(C + C' − 2(C^½ C' C^½)^½).
    """
    root = matrix_root(a.covariance)
    cross = matrix_root(root @ b.covariance @ root)
    squared = (a.mean - b.mean).square().sum() + (a.covariance + b.covariance - 2 * cross).trace()
    return math.sqrt(max(float(squared), 0.0))


def matrix_root(matrix: Tensor, *, floor: float = 0.0) -> Tensor:
    """The symmetric square root of a covariance or a batch of them; eigenvalues are at least `floor`."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=floor).sqrt()[..., None, :] @ vectors.mT


def sliced_w2(x: Tensor, y: Tensor, *, directions: int = 128, seed: int = 0) -> float:
    """Sliced Wasserstein-2 distance: root mean square over random directions of the 1-D distance of the projections."""
    x, y = _two_samples(x, y)
    generator = torch.Generator(device=x.device).manual_seed(seed)
    units = torch.randn(x.shape[1], directions, generator=generator, dtype=x.dtype, device=x.device)
    units = units / units.norm(dim=0)
    levels = (torch.arange(max(len(x), len(y)), dtype=x.dtype, device=x.device) + 0.5) / max(len(x), len(y))
    gap = quantiles(x @ units, levels) - quantiles(y @ units, levels)
    return math.sqrt(float(gap.square().mean()))


def quantiles(values: Tensor, levels: Tensor) -> Tensor:
    """The empirical quantile function of each column, as a step function: (n, k), (m,) → (m, k)."""
    return values.sort(dim=0).values[(levels * len(values)).long().clamp(max=len(values) - 1)]


def energy_distance(x: Tensor, y: Tensor, *, block: int = 2048) -> float:
    """√(2E|X − Y| − E|X − X'| − E|Y − Y'|), 0 exactly if the distributions agree; without the bias of equal pairs."""
    x, y = _two_samples(x, y)
    within = sum(_mean_distance(part, part, block) * len(part) / (len(part) - 1) for part in (x, y))
    return math.sqrt(max(2 * _mean_distance(x, y, block) - within, 0.0))


def _mean_distance(x: Tensor, y: Tensor, block: int) -> float:
    exact = "donot_use_mm_for_euclid_dist"
    return sum(float(torch.cdist(part, y, compute_mode=exact).sum()) for part in x.split(block)) / (len(x) * len(y))


def _two_samples(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape[1:] != y.shape[1:] or min(len(x), len(y)) < 2:
        wanted = "Two samples (n, *state) of one state shape, two or more states each, are needed"
        raise ValueError(f"{wanted}; got {tuple(x.shape)} and {tuple(y.shape)}.")
    return x.flatten(1).double(), y.flatten(1).double()


# -- scores of forecasts -----------------------------------------------------------------------------------------------


def relative_mse(forecast: Tensor, truth: Tensor) -> Tensor:
    """⟨|x̂ − x|²⟩/⟨|x|²⟩ at each time, (time,), means over paths and states: 0 is perfect; for a centred process 1 is
    the forecast of its mean, 2 that of an unrelated draw."""
    _same(forecast, truth)
    return _over_time((forecast - truth).square()) / _over_time(truth.square())


def histogram_distance(forecast: Tensor, truth: Tensor, *, levels: int = 10_000) -> float:
    """Wasserstein-1 distance between the distributions of single values (all paths, times and places together), in
    their units: ∫|F̂⁻¹ − F⁻¹|, at that many quantiles."""
    at = (torch.arange(levels, dtype=torch.float64, device=truth.device) + 0.5) / levels
    a, b = (quantiles(x.double().reshape(-1, 1), at) for x in (forecast, truth))
    return float((a - b).abs().mean())


def spread_skill(ensemble: Tensor, truth: Tensor) -> Tensor:
    """√((1 + 1/M)⟨s²⟩)/√⟨(x̄ − x)²⟩ at each time, (time,): 1 when the truth could be another of the M members, less
    when they agree more than they know. s² is the members' variance at a place, x̄ their mean."""
    members = _members(ensemble, truth)
    spread = _over_time(ensemble.var(0)) * (1 + 1 / members)
    return (spread / _over_time((ensemble.mean(0) - truth).square())).sqrt()


def crps(ensemble: Tensor, truth: Tensor) -> Tensor:
    """Continuous ranked probability score of single values, E|X − x| − ½E|X − X′|, mean at each time, (time,).

    Least in expectation for the true distribution. The second mean is over pairs of different members (fair estimate).
    """
    members = _members(ensemble, truth)
    miss = (ensemble - truth).abs().mean(0)
    rank = torch.arange(members, dtype=ensemble.dtype, device=ensemble.device)
    weight = (2 * rank - members + 1).reshape(-1, *[1] * truth.ndim)
    apart = (weight * ensemble.sort(0).values).sum(0) / (members * (members - 1))  # ½ of the mean over pairs
    return _over_time(miss - apart)


class Stability(NamedTuple):
    """Fraction of the paths that are `finite` to the end, `ratio` (time,) of their RMS to the truth's; `stable` if all
    are finite and every ratio is within the stated factor."""

    finite: float
    ratio: Tensor
    stable: bool


def stability(forecast: Tensor, truth: Tensor, *, factor: float = 2.0) -> Stability:
    """Is a rollout stable: is its RMS amplitude at each time between 1/`factor` and `factor` times the truth's?

    The truth may be shorter or longer: its amplitude is taken over all its paths and times.
    """
    finite = torch.isfinite(forecast).flatten(1).all(1)
    ratio = (_over_time(forecast[finite].square()) / truth.square().mean()).sqrt()
    inside = bool(finite.all()) and bool(((ratio >= 1 / factor) & (ratio <= factor)).all())
    return Stability(float(finite.double().mean()), ratio, inside)


def _over_time(values: Tensor) -> Tensor:
    """Means over paths and places: (path, time, *state) → (time,)."""
    return values.transpose(0, 1).flatten(1).mean(1)


def _same(forecast: Tensor, truth: Tensor) -> None:
    if forecast.shape != truth.shape or truth.ndim < 3:
        got = f"{tuple(forecast.shape)} and {tuple(truth.shape)}"
        raise ValueError(f"Forecast and truth must both be (path, time, *state); got {got}.")


def _members(ensemble: Tensor, truth: Tensor) -> int:
    if ensemble.shape[1:] != truth.shape or truth.ndim < 3 or len(ensemble) < 2:
        wanted = "An ensemble (member, path, time, *state) of two members or more and a truth (path, time, *state)"
        raise ValueError(f"{wanted} are needed; got {tuple(ensemble.shape)} and {tuple(truth.shape)}.")
    return len(ensemble)
