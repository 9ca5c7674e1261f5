"""The objectives side by side: on the OU processes, where all is known, and on nonlinear systems.

`ESTIMATORS`: bias and variance of affine fits, errors and costs of MLPs. `NONLINEAR`: a double well whose marginals
change and are not Gaussian, and three stationary systems with known velocities, with the kernel estimate beside the
objectives. Read next: `pendulum/states.py`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe import theory
from phibe.bases import InTime, lift, polynomials
from phibe.experiments import plan
from phibe.experiments.baselines.kernel import fit_kernel
from phibe.experiments.ou import PROCESSES, still
from phibe.experiments.ou_mlp import observe
from phibe.experiments.report import Experiment, Measured, rate
from phibe.experiments.training import run_all
from phibe.flow import Flow
from phibe.linear.affine import AffineField, fit_affine
from phibe.linear.basis import fit_basis
from phibe.metrics import global_velocity_error, sliced_w2, velocity_error
from phibe.networks import build
from phibe.networks.network import Normalised
from phibe.objectives import OBJECTIVES
from phibe.systems.fokker_planck import solve_fokker_planck
from phibe.systems.ou import OU, Gaussian
from phibe.systems.sde import SDE, double_well, langevin, multiplicative, rotating_well
from phibe.training.config import FitConfig
from phibe.training.loop import ObjectiveModule, fit_network
from phibe.training.sampling import Samples
from phibe.trajectories import Trajectories

SYSTEMS = {"rotating_well": rotating_well, "multiplicative": multiplicative, "langevin": langevin}
LEARNERS = ("phibe", "symmetric")
"""The objectives that MLPs are trained with."""


# -- on the OU processes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Biases at `steps`; noise of affine fits to `paths` paths from `repeats` draws at `noise_steps`; networks on
    `network_paths` paths at each of `network_times`, with all `seeds`."""

    steps: tuple[float, ...] = (0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625)
    paths: int = 2000
    noise_steps: tuple[float, ...] = (0.1, 0.05, 0.025, 0.0125, 0.00625, 0.003125)
    repeats: int = 24
    network_paths: int = 2000
    network_times: tuple[int, ...] = (21, 81, 321)
    training: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=3000, batch=512, learning_rate=3e-3, ema=0.995, held_out=0.1, evaluate_every=300
        )
    )
    seeds: tuple[int, ...] = (0, 1, 2)
    workers: int = 2


PRESETS = {
    "smoke": Config(
        steps=(0.04, 0.02, 0.01, 0.005),
        paths=100,
        noise_steps=(0.05, 0.0125),
        repeats=2,
        network_paths=40,
        network_times=(11, 21),
        training=FitConfig(steps=10, batch=32, evaluate_every=10),
        seeds=(0,),
        workers=1,
    ),
    "laptop": Config(),
    "paper": Config(
        paths=50_000,
        repeats=100,
        network_paths=50_000,
        network_times=(21, 81, 321, 1281),
        training=FitConfig(steps=50_000, batch=4096, learning_rate=1e-3, ema=0.999),
        workers=1,
    ),
}


def measure(config: Config, fits: Path) -> Measured:
    """Bias of the population minimisers, spread of affine fits, errors of MLPs."""
    _train(config, fits)
    results = {
        "bias": {name: _bias(make(), config) for name, make in PROCESSES.items()},
        "noise": _noise(OU.reversible(), config),
        "networks": _networks(config, fits),
    }
    return Measured(results)


def _bias(ou: OU, config: Config) -> dict[str, Any]:
    """Bias of each estimator by step, without any sampling, and its order over the finer half of the steps."""
    found = {}
    half = len(config.steps) // 2
    for name in OBJECTIVES:
        noise = 0.5 if name == "isotropic" and ou.is_reversible else None
        errors = [theory.affine_bias(ou, name, step=h, noise=noise) for h in config.steps]
        found[name] = {"errors": errors, "order": rate(config.steps[half:], errors[half:])}
    return found


