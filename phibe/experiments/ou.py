"""The OU processes of the paper: affine flows in closed form, and an MLP on the reversible process.

`AFFINE_OU`: orbits, samples at t = 15, mean and covariance in time. `MLP_OU`: error in time and both convergence
figures. Truth is exact throughout: `phibe/systems/ou.py`. Read next: `estimators.py`, the same for every objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from tqdm.auto import tqdm

from phibe.calculus import Velocity
from phibe.experiments import plan
from phibe.experiments.report import Experiment, Measured, rate
from phibe.experiments.training import run_all
from phibe.flow import Flow
from phibe.linear.affine import AffineField, fit_affine
from phibe.metrics import Estimate, global_velocity_error, velocity_error
from phibe.networks import build
from phibe.networks.network import Normalised
from phibe.systems.ou import OU, Gaussian
from phibe.theory import affine_phibe_field, flow_map, pushforward
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories

PROCESSES = {"reversible": OU.reversible, "nonreversible": OU.nonreversible}


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
    """Observation times start `first_step` apart and stretch by e^{`stretch`·t} up to `last_step`: the raw second
    moment asks for small steps while the mean moves fast, and for less later. The non-reversible process
    is simulated to `orbit_horizon`, a few periods, to measure its period."""

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


AFFINE_PRESETS = {
    "smoke": AffineConfig(
        paths=400, first_step=1e-3, last_step=2e-2, orbit_horizon=30.0, keep_every=5, uniform_steps=(0.05, 0.02, 0.01)
    ),
    "laptop": AffineConfig(),
    "paper": AffineConfig(paths=50_000, stretch=0.0, first_step=2.5e-4, last_step=2.5e-4),
}


def measure_affine(config: AffineConfig, fits: Path) -> Measured:
    """Fit both processes, integrate, compare with the exact marginals."""
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
    return Measured(results, weights)


def observation_times(config: AffineConfig, horizon: float) -> Tensor:
    """The graded grid of the configuration, from 0 to the horizon."""
    times = [0.0]
    while times[-1] < horizon:
        times.append(times[-1] + min(config.first_step * math.exp(config.stretch * times[-1]), config.last_step))
    return torch.tensor([*times[:-1], horizon], dtype=torch.float64)


def simulated(ou: OU, times: Tensor, config: AffineConfig, name: str) -> Iterator[Trajectories]:
    """Blocks of exact paths, drawn as they are needed: all of them at once would be gigabytes."""
    generator = torch.Generator().manual_seed(config.seed)
    for _ in tqdm(range(0, config.paths, config.block), desc=f"{name}: simulate and fit", unit="block"):
        yield ou.simulate(paths=config.block, times=times, generator=generator)


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
    assert isinstance(flow.velocity, AffineField)
    return flow.velocity.thin(config.keep_every)


def measured_period(flow: Flow, *, after: float, stretches: int = 16) -> tuple[float, float]:
    """Period of the late flow, from the mean of its matrices; standard error from separate stretches of time."""
    field = flow.velocity
    assert isinstance(field, AffineField)
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
    return list(velocity_gap(ou, estimate, truth, times=times, samples=2000, seed=config.seed + 1))


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


# -- an MLP ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MLPConfig:
    """One flow from `paths` × `times` observations on [0, 1]; then `sweep_times` observation times of
    `sweep_times_paths` paths, and `sweep_paths` paths at `sweep_paths_times` times, each with all `seeds`.

    The times are so many that the noise of few paths dominates in one sweep, the paths so many that the bias of few
    times dominates in the other. `workers` processes train at a time, a thread each; more than one only on a CPU.
    """

    paths: int = 4000
    times: int = 641
    sweep_times: tuple[int, ...] = (20, 40, 80, 160)
    sweep_times_paths: int = 4000
    sweep_paths: tuple[int, ...] = (10, 20, 40, 80)
    sweep_paths_times: int = 641
    seeds: tuple[int, ...] = (0, 1, 2)
    objective: str = "phibe"
    training: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=2000, batch=512, learning_rate=3e-3, ema=0.995, held_out=0.2, evaluate_every=250
        )
    )
    samples: int = 2000
    workers: int = 2


MLP_PRESETS = {
    "smoke": MLPConfig(
        paths=200,
        times=21,
        sweep_times=(10, 20),
        sweep_times_paths=100,
        sweep_paths=(50, 100),
        sweep_paths_times=21,
        seeds=(0, 1),
        training=FitConfig(steps=20, batch=32, evaluate_every=10, held_out=0.2),
        samples=100,
        workers=1,
    ),
    "laptop": MLPConfig(),
    "paper": MLPConfig(
        paths=50_000,
        times=2000,
        sweep_times=tuple(10 * 2**k for k in range(9)),
        sweep_times_paths=30_000,
        sweep_paths=tuple(100 * 2**k for k in range(10)),
        sweep_paths_times=3000,
        training=FitConfig(steps=50_000, batch=4096, learning_rate=1e-3, ema=0.999, held_out=0.1),
        samples=20_000,
        workers=1,
    ),
}


def measure_mlp(config: MLPConfig, fits: Path) -> Measured:
    """Train, compare with the exact velocity, and sweep the number of times and of paths."""
    ou = OU.reversible()
    _train(config, fits)
    flow = learn(ou, config, fits, paths=config.paths, times=config.times, seed=config.seeds[0])
    size = _error(ou, ou.velocity, config, truth=still)
    results = {
        "velocity_size": size.value,
        "velocity_error": list(_error(ou, flow.velocity, config)),
        **_in_time(ou, flow, config),
        **_trajectories(ou, flow, config),
        "by_times": _sweep(ou, config, fits, times=config.sweep_times, paths=(config.sweep_times_paths,)),
        "by_paths": _sweep(ou, config, fits, times=(config.sweep_paths_times,), paths=config.sweep_paths),
    }
    weights = load_file(_folder(fits, config.paths, config.times, config.seeds[0]) / "weights.safetensors")
    return Measured(results, weights)


def restored(weights: dict[str, Tensor], config: MLPConfig) -> Flow:
    """The flow of a run from its weights, in float64."""
    network = Normalised(build("mlp", (2,)), (2,))
    network.load_state_dict(weights)
    return Flow(Fitted(network.double()), (0.0, 1.0), 1 / (config.times - 1))


def _train(config: MLPConfig, fits: Path) -> None:
    """Train every case that `measure_mlp` needs, several at a time; what is finished is read from its folder."""
    times = [(config.sweep_times_paths, m) for m in config.sweep_times]
    paths = [(n, config.sweep_paths_times) for n in config.sweep_paths]
    cases = [
        (config.paths, config.times, config.seeds[0]),
        *((*case, s) for case in times + paths for s in config.seeds),
    ]
    jobs = [partial(learn, OU.reversible(), config, fits, paths=n, times=m, seed=seed) for n, m, seed in cases]
    run_all(jobs, workers=config.workers, accelerator=config.training.accelerator)


def observe(ou: OU, *, paths: int, times: int, seed: int) -> Trajectories:
    """Exact paths on [0, 1], in the precision that networks train in."""
    grid = torch.linspace(0, 1, times, dtype=torch.float64)
    return ou.simulate(paths=paths, times=grid, seed=seed).to(torch.float32)


def learn(ou: OU, config: MLPConfig, fits: Path, *, paths: int, times: int, seed: int) -> Flow:
    """The MLP of the paper, trained on so many paths observed at so many times; from its folder if that is there."""
    data = observe(ou, paths=paths, times=times, seed=seed)
    training = replace(config.training, seed=seed)
    return fit_network(
        data, "mlp", config.objective, config=training, out=_folder(fits, paths, times, seed), progress=False
    )


def _folder(fits: Path, paths: int, times: int, seed: int) -> Path:
    return fits / f"{paths}x{times}-{seed}"


def _sweep(ou: OU, config: MLPConfig, fits: Path, *, times: tuple[int, ...], paths: tuple[int, ...]) -> dict[str, Any]:
    """Errors (size, seed) of fits along one of the two axes, their geometric means and the slope of these."""
    cases = [(n, m) for n in paths for m in times]
    errors = []
    for n, m in cases:
        flows = (learn(ou, config, fits, paths=n, times=m, seed=seed) for seed in config.seeds)
        errors.append([_error(ou, flow.velocity, config).value for flow in flows])
    sizes = list(times if len(times) > 1 else paths)
    means = np.exp(np.log(errors).mean(1)).tolist()
    return {"sizes": sizes, "errors": errors, "mean": means, "slope": rate(sizes, means)}


def _error(ou: OU, velocity: Velocity, config: MLPConfig, truth: Velocity | None = None) -> Estimate:
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    return velocity_gap(ou, velocity, truth or ou.velocity, times=times, samples=config.samples, seed=12345)


def _in_time(ou: OU, flow: Flow, config: MLPConfig) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(54321)
    times = torch.linspace(0, 1, 41).tolist()
    states = [ou.marginal(t).sample(config.samples, generator=generator) for t in times]
    errors = [velocity_error(flow.velocity, ou.velocity, x, t) for x, t in zip(states, times, strict=True)]
    return {"times": times, "error_in_time": [e.value for e in errors], "error_in_time_se": [e.error for e in errors]}


def _trajectories(ou: OU, flow: Flow, config: MLPConfig) -> dict[str, Any]:
    """Root mean square distance of learnt from exact trajectories with the same starts, in time."""
    start = ou.marginal(0.0).sample(500, generator=torch.Generator().manual_seed(7))
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    learnt, exact = (f.generate(start, times, method="rk4", substeps=2).states for f in (flow, Flow(ou.velocity)))
    return {"trajectory_gap": (learnt - exact).square().sum(-1).mean(0).sqrt().tolist()}


# -- what they need ----------------------------------------------------------------------------------------------------


def plan_affine(config: AffineConfig) -> plan.Needs:
    horizons = {"reversible": config.horizon, "nonreversible": config.orbit_horizon}
    counts = {name: len(observation_times(config, horizon)) for name, horizon in horizons.items()}
    source = f"simulated here, {config.block:,} paths at a time"
    data = [
        plan.states(f"{name}: paths × times × 2 =", (config.paths, n, 2), source=source) for name, n in counts.items()
    ]
    return plan.Needs(data, closed=f"2 affine fits, one pass over {config.paths * sum(counts.values()):,} observations")


def plan_mlp(config: MLPConfig) -> plan.Needs:
    largest = max(
        (config.paths, config.times),
        *((config.sweep_times_paths, m) for m in config.sweep_times),
        *((n, config.sweep_paths_times) for n in config.sweep_paths),
        key=math.prod,
    )
    fits = 1 + len(config.seeds) * (len(config.sweep_times) + len(config.sweep_paths))
    task = partial(plan.velocity, "mlp", (2,), config.objective)
    data = [plan.states("reversible, the largest set: paths × times × 2 =", (*largest, 2), bits=96)]
    return plan.Needs(data, [plan.training(f"{config.objective}, MLP 5 × 50", task, (2,), config.training, count=fits)])


AFFINE_OU = Experiment("affine_ou", AFFINE_PRESETS, measure_affine, plan_affine)
MLP_OU = Experiment("ou", MLP_PRESETS, measure_mlp, plan_mlp)
