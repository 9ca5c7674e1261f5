"""Estimators on nonlinear systems with known answers: a double well whose law moves, and three systems at rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.bases import in_time, lift, polynomials
from phibe.experiments.baselines.kernel import fit_kernel
from phibe.experiments.report import Report, record
from phibe.experiments.training import run_all
from phibe.flow import Flow
from phibe.linear.basis import fit_basis
from phibe.metrics import sliced_w2, velocity_error
from phibe.objectives import OBJECTIVES
from phibe.systems.fokker_planck import solve_fokker_planck
from phibe.systems.sde import SDE, double_well, langevin, multiplicative, rotating_well
from phibe.training.config import FitConfig
from phibe.training.devices import pick
from phibe.training.loop import fit_network
from phibe.trajectories import Trajectories

SYSTEMS = {"rotating_well": rotating_well, "multiplicative": multiplicative, "langevin": langevin}
LEARNERS = ("phibe", "symmetric")


@dataclass(frozen=True)
class Config:
    """The double well from `well_paths` paths at `well_times` times on [0, `well_horizon`], judged on `repeats` fresh
    sets of as many; the systems at rest from `paths` paths with `transitions` transitions in all, at each of `steps`.
    The `bandwidth` of the kernel route is chosen by cross-validation if not given."""

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


CONFIGS = {
    "smoke": Config(
        well_paths=100,
        well_times=21,
        repeats=2,
        training=FitConfig(steps=10, batch=32, evaluate_every=10),
        workers=1,
        transitions=4000,
        steps=(0.02,),
        bandwidth=0.3,
    ),
    "laptop": Config(),
    "paper": Config(
        well_paths=50_000,
        training=FitConfig(steps=50_000, batch=4096, learning_rate=1e-3, ema=0.999),
        workers=1,
        transitions=10_000_000,
    ),
}


def run(preset: str = "laptop", *, out: Path | None = None, config: Config | None = None) -> Report:
    """Compare the estimators; trainings are kept under `fits/` and resume."""
    config = config or CONFIGS[preset]
    out = out or Path("runs") / "nonlinear" / preset
    return record("nonlinear", preset, config, lambda: (_measure(config, out / "fits"), {}), out)


def _measure(config: Config, fits: Path) -> dict[str, Any]:
    jobs = [partial(learn_well, config, fits, name) for name in LEARNERS]
    run_all(jobs, workers=config.workers if pick(config.training.accelerator).type == "cpu" else 1)
    systems = {name: _system(make(), config, name) for name, make in SYSTEMS.items()}
    return {"well": _well(config, fits), "systems": systems}


# -- the double well: a law that moves and is not Gaussian -------------------------------------------------------------


def observe_well(config: Config, *, seed: int) -> Trajectories:
    times = torch.linspace(0, config.well_horizon, config.well_times, dtype=torch.float64)
    return double_well().simulate(paths=config.well_paths, times=times, seed=seed)


def learn_well(config: Config, fits: Path, objective: str) -> Flow:
    data = observe_well(config, seed=0).to(torch.float32)
    return fit_network(data, "mlp", objective, config=config.training, out=fits / f"well-{objective}", progress=False)


def _well(config: Config, fits: Path) -> dict[str, Any]:
    """At ten times: the distance between flow and process, beside that between two independent sets of paths, and the
    error of the velocity against a fine solve of the Fokker–Planck equation. Distances are means over fresh sets."""
    starts, others = ([observe_well(config, seed=k + i) for i in range(config.repeats)] for k in (1, 101))
    index = torch.linspace(0, config.well_times - 1, 11).long()[1:]
    law = solve_fokker_planck(double_well(), starts[0].times, low=-3.0, high=3.0)

    def distances(sets: list[Tensor]) -> list[float]:
        pairs = list(zip(sets, (other.states for other in others), strict=True))
        return [sum(sliced_w2(x[:, i], y[:, i]) for x, y in pairs) / len(pairs) for i in index]

    def errors(velocity: Callable[..., Tensor]) -> list[float]:
        seen = others[0]
        return [velocity_error(velocity, law.velocity, seen.states[:, i], float(seen.times[i])).value for i in index]

    found: dict[str, Any] = {"times": starts[0].times[index].tolist()}
    found["floor"] = distances([start.states for start in starts])
    found["size"] = errors(lambda x, t: torch.zeros_like(x))
    flows = {"exact": Flow(law.velocity), **{n: learn_well(config, fits, n) for n in LEARNERS}, **_cubic(config)}
    for name, flow in flows.items():
        carried = _carried(flow, starts)
        found[name] = {"distances": carried and distances(carried), "errors": errors(flow.velocity)}
    return found


def _carried(flow: Flow, starts: list[Trajectories]) -> list[Tensor] | None:
    """The flow from these starts; None if it runs away, as a polynomial may where there is no data."""
    try:
        return [flow.generate(x.states[:, 0], x.times, method="rk4", substeps=2).states for x in starts]
    except ValueError:
        return None


def _cubic(config: Config) -> dict[str, Flow]:
    """Fits in closed form: cubic in x, piecewise linear in time."""
    knots = torch.linspace(0, config.well_horizon, 9, dtype=torch.float64)
    basis, data = lift(in_time(polynomials(3), knots)), observe_well(config, seed=0)
    return {f"{name}, cubic": fit_basis(data, basis, name) for name in LEARNERS}


# -- systems at rest with known velocities -----------------------------------------------------------------------------


def _system(system: SDE, config: Config, name: str) -> dict[str, Any]:
    """Error of a cubic fit by each estimator, its own standard error from blocks, and seconds; the kernel route too."""
    assert system.stationary is not None
    x = system.stationary.sample(4000, generator=torch.Generator().manual_seed(1))
    exact = system.velocity(x)
    found: dict[str, Any] = {"size": float(exact.square().sum(1).mean().sqrt()), "steps": list(config.steps)}
    for h in tqdm(config.steps, desc=name, unit="step"):
        times = h * torch.arange(config.transitions // config.paths + 1, dtype=torch.float64)
        data = system.simulate(paths=config.paths, times=times, seed=2)
        for objective in OBJECTIVES:
            row = found.setdefault(objective, {"errors": [], "standard_errors": [], "seconds": []})
            start = time.perf_counter()
            field: Any = fit_basis(data, lift(polynomials(3)), objective, blocks=config.blocks).velocity
            row["seconds"].append(time.perf_counter() - start)
            still = torch.zeros(len(x), dtype=torch.float64)
            row["standard_errors"].append(float(field.standard_error(x, still).square().sum(1).mean().sqrt()))
            row["errors"].append(velocity_error(field, lambda z, t: system.velocity(z), x, 0.0).value)
        row = found.setdefault("kernel", {"errors": [], "seconds": []})
        start = time.perf_counter()
        flow = fit_kernel(data, bandwidth=config.bandwidth)
        row["seconds"].append(time.perf_counter() - start)
        row["errors"].append(velocity_error(flow.velocity, lambda z, t: system.velocity(z), x, 0.0).value)
    return found
