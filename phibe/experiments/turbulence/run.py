"""Stochastic Navier–Stokes: flows of vorticity at two sampling intervals, with PFI and MCVD beside them; spectra.

Read next: `methods.py` for what is compared, `saved.py` for the run that comes with the project.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from phibe.experiments import plan
from phibe.experiments.report import Experiment, Measured
from phibe.experiments.training import Rollouts, run_all
from phibe.experiments.turbulence.data import generate
from phibe.experiments.turbulence.methods import judge, learn, methods, mix, mixtures, task_of, training
from phibe.experiments.turbulence.solver import NavierStokes
from phibe.experiments.turbulence.spectra import energy_spectrum, enstrophy_spectrum
from phibe.files import write_json
from phibe.io import open_data
from phibe.training.config import FitConfig
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class Config:
    """`paths` paths of `duration`, after a `spin_up` from ω = 0, on `solver_grid`² points in steps `dt`, saved on
    `grid`² points at the first of `intervals`; `held_out` of them for the test.

    At each interval a U-Net is trained for each of `objectives`, one conditioned on the previous field for each of
    `conditioned`, and one for each baseline, all with the same `training` on randomly shifted fields, but in `fewer`
    steps where one costs more: all have about the same time. Rollouts begin at `starts` test fields, a time `every`
    apart, over `horizon`, and at the first `few` over `frames` frames; flows by each of `integrators` (method,
    substeps), stochastic methods with `members` draws from those few. Drift weights θ of the flow
    of `symmetric`: `ode_weights` without noise, `sde_weights` with the noise of the SDE, `calibrated_weights` with
    spectrum-calibrated noise. The first `shown` clips are saved.
    """

    solver_grid: int = 96
    grid: int = 64
    dt: float = 0.025
    paths: int = 100
    duration: float = 50.0
    spin_up: float = 40.0
    held_out: float = 0.2
    intervals: tuple[float, ...] = (0.1, 0.5)
    objectives: tuple[str, ...] = ("symmetric", "regression", "phibe")
    conditioned: tuple[str, ...] = ()
    ode_weights: tuple[float, ...] = (0.1, 0.2)
    sde_weights: tuple[float, ...] = (0.1, 0.3)
    calibrated_weights: tuple[float, ...] = (0.1, 0.3, 1.0)
    pfi: dict[str, Any] = field(default_factory=lambda: {"sigma": 1.0, "steps": 100})
    mcvd: dict[str, Any] = field(default_factory=lambda: {"past": 2, "frames": 2, "steps": 100})
    network: dict[str, Any] = field(
        default_factory=lambda: {"channels": 24, "multipliers": [1, 2, 2, 2], "blocks": 1, "patch": 2}
    )
    training: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=3000,
            batch=16,
            learning_rate=1e-3,
            held_out=0.1,
            ema=0.999,
            evaluate_every=500,
            patience=0,
            checkpoint_every=100,
        )
    )
    fewer: dict[str, int] = field(default_factory=lambda: {"phibe": 1000})
    integrators: tuple[tuple[str, int], ...] = (
        ("euler", 1), ("rk4", 1), ("rk4", 2), ("leapfrog", 1), ("filtered", 1),
    )  # fmt: skip
    starts: int = 16
    every: float = 5.0
    horizon: float = 5.0
    frames: int = 200
    few: int = 2
    members: int = 4
    shown: int = 4
    workers: int = 2
    seed: int = 0

    @property
    def history(self) -> int:
        """The longest past that a method is conditioned on, in frames."""
        return max(2, self.mcvd["past"], self.pfi.get("past", 1))


CONFIGS = {
    "smoke": Config(
        solver_grid=32,
        grid=16,
        paths=5,
        duration=2.0,
        spin_up=1.0,
        conditioned=("regression",),
        ode_weights=(0.1,),
        sde_weights=(0.3,),
        calibrated_weights=(0.3, 1.0),
        pfi={"steps": 3},
        mcvd={"past": 1, "frames": 2, "steps": 3},
        network={"channels": 4, "multipliers": [1, 2], "blocks": 1, "patch": 2},
        training=FitConfig(steps=4, batch=4, evaluate_every=2, held_out=0.25),
        fewer={"phibe": 2},
        integrators=(("euler", 1), ("rk4", 2)),
        starts=2,
        every=0.5,
        horizon=1.0,
        frames=4,
        few=1,
        members=2,
        shown=1,
        workers=1,
    ),
    "laptop": Config(),
    "paper": Config(
        solver_grid=256,
        grid=128,
        dt=0.01,
        paths=1000,
        spin_up=50.0,
        conditioned=("regression",),
        pfi={"sigma": 1.0, "steps": 500},
        mcvd={"past": 10, "frames": 5, "steps": 100},
        network={"channels": 128, "multipliers": [1, 2, 2, 2], "blocks": 2},
        training=FitConfig(
            steps=100_000, batch=32, learning_rate=2e-4, ema=0.999, evaluate_every=2000, checkpoint_every=1000
        ),
        fewer={},
        starts=200,
        few=32,
        members=10,
        workers=1,
    ),
}


def measure(config: Config, fits: Path) -> Measured:
    """Simulate into a Zarr store, train and roll out every method at every interval, and compare."""
    observe(config, fits)
    trained, mixed = (
        [(i, name) for name in some for i in config.intervals] for some in (methods(config), mixtures(config))
    )
    for pairs in (trained, mixed):  # a mixture needs its parts
        run_all([partial(work, *pair, config=config, fits=fits) for pair in pairs], workers=config.workers)
    results: dict[str, Any] = {"system": describe(config, fits), "training": {}}
    weights = {"fields": shown(config, fits).half()}
    for interval, name in (*trained, *mixed):
        folder, key = fits / f"{interval:g}" / name, f"{interval:g}"
        results.setdefault(key, {}).update(json.loads((folder / MEASURED).read_text("utf8"))["results"])
        if (folder / "metrics.jsonl").exists():
            results["training"].setdefault(key, {})[name] = _training(folder)
        if (folder / "weights.safetensors").exists():
            tensors = load_file(folder / "weights.safetensors")
            weights |= {f"{key}.{name}.{part}": _half(value) for part, value in tensors.items()}
    return Measured(results, weights)


def _training(folder: Path) -> dict[str, Any]:
    """Steps, seconds, and the loss on training and on held-out paths at each evaluation."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf8").splitlines()]
    return {name: [line[name] for line in lines] for name in ("step", "seconds", "train", "held_out")}


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() and tensor.numel() > 1 else tensor


