"""Estimators side by side on the OU processes: their bias, their noise, and the networks they train."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe import theory
from phibe.experiments.ou import observe
from phibe.experiments.report import Report, rate, record
from phibe.experiments.training import run_all
from phibe.flow import Flow
from phibe.linear.affine import AffineField, fit_affine
from phibe.metrics import global_velocity_error
from phibe.networks import build
from phibe.networks.normalised import Normalised
from phibe.objectives import OBJECTIVES
from phibe.systems.ou import OU
from phibe.theory import affine_bias, affine_minimiser
from phibe.training.config import FitConfig
from phibe.training.devices import pick
from phibe.training.loop import ObjectiveModule, fit_network
from phibe.training.sampling import Samples

PROCESSES = {"reversible": OU.reversible, "nonreversible": OU.nonreversible}
LEARNERS = ("phibe", "symmetric")


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


CONFIGS = {
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


def run(preset: str = "laptop", *, out: Path | None = None, config: Config | None = None) -> Report:
    """Compare all estimators; trainings are kept under `fits/` and resume."""
    config = config or CONFIGS[preset]
    out = out or Path("runs") / "estimators" / preset
    return record("estimators", preset, config, lambda: (_measure(config, out / "fits"), {}), out)


def _measure(config: Config, fits: Path) -> dict[str, Any]:
    _train(config, fits)
    return {
        "bias": {name: _bias(make(), config) for name, make in PROCESSES.items()},
        "noise": _noise(OU.reversible(), config),
        "networks": _networks(config, fits),
    }


# -- affine fits, exact answers ----------------------------------------------------------------------------------------


def _bias(ou: OU, config: Config) -> dict[str, Any]:
    """Bias of each estimator by step, without any sampling, and its order over the finer half of the steps."""
    found = {}
    half = len(config.steps) // 2
    for name in OBJECTIVES:
        noise = 0.5 if name == "isotropic" and ou.is_reversible else None
        errors = [_population(ou, name, h, noise) for h in config.steps]
        found[name] = {"errors": errors, "order": rate(config.steps[half:], errors[half:])}
    return found


def _population(ou: OU, name: str, step: float, noise: float | None) -> float:
    if noise is None:
        return affine_bias(ou, name, step=step)
    times = torch.linspace(0.4, 1.0, 25, dtype=torch.float64)
    A, b = affine_minimiser(ou, name, times, step=step, noise=noise)
    exact = theory.affine_velocity(ou, times)
    return _rms(ou.marginal(times), A - exact[0], b - exact[1])


def _noise(ou: OU, config: Config, t: float = 0.6) -> dict[str, Any]:
    """Spread of affine fits around their own mean, and their whole error, at one time, by step."""
    law, (exact, offset) = ou.marginal(t), theory.affine_velocity(ou, torch.tensor([t]))
    found: dict[str, Any] = {name: {"spread": [], "total": []} for name in OBJECTIVES if name != "isotropic"}
    for h in tqdm(config.noise_steps, desc="noise", unit="step"):
        times = t + h * torch.arange(-2, 3, dtype=torch.float64)
        draws = [ou.simulate(paths=config.paths, times=times, seed=seed) for seed in range(config.repeats)]
        for name, row in found.items():
            fields = [fit_affine(data, name).velocity for data in draws]
            parts = [_coefficients(field, t) for field in fields]
            matrices, offsets = (torch.stack(part) for part in zip(*parts, strict=True))
            means = matrices.mean(0), offsets.mean(0)
            row["spread"].append(_rms(law, matrices - means[0], offsets - means[1]))
            row["total"].append(_rms(law, matrices - exact[0], offsets - offset[0]))
    return {"steps": list(config.noise_steps), "paths": config.paths, **found}


def _coefficients(field: Any, t: float) -> tuple[Tensor, Tensor]:
    assert isinstance(field, AffineField)
    matrix, offset = field.coefficients(torch.tensor([t], dtype=torch.float64))
    return matrix[0], offset[0]


def _rms(law: Any, matrices: Tensor, offsets: Tensor) -> float:
    return float(theory.affine_gap(law, matrices, offsets).square().mean().sqrt())


# -- networks ----------------------------------------------------------------------------------------------------------


def _train(config: Config, fits: Path) -> None:
    """Every network of this experiment, several at a time."""
    cases = [(name, m, seed) for m in config.network_times for name in LEARNERS for seed in config.seeds]
    jobs = [partial(learn, config, fits, name, times=m, seed=seed) for name, m, seed in cases]
    run_all(jobs, workers=config.workers if pick(config.training.accelerator).type == "cpu" else 1)


def learn(config: Config, fits: Path, objective: str, *, times: int, seed: int) -> Flow:
    """The perceptron of the paper on the reversible process: same data, same steps, only the objective differs."""
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
