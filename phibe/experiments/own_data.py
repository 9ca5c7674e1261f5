"""Your own data: what the automatic settings find of three known systems, scored at observations that were left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.experiments import plan
from phibe.experiments.report import Experiment, Measured
from phibe.fitting import budget, carry_out, make_plan
from phibe.flow import Flow
from phibe.metrics import sliced_w2
from phibe.networks import NETWORKS
from phibe.systems.ou import OU
from phibe.systems.sde import double_well, lorenz
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
    `phibe fit --model`, each trained for `steps` if it is a network (None: by the data).

    All of it `repeats` times, with the seeds from `seed` on. Seed 0 is left out: the rule that picks the
    size of a basis was tuned on it.
    """

    paths: int = 500
    times: int = 101
    classes: tuple[str, ...] = ("auto", "affine", "mlp")
    steps: int | None = None
    repeats: int = 5
    seed: int = 1


PRESETS = {
    "smoke": Config(paths=60, times=21, classes=("auto", "mlp"), steps=10, repeats=2),
    "laptop": Config(),
    "paper": Config(paths=5000, steps=20_000),
}


def measure(config: Config, fits: Path) -> Measured:
    """Fit every other observation of each system, and compare the flow with the others."""
    return Measured({name: measure_system(name, config) for name in tqdm(SYSTEMS, unit="system")})


def observe(name: str, config: Config, *, seed: int) -> Trajectories:
    make, horizon = SYSTEMS[name]
    times = torch.linspace(0, horizon, config.times, dtype=torch.float64)
    return make().simulate(paths=config.paths, times=times, seed=seed)


def measure_system(name: str, config: Config) -> dict[str, Any]:
    """For each class: what was chosen, its distance to fresh paths at the times left out, and how many times the floor.

    Distances are sliced W₂, root mean square over all pairs of a repetition and a set of fresh paths: that of a single
    pair of sets varies much from draw to draw. The floor is that of the observed paths themselves, which
    an exact flow reaches; `still` is that of a persistence forecast, the starts themselves.
    """
    seeds = range(config.seed, config.seed + config.repeats)
    observed, fresh = ([observe(name, config, seed=seed + more) for seed in seeds] for more in (0, 1000))
    left_out = torch.arange(1, config.times, 2)

    def squares(states: Tensor) -> Tensor:
        """W₂² to each fresh set at each time left out, (set, time)."""
        return torch.tensor([[sliced_w2(states[:, i], one.states[:, i]) ** 2 for i in left_out] for one in fresh])

    floor = torch.stack([squares(data.states) for data in observed])
    still = torch.stack([squares(data.states[:, :1].expand_as(data.states)) for data in observed])
    found: dict[str, Any] = {"times": observed[0].times[left_out].tolist(), "floor": _root(floor, (0, 1)).tolist()}
    found["still"] = compare(still, floor)
    for kind in config.classes:
        chosen, distances, seconds = [], [], []
        for data in observed:
            began, seen = time.perf_counter(), data.coarsen(2)
            made = make_plan(seen, kind, settings={"steps": config.steps} if config.steps else {})
            flow = carry_out(made, seen, progress=False)
            seconds.append(time.perf_counter() - began)
            chosen.append({choice.what: choice.value for choice in made.automatic})
            distances.append(squares(integrated(flow, data).states))
        found[kind] = {"chosen": chosen, "seconds": seconds, **compare(torch.stack(distances), floor)}
    return found


def integrated(flow: Flow, data: Trajectories) -> Trajectories:
    """The flow from the starts of the data to all of its times."""
    return flow.generate(data.states[:, 0], data.times)


def compare(squares: Tensor, floor: Tensor) -> dict[str, Any]:
    """Squared distances (repetition, fresh set, time) in units of the floor's: over all times, `worst` at any of them,
    and over all times for `each` repetition alone."""
    at_times = (_root(squares, (0, 1)) / _root(floor, (0, 1))).tolist()
    each = (_root(squares, (1, 2)) / _root(floor, (0, 1, 2))).tolist()
    ratio = float(_root(squares, (0, 1, 2)) / _root(floor, (0, 1, 2)))
    return {"ratio": ratio, "worst": max(at_times), "at_times": at_times, "each": each}


def _root(squares: Tensor, over: tuple[int, ...]) -> Tensor:
    """Root mean square."""
    return squares.mean(over).sqrt()


def plan_own_data(config: Config) -> plan.Needs:
    """Closed forms, and for each network the budget that `phibe fit` would choose."""
    trainings, seen = [], (config.times + 1) // 2
    for name, dimension in {"ou": 3, "double_well": 1, "lorenz": 3}.items():
        data = Trajectories(torch.zeros(config.paths, seen, dimension), torch.arange(seen, dtype=torch.float64))
        for kind in set(config.classes) & set(NETWORKS):
            training = budget(data, kind)[0]
            task = partial(plan.velocity, kind, (dimension,), "symmetric")
            steps = config.steps or training.steps
            label = f"{name}, {kind} by the data's objective"
            trainings.append(plan.training(label, task, (dimension,), training, steps=steps, count=config.repeats))
    closed = sum(kind not in NETWORKS for kind in config.classes) * config.repeats * len(SYSTEMS)
    sets = [plan.states("each system, twice: paths × times × 3 =", (2 * config.repeats, config.paths, config.times, 3))]
    return plan.Needs(
        sets, trainings, closed=f"{closed} fits in closed form, their sizes by cross-validation over paths"
    )


OWN_DATA = Experiment("own_data", PRESETS, measure, plan_own_data)
