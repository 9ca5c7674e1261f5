"""The Fokker–Planck equation on a grid: densities and probability velocities where no closed form is known.

Finite volumes on a box with reflecting walls. The flux through a face, J = wρ − D∂ρ with w = b − ½∇·Σ and D = ½Σ_ii,
is that of Scharfetter and Gummel: exact for constant w and D, second order, and it keeps ρ positive. Where there is no
noise (D = 0) it becomes the upwind flux, of first order. In time TR-BDF2: second order, L-stable. Assumed: Σ diagonal,
one or two dimensions (more would fit the code, not the memory), and a box that holds all but a negligible part of the
mass. Read next: `phibe/objectives.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phibe.calculus import place_between
from phibe.systems.sde import SDE, Diffusion, Distribution, matrix_divergence

if TYPE_CHECKING:
    from scipy.sparse import csc_array


@dataclass(frozen=True, eq=False)
class Lattice:
    """`values` (n₁, …, n_k, *out) at the points of increasing `axes`; O(spacing²) error between, held fixed beyond.

    A derivative is that of the cell around a point; at a node the one from the left, at the first from the right.
    """

    axes: tuple[Tensor, ...]
    values: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        """(n, k) → (n, *out)."""
        places = [place_between(points[:, i].to(axis.dtype), axis) for i, axis in enumerate(self.axes)]
        shape = (-1, *[1] * (self.values.ndim - len(self.axes)))
        total = torch.zeros((), dtype=self.values.dtype)
        for corner in product((0, 1), repeat=len(self.axes)):
            weight = torch.ones((), dtype=self.values.dtype)
            for side, (_, fraction) in zip(corner, places, strict=True):
                weight = weight * (fraction if side else 1 - fraction)
            index = tuple(left + side for side, (left, _) in zip(corner, places, strict=True))
            total = total + weight.reshape(shape) * self.values[index]
        return total.to(points.dtype)


# -- the solution ------------------------------------------------------------------------------------------------------


FLOOR = 1e-14  # of the peak: below it the density is rounding, and its logarithm is held fixed

Solve = Callable[[float, np.ndarray], np.ndarray]
"""ρ of (I − hA)ρ = right, by h and right."""


@dataclass(frozen=True, eq=False)
class GridSolution:
    """ρ_t and v on a grid: `axes` of cell centres, `densities` (time, *cells), `velocities` (time, *cells, d).

    `density` and `velocity` interpolate linearly in x and t; beyond the outermost centres they are held fixed.
    """

    axes: tuple[Tensor, ...]
    times: Tensor
    densities: Tensor
    velocities: Tensor

    def density(self, x: Tensor, t: Tensor | float) -> Tensor:
        """ρ_t(x): (n, d), () or (n,) → (n,)."""
        return Lattice((self.times, *self.axes), self.densities)(_with_time(x, t))

    def velocity(self, x: Tensor, t: Tensor | float) -> Tensor:
        """v = b − ½Σ∇log ρ_t − ½∇·Σ   [paper: probability velocity]: (n, d), () or (n,) → (n, d).

        To be trusted where there is mass: below 1e-14 of the peak of ρ_t the score is taken as zero.
        """
        return Lattice((self.times, *self.axes), self.velocities)(_with_time(x, t))


def solve_fokker_planck(
    system: Diffusion,
    times: Any,
    *,
    low: float | Sequence[float],
    high: float | Sequence[float],
    cells: int | Sequence[int] = 400,
    step: float | None = None,
    start: Distribution | None = None,
) -> GridSolution:
    """ρ_t on the box [low, high] at `times`, from `start` at t = 0 (default: the system's own).

    ∂ρ/∂t = −∇·(bρ) + ½ Σᵢⱼ ∂ᵢ∂ⱼ(Σᵢⱼρ)   [paper: Fokker–Planck equation]. Error O(cell² + step²); a time step is at
    most `step` long (default: a 500th of the last time). Mass is conserved to rounding.
    """
    times = torch.as_tensor(times, dtype=torch.float64)
    if times.ndim != 1 or len(times) < 2 or float(times[0]) < 0 or not (times.diff() > 0).all():
        raise ValueError("`times` must be two or more increasing values, none negative: `start` is that of t = 0.")
    start = start or getattr(system, "start", None)
    if start is None:
        raise ValueError("This system has no start distribution: pass `start`, e.g. `start=ou.marginal(0.0)`.")
    grid = _grid(start.sample(1, generator=torch.Generator()).shape[1], low, high, cells)
    log_start = start.log_density(grid.points).numpy()
    mass = float(np.exp(log_start).sum() * math.prod(grid.spacing))
    if abs(mass - 1) > 1e-3:
        raise ValueError(f"The cells hold a mass of {mass:.4f} of `start`, not 1. A wider box or more `cells`?")
    step = float(times[-1]) / 500 if step is None else step
    densities = _evolve(_generator(system, grid), np.exp(log_start) / mass, times, step=step)
    logs = [np.log(np.maximum(rho, FLOOR * rho.max())) for rho in densities]
    if float(times[0]) == 0:
        logs[0] = log_start
    w, spread = _transport(system, grid.points)
    velocities = np.stack([w - spread * _gradient(log, grid) for log in logs])
    parts = (torch.from_numpy(part) for part in (np.stack(densities), velocities))
    rho, v = (part.reshape(len(times), *grid.shape, *part.shape[2:]) for part in parts)
    return GridSolution(grid.axes, times, rho, v)


class _Grid(NamedTuple):
    axes: tuple[Tensor, ...]
    spacing: tuple[float, ...]
    shape: tuple[int, ...]
    points: Tensor  # (cells, d), the last axis fastest


def _grid(d: int, low: Any, high: Any, cells: Any) -> _Grid:
    low, high, cells = (np.broadcast_to(part, d) for part in (low, high, cells))
    if not (low < high).all() or not (cells >= 3).all():
        got = f"{low}, {high} with {cells} cells"
        raise ValueError(f"A box needs low < high and three or more cells a side; got {got}.")
    spacing = tuple(float(width) for width in (high - low) / cells)
    axes = tuple(
        torch.from_numpy(a + h * (np.arange(n) + 0.5)) for a, h, n in zip(low, spacing, cells.tolist(), strict=True)
    )
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, d)
    return _Grid(axes, spacing, tuple(cells.tolist()), points)


def _with_time(x: Tensor, t: Tensor | float) -> Tensor:
    return torch.cat([torch.as_tensor(t, dtype=x.dtype).expand(len(x))[:, None], x], dim=1)


def _transport(system: Diffusion, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """w = b − ½∇·Σ and the diagonal of D = ½Σ at points x: two arrays (n, d)."""
    sigma = system.diffusion(x)
    diagonal = sigma.diagonal(dim1=1, dim2=2)
    if float((sigma - torch.diag_embed(diagonal)).abs().max()) > 1e-12 * float(diagonal.max()):
        raise ValueError("Σ must be diagonal here, and it is not. Turn the coordinates so that the noises separate.")
    w = system.drift(x)
    if not (isinstance(system, SDE) and isinstance(system.sigma, Tensor)):
        w = w - 0.5 * matrix_divergence(system.diffusion, x)
    return w.numpy(), 0.5 * diagonal.numpy()


def _gradient(log: np.ndarray, grid: _Grid) -> np.ndarray:
    """∇log ρ at the centres by central differences, exact for a Gaussian; (cells,) → (cells, d)."""
    slopes = np.gradient(log.reshape(grid.shape), *grid.spacing, edge_order=2)
    return np.stack(slopes if len(grid.shape) > 1 else [slopes], axis=-1).reshape(len(log), -1)


# -- space and time ------------------------------------------------------------------------------------------------


def _generator(system: Diffusion, grid: _Grid) -> csc_array:
    """A of dρ/dt = Aρ. Its columns sum to zero; off the diagonal it is not negative."""
    from scipy.sparse import coo_array

    index = np.arange(len(grid.points)).reshape(grid.shape)
    rows, columns, entries = [], [], []
    for axis, width in enumerate(grid.spacing):
        left = np.delete(index, -1, axis).ravel()
        right = np.delete(index, 0, axis).ravel()
        w, spread = (part[:, axis] for part in _transport(system, (grid.points[left] + grid.points[right]) / 2))
        out, back = (rate / width for rate in _rates(w, spread / width))
        rows += [left, left, right, right]
        columns += [left, right, left, right]
        entries += [-out, back, out, -back]
    place = (np.concatenate(rows), np.concatenate(columns))
    return coo_array((np.concatenate(entries), place), shape=(index.size, index.size)).tocsc()


def _rates(w: np.ndarray, conductance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the flux J = out·ρ_left − back·ρ_right, with out − back = w and conductance D/Δ:
    back = (D/Δ) p/(eᵖ − 1), p = wΔ/D the cell's Péclet number."""
    p = np.divide(w, conductance, out=np.zeros_like(w), where=conductance > 0)
    with np.errstate(over="ignore"):
        bernoulli = np.divide(p, np.expm1(p), out=np.ones_like(p), where=p != 0)
    back = np.where(conductance > 0, conductance * bernoulli, np.maximum(-w, 0))
    return np.maximum(back + w, 0), back


def _evolve(generator: csc_array, density: np.ndarray, times: Tensor, *, step: float) -> list[np.ndarray]:
    """Densities at `times` by TR-BDF2 from t = 0.

    A step that would make ρ negative somewhere (in the far tails of a narrow start) is taken as sixteen of backward
    Euler, which keep it positive whatever their length.
    """
    solve = _resolvent(generator)
    found, now = [], 0.0
    for t in times.tolist():
        count = math.ceil((t - now) / step - 1e-9)
        h = round((t - now) / max(count, 1), 14)
        for _ in range(count):
            later = _tr_bdf2(generator, solve, density, h)
            if later.min() < 0:
                later = reduce(lambda rho, _: solve(h / 16, rho), range(16), density)
            density = later
        found.append(density)
        now = t
    return found


def _resolvent(generator: csc_array) -> Solve:
    """ρ of (I − hA)ρ = right, by h and right; the factors of each matrix are kept, as both stages of a step use one."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import splu

    unit = eye_array(generator.shape[0], format="csc")
    factors = lru_cache(maxsize=None)(lambda h: splu((unit - h * generator).tocsc()))
    return lambda h, right: factors(h).solve(right)


def _tr_bdf2(generator: csc_array, solve: Solve, density: np.ndarray, h: float) -> np.ndarray:
    """One step: the trapezoidal rule to t + γh, γ = 2 − √2, then the second-order backward formula to t + h."""
    gamma = 2 - math.sqrt(2)
    middle = solve(gamma / 2 * h, density + gamma / 2 * h * (generator @ density))
    return solve(gamma / 2 * h, (middle - (1 - gamma) ** 2 * density) / (gamma * (2 - gamma)))
