"""Densities: a law from samples of it, and its log-density carried along a flow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from phibe.calculus import divergence
from phibe.flow import Flow
from phibe.metrics import moments
from phibe.trajectories import Trajectories

Density = Callable[[Tensor], Tensor]
"""log ρ: (n, *state) → (n,)."""


class Fit(NamedTuple):
    """A log-density fitted to samples, and what it is."""

    log_density: Density
    words: str


def fit_density(x: Tensor) -> Fit:
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
    density = kinds[name](flat)
    words = f"a {name} of {n} states (mean log-density of states left out: " + ", ".join(
        f"{kind} {score:.3f}" for kind, score in scores.items()
    )
    return Fit(lambda y: density(y.flatten(1).double()).to(y.dtype), words + ")")


def _gaussian(x: Tensor) -> Density:
    mean, covariance = moments(x)
    law = torch.distributions.MultivariateNormal(mean, _regular(covariance))
    return law.log_prob


def _kernel(x: Tensor) -> Density:
    n, d = x.shape
    root = torch.linalg.cholesky(_regular(moments(x).covariance)) * n ** (-1 / (d + 4))
    places = torch.linalg.solve_triangular(root, x.mT, upper=False).mT
    constant = -0.5 * d * math.log(2 * math.pi) - float(root.diagonal().log().sum()) - math.log(n)

    def log_density(y: Tensor) -> Tensor:
        points = torch.linalg.solve_triangular(root, y.mT, upper=False).mT
        parts = [(-0.5 * torch.cdist(part, places).square()).logsumexp(1) for part in points.split(2048)]
        return torch.cat(parts) + constant

    return log_density


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
    n, d = flat.shape
    root = torch.linalg.cholesky(_regular(moments(flat).covariance)) * n ** (-1 / (d + 4))
    chosen = flat[torch.randint(n, (count,), generator=generator)]
    noise = torch.randn(count, d, dtype=torch.float64, generator=generator)
    return (chosen + noise @ root.mT).to(x.dtype).reshape(count, *x.shape[1:])


def states_at(data: Trajectories, t: float) -> Tensor:
    """The state of each path that was observed within half a typical step of `t`, (n, *state)."""
    times, inside = data._path_times(), data._observed()
    gap = torch.where(inside, (times - t).abs(), torch.inf)
    distance, index = gap.min(dim=1)
    near = distance <= 0.5 * float(times.diff(dim=1)[data._observed(2)].median())
    return data.states[torch.arange(len(data))[near], index[near]]


@torch.no_grad()
def generate_with_density(
    flow: Flow, x0: Tensor, times: Tensor, *, start: Density, method: str, substeps: int | None, extrapolate: bool
) -> tuple[Trajectories, Tensor]:
    """Trajectories through `x0` and log ρ along them, (path, time): d log ρ/dt = −∇·v, from `start` at times[0].

    The divergence is exact, one derivative for each coordinate, so states have 64 at most.
    """
    if x0[0].numel() > 64:
        raise ValueError(f"The log-density takes a derivative for each coordinate; {x0[0].numel()} are too many (64).")

    def augmented(z: Tensor, t: Tensor) -> Tensor:
        y = z[:, 1:].reshape(x0.shape)
        return torch.cat([-divergence(flow.velocity, y, t)[:, None], flow.velocity(y, t).flatten(1)], dim=1)

    z = torch.cat([start(x0)[:, None], x0.flatten(1)], dim=1)
    both = Flow(augmented, flow.interval, flow.step).generate(
        z, times, method=method, substeps=substeps, extrapolate=extrapolate
    )
    states = both.states[..., 1:].reshape(*both.states.shape[:2], *x0.shape[1:])
    return Trajectories(states, both.times, labels=flow.labels), both.states[..., 0]
