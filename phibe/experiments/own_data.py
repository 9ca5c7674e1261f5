"""Your own data: what the automatic choices find of three known systems, judged at observations that were left out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.choices import carry_out, make_plan
from phibe.experiments.report import Report, record
from phibe.flow import Flow
from phibe.metrics import sliced_w2
from phibe.systems import OU, double_well, lorenz
from phibe.trajectories import Trajectories


def random_ou(dimension: int = 3, *, seed: int = 1) -> OU:
    """A stable process with a random matrix, whose slowest rate is ½, and random noise, from N(m₀, ½I)."""
    generator = torch.Generator().manual_seed(seed)
    matrix, noise = torch.randn(2, dimension, dimension, dtype=torch.float64, generator=generator)
    shift = float(torch.linalg.eigvals(matrix).real.max()) + 0.5
    start = torch.randn(dimension, dtype=torch.float64, generator=generator)
    eye = torch.eye(dimension, dtype=torch.float64)
    return OU(matrix - shift * eye, 0.3 * noise.tril() + 0.6 * eye, m0=2 * start, C0=0.5 * eye)


SYSTEMS: dict[str, tuple[Callable[[], Any], float]] = {
    "ou": (random_ou, 2.0),
    "double_well": (double_well, 2.0),
    "lorenz": (lorenz, 1.0),
}
"""What makes each system, and how long it is observed."""


@dataclass(frozen=True)
class Config:
    """`paths` of each system at `times` equally spaced times, of which every other one is fitted; `classes` as in
    `phibe fit --network`, each trained for `steps` if it is a network (None: by the data)."""

    paths: int = 500
    times: int = 101
    classes: tuple[str, ...] = ("auto", "affine", "mlp")
    steps: int | None = None
    seed: int = 0


CONFIGS = {
    "smoke": Config(paths=60, times=21, classes=("auto", "mlp"), steps=10),
    "laptop": Config(),
    "paper": Config(paths=5000, steps=20_000),
}


def run(preset: str = "laptop", *, out: Path | None = None, config: Config | None = None) -> Report:
    """Fit every other observation of each system, and compare the flow with the others."""
    config = config or CONFIGS[preset]
    out = out or Path("runs") / "own_data" / preset

    def measured() -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {name: measure(name, config) for name in tqdm(SYSTEMS, unit="system")}, {}

    return record("own_data", preset, config, measured, out)


def observe(name: str, config: Config, *, seed: int) -> Trajectories:
    make, horizon = SYSTEMS[name]
    times = torch.linspace(0, horizon, config.times, dtype=torch.float64)
    return make().simulate(paths=config.paths, times=times, seed=seed)


def measure(name: str, config: Config) -> dict[str, Any]:
    """For each class: what was chosen, the sliced W₂ to a fresh set at the times left out, and its ratio to the floor.

    The floor is the distance of the observed paths themselves from the fresh set: an exact flow reaches it. `still` is
    that of the starts, which stay where they are.
    """
    data, fresh = observe(name, config, seed=config.seed), observe(name, config, seed=config.seed + 1000)
    left_out = torch.arange(1, config.times, 2)

    def distances(states: Tensor) -> list[float]:
        return [sliced_w2(states[:, i], fresh.states[:, i]) for i in left_out]

    still = data.states[:, :1].expand_as(data.states)
    found: dict[str, Any] = {"times": data.times[left_out].tolist(), "floor": distances(data.states)}
    found["still"] = ratio(distances(still), found["floor"])
    for kind in config.classes:
        start = time.perf_counter()
        plan = make_plan(data.coarsen(2), kind, settings={"steps": config.steps} if config.steps else {})
        flow = carry_out(plan, data.coarsen(2), out=None, progress=False)
        seconds = time.perf_counter() - start
        there = distances(carried(flow, data).states)
        chosen = {choice.what: choice.value for choice in plan.choices}
        found[kind] = {"chosen": chosen, "distances": there, "ratio": ratio(there, found["floor"]), "seconds": seconds}
    return found


def carried(flow: Flow, data: Trajectories) -> Trajectories:
    """The flow from the starts of the data to all of its times."""
    return flow.generate(data.states[:, 0], data.times, method="rk4")


def ratio(distances: list[float], floor: list[float]) -> float:
    """Root mean square over the times, in units of that of the floor."""
    return math.sqrt(sum(d * d for d in distances) / sum(f * f for f in floor))
