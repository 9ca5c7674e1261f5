"""Ensembles: the states of many paths at common times, observed, integrated or drawn; and their densities.

`place_marks` chooses the times; `observed` and `integrate` give the states that `evaluation.py` compares.
`fit_density` and `generate_with_density` are for samples with their log-density. Read next: `bases.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.calculus import times
from phibe.flow import Flow
from phibe.metrics import moments
from phibe.trajectories import Trajectories


class Marks(NamedTuple):
    """Times to compare marginals at: `times` (mark,); `places` (path, mark) are the numbers of each path's nearest
    observation, −1 where it has none near a mark."""

    times: Tensor
    places: Tensor


def time_free(flow: Flow, data: Trajectories) -> bool:
    """Is the velocity the same at all times? Asked at some states of the data, at the ends and in the middle."""
    x = data.states[: min(len(data), 64), 0]
    first, last = flow.interval or data.interval
    times = (torch.full((len(x),), t, dtype=x.dtype) for t in (first, (first + last) / 2, last))
    with torch.no_grad():
        values = [flow.velocity(x, t) for t in times]
    return all(torch.equal(values[0], value) for value in values)


def place_marks(data: Trajectories, count: int, *, elapsed: bool, every: int = 1, first: int = 1) -> Marks:
    """At most `count` marks over the observations first, first + every, …, evenly, the last one among them.

    On a grid that all paths share they are observed times. Else they are even in time, and stand for the observations
    up to half-way to the next mark. With `elapsed` times count from the start of each path.
    """
    times, column = data._path_times(), torch.arange(data.states.shape[1])
    times = times - times[:, :1] if elapsed else times
    inside = data._observed() & (column >= first) & ((column - first) % every == 0)
    longest = times[0 if data.lengths is None else int(data.lengths.argmax())]
    even = (times - longest).abs() <= 1e-6 * longest[:2].diff().abs()
    if bool(even[inside].all()):
        columns = inside.any(0).nonzero()[:, 0]
        columns = columns[torch.linspace(0, len(columns) - 1, min(count, len(columns))).round().long()]
        index = torch.where(inside[:, columns], columns[None], -1)
        return Marks(longest[columns], index)
    seen = times[inside]
    steps = max(2, min(count, int(inside.sum(1).median())))
    edges = torch.linspace(float(seen.min()), float(seen.max()), steps + 1, dtype=torch.float64)
    centres = (edges[1:] + edges[:-1]) / 2
    far = torch.where(inside[..., None], (times[..., None] - centres).abs(), torch.inf)
    distance, index = far.min(dim=1)
    return Marks(centres, torch.where(distance <= (edges[1] - edges[0]) / 2, index, -1))


def observed(data: Trajectories, marks: Marks) -> Tensor:
    """The observed states at the marks, (path, mark, *state); NaN where there is none."""
    states = data.states[torch.arange(len(data))[:, None], marks.places.clamp(min=0)]
    states[marks.places < 0] = torch.nan
    return states


@torch.no_grad()
def integrate(flow: Flow, data: Trajectories, marks: Marks, *, method: str | None = None) -> Tensor:
    """The flow from the first state of each path, at the times that this path was observed at, (path, mark, *state).

    Every path has its own times: between two marks its state follows dx/ds = τ v(x, t + sτ) for s from 0 to 1. NaN
    where there was no observation, and from where the flow has diverged.
    """
    places = data._path_times().gather(1, marks.places.clamp(min=0))
    x, t, states = data.states[:, 0], data._path_times()[:, 0], []
    for there, place in zip((marks.places >= 0).T, places.T, strict=True):
        gap = torch.where(there, place - t, 0.0)
        x, t = _follow(flow, x, t, gap, method or flow.method), t + gap
        states.append(x)
    found = torch.stack(states, dim=1)
    found[marks.places < 0] = torch.nan
    return found


def _follow(flow: Flow, x: Tensor, t: Tensor, gap: Tensor, method: str) -> Tensor:
    """Each state from its own time t over its own gap, in steps no longer than the data's."""
    start, length = t.to(x.dtype), gap.to(x.dtype)

    def own(z: Tensor, s: Tensor) -> Tensor:
        return times(flow.velocity(z, start + s * length), length)

    longest = float(gap.max())
    steps = max(1, math.ceil(longest / flow.step - 1e-6)) if flow.step else 8
    unit = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return Flow(own)._march(x, unit, [min(steps, 1000)], method, False)[:, -1]


Density = Callable[[Tensor], Tensor]
"""log ρ: (n, *state) → (n,)."""


