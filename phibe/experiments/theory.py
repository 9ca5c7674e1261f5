"""The theorems on the paper's OU processes: orders of the bias, bounds against truth, sampling rates of affine fits.

The formulas are in `phibe/theory.py`; here they are measured. Read next: `ou.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe import theory
from phibe.bases import lift, polynomials
from phibe.experiments import plan
from phibe.experiments.ou import PROCESSES
from phibe.experiments.report import Experiment, Measured, rate
from phibe.flow import Flow
from phibe.linear.affine import AffineField, fit_affine
from phibe.linear.basis import fit_basis
from phibe.systems.ou import OU


@dataclass(frozen=True)
class Config:
    """Biases are measured on the box Ω = μ ± `half_width` and times [0, `horizon`]; sampling errors at five observation
    times, `repeats` draws for each number of paths and each step."""

    steps: tuple[float, ...] = (0.02, 0.01, 0.005, 0.0025, 0.00125, 0.000625)
    half_width: float = 4.0
    horizon: float = 1.0
    paths: tuple[int, ...] = (250, 500, 1000, 2000, 4000, 8000, 16000)
    path_step: float = 0.02
    sampling_steps: tuple[float, ...] = (0.025, 0.0125, 0.00625, 0.003125, 0.0015625)
    step_paths: int = 4000
    basis_degree: int = 3
    basis_transitions: int = 5
    repeats: int = 8
    seed: int = 0


PRESETS = {
    "smoke": Config(steps=(0.005, 0.0025), paths=(250, 1000), sampling_steps=(0.01, 0.0025), step_paths=500, repeats=2),
    "laptop": Config(),
    "paper": Config(paths=tuple(100 * 2**k for k in range(10)), repeats=32),
}


def measure(config: Config, fits: Path) -> Measured:
    """Every rate that the theorems claim, for both OU processes."""
    return Measured({name: _bias(make(), config) | _sampling(make(), config, name) for name, make in PROCESSES.items()})


# -- population ----------------------------------------------------------------------------------------------------


def _bias(ou: OU, config: Config) -> dict[str, Any]:
    """Suprema over Ω × [0, T] of the errors of b̂, Σ̂, ∇·Σ̂ and v̂ by step, their orders, and the bounds beside them."""
    x = theory.box(ou.mu, config.half_width)
    times = torch.linspace(0, config.horizon, 11, dtype=torch.float64)
    constants = theory.constants(ou, x, times)
    errors = {key: [_suprema(ou, x, times, h)[key] for h in config.steps] for key in ("b", "Sigma", "div", "v")}
    orders = {key: rate(config.steps, values) for key, values in errors.items()}
    window = torch.linspace(0.4, 1.0, 31, dtype=torch.float64)
    affine = [theory.affine_bias(ou, "phibe", step=h, times=window) for h in config.steps]
    orders["affine"] = rate(config.steps, affine)
    return {
        "steps": list(config.steps),
        "errors": errors,
        "orders": orders,
        "constants": {
            name: getattr(constants, name)
            for name in ("L_b", "L_Sigma", "L_div", "S_1", "S_2", "K", "L_v", "lipschitz")
        },
        "trajectory": _trajectory_gap(ou, constants, config),
    }


def _suprema(ou: OU, x: Tensor, times: Tensor, h: float) -> dict[str, float]:
    b = theory.phibe_drift(ou, x, h) - ou.drift(x)
    sigma = theory.phibe_covariance(ou, x, h) - ou.diffusion(x)
    divergence = theory.phibe_divergence(ou, x, h)
    v = torch.stack([ou.phibe_velocity(x, t, step=h) - ou.velocity(x, t) for t in times])
    return {
        "b": float(b.norm(dim=1).max()),
        "Sigma": float(torch.linalg.matrix_norm(sigma, 2).max()),
        "div": float(divergence.norm(dim=1).max()),
        "v": float(v.norm(dim=-1).max()),
    }


def _trajectory_gap(ou: OU, constants: theory.Constants, config: Config) -> dict[str, Any]:
    """Flows of v and v̂ from the same starts, the largest distance at each time, and the two Grönwall bounds."""
    h = config.steps[-1]
    times = torch.linspace(0, config.horizon, 21, dtype=torch.float64)
    start = theory.box(ou.mu, config.half_width / 4, per_side=5)
    exact, biased = (
        Flow(v).generate(start, times, method="adaptive", tolerance=1e-9).states
        for v in (ou.velocity, lambda x, t: ou.phibe_velocity(x, t, step=h))
    )
    return {
        "step": h,
        "times": times.tolist(),
        "gap": (exact - biased).norm(dim=-1).amax(0).tolist(),
        "bound": constants.trajectory_bound(times, h).tolist(),
        "sharp_bound": constants.trajectory_bound(times, h, sharp=True).tolist(),
    }


# -- finite samples ------------------------------------------------------------------------------------------------


def _sampling(ou: OU, config: Config, name: str) -> dict[str, Any]:
    """RMS distance of fits from their limit of infinitely many paths, by N at one Δt and by Δt at one N."""
    fits = {"affine": _spread, "basis": _basis_spread}
    results: dict[str, Any] = {"paths": list(config.paths), "sampling_steps": list(config.sampling_steps)}
    for kind, spread in fits.items():
        sizes, steps = (
            tqdm(grid, desc=f"{name}, {kind}", unit="fit") for grid in (config.paths, config.sampling_steps)
        )
        by_paths = [spread(ou, n, config.path_step, config) for n in sizes]
        by_step = [spread(ou, config.step_paths, h, config) for h in steps]
        results[kind] = {
            "error_by_paths": by_paths,
            "order_in_paths": rate(config.paths, by_paths),
            "error_by_step": by_step,
            "order_in_step": rate(config.sampling_steps, by_step),
        }
    return results


def _spread(ou: OU, paths: int, h: float, config: Config) -> float:
    """‖v_N − v̂_aff‖ in L²(μ_L) on five transitions of length h that start at T/5, …, T: one number over all repeats."""
    starts = torch.arange(1, 6, dtype=torch.float64) * config.horizon / 5
    A_limit, b_limit = theory.affine_phibe_field(ou, starts, step=h)
    squares = []
    for repeat in range(config.repeats):
        for i, t in enumerate(starts):
            pair = ou.simulate(paths=paths, times=[float(t), float(t) + h], seed=config.seed + 1000 * repeat + i)
            field = fit_affine(pair).velocity
            assert isinstance(field, AffineField)
            gap = theory.affine_gap(ou.marginal(t), field.matrices[0] - A_limit[i], field.offsets[0] - b_limit[i])
            squares.append(float(gap) ** 2)
    return float(np.sqrt(np.mean(squares)))


def _basis_spread(ou: OU, paths: int, h: float, config: Config) -> float:
    """‖v_N − v̂‖ in L²(ρ) of a polynomial fit to the stationary process, whose v̂ is itself a cubic polynomial."""
    rest = ou.stationary()
    stationary = OU(ou.A, ou.S, mu=ou.mu, m0=rest.mean, C0=rest.covariance)
    x = rest.sample(5000, generator=torch.Generator().manual_seed(config.seed))
    t = torch.zeros(len(x), dtype=torch.float64)
    times = torch.arange(config.basis_transitions + 1, dtype=torch.float64) * h
    squares = []
    for repeat in range(config.repeats):
        data = stationary.simulate(paths=paths, times=times, seed=config.seed + 1000 * repeat)
        fitted = fit_basis(data, lift(polynomials(config.basis_degree))).velocity(x, t)
        gap = fitted - stationary.phibe_velocity(x, 0.0, step=h)
        squares.append(float(gap.square().sum(1).mean()))
    return float(np.sqrt(np.mean(squares)))


def plan_theory(config: Config) -> plan.Needs:
    """No training: five affine fits and one of polynomials for each draw."""
    draws = len(PROCESSES) * config.repeats * (len(config.paths) + len(config.sampling_steps))
    largest = max(config.paths[-1], config.step_paths)
    data = [plan.states("a draw: paths × times × 2, at most", (largest, config.basis_transitions + 1, 2))]
    return plan.Needs(
        data, closed=f"{6 * draws:,} fits, one pass over at most {largest:,} paths of a few observations each"
    )


OU_THEORY = Experiment("ou_theory", PRESETS, measure, plan_theory)
