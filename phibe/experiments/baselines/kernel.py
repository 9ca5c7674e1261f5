"""The plug-in velocity: drift and diffusion by kernel regression (`kramersmoyal`), the score of a kernel density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from phibe.flow import Flow
from phibe.systems.fokker_planck import Lattice
from phibe.trajectories import Trajectories

BINS = {1: 1000, 2: 150}  # a side, by dimension
BANDWIDTHS = (0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.57)  # tried by default, in standard deviations of each coordinate
FLOOR = 1e-4  # of the density's peak: an estimate in a bin below it is replaced by that of the nearest bin above it


class _Series(NamedTuple):
    """All observations, one path after the other: `z` (n, d) in standard units, whether a path `ends` there (n,)."""

    z: np.ndarray
    ends: np.ndarray
    step: float


def fit_kernel(data: Trajectories, *, bandwidth: float | None = None) -> Flow:
    """The plug-in velocity v̂ = b̂ − ½Σ̂∇log ρ̂ − ½∇·Σ̂ of stationary data, in one or two dimensions, on a grid.

    b̂ = E[Δx | x]/Δt and Σ̂ = E[ΔxΔxᵀ | x]/Δt are Nadaraya–Watson means by `kramersmoyal.km`, ρ̂ is the kernel density
    that comes with them; derivatives are central differences. The observations must be equally spaced in time. All
    share one Gaussian kernel, so that v̂ρ̂ is the smoothed current: in detailed balance the bias of smoothing cancels.
    `bandwidth` is in standard deviations of each coordinate; by default the one of `BANDWIDTHS` that predicts Δx best,
    by twofold cross-validation of b̂ over the two halves of the data.
    """
    x, ends, step = _observations(data)
    centre, scale = x.mean(0), x.std(0)
    series = _Series((x - centre) / scale, ends, step)
    bandwidth = min(BANDWIDTHS, key=lambda h: _prediction_loss(series, h)) if bandwidth is None else bandwidth
    edges = _edges(series, bandwidth)
    velocity = torch.from_numpy(_velocity(series, edges, bandwidth) * scale)
    axes = tuple(torch.from_numpy(c + s * _middle(e)) for c, s, e in zip(centre, scale, edges, strict=True))
    return Flow(KernelField(Lattice(axes, velocity), bandwidth), step=step)


@dataclass(frozen=True, eq=False)
class KernelField:
    """v̂ read between the centres of the bins, the same at all times; `bandwidth` is the one that was used."""

    lattice: Lattice
    bandwidth: float

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.lattice(x)


# -- inside --------------------------------------------------------------------------------------------------------


def _observations(data: Trajectories) -> tuple[np.ndarray, np.ndarray, float]:
    """Observations (n, d) of all paths in turn, where a path ends (n,), and the common step."""
    if data.state_shape not in {(1,), (2,)}:
        raise ValueError(
            f"Kernel regression is for one or two coordinates, states (1,) or (2,); got {data.state_shape}."
        )
    dt = data.pairs().dt.double()
    step = float(dt.mean())
    if float((dt - step).abs().max()) > 1e-2 * step:
        raise ValueError(
            f"Kernel regression needs equal time steps; they go from {float(dt.min()):g} to {float(dt.max()):g}. "
            "Interpolate the paths to a regular grid first?"
        )
    observed = data._observed()
    ends = observed & ~torch.nn.functional.pad(data._observed(2), (0, 1))
    return data.states[observed].double().numpy(), ends[observed].numpy(), step


def _edges(series: _Series, margin: float) -> list[np.ndarray]:
    count = BINS[series.z.shape[1]] + 1
    return [np.linspace(column.min() - margin, column.max() + margin, count) for column in series.z.T]


def _middle(edge: np.ndarray) -> np.ndarray:
    return (edge[1:] + edge[:-1]) / 2


def _velocity(series: _Series, edges: list[np.ndarray], bandwidth: float) -> np.ndarray:
    """v̂ at the centres of the bins (*bins, d)."""
    d = len(edges)
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    units = np.eye(d, dtype=int)
    powers = [*units, *(units[i] + units[j] for i, j in pairs)]
    density, *moments = _km(series, edges, powers=powers, bandwidth=bandwidth)
    spacing = [edge[1] - edge[0] for edge in edges]
    score = _gradient(np.log(np.maximum(density, FLOOR / 10 * density.max())), spacing)
    v = np.stack(moments[:d], axis=-1) / series.step
    for (i, j), moment in zip(pairs, moments[d:], strict=True):
        sigma = moment * (2 if i == j else 1) / series.step  # km divides by the factorials of the powers
        slope = _gradient(sigma, spacing)
        for a, b in {(i, j), (j, i)}:
            v[..., a] -= 0.5 * (sigma * score[..., b] + slope[..., b])
    return _extended(v, density)


def _km(series: _Series, edges: list[np.ndarray], *, powers: Any, bandwidth: float) -> np.ndarray:
    """Density and conditional moments of the increments on the bins (1 + moments, *bins), by `kramersmoyal.km`.

    `km` knows one series only. A further coordinate marks where a path ends; its one bin excludes those points, so that
    no increment from one path to the next is counted.
    """
    try:
        from kramersmoyal import kernels, km
    except ImportError as error:
        raise ImportError("`fit_kernel` needs the package kramersmoyal: pip install kramersmoyal") from error
    table = np.array([[0] * (len(edges) + 1), *([*power, 0] for power in powers)])
    flagged = np.column_stack([series.z, series.ends.astype(float)])
    bins = [*edges, np.array([-0.5, 0.5])]
    found, _ = km(flagged, bins=bins, powers=table, kernel=kernels.gaussian, bw=bandwidth)
    return found[..., 0]


def _prediction_loss(series: _Series, bandwidth: float) -> float:
    """Mean of |b̂|² − 2 b̂·Δx/Δt over each half of the data, with b̂ from the other half."""
    middle, edges = len(series.z) // 2, _edges(series, bandwidth)
    axes = tuple(torch.from_numpy(_middle(edge)) for edge in edges)
    halves = [_Series(series.z[part], series.ends[part], series.step) for part in (slice(middle), slice(middle, None))]
    loss = 0.0
    for known, new in (halves, halves[::-1]):
        density, *moments = _km(known, edges, powers=np.eye(len(edges), dtype=int), bandwidth=bandwidth)
        field = Lattice(axes, torch.from_numpy(_extended(np.stack(moments, axis=-1) / series.step, density)))
        inside = ~new.ends[:-1]
        drift = field(torch.from_numpy(new.z[:-1][inside])).numpy()
        loss += float((drift**2 - 2 * drift * np.diff(new.z, axis=0)[inside] / series.step).sum(1).mean())
    return loss


def _gradient(values: np.ndarray, spacing: list[float]) -> np.ndarray:
    slopes = np.gradient(values, *spacing)
    return np.stack(slopes if values.ndim > 1 else [slopes], axis=-1)


def _extended(values: np.ndarray, density: np.ndarray) -> np.ndarray:
    """The values, those of bins with almost no data taken from the nearest bin with some."""
    empty = density <= FLOOR * density.max()
    nearest = distance_transform_edt(empty, return_distances=False, return_indices=True)
    return values[tuple(nearest)]