def _noise(ou: OU, config: Config, t: float = 0.6) -> dict[str, Any]:
    """Spread of affine fits around their own mean, and their whole error, at one time, by step."""
    marginal, (exact, offset) = ou.marginal(t), theory.affine_velocity(ou, torch.tensor([t]))
    found: dict[str, Any] = {name: {"spread": [], "total": []} for name in OBJECTIVES if name != "isotropic"}
    for h in tqdm(config.noise_steps, desc="noise", unit="step"):
        times = t + h * torch.arange(-2, 3, dtype=torch.float64)
        draws = [ou.simulate(paths=config.paths, times=times, seed=seed) for seed in range(config.repeats)]
        for name, row in found.items():
            fields = [fit_affine(data, name).velocity for data in draws]
            parts = [_coefficients(field, t) for field in fields]
            matrices, offsets = (torch.stack(part) for part in zip(*parts, strict=True))
            means = matrices.mean(0), offsets.mean(0)
            row["spread"].append(_rms(marginal, matrices - means[0], offsets - means[1]))
            row["total"].append(_rms(marginal, matrices - exact[0], offsets - offset[0]))
    return {"steps": list(config.noise_steps), "paths": config.paths, **found}


def _coefficients(field: Any, t: float) -> tuple[Tensor, Tensor]:
    assert isinstance(field, AffineField)
    matrix, offset = field.coefficients(torch.tensor([t], dtype=torch.float64))
    return matrix[0], offset[0]


def _rms(marginal: Gaussian, matrices: Tensor, offsets: Tensor) -> float:
    return float(theory.affine_gap(marginal, matrices, offsets).square().mean().sqrt())


def _train(config: Config, fits: Path) -> None:
    """Every network of this experiment, several at a time."""
    cases = [(name, m, seed) for m in config.network_times for name in LEARNERS for seed in config.seeds]
    jobs = [partial(learn, config, fits, name, times=m, seed=seed) for name, m, seed in cases]
    run_all(jobs, workers=config.workers, accelerator=config.training.accelerator)


def learn(config: Config, fits: Path, objective: str, *, times: int, seed: int) -> Flow:
    """The MLP of the paper on the reversible process: same data, same steps, only the objective differs."""
    data = observe(OU.reversible(), paths=config.network_paths, times=times, seed=seed)
    folder = fits / f"ou-{objective}-{times}-{seed}"
    return fit_network(data, "mlp", objective, config=replace(config.training, seed=seed), out=folder, progress=False)


def _networks(config: Config, fits: Path) -> dict[str, Any]:
    """Errors over [0, 1] by objective and number of times, all seeds, and milliseconds of a gradient."""
    ou, generator = OU.reversible(), torch.Generator().manual_seed(12345)
    clock = torch.linspace(0, 1, 41, dtype=torch.float64)
    found: dict[str, Any] = {"times": list(config.network_times)}
    for name in LEARNERS:
        rows = []
        for m in config.network_times:
            flows = [learn(config, fits, name, times=m, seed=seed) for seed in config.seeds]
            draw = lambda t: ou.marginal(t).sample(1000, generator=generator)  # noqa: E731
            rows.append([global_velocity_error(flow.velocity, ou.velocity, draw, clock).value for flow in flows])
        found[name] = {"errors": rows}
    return found | {"milliseconds": _step_milliseconds(config)}


def _step_milliseconds(config: Config, rounds: int = 30) -> dict[str, float]:
    """Median time of the objective and its gradient on a batch; the objectives in turn, so that whatever else the
    machine does falls on all alike."""
    data = observe(OU.reversible(), paths=100, times=81, seed=0)
    network = Normalised.fit(build("mlp", (2,)), data)
    samples = {name: Samples(data, width=OBJECTIVES[name].width) for name in LEARNERS}
    batches = {n: [part.float() for part in s.take(torch.arange(config.training.batch))] for n, s in samples.items()}
    seconds: dict[str, list[float]] = {name: [] for name in LEARNERS}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in training
    for _ in range(rounds):
        for name, batch in batches.items():
            module = ObjectiveModule(network, name, balance=True)
            start = time.perf_counter()
            module(*batch).mean().backward()
            seconds[name].append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


