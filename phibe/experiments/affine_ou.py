"""Affine flows of the paper's two OU processes: orbits, samples at t = 15, mean and covariance in time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.calculus import Velocity
from phibe.experiments.report import Report, record
from phibe.flow import Flow
from phibe.linear.affine import AffineField, fit_affine
from phibe.metrics import global_velocity_error
from phibe.systems.ou import OU, Gaussian
from phibe.theory import affine_phibe_field, flow_map, pushforward
from phibe.trajectories import Trajectories

PROCESSES = {"reversible": OU.reversible, "nonreversible": OU.nonreversible}


@dataclass(frozen=True)
class Config:
    """Observation times start `first_step` apart and stretch by e^{`stretch`·t} up to `last_step`: the raw second
    moment asks for small steps while the mean moves fast, and for less later. The non-reversible process
    is followed to `orbit_horizon`, a few turns, to measure its period."""

    paths: int = 10_000
    first_step: float = 2.5e-5
    stretch: float = 3.0
    last_step: float = 1e-3
    horizon: float = 15.0
    orbit_horizon: float = 120.0
    block: int = 250
    keep_every: int = 60
    uniform_steps: tuple[float, ...] = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.00025)
    seed: int = 0


CONFIGS = {
    "smoke": Config(
        paths=400, first_step=1e-3, last_step=2e-2, orbit_horizon=30.0, keep_every=5, uniform_steps=(0.05, 0.02, 0.01)
    ),
    "laptop": Config(),
    "paper": Config(paths=50_000, stretch=0.0, first_step=2.5e-4, last_step=2.5e-4),
}


def run(preset: str = "laptop", *, out: Path | None = None, config: Config | None = None) -> Report:
    """Fit, integrate, compare with the exact marginals; both processes."""
    config = config or CONFIGS[preset]
    out = out or Path("runs") / "affine_ou" / preset
    return record("affine_ou", preset, config, lambda: _measure(config), out)


def _measure(config: Config) -> tuple[dict[str, Any], dict[str, Tensor]]:
    results: dict[str, Any] = {}
    weights: dict[str, Tensor] = {}
    for name, make in PROCESSES.items():
        ou, horizon = make(), config.orbit_horizon if name == "nonreversible" else config.horizon
        times = observation_times(config, horizon)
        flow = fit_affine(simulated(ou, times, config, name))
        results[name] = {"observations": len(times), **_compare(ou, flow, times, config)}
        results[name]["uniform"] = _uniform_sweep(ou, config)
        thin = _thinned(flow, config)
        weights |= {f"{name}.{part}": tensor.float() for part, tensor in thin.state_dict().items()}
        weights[f"{name}.times"] = thin.times
    return results, weights


def observation_times(config: Config, horizon: float) -> Tensor:
    """The graded grid of the configuration, from 0 to the horizon."""
    times = [0.0]
    while times[-1] < horizon:
        times.append(times[-1] + min(config.first_step * math.exp(config.stretch * times[-1]), config.last_step))
    return torch.tensor([*times[:-1], horizon], dtype=torch.float64)


def simulated(ou: OU, times: Tensor, config: Config, name: str) -> Iterator[Trajectories]:
    """Blocks of exact paths, drawn as they are needed: all of them at once would be gigabytes."""
    generator = torch.Generator().manual_seed(config.seed)
    for _ in tqdm(range(0, config.paths, config.block), desc=f"{name}: simulate and fit", unit="block"):
        yield ou.simulate(paths=config.block, times=times, generator=generator)


def _compare(ou: OU, flow: Flow, times: Tensor, config: Config) -> dict[str, Any]:
    until = times[times <= config.horizon]
    laws = pushforward(ou.marginal(0.0), *flow_map(flow.velocity, until, ou.dimension, method="euler"))
    exact = ou.marginal(config.horizon)
    shown = torch.linspace(0, len(until) - 1, 200).long()
    report: dict[str, Any] = {
        "times": until[shown].tolist(),
        "mean": laws.mean[shown].tolist(),
        "covariance": laws.covariance[shown].tolist(),
        "mean_error": float((laws.mean[-1] - exact.mean).norm() / exact.mean.norm()),
        "covariance_error": relative(laws.covariance[-1], exact.covariance),
        "velocity_error": _velocity_error(ou, flow.velocity, ou.velocity, config),
        "thinned_velocity_error": _velocity_error(ou, _thinned(flow, config), ou.velocity, config),
        "velocity_size": _velocity_error(ou, ou.velocity, lambda x, t: torch.zeros_like(x), config),
        "evaluations": len(until) - 1,
    }
    if not ou.is_reversible:
        period, spread = measured_period(flow, after=3.0)
        report |= {"period": period, "period_error": spread, "exact_period": ou.period()}
    return report


def _thinned(flow: Flow, config: Config) -> AffineField:
    assert isinstance(flow.velocity, AffineField)
    return flow.velocity.thin(config.keep_every)


def measured_period(flow: Flow, *, after: float, stretches: int = 16) -> tuple[float, float]:
    """Time of one turn of the late flow, from the mean of its matrices; standard error from separate stretches."""
    field = flow.velocity
    assert isinstance(field, AffineField)
    matrices = field.matrices[field.times >= after]
    frequency = _frequency(matrices.mean(0))
    parts = torch.stack([_frequency(part.mean(0)) for part in matrices.tensor_split(stretches)])
    return float(2 * math.pi / frequency), float(2 * math.pi / frequency**2 * parts.std() / math.sqrt(stretches))


def _frequency(matrix: Tensor) -> Tensor:
    """Angular frequency √(det A − (tr A/2)²) of a 2 × 2 rotation-like matrix (negative under the root: no turning)."""
    return (torch.linalg.det(matrix) - (matrix.trace() / 2) ** 2).clamp(min=0).sqrt()


def _velocity_error(ou: OU, estimate: Velocity, truth: Velocity, config: Config) -> list[float]:
    """‖estimate − truth‖ in L²(ρ ⊗ [0, T]) and its standard error, over the horizon of the samples."""
    generator = torch.Generator().manual_seed(config.seed + 1)
    times = torch.linspace(0, config.horizon, 101, dtype=torch.float64)
    return list(
        global_velocity_error(estimate, truth, lambda t: ou.marginal(t).sample(2000, generator=generator), times)
    )


def _uniform_sweep(ou: OU, config: Config) -> dict[str, list[float]]:
    """The covariance error at the horizon of an affine PhiBE flow of infinitely many paths, by uniform step."""
    target = ou.marginal(config.horizon).covariance
    errors = [relative(population_law(ou, config.horizon, step=h).covariance, target) for h in config.uniform_steps]
    return {"step": list(config.uniform_steps), "covariance_error": errors}


def population_law(ou: OU, horizon: float, *, step: float) -> Gaussian:
    """Where Euler at the data's step takes the start under the affine PhiBE field of infinitely many paths."""
    times = torch.arange(round(horizon / step) + 1, dtype=torch.float64) * step
    field = AffineField(times, *affine_phibe_field(ou, times, step=step))
    matrix, offset = flow_map(field, times, ou.dimension, method="euler")
    return pushforward(ou.marginal(0.0), matrix[-1], offset[-1])


def relative(estimate: Tensor, truth: Tensor) -> float:
    """Relative error in the Frobenius norm."""
    return float((estimate - truth).norm() / truth.norm())
