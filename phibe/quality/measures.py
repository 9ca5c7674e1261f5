"""Measures of a flow against data that it was not fitted to: distances of laws with a floor, and the objective."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from phibe.ensembles import Marks, carry, observed
from phibe.flow import Flow
from phibe.metrics import Estimate, sliced_w2
from phibe.objectives import estimate_noise, find_objective
from phibe.trajectories import Trajectories

LEAST, DRAWS, MEGABYTES = 8, 4, 64
"""Paths below which there is no law to compare, samples that a floor is averaged over, memory for the states."""


@dataclass(frozen=True)
class Distance:
    """Sliced W₂ at `time` from held-out paths, in standard deviations of the data.

    That of the flow, that of as many other paths (the floor: what two samples of one law differ by), and that of states
    which stand still. `paths` is the size of a sample. `gap` is the mean square error of the generated mean and spread
    of a coordinate, in spreads of that time, less what sampling explains; `scale` the generated over the true spread.
    """

    time: float
    flow: float
    floor: float
    still: float
    paths: int
    gap: float
    scale: float


def method_for(objective: str) -> str:
    """The integrator that belongs to the objective: Euler undoes a forward difference, RK4 follows any other field."""
    return "euler" if objective == "regression" else "rk4"


def spread(data: Trajectories) -> Tensor:
    """Standard deviation of each coordinate (of each channel of larger states), to divide states by."""
    seen = data[:: max(1, data.states.nbytes // 2**26)]
    x = seen.states[seen._observed()].double()
    sigma = x.reshape(len(x), x.shape[1], -1).std(dim=(0, 2))
    return torch.where(sigma > 0, sigma, 1.0).reshape(-1, *[1] * (len(data.state_shape) - 1)).to(data.states.dtype)


def law_distances(
    flow: Flow, train: Trajectories, held: Trajectories, marks: tuple[Marks, Marks], *, unit: Tensor, method: str
) -> list[Distance]:
    """Distances at the marks of the training and of the held-out paths.

    The starts of some training paths, as many as are held out, are carried by the flow and compared with the held-out
    states; the same training paths, as they were observed, give the floor. An exact flow has the floor's distance.
    """
    size = min(len(held), len(train))
    draws = max(1, min(DRAWS, len(train) // size))
    starts = train.states[: draws * size, 0] / unit
    carried = carry(flow, train[: draws * size], marks[0].of(slice(draws * size)), method=method) / unit
    seen, target = observed(train, marks[0])[: draws * size] / unit, observed(held, marks[1])[:size] / unit
    found = []
    for k, time in enumerate(marks[0].times.tolist()):
        reference = _known(target[:, k])
        groups = [range(i * size, (i + 1) * size) for i in range(draws)]
        rows = [[p for p in group if marks[0].index[p, k] >= 0] for group in groups]
        rows = [row for row in rows if len(row) >= LEAST]
        if len(reference) < LEAST or not rows:
            continue
        of = (carried[:, k], seen[:, k], starts)
        away, floor, still = (_root_mean([_distance(p[row], reference) for row in rows]) for p in of)
        paths = min(len(rows[0]), len(reference))
        all_rows = [p for row in rows for p in row]
        gap, scale = _moment_gap(carried[all_rows, k], torch.cat([seen[all_rows, k], reference]))
        found.append(Distance(time, away, floor, still, paths, gap, scale))
    return found


def _moment_gap(made: Tensor, true: Tensor) -> tuple[float, float]:
    """Mean over the coordinates of (Δmean² + Δspread²)/spread², less its expectation for two samples of one law, and
    the geometric mean of the ratio of spreads; of pictures the spread is that of a channel. A test of two numbers sees
    what a distance of whole laws misses."""
    made, true = (part.double().reshape(len(part), part.shape[1], -1) for part in (made, true))
    each, unit = true.std(0), true.var(0).mean(1, keepdim=True).sqrt()
    kept = unit[:, 0] > 1e-6 * unit.max()
    shift, change = (made.mean(0) - true.mean(0))[kept] / unit[kept], (made.std(0) - each)[kept] / unit[kept]
    noise = 1.5 * (1 / len(made) + 1 / len(true))
    scale = made.var(0).mean(1).sqrt()[kept] / unit[kept, 0]
    return float((shift**2 + change**2).mean()) - noise, float(scale.clamp(min=1e-12).log().mean().exp())


def _known(x: Tensor) -> Tensor:
    return x[torch.isfinite(x).flatten(1).all(1)]


def _distance(x: Tensor, y: Tensor) -> float:
    """Infinite when some of the states are lost."""
    return sliced_w2(x, y) if bool(torch.isfinite(x).all()) and float(x.abs().max()) < 1e6 else math.inf


def _root_mean(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))


def ratio(distances: list[Distance]) -> float:
    """How many times the floor the flow is away: root mean squares over the marks."""
    return _root_mean([d.flow for d in distances]) / _root_mean([d.floor for d in distances])


def excess(distances: list[Distance]) -> float:
    """The distance that the floor does not explain, √(W₂² − floor²), in standard deviations of the data."""
    flow, floor = (_root_mean([getattr(d, name) for d in distances]) for name in ("flow", "floor"))
    return math.sqrt(max(0.0, flow**2 - floor**2))


def moment_error(distances: list[Distance]) -> float:
    """How far the generated means and spreads are off, in spreads of the time, beyond what sampling explains."""
    return math.sqrt(max(0.0, sum(d.gap for d in distances) / len(distances)))


def held_out_objective(
    flow: Flow, held: Trajectories, objective: str, *, unit: Tensor, noise: float | None = None, samples: int = 20_000
) -> Estimate | None:
    """The mean objective on held-out paths, in standard coordinates, and its standard error; of v = 0 it is 0.

    The error comes from the differences between blocks of paths (of few paths, stretches), since neighbouring samples
    of a path are not independent. None if no path is long enough.
    """
    kind, size = find_objective(objective), held.states[0, 0].numel()
    means, options, samples = [], {}, min(samples, max(400, 4_000_000 // size))
    if objective == "isotropic":  # σ²I knows no other units
        generator = torch.Generator().manual_seed(0)
        options = {"noise": noise or estimate_noise(held), "exact": size <= 64, "generator": generator}
        unit = torch.ones_like(unit)
    for block in held.blocks(20):
        if block._shortest() < kind.width:
            continue
        block = block[:: max(1, 20 * len(block) * block.states.shape[1] // samples)]
        x, t, *steps = kind.samples(block)
        scaled = (x / unit, t, *(step / unit if step.shape == x.shape else step for step in steps))
        values = kind(lambda z, s: flow.velocity(z * unit, s) / unit, *scaled, **options)
        worth = kind.weights(*scaled)  # of unequal steps the shortest would drown all others
        means.append(float((worth * values.double()).sum() / worth.sum()))
    if len(means) < 2:
        return None
    each = torch.tensor(means, dtype=torch.float64)
    return Estimate(float(each.mean()), float(each.std()) / math.sqrt(len(each)))
