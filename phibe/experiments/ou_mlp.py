"""The reversible OU process of the paper by an MLP: error in time, trajectories, and both convergence figures.

Truth is exact throughout: `phibe/systems/ou.py`. Read next: `estimators.py`, the same for every objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from phibe.calculus import Velocity
from phibe.experiments import plan
from phibe.experiments.ou import LIMITS, METHODS, still, velocity_gap
from phibe.experiments.report import (
    Claim,
    Experiment,
    Measured,
    Protocol,
    digest,
    judged,
    slope_interval,
    verdict,
)
from phibe.experiments.training import fit_one, run_all
from phibe.flow import Flow
from phibe.metrics import Estimate, velocity_error
from phibe.networks import build
from phibe.networks.network import Normalised
from phibe.systems.ou import OU
from phibe.training.config import FitConfig
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class MLPConfig:
    """Flows of all objectives from `paths` × `times` observations on [0, 1]; then, with `phibe`, `sweep_times`
    observation times of `sweep_times_paths` paths, and `sweep_paths` paths at `sweep_paths_times` times; each with all
    `seeds`.

    Slopes are those over `slope_times` and `slope_paths`, fixed before any run: where few times leave a bias, few paths
    a noise, that the rest of the error is small against. `workers` processes train at a time, a thread each; more than
    one only on a CPU.
    """

    paths: int = 50_000
    times: int = 2000
    sweep_times: tuple[int, ...] = tuple(10 * 2**k for k in range(7))
    sweep_times_paths: int = 30_000
    slope_times: tuple[int, ...] = (20, 40, 80, 160, 320)
    sweep_paths: tuple[int, ...] = tuple(100 * 2**k for k in range(5))
    sweep_paths_times: int = 3000
    slope_paths: tuple[int, ...] = (100, 200, 400, 800)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    training: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=3000, batch=2048, learning_rate=3e-3, ema=0.995, held_out=0.2, evaluate_every=250
        )
    )
    samples: int = 2000
    workers: int = 2


MLP_PRESETS = {
    "smoke": MLPConfig(
        paths=200,
        times=21,
        sweep_times=(10, 20),
        slope_times=(10, 20),
        sweep_times_paths=100,
        sweep_paths=(50, 100),
        slope_paths=(50, 100),
        sweep_paths_times=21,
        seeds=(0, 1),
        training=FitConfig(steps=20, batch=32, evaluate_every=10, held_out=0.2),
        samples=100,
        workers=1,
    ),
    "laptop": MLPConfig(),
    "paper": MLPConfig(
        sweep_times=tuple(10 * 2**k for k in range(9)),
        sweep_paths=tuple(100 * 2**k for k in range(10)),
        training=FitConfig(steps=50_000, batch=4096, learning_rate=1e-3, ema=0.999, held_out=0.1),
        samples=20_000,
        workers=1,
    ),
}
MLP_PROTOCOL = (
    Protocol("network", "MLP, five hidden layers of 50, input (x, t)", "SiLU; states in their standard units"),
    Protocol(
        "optimiser",
        "",
        "AdamW, 3,000 steps of 2,048, rate 3e-3 on a cosine, gradients clipped at 1, averaged weights (0.995)",
    ),
    Protocol("validation", "", "a fifth of the N paths, for early stopping: the best of 12 evaluations is kept"),
    Protocol(
        "sizes",
        "N = 30,000 with 10 to 2,560 times; 3,000 times with 100 to 51,200 paths",
        "",
        "up to 640 times and 1,600 paths: beyond, the budget of steps limits the error, not the data",
    ),
    Protocol("integrator", "numerical integration", "Euler at the data's step; RK4 for the best flow"),
)
UNGUARDED = "phibe, no clipping, no early stopping"


def measure_mlp(config: MLPConfig, fits: Path) -> Measured:
    """Train, compare with the exact velocity, and sweep the number of times and of paths."""
    ou = OU.reversible()
    _train(config, fits)
    size = _error(ou, ou.velocity, config, truth=still)
    main = {name: _flows(config, fits, name, paths=config.paths, times=config.times) for name in METHODS}
    flow = main["phibe"][0]
    results = {
        "velocity_size": size.value,
        "velocity_error": list(_error(ou, flow.velocity, config)),
        **_in_time(ou, flow, config),
        "by_method": {name: _scores(ou, flows, METHODS[name][1], config, size.value) for name, flows in main.items()},
        "by_times": _sweep(ou, config, fits, times=config.sweep_times, paths=(config.sweep_times_paths,)),
        "by_paths": _sweep(ou, config, fits, times=(config.sweep_paths_times,), paths=config.sweep_paths),
        "unguarded": _unguarded(ou, config, fits),
    }
    weights = load_file(_folder(fits, config.paths, config.times, config.seeds[0]) / "weights.safetensors")
    data = observe(ou, paths=config.paths, times=config.times, seed=config.seeds[0])
    hashes, calls = {"paths of the first seed": digest(data.states)}, {"euler": 1.0, "rk4": 4.0}
    return Measured(results, weights, _mlp_claims(results, config), data=hashes, evaluations=calls)


def restored(weights: dict[str, Tensor], config: MLPConfig) -> Flow:
    """The flow of a run from its weights, in float64."""
    network = Normalised(build("mlp", (2,)), (2,))
    network.load_state_dict(weights)
    return Flow(Fitted(network.double()), (0.0, 1.0), 1 / (config.times - 1))


def _train(config: MLPConfig, fits: Path) -> None:
    """Train every case that `measure_mlp` needs, several at a time; what is finished is read from its folder."""
    sweeps = [(config.sweep_times_paths, m) for m in config.sweep_times]
    sweeps += [(n, config.sweep_paths_times) for n in config.sweep_paths]
    cases = [(name, config.paths, config.times) for name in METHODS] + [("phibe", *case) for case in sweeps]
    cases += [(name, *size) for size in _few(config) for name in ("phibe", UNGUARDED)]
    jobs = [
        partial(learn, config, fits, name, paths=n, times=m, seed=seed)
        for seed in config.seeds
        for name, n, m in dict.fromkeys(cases)
    ]
    run_all(jobs, workers=config.workers, accelerator=config.training.accelerator)


def observe(ou: OU, *, paths: int, times: int, seed: int) -> Trajectories:
    """Exact paths on [0, 1], in the precision that networks train in."""
    grid = torch.linspace(0, 1, times, dtype=torch.float64)
    return ou.simulate(paths=paths, times=grid, seed=seed).to(torch.float32)


def learn(config: MLPConfig, fits: Path, name: str, *, paths: int, times: int, seed: int) -> Flow:
    """The MLP of the paper, trained on so many paths observed at so many times; from its folder if that is there."""
    data = observe(OU.reversible(), paths=paths, times=times, seed=seed)
    training = replace(config.training, seed=seed)
    if name == UNGUARDED:
        training = replace(training, clip=0.0, held_out=0.0)
    objective, folder = name.split(",")[0], _folder(fits, paths, times, seed, name)
    return fit_one(data, "mlp", objective, config=training, out=folder)


def _folder(fits: Path, paths: int, times: int, seed: int, name: str = "phibe") -> Path:
    return fits / f"{name.replace(', ', '-').replace(' ', '-')}-{paths}x{times}-{seed}"


def _flows(config: MLPConfig, fits: Path, name: str, *, paths: int, times: int) -> list[Flow]:
    return [learn(config, fits, name, paths=paths, times=times, seed=seed) for seed in config.seeds]


def _sweep(ou: OU, config: MLPConfig, fits: Path, *, times: tuple[int, ...], paths: tuple[int, ...]) -> dict[str, Any]:
    """Errors (size, seed) of fits along one of the two axes, their geometric means, and the slope over its range."""
    errors = [
        [_error(ou, flow.velocity, config).value for flow in _flows(config, fits, "phibe", paths=n, times=m)]
        for n in paths
        for m in times
    ]
    sizes, chosen = (times, config.slope_times) if len(times) > 1 else (paths, config.slope_paths)
    slope, ends = slope_interval(chosen, [errors[sizes.index(size)] for size in chosen])
    means = np.exp(np.log(errors).mean(1)).tolist()
    return {"sizes": list(sizes), "errors": errors, "mean": means, "slope": slope, "interval": list(ends)}


def _error(ou: OU, velocity: Velocity, config: MLPConfig, truth: Velocity | None = None) -> Estimate:
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    return velocity_gap(ou, velocity, truth or ou.velocity, times=times, samples=config.samples, seed=12345)


def _in_time(ou: OU, flow: Flow, config: MLPConfig) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(54321)
    times = torch.linspace(0, 1, 41).tolist()
    states = [ou.marginal(t).sample(config.samples, generator=generator) for t in times]
    errors = [velocity_error(flow.velocity, ou.velocity, x, t) for x, t in zip(states, times, strict=True)]
    return {"times": times, "error_in_time": [e.value for e in errors], "error_in_time_se": [e.error for e in errors]}


def _scores(ou: OU, flows: Sequence[Flow], method: str, config: MLPConfig, size: float) -> dict[str, list[float]]:
    """Of each seed, the relative velocity error, and the root mean square distance of learnt from exact trajectories
    with the same starts over time, in units of the stationary spread."""
    start = ou.marginal(0.0).sample(500, generator=torch.Generator().manual_seed(7))
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    exact = Flow(ou.velocity).generate(start, times, method="rk4", substeps=4).states
    spread = float(ou.stationary().covariance.trace().sqrt())
    gaps = [(flow.generate(start, times, method=method).states - exact).square().sum(-1) for flow in flows]
    return {
        "velocity": [_error(ou, flow.velocity, config).value / size for flow in flows],
        "trajectories": [float(gap.mean().sqrt()) / spread for gap in gaps],
    }


def _unguarded(ou: OU, config: MLPConfig, fits: Path) -> dict[str, dict[str, list[float]]]:
    """What clipping and early stopping do for `phibe` where data are few: velocity errors by seed."""
    return {
        f"{n:,} × {m:,}": {
            name: [_error(ou, flow.velocity, config).value for flow in _flows(config, fits, name, paths=n, times=m)]
            for name in ("phibe", UNGUARDED)
        }
        for n, m in _few(config)
    }


def _few(config: MLPConfig) -> list[tuple[int, int]]:
    """The fewest paths at many times, and at few."""
    return [(min(config.sweep_paths), config.sweep_paths_times), (min(config.sweep_paths), min(config.sweep_times))]


def _mlp_claims(results: dict[str, Any], config: MLPConfig) -> list[Claim]:
    claims = [
        judged(about, *_column(name), results["by_method"][name][key], "below", LIMITS["trajectories"])
        for key, about in {
            "trajectories": ("Figure OU (c)", "trajectories are recovered", "distance over stationary spread"),
            "velocity": ("Figure OU (c)", "the velocity is recovered", "relative error in L²"),
        }.items()
        for name in METHODS
    ]
    for figure, key, order in (("d", "by_times", -1.0), ("e", "by_paths", -0.5)):
        sweep = results[key]
        sizes = config.slope_times if key == "by_times" else config.slope_paths
        symbol = "N_t" if key == "by_times" else "N"
        claims.append(
            Claim(
                f"Figure OU ({figure})",
                f"the error falls as {symbol}^{order:g}",
                "text",
                "MLP, phibe",
                f"slope, {sizes[0]} to {sizes[-1]}",
                sweep["slope"],
                sweep["interval"][0],
                sweep["interval"][1],
                verdict(sweep["interval"], "near", order, tolerance=0.15),
            )
        )
    return claims


def _column(name: str) -> tuple[str, str]:
    column, method = METHODS[name]
    return column, f"MLP, {name}, {method}"


def plan_mlp(config: MLPConfig) -> plan.Needs:
    largest = max(
        (config.paths, config.times),
        *((config.sweep_times_paths, m) for m in config.sweep_times),
        *((n, config.sweep_paths_times) for n in config.sweep_paths),
        key=math.prod,
    )
    seeds = len(config.seeds)
    counts = dict.fromkeys(METHODS, seeds)
    counts["phibe"] += seeds * (len(config.sweep_times) + len(config.sweep_paths) + 3)
    data = [plan.states("reversible, the largest set: paths × times × 2 =", (*largest, 2), bits=96)]
    trainings = [
        plan.training(
            f"{name}, MLP 5 × 50", partial(plan.velocity, "mlp", (2,), name), (2,), config.training, count=count
        )
        for name, count in counts.items()
    ]
    return plan.Needs(data, trainings)


MLP_OU = Experiment("ou", MLP_PRESETS, measure_mlp, plan_mlp, MLP_PROTOCOL)