class FittedDensity(NamedTuple):
    """A log-density fitted to samples, and what it is, in words."""

    log_density: Density
    description: str


def fit_density(x: Tensor) -> FittedDensity:
    """A Gaussian or a kernel estimate, whichever gives the higher mean log-density to samples left out (every other).

    The kernel is a Gaussian with the covariance of the samples times n^(−2/(d+4)) [Scott's rule].
    """
    flat = x.flatten(1).double()
    n, d = flat.shape
    if n < 2 * (d + 2):
        raise ValueError(f"A density of {d} coordinates needs {2 * (d + 2)} samples or more; got {n}.")
    kinds = {"Gaussian": _gaussian, "kernel estimate": _kernel}
    scores = {name: float(kind(flat[::2])(flat[1::2]).mean()) for name, kind in kinds.items()}
    name = max(scores, key=lambda kind: scores[kind])
    density, listed = kinds[name](flat), ", ".join(f"{kind} {score:.3f}" for kind, score in scores.items())
    description = f"a {name} of {n} states (mean log-density of states left out: {listed})"
    return FittedDensity(lambda y: density(y.flatten(1).double()).to(y.dtype), description)


def _gaussian(x: Tensor) -> Density:
    found = moments(x)
    return torch.distributions.MultivariateNormal(found.mean, _regular(found.covariance)).log_prob


def _kernel(x: Tensor) -> Density:
    n, d = x.shape
    root = _bandwidth(x)
    places = torch.linalg.solve_triangular(root, x.mT, upper=False).mT
    constant = -0.5 * d * math.log(2 * math.pi) - float(root.diagonal().log().sum()) - math.log(n)

    def log_density(y: Tensor) -> Tensor:
        points = torch.linalg.solve_triangular(root, y.mT, upper=False).mT
        parts = [(-0.5 * torch.cdist(part, places).square()).logsumexp(1) for part in points.split(2048)]
        return torch.cat(parts) + constant

    return log_density


def _bandwidth(x: Tensor) -> Tensor:
    """A root of the kernel's covariance: that of the samples (n, d) times n^(−2/(d+4))   [Scott's rule]."""
    n, d = x.shape
    return torch.linalg.cholesky(_regular(moments(x).covariance)) * n ** (-1 / (d + 4))


def _regular(covariance: Tensor) -> Tensor:
    """With a floor under its eigenvalues, for coordinates that do not vary."""
    return covariance + 1e-10 * covariance.diagonal().max().clamp(min=1e-12) * torch.eye(len(covariance)).double()


def draw_states(x: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """So many of the states (n, *state), none twice; of more than there are, draws from their kernel estimate."""
    if count < 1:
        raise ValueError(f"An ensemble has one state or more; got {count}.")
    generator = torch.Generator().manual_seed(seed)
    if count <= len(x):
        return x[torch.randperm(len(x), generator=generator)[:count].sort().values]
    flat = x.flatten(1).double()
    chosen = flat[torch.randint(len(x), (count,), generator=generator)]
    noise = torch.randn(chosen.shape, dtype=torch.float64, generator=generator)
    return (chosen + noise @ _bandwidth(flat).mT).to(x.dtype).reshape(count, *x.shape[1:])


def states_at(data: Trajectories, t: float) -> Tensor:
    """The state of each path that was observed within half a typical step of `t`, (n, *state)."""
    gap = torch.where(data._observed(), (data._path_times() - t).abs(), torch.inf)
    distance, index = gap.min(dim=1)
    near = distance <= 0.5 * data.typical_step
    return data.states[torch.arange(len(data))[near], index[near]]


@torch.no_grad()
def generate_with_density(
    flow: Flow, x0: Tensor, times: Tensor, *, start: Density, **how: Any
) -> tuple[Trajectories, Tensor]:
    """Trajectories through `x0` and log ρ along them, (path, time): d log ρ/dt = −∇·v, from `start` at times[0].

    The divergence is exact, one derivative for each coordinate, so states have 64 at most.
    """
    if x0[0].numel() > 64:
        raise ValueError(f"The log-density takes a derivative for each coordinate; {x0[0].numel()} are too many (64).")
    z = torch.cat([start(x0)[:, None], x0.flatten(1)], dim=1)
    both = flow.with_density(x0.shape).generate(z, times, **how)
    states = both.states[..., 1:].reshape(*both.states.shape[:2], *x0.shape[1:])
    return Trajectories(states, both.times, labels=flow.labels), both.states[..., 0]