# -- on nonlinear systems ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NonlinearConfig:
    """The double well from `well_paths` paths at `well_times` times on [0, `well_horizon`], compared with `repeats`
    fresh sets of as many; the stationary systems from `paths` paths with `transitions` transitions in all, at each of
    `steps`. The `bandwidth` of the kernel estimate is chosen by cross-validation if not given."""

    well_paths: int = 2000
    well_times: int = 161
    well_horizon: float = 2.0
    repeats: int = 24
    training: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=3000, batch=1024, learning_rate=3e-3, ema=0.995, held_out=0.1, evaluate_every=300
        )
    )
    workers: int = 2
    paths: int = 20
    transitions: int = 200_000
    steps: tuple[float, ...] = (0.005, 0.02, 0.05)
    blocks: int = 20
    bandwidth: float | None = None


NONLINEAR_PRESETS = {
    "smoke": NonlinearConfig(
        well_paths=100,
        well_times=21,
        repeats=2,
        training=FitConfig(steps=10, batch=32, evaluate_every=10),
        workers=1,
        transitions=4000,
        steps=(0.02,),
        bandwidth=0.3,
    ),
    "laptop": NonlinearConfig(),
    "paper": NonlinearConfig(
        well_paths=50_000,
        training=FitConfig(steps=50_000, batch=4096, learning_rate=1e-3, ema=0.999),
        workers=1,
        transitions=10_000_000,
    ),
}


def measure_nonlinear(config: NonlinearConfig, fits: Path) -> Measured:
    """Marginals and velocities of the double well, velocities of the stationary systems."""
    jobs = [partial(learn_well, config, fits, name) for name in LEARNERS]
    run_all(jobs, workers=config.workers, accelerator=config.training.accelerator)
    systems = {name: _system(make(), config, name) for name, make in SYSTEMS.items()}
    return Measured({"well": _well(config, fits), "systems": systems})


def observe_well(config: NonlinearConfig, *, seed: int) -> Trajectories:
    times = torch.linspace(0, config.well_horizon, config.well_times, dtype=torch.float64)
    return double_well().simulate(paths=config.well_paths, times=times, seed=seed)


def learn_well(config: NonlinearConfig, fits: Path, objective: str) -> Flow:
    data = observe_well(config, seed=0).to(torch.float32)
    return fit_network(data, "mlp", objective, config=config.training, out=fits / f"well-{objective}", progress=False)


def _well(config: NonlinearConfig, fits: Path) -> dict[str, Any]:
    """At ten times: the distance between flow and process, beside that between two independent sets of paths, and the
    error of the velocity against a fine solve of the Fokker–Planck equation. Distances are means over fresh sets."""
    starts, others = ([observe_well(config, seed=k + i) for i in range(config.repeats)] for k in (1, 101))
    index = torch.linspace(0, config.well_times - 1, 11).long()[1:]
    exact = solve_fokker_planck(double_well(), starts[0].times, low=-3.0, high=3.0)

    def distances(sets: list[Tensor]) -> list[float]:
        pairs = list(zip(sets, (other.states for other in others), strict=True))
        return [sum(sliced_w2(x[:, i], y[:, i]) for x, y in pairs) / len(pairs) for i in index]

    def errors(velocity: Callable[..., Tensor]) -> list[float]:
        seen = others[0]
        return [velocity_error(velocity, exact.velocity, seen.states[:, i], float(seen.times[i])).value for i in index]

    found: dict[str, Any] = {"times": starts[0].times[index].tolist()}
    found["floor"] = distances([start.states for start in starts])
    found["size"] = errors(still)
    flows = {"exact": Flow(exact.velocity), **{n: learn_well(config, fits, n) for n in LEARNERS}, **_cubic(config)}
    for name, flow in flows.items():
        states = _integrated(flow, starts)
        found[name] = {"distances": states and distances(states), "errors": errors(flow.velocity)}
    return found


def _integrated(flow: Flow, starts: list[Trajectories]) -> list[Tensor] | None:
    """The flow from these starts; None if it diverges, as a polynomial may where there is no data."""
    try:
        return [flow.generate(x.states[:, 0], x.times, method="rk4", substeps=2).states for x in starts]
    except ValueError:
        return None


