"""The reversible OU process with a multilayer perceptron: trajectories, error in time, and both convergence figures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from phibe.calculus import Velocity
from phibe.experiments.report import Report, rate, record
from phibe.experiments.training import run_all
from phibe.flow import Flow
from phibe.metrics import Estimate, global_velocity_error, velocity_error
from phibe.networks import build
from phibe.networks.normalised import Normalised
from phibe.systems.ou import OU
from phibe.training.config import FitConfig
from phibe.training.devices import pick
from phibe.training.loop import fit_network
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class Config:
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


CONFIGS = {
    "smoke": Config(
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
    "laptop": Config(),
    "paper": Config(
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


def run(preset: str = "laptop", *, out: Path | None = None, config: Config | None = None) -> Report:
    """Train, compare with the exact velocity, sweep; every single fit is kept under `fits/` and resumes."""
    config = config or CONFIGS[preset]
    out = out or Path("runs") / "ou" / preset
    return record("ou", preset, config, lambda: _measure(config, out / "fits"), out)


def _measure(config: Config, fits: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    ou = OU.reversible()
    _train(config, fits)
    flow = learn(ou, config, fits, paths=config.paths, times=config.times, seed=config.seeds[0])
    size = _error(ou, ou.velocity, config, truth=lambda x, t: torch.zeros_like(x))
    results = {
        "velocity_size": size.value,
        "velocity_error": list(_error(ou, flow.velocity, config)),
        **_in_time(ou, flow, config),
        **_trajectories(ou, flow, config),
        "by_times": _sweep(ou, config, fits, times=config.sweep_times, paths=(config.sweep_times_paths,)),
        "by_paths": _sweep(ou, config, fits, times=(config.sweep_paths_times,), paths=config.sweep_paths),
    }
    return results, load_file(_folder(fits, config.paths, config.times, config.seeds[0]) / "weights.safetensors")


def restored(weights: dict[str, Tensor], config: Config) -> Flow:
    """The flow of a run from its weights, in float64."""
    network = Normalised(build("mlp", (2,)), (2,))
    network.load_state_dict(weights)
    return Flow(Fitted(network.double()), (0.0, 1.0), 1 / (config.times - 1))


def _train(config: Config, fits: Path) -> None:
    """Train every case that `_measure` asks for, several at a time; what is finished is taken from its folder."""
    times = [(config.sweep_times_paths, m) for m in config.sweep_times]
    paths = [(n, config.sweep_paths_times) for n in config.sweep_paths]
    cases = [
        (config.paths, config.times, config.seeds[0]),
        *((*case, s) for case in times + paths for s in config.seeds),
    ]
    jobs = [partial(learn, OU.reversible(), config, fits, paths=n, times=m, seed=seed) for n, m, seed in cases]
    run_all(jobs, workers=config.workers if pick(config.training.accelerator).type == "cpu" else 1)


def observe(ou: OU, *, paths: int, times: int, seed: int) -> Trajectories:
    """Exact paths on [0, 1], in the precision that networks train in."""
    grid = torch.linspace(0, 1, times, dtype=torch.float64)
    return ou.simulate(paths=paths, times=grid, seed=seed).to(torch.float32)


def learn(ou: OU, config: Config, fits: Path, *, paths: int, times: int, seed: int) -> Flow:
    """The MLP of the paper, trained on so many paths observed at so many times; from its folder if that is there."""
    data = observe(ou, paths=paths, times=times, seed=seed)
    training = replace(config.training, seed=seed)
    return fit_network(
        data, "mlp", config.objective, config=training, out=_folder(fits, paths, times, seed), progress=False
    )


def _folder(fits: Path, paths: int, times: int, seed: int) -> Path:
    return fits / f"{paths}x{times}-{seed}"


def _sweep(ou: OU, config: Config, fits: Path, *, times: tuple[int, ...], paths: tuple[int, ...]) -> dict[str, Any]:
    """Errors (size, seed) of fits along one of the two axes, their geometric means and the slope of these."""
    cases = [(n, m) for n in paths for m in times]
    errors = []
    for n, m in cases:
        flows = (learn(ou, config, fits, paths=n, times=m, seed=seed) for seed in config.seeds)
        errors.append([_error(ou, flow.velocity, config).value for flow in flows])
    sizes = list(times if len(times) > 1 else paths)
    means = np.exp(np.log(errors).mean(1)).tolist()
    return {"sizes": sizes, "errors": errors, "mean": means, "slope": rate(sizes, means)}


def _error(ou: OU, velocity: Velocity, config: Config, truth: Velocity | None = None) -> Estimate:
    """‖v_θ − v‖ in L²(ρ ⊗ [0, 1]) on independent samples of the exact marginals."""
    generator = torch.Generator().manual_seed(12345)
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    return global_velocity_error(
        velocity, truth or ou.velocity, lambda t: ou.marginal(t).sample(config.samples, generator=generator), times
    )


def _in_time(ou: OU, flow: Flow, config: Config) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(54321)
    times = torch.linspace(0, 1, 41).tolist()
    states = [ou.marginal(t).sample(config.samples, generator=generator) for t in times]
    errors = [velocity_error(flow.velocity, ou.velocity, x, t) for x, t in zip(states, times, strict=True)]
    return {"times": times, "error_in_time": [e.value for e in errors], "error_in_time_se": [e.error for e in errors]}


def _trajectories(ou: OU, flow: Flow, config: Config) -> dict[str, Any]:
    """Root mean square distance of learnt from exact trajectories with the same starts, in time."""
    start = ou.marginal(0.0).sample(500, generator=torch.Generator().manual_seed(7))
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    learnt, exact = (f.generate(start, times, method="rk4", substeps=2).states for f in (flow, Flow(ou.velocity)))
    return {"trajectory_gap": (learnt - exact).square().sum(-1).mean(0).sqrt().tolist()}
