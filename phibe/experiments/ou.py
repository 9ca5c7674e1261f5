"""The OU processes of the paper by affine flows in closed form: orbits, samples at t = 15, mean and covariance in time.

Truth is exact throughout: `phibe/systems/ou.py`. Read next: `ou_mlp.py`, the reversible process by an MLP.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.calculus import Velocity
from phibe.experiments import plan
from phibe.experiments.report import (
    Claim,
    Experiment,
    Measured,
    Protocol,
    digest,
    judged,
)
from phibe.flow import Flow
from phibe.linear.affine import AffineField, affine_sums, fit_affine, solve_affine
from phibe.linear.sums import merged
from phibe.metrics import Estimate, global_velocity_error
from phibe.systems.ou import OU, Gaussian
from phibe.theory import affine_gap, affine_phibe_field, flow_map, pushforward
from phibe.trajectories import Trajectories

PROCESSES = {"reversible": OU.reversible, "nonreversible": OU.nonreversible}
METHODS = {"phibe": ("text", "euler"), "symmetric": ("best flow", "rk4"), "regression": ("controls", "euler")}
"""Column and integrator of each objective."""


def still(x: Tensor, t: Tensor) -> Tensor:
    """The velocity 0: the error of no motion is the size of the truth."""
    return torch.zeros_like(x)


def velocity_gap(ou: OU, estimate: Velocity, truth: Velocity, *, times: Tensor, samples: int, seed: int) -> Estimate:
    """‖estimate − truth‖ in L²(ρ ⊗ [0, T]) on independent samples of the exact marginals at `times`."""
    generator = torch.Generator().manual_seed(seed)
    return global_velocity_error(estimate, truth, lambda t: ou.marginal(t).sample(samples, generator=generator), times)


# -- affine flows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AffineConfig:
    """Two readings of a figure whose numbers of paths and times are not stated.

    *Uniform*: `uniform_paths` × `uniform_times` observations on [0, `horizon`], for each of `seeds`. *Graded*: times
    start `first_step` apart and stretch by e^{`stretch`·t} up to `last_step`, for the raw second moment asks for small
    steps while the mean moves fast, and for less later; `paths` in `groups`, fitted each alone, and together.
    """

    paths: int = 20_000
    groups: int = 5
    first_step: float = 2.5e-5
    stretch: float = 3.0
    last_step: float = 1e-3
    horizon: float = 15.0
    block: int = 1000
    keep_every: int = 60
    uniform_paths: int = 50_000
    uniform_times: int = 2000
    uniform_steps: tuple[float, ...] = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.00025)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


AFFINE_PRESETS = {
    "smoke": AffineConfig(
        paths=400,
        groups=2,
        block=200,
        first_step=1e-3,
        last_step=2e-2,
        keep_every=5,
        uniform_paths=200,
        uniform_times=300,
        uniform_steps=(0.05, 0.02, 0.01),
        seeds=(0, 1),
    ),
    "laptop": AffineConfig(),
    "paper": AffineConfig(paths=50_000, stretch=0.0, first_step=2.5e-4, last_step=2.5e-4),
}
AFFINE_PROTOCOL = (
    Protocol("processes", "drift ±Γ(x − μ), both signs; two dimensions", "one sign for both: dX = A(X − μ)dt + S dB"),
    Protocol("observations", "until t = 15", "50,000 paths at 2,000 uniform times", "graded times beside it"),
    Protocol("model", "affine at each observation time, normal equations with the pseudo-inverse"),
    Protocol("integrator", "", "one Euler step an observation; RK4 for the best flow"),
)


def measure_affine(config: AffineConfig, fits: Path) -> Measured:
    """Fit both processes, integrate, compare with the exact marginals."""
    results: dict[str, Any] = {}
    weights: dict[str, Tensor] = {}
    claims: list[Claim] = []
    hashes: dict[str, str] = {}
    for name, make in PROCESSES.items():
        ou, times = make(), observation_times(config, config.horizon)
        sums = partial(affine_sums, objective="phibe")
        groups = [merged(map(sums, blocks), "phibe") for blocks in simulated(ou, times, config, name)]
        flow = solve_affine(merged(groups, "phibe"), "phibe")
        results[name] = {"observations": len(times), **_compare(ou, flow, times, config)}
        results[name]["uniform"] = _uniform_sweep(ou, config)
        errors = {"phibe, graded times": [_errors(ou, solve_affine(group, "phibe"), times, config) for group in groups]}
        uniform, hashes[f"{name}, first seed"] = _uniform(ou, config, name)
        results[name]["by_method"] = errors | uniform
        claims += _affine_claims(name, results[name]["by_method"])
        thin = _thinned(flow, config)
        weights |= {f"{name}.{part}": tensor.float() for part, tensor in thin.state_dict().items()}
        weights[f"{name}.times"] = thin.times
    return Measured(results, weights, claims, data=hashes, evaluations={"euler": 1.0, "rk4": 4.0})


def observation_times(config: AffineConfig, horizon: float) -> Tensor:
    """The graded grid of the configuration, from 0 to the horizon."""
    times = [0.0]
    while times[-1] < horizon:
        times.append(times[-1] + min(config.first_step * math.exp(config.stretch * times[-1]), config.last_step))
    return torch.tensor([*times[:-1], horizon], dtype=torch.float64)


def simulated(ou: OU, times: Tensor, config: AffineConfig, name: str) -> Iterator[Iterator[Trajectories]]:
    """For each group, blocks of exact paths, drawn as they are needed: all of them at once would be gigabytes."""
    generator = torch.Generator().manual_seed(config.seeds[0])
    blocks = config.paths // config.groups // config.block
    with tqdm(total=config.groups * blocks, desc=f"{name}: simulate and fit", unit="block") as bar:
        for _ in range(config.groups):
            yield (_block(ou, times, config, generator, bar) for _ in range(blocks))


def _block(ou: OU, times: Tensor, config: AffineConfig, generator: torch.Generator, bar: Any) -> Trajectories:
    bar.update()
    return ou.simulate(paths=config.block, times=times, generator=generator)


def _field(flow: Flow) -> AffineField:
    assert isinstance(flow.velocity, AffineField)
    return flow.velocity


def _uniform(ou: OU, config: AffineConfig, name: str) -> tuple[dict[str, list[dict[str, float]]], str]:
    """Errors by method and seed of fits to uniform times, on the same paths; the hash of those of the first seed."""
    times = torch.linspace(0, config.horizon, config.uniform_times, dtype=torch.float64)
    errors: dict[str, list[dict[str, float]]] = {f"{objective}, uniform times": [] for objective in METHODS}
    first = ""
    for seed in tqdm(config.seeds, desc=f"{name}: uniform times", unit="seed"):
        data = ou.simulate(paths=config.uniform_paths, times=times, seed=seed)
        first = first or digest(data.states)
        for objective, (_, method) in METHODS.items():
            flow = fit_affine(data, objective)
            errors[f"{objective}, uniform times"].append(_errors(ou, flow, times, config, method))
    return errors, first


def _errors(ou: OU, flow: Flow, times: Tensor, config: AffineConfig, method: str = "euler") -> dict[str, float]:
    """Of the flow's trajectories and marginals on [0, horizon], all relative, and of its period if there is one.

    Trajectories from X₀ ~ ρ₀ by their root mean square distance over paths and time, in units of the stationary
    spread; mean and covariance by the largest error over time, and the covariance at the end.
    """
    until = times[times <= config.horizon]
    shown = torch.linspace(0, len(until) - 1, 200).long()
    (M, c), (M_exact, c_exact) = (
        tuple(part[shown] for part in flow_map(velocity, until, ou.dimension, method=kind))
        for velocity, kind in ((flow.velocity, method), (ou.velocity, "rk4"))
    )
    found, exact, start = pushforward(ou.marginal(0.0), M, c), ou.marginal(until[shown]), ou.marginal(0.0)
    spread = ou.stationary().covariance.trace().sqrt()
    covariance = (found.covariance - exact.covariance).norm(dim=(1, 2)) / exact.covariance.norm(dim=(1, 2))
    errors = {
        "trajectories": affine_gap(start, M - M_exact, c - c_exact).square().mean().sqrt() / spread,
        "mean": (found.mean - exact.mean).norm(dim=1).max() / ou.mu.norm(),
        "covariance": covariance.max(),
        "covariance_at_end": covariance[-1],
    }
    if not ou.is_reversible:
        errors["period"] = torch.tensor(measured_period(flow, after=3.0)[0] / ou.period() - 1)
    return {name: float(error.nan_to_num(DIVERGED).clamp(max=DIVERGED)) for name, error in errors.items()}


DIVERGED = 1e6
"""The relative error of a flow that diverges."""

LIMITS = {"trajectories": 0.1, "mean": 0.02, "covariance": 0.05, "covariance_at_end": 0.05, "period": 0.02}
"""The relative error below which curves that the paper calls close are counted as such; fixed before any run."""

FIGURES: dict[str, dict[str, tuple[str, str, str]]] = {
    "nonreversible": {
        "trajectories": ("Figure OU (a)", "the flow follows the analytical orbits", "distance over stationary spread"),
        "period": ("Figure OU (a)", "the stationary flow circulates", "relative error of the period 2π√11"),
        "covariance_at_end": ("Figure OU (b)", "samples agree at t = 15", "relative error of the covariance"),
    },
    "reversible": {},
}


def _affine_claims(name: str, by_method: dict[str, list[dict[str, float]]]) -> list[Claim]:
    """The claims on affine flows, of each method; those of the appendix hold for both processes."""
    where = f"Appendix, {name}"
    panels = {
        "mean": (where, "the mean agrees with the exact one", "largest relative error on [0, 15]"),
        "covariance": (where, "the covariance agrees with the exact one", "largest relative error on [0, 15]"),
    }
    return [
        judged(
            about,
            METHODS[method.split(",")[0]][0],
            f"affine, {method}",
            [error[key] for error in errors],
            "near" if key == "period" else "below",
            0.0 if key == "period" else LIMITS[key],
            tolerance=LIMITS[key],
        )
        for key, about in (FIGURES[name] | panels).items()
        for method, errors in by_method.items()
    ]


def _compare(ou: OU, flow: Flow, times: Tensor, config: AffineConfig) -> dict[str, Any]:
    until = times[times <= config.horizon]
    marginals = pushforward(ou.marginal(0.0), *flow_map(flow.velocity, until, ou.dimension, method="euler"))
    exact = ou.marginal(config.horizon)
    shown = torch.linspace(0, len(until) - 1, 200).long()
    report: dict[str, Any] = {
        "times": until[shown].tolist(),
        "mean": marginals.mean[shown].tolist(),
        "covariance": marginals.covariance[shown].tolist(),
        "mean_error": float((marginals.mean[-1] - exact.mean).norm() / exact.mean.norm()),
        "covariance_error": relative(marginals.covariance[-1], exact.covariance),
        "velocity_error": _velocity_error(ou, flow.velocity, ou.velocity, config),
        "thinned_velocity_error": _velocity_error(ou, _thinned(flow, config), ou.velocity, config),
        "velocity_size": _velocity_error(ou, ou.velocity, still, config),
        "evaluations": len(until) - 1,
    }
    if not ou.is_reversible:
        period, spread = measured_period(flow, after=3.0)
        report |= {"period": period, "period_error": spread, "exact_period": ou.period()}
    return report


def _thinned(flow: Flow, config: AffineConfig) -> AffineField:
    return _field(flow).thin(config.keep_every)


def measured_period(flow: Flow, *, after: float, stretches: int = 16) -> tuple[float, float]:
    """Period of the late flow, from the mean of its matrices; standard error from separate stretches of time."""
    field = _field(flow)
    matrices = field.matrices[field.times >= after]
    frequency = _frequency(matrices.mean(0))
    parts = torch.stack([_frequency(part.mean(0)) for part in matrices.tensor_split(stretches)])
    return float(2 * math.pi / frequency), float(2 * math.pi / frequency**2 * parts.std() / math.sqrt(stretches))


def _frequency(matrix: Tensor) -> Tensor:
    """Angular frequency √(det A − (tr A/2)²) of a 2 × 2 rotation-like matrix (0 if it does not rotate)."""
    return (torch.linalg.det(matrix) - (matrix.trace() / 2) ** 2).clamp(min=0).sqrt()


def _velocity_error(ou: OU, estimate: Velocity, truth: Velocity, config: AffineConfig) -> list[float]:
    """The error over the horizon of the samples, and its standard error."""
    times = torch.linspace(0, config.horizon, 101, dtype=torch.float64)
    return list(velocity_gap(ou, estimate, truth, times=times, samples=2000, seed=config.seeds[0] + 1))


def _uniform_sweep(ou: OU, config: AffineConfig) -> dict[str, list[float]]:
    """The covariance error at the horizon of an affine PhiBE flow of infinitely many paths, by uniform step."""
    target = ou.marginal(config.horizon).covariance
    errors = [
        relative(population_marginal(ou, config.horizon, step=h).covariance, target) for h in config.uniform_steps
    ]
    return {"step": list(config.uniform_steps), "covariance_error": errors}


def population_marginal(ou: OU, horizon: float, *, step: float) -> Gaussian:
    """The marginal that Euler at the data's step reaches under the affine PhiBE field of infinitely many paths."""
    times = torch.arange(round(horizon / step) + 1, dtype=torch.float64) * step
    field = AffineField(times, *affine_phibe_field(ou, times, step=step))
    matrix, offset = flow_map(field, times, ou.dimension, method="euler")
    return pushforward(ou.marginal(0.0), matrix[-1], offset[-1])


def relative(estimate: Tensor, truth: Tensor) -> float:
    """Relative error in the Frobenius norm."""
    return float((estimate - truth).norm() / truth.norm())


def plan_affine(config: AffineConfig) -> plan.Needs:
    source = f"simulated here, {config.block:,} paths at a time"
    graded = (config.paths, len(observation_times(config, config.horizon)), 2)
    data = [plan.states("graded times: paths × times × 2 =", graded, source=source)]
    uniform = (config.uniform_paths, config.uniform_times, 2)
    data.append(plan.states("uniform times, a seed: paths × times × 2 =", uniform))
    fits = 2 * (config.groups + len(METHODS) * len(config.seeds))
    return plan.Needs(data, closed=f"{fits} affine fits, one pass each")


AFFINE_OU = Experiment("affine_ou", AFFINE_PRESETS, measure_affine, plan_affine, AFFINE_PROTOCOL)
