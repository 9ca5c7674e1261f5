"""Affine flows: their coefficients, the maps they make and the Gaussian laws they carry, without sampling error."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from phibe.calculus import Velocity
from phibe.flow import Flow
from phibe.integrators import ALPHA, FILTER, INTEGRATORS
from phibe.systems.ou import Gaussian


def affine_coefficients(velocity: Velocity, times: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """A (L, d, d) and b (L, d) at `times` of a velocity that is affine in x, read off at the corners of the simplex."""
    corners = _simplex(dimension)
    values = velocity(corners.repeat(len(times), 1), times.repeat_interleave(dimension + 1))
    return _affine_through(values.reshape(len(times), dimension + 1, dimension))


def flow_map(velocity: Velocity, times: Tensor, dimension: int, *, method: str = "rk4") -> tuple[Tensor, Tensor]:
    """M (L, d, d) and c (L, d) of the map x₀ ↦ M x₀ + c that an affine velocity makes from `times[0]` to each time.

    Every integrator keeps the map affine, so d + 1 trajectories tell all of it. A fixed-step method makes one step from
    time to time: all steps are taken in one call and then composed. A flow that runs away becomes infinite.
    """
    if method == "adaptive":
        states = Flow(velocity).generate(_simplex(dimension), times, method=method, tolerance=1e-4).states
        return _affine_through(states.movedim(1, 0))
    leaps = {"leapfrog": 0.0, "filtered": FILTER}
    steps = _steps(velocity, times, dimension, "rk4" if method in leaps else method)
    with np.errstate(over="ignore", invalid="ignore"):
        maps = _leapfrog(velocity, times, steps, leaps[method]) if method in leaps else _compose(steps)
    return torch.from_numpy(maps[:, :-1, :-1]), torch.from_numpy(maps[:, :-1, -1])


def _steps(velocity: Velocity, times: Tensor, dimension: int, method: str) -> np.ndarray:
    """The map of each single step between neighbouring times, as [[M, c], [0, 1]]: composing is multiplying."""
    t, h = (part.repeat_interleave(dimension + 1)[:, None] for part in (times[:-1], times.diff()))
    starts = _simplex(dimension).repeat(len(times) - 1, 1)
    ends = INTEGRATORS[method].step(lambda x, t: velocity(x, t[:, 0]), starts, t, h)
    return _homogeneous(*_affine_through(ends.reshape(-1, dimension + 1, dimension)), corner=1.0)


def _compose(steps: np.ndarray) -> np.ndarray:
    return np.stack(list(accumulate(steps, lambda done, step: step @ done, initial=np.eye(steps.shape[-1]))))


def _leapfrog(velocity: Velocity, times: Tensor, steps: np.ndarray, filter: float) -> np.ndarray:
    """`Leapfrog` on maps, x_{n+1} = x_{n−1} + 2h (A x_n + b); the given steps start it, and again at a new step."""
    rates = _homogeneous(*affine_coefficients(velocity, times[:-1], steps.shape[-1] - 1), corner=0.0)
    h = times.diff().numpy()
    maps = [np.eye(steps.shape[-1]), steps[0]]
    before = maps[0]
    for n in range(1, len(h)):
        here = maps[-1]
        if not np.isclose(h[n], h[n - 1], rtol=1e-6, atol=0):
            before = here
            maps.append(steps[n] @ here)
            continue
        after = before + 2 * h[n] * rates[n] @ here
        bend = filter / 2 * (before - 2 * here + after)
        before = here + ALPHA * bend
        maps.append(after + (ALPHA - 1) * bend)
    return np.stack(maps)


def pushforward(law: Gaussian, matrix: Tensor, offset: Tensor) -> Gaussian:
    """The law of M x + c for x ~ N(m, C), one for each map: N(M m + c, M C Mᵀ)."""
    return Gaussian((matrix @ law.mean[:, None])[..., 0] + offset, matrix @ law.covariance @ matrix.mT)


def _simplex(dimension: int) -> Tensor:
    """The origin and the unit vectors, (d+1, d): enough points to know an affine map."""
    return torch.eye(dimension + 1, dimension, dtype=torch.float64).roll(1, 0)


def _affine_through(images: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix and offset of the affine map with these images of the simplex, (..., d+1, d)."""
    return (images[..., 1:, :] - images[..., :1, :]).mT, images[..., 0, :]


def _homogeneous(matrix: Tensor, offset: Tensor, *, corner: float) -> np.ndarray:
    """[[M, c], [0, corner]] for each."""
    d = matrix.shape[-1]
    whole = np.zeros((len(matrix), d + 1, d + 1))
    whole[:, :d, :d], whole[:, :d, d], whole[:, d, d] = matrix.numpy(), offset.numpy(), corner
    return whole