# -- data --------------------------------------------------------------------------------------------------------------


def observe(config: Config, fits: Path) -> Trajectories:
    """All paths at the finest interval, from their store if it exists."""
    interval = config.intervals[0]
    store = generate(
        NavierStokes(grid=config.solver_grid),
        fits.parent / "data.zarr",
        paths=config.paths,
        times=torch.arange(round(config.duration / interval) + 1, dtype=torch.float64) * interval,
        shard=16,
        seed=config.seed,
        size=config.grid,
        dt=config.dt,
        spin_up=config.spin_up,
    )
    return open_data(store)


def seen_at(interval: float, config: Config, fits: Path) -> tuple[Trajectories, Trajectories]:
    """Training and test paths, seen at that interval."""
    data = observe(config, fits).coarsen(round(interval / config.intervals[0]))
    return data.split(config.held_out, seed=config.seed)


def shown(config: Config, fits: Path) -> Tensor:
    """The first test clips at the finest interval, (clip, frame, 1, grid, grid): as much past as a method may see at
    the coarsest interval, and the horizon."""
    _, test = seen_at(config.intervals[0], config, fits)
    before = round((config.history - 1) * config.intervals[-1] / config.intervals[0])
    return Rollouts(test, config, before=before).clips[: config.shown]


def describe(config: Config, fits: Path) -> dict[str, Any]:
    """Statistics of the test paths, and the sampling error of those statistics over so few starts."""
    found: dict[str, Any] = {"snapshots": {}, "truth": {}}
    for interval in config.intervals:
        seen, test = seen_at(interval, config, fits)
        found["snapshots"][f"{interval:g}"] = len(seen) * seen.states.shape[1]
        found["truth"][f"{interval:g}"] = Rollouts(test, config).score_truth()
    fields = test.states
    return found | {
        "rms": float(fields.square().mean().sqrt()),
        "rms_in_time": fields.square().mean((0, 2, 3, 4)).sqrt().tolist(),
        "enstrophy_spectrum": enstrophy_spectrum(fields).mean.mean((0, 1, 2)).tolist(),
        "energy_spectrum": energy_spectrum(fields).total.mean((0, 1, 2)).tolist(),
    }


# -- methods -----------------------------------------------------------------------------------------------------------

MEASURED = "measured.json"
OTHERS = ("objectives", "conditioned", "ode_weights", "sde_weights", "calibrated_weights", "fewer", "shown", "workers")
"""Settings that choose among methods and change none of them."""


def work(interval: float, name: str, *, config: Config, fits: Path) -> None:
    """Train one method at one interval, roll it out, and save what was measured in its folder."""
    folder = fits / f"{interval:g}" / name
    own = asdict(replace(config, training=training(name, config)))
    settings = {k: v for k, v in json.loads(json.dumps(own)).items() if k not in OTHERS}
    if (folder / MEASURED).exists() and json.loads((folder / MEASURED).read_text("utf8"))["config"] == settings:
        return
    seen, test = seen_at(interval, config, fits)
    learnt = mix if name in mixtures(config) else learn
    model, rollouts = learnt(name, seen, config=config, out=folder), Rollouts(test, config)
    write_json(folder / MEASURED, {"config": settings, "results": judge(name, model, rollouts)})


def plan_turbulence(config: Config) -> plan.Needs:
    frames = round(config.duration / config.intervals[0]) + 1
    shape, fields = (1, config.grid, config.grid), (config.paths, frames, config.grid, config.grid)
    data = [plan.states("vorticity: paths × frames × grid =", fields, bits=32, source="simulated here, kept as Zarr")]
    trainings = [
        plan.training(
            f"{name}, U-Net",
            partial(task_of, name, shape, config),
            shape,
            training(name, config),
            count=len(config.intervals),
        )
        for name in methods(config)
        if name != "persistence"
    ]
    return plan.Needs(data, trainings)


NAVIER_STOKES = Experiment("navier_stokes", CONFIGS, measure, plan_turbulence)