def _cubic(config: NonlinearConfig) -> dict[str, Flow]:
    """Fits in closed form: cubic in x, piecewise linear in time."""
    knots = torch.linspace(0, config.well_horizon, 9, dtype=torch.float64)
    basis, data = lift(InTime(polynomials(3), knots)), observe_well(config, seed=0)
    return {f"{name}, cubic": fit_basis(data, basis, name) for name in LEARNERS}


def _system(system: SDE, config: NonlinearConfig, name: str) -> dict[str, Any]:
    """By step, for a cubic fit with each objective: error, standard error from blocks, seconds; and the kernel's."""
    assert system.stationary is not None
    x = system.stationary.sample(4000, generator=torch.Generator().manual_seed(1))
    found: dict[str, Any] = {"size": _size(system.velocity(x)), "steps": list(config.steps)}
    for h in tqdm(config.steps, desc=name, unit="step"):
        times = h * torch.arange(config.transitions // config.paths + 1, dtype=torch.float64)
        data = system.simulate(paths=config.paths, times=times, seed=2)
        for objective in OBJECTIVES:
            make = partial(fit_basis, data, lift(polynomials(3)), objective, blocks=config.blocks)
            row = found.setdefault(objective, {"errors": [], "standard_errors": [], "seconds": []})
            field: Any = _timed(make, system, x, row).velocity
            row["standard_errors"].append(_size(field.standard_error(x, torch.zeros(len(x), dtype=torch.float64))))
        row = found.setdefault("kernel", {"errors": [], "seconds": []})
        _timed(partial(fit_kernel, data, bandwidth=config.bandwidth), system, x, row)
    return found


def _timed(make: Callable[[], Flow], system: SDE, x: Tensor, row: dict[str, list[float]]) -> Flow:
    """Fit, and add seconds and error to the row."""
    start = time.perf_counter()
    flow = make()
    row["seconds"].append(time.perf_counter() - start)
    row["errors"].append(velocity_error(flow.velocity, lambda z, t: system.velocity(z), x, 0.0).value)
    return flow


def _size(v: Tensor) -> float:
    """Root mean square length of vectors (n, d)."""
    return float(v.square().sum(1).mean().sqrt())


# -- what they need ----------------------------------------------------------------------------------------------------


def plan_estimators(config: Config) -> plan.Needs:
    fits = config.repeats * len(config.noise_steps) * (len(OBJECTIVES) - 1)
    shape = (config.network_paths, max(config.network_times), 2)
    data = [plan.states("reversible OU, the largest set: paths × times × 2 =", shape, bits=96)]
    return plan.Needs(
        data,
        _mlps(config.training, count=len(config.network_times) * len(config.seeds)),
        closed=f"{fits:,} affine fits to {config.paths:,} paths of a few observations each",
    )


def plan_nonlinear(config: NonlinearConfig) -> plan.Needs:
    fits = len(SYSTEMS) * len(config.steps) * len(OBJECTIVES)
    sets = f"double well, {2 * config.repeats + 1} sets of paths × times ="
    data = [
        plan.states(sets, (2 * config.repeats + 1, config.well_paths, config.well_times)),
        plan.states("stationary systems, each: transitions × 2 =", (config.transitions, 2)),
    ]
    solved = f"{fits} cubic fits, one pass over {config.transitions:,} transitions each; {len(LEARNERS)} to the well"
    return plan.Needs(data, _mlps(config.training, count=1, dimension=1), closed=solved)


def _mlps(training: FitConfig, *, count: int, dimension: int = 2) -> list[plan.Training]:
    return [
        plan.training(
            f"{name}, MLP 5 × 50",
            partial(plan.velocity, "mlp", (dimension,), name),
            (dimension,),
            training,
            count=count,
        )
        for name in LEARNERS
    ]


ESTIMATORS = Experiment("estimators", PRESETS, measure, plan_estimators)
NONLINEAR = Experiment("nonlinear", NONLINEAR_PRESETS, measure_nonlinear, plan_nonlinear)
