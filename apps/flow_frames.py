"""The flow explorer's frames: one setting in, every picture of its film out, as arrays for the browser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from phibe.affine import affine_coefficients, flow_map, pushforward
from phibe.flow import Flow
from phibe.linear import AffineField, fit_affine
from phibe.metrics import gaussian_w2, moments
from phibe.systems import OU, Gaussian
from phibe.theory import affine_gap
from phibe.trajectories import Trajectories

FRAMES = 121
PARTICLES = 200  # drawn; the fit sees all paths
TRAIL = 30  # frames a trail looks back
FAR = 1e8
GROWTH = 1e3  # an unstable process is shown until it has grown by this factor

LOCK = Lock()

Matrix = tuple[tuple[float, float], tuple[float, float]]
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """All that a film depends on. `drift` and `noise` are the matrices A and S of a custom process."""

    process: str = "non-reversible"
    drift: Matrix = ((-2.0, -1.0), (-1.0, -2.0))
    noise: Matrix = ((1.0, 0.0), (0.0, 0.7))
    paths: int = 1000
    observations: int = 4800
    horizon: float = 10.0
    seed: int = 0
    estimator: str = "phibe"
    knots: int = 30
    integrator: str = "rk4"

    def system(self) -> OU:
        """The process, around μ = (4, 4) and started from N(0, I), as in the paper."""
        if self.process == "custom":
            return OU(self.drift, self.noise, mu=[4.0, 4.0])
        return OU.reversible() if self.process == "reversible" else OU.nonreversible()

    @property
    def end(self) -> float:
        """The last time shown: the horizon, or when an unstable process has grown by `GROWTH`."""
        rate = float(torch.linalg.eigvals(self.system().A).real.max())
        return min(self.horizon, math.log(GROWTH) / rate) if rate > 0 else self.horizon

    @property
    def step(self) -> float:
        return self.end / self.observations


@lru_cache(maxsize=16)
def frames(setting: Setting) -> Columns:
    """The columns of a film, a row for each frame. Sessions share them. One is made at a time."""
    with LOCK:
        return _film(setting)


def _film(setting: Setting) -> Columns:
    """Simulate, fit, integrate, compare."""
    system = setting.system()
    seen, shown = simulate(system, setting)
    flow = estimate(system, seen, setting.estimator, setting.knots)
    maps = _maps(flow, seen.times, setting.integrator)
    law, flow_law = system.marginal(shown.times), pushforward(system.marginal(0.0), *maps)
    columns = {
        "t": shown.times,
        **_points("sample", shown.states[:PARTICLES].movedim(1, 0)),
        **_points("particle", shown.states[:PARTICLES, 0] @ maps[0].mT + maps[1][:, None]),
        "law": _ellipse(law),
        "flow_law": _ellipse(flow_law),
        **_errors(system, flow, shown, law, flow_law),
        **_cameras(law, flow_law),
    }
    return {name: _sendable(column) for name, column in columns.items()}


def simulate(system: OU, setting: Setting) -> tuple[Trajectories, Trajectories]:
    """The paths as the estimator sees them, at the observation times, and as the film shows them, at the frames."""
    frames, observations = FRAMES - 1, setting.observations
    times = torch.linspace(0, setting.end, max(frames, observations) + 1, dtype=torch.float64)
    paths = system.simulate(paths=setting.paths, times=times, seed=setting.seed)
    return paths.coarsen(max(1, frames // observations)), paths.coarsen(max(1, observations // frames))


def estimate(system: OU, seen: Trajectories, estimator: str, knots: int) -> Flow:
    """The fitted flow; for `exact` the true one, tabulated at the observations and half-way, where the methods look.

    The field is piecewise linear in time between `knots` observation times, denser at the start where the law changes
    fast, or free at every one for 0: fewer knots average out the noise of the fit, as fewer bins do for a histogram.
    """
    if estimator != "exact":
        starts = seen.times[:-1]
        places = ((len(starts) - 1) * torch.linspace(0, 1, max(knots, 2)) ** 2).round().long().unique()
        return fit_affine(seen, estimator, knots=starts[places] if knots else None)
    times = torch.linspace(*seen.interval, 2 * len(seen.times) - 1, dtype=torch.float64)
    return Flow(AffineField(times, *affine_coefficients(system.velocity, times, 2)), seen.interval)


def _maps(flow: Flow, times: Tensor, method: str) -> list[Tensor]:
    """x₀ ↦ M x₀ + c at each frame; a flow that runs away is kept at `FAR`, where it is not drawn."""
    try:
        maps = flow_map(flow.velocity, times, 2, method=method)
    except (ValueError, AssertionError):  # what the adaptive method says when no step is small enough
        maps = torch.full((len(times), 2, 2), FAR), torch.full((len(times), 2), FAR)
    return [_resample(part.double().nan_to_num(FAR).clamp(-FAR, FAR)) for part in maps]


def _errors(system: OU, flow: Flow, shown: Trajectories, law: Gaussian, flow_law: Gaussian) -> dict[str, Tensor]:
    """Both fields as (A | b), the L²(ρ_t) norms of v and v̂ − v, and W₂ of flow and samples from the exact law."""
    exact = affine_coefficients(system.velocity, shown.times, 2)
    fitted = affine_coefficients(flow.velocity, shown.times, 2)
    laws = [Gaussian(*parts) for parts in zip(law.mean, law.covariance, strict=True)]
    flow_laws = [Gaussian(*parts) for parts in zip(flow_law.mean, flow_law.covariance, strict=True)]
    gap = [a - b for a, b in zip(fitted, exact, strict=True)]
    return {
        "exact": torch.cat([exact[0].flatten(1), exact[1]], 1),
        "fitted": torch.cat([fitted[0].flatten(1), fitted[1]], 1),
        "speed": torch.tensor([affine_gap(*parts) for parts in zip(laws, *exact, strict=True)]),
        "velocity_error": torch.tensor([affine_gap(*parts) for parts in zip(laws, *gap, strict=True)]),
        "law_error": torch.tensor([gaussian_w2(a, b) for a, b in zip(flow_laws, laws, strict=True)]),
        "sample_error": torch.tensor([gaussian_w2(moments(shown.states[:, i]), b) for i, b in enumerate(laws)]),
    }


def _points(name: str, x: Tensor) -> dict[str, Tensor]:
    return {f"{name}_x": x[..., 0], f"{name}_y": x[..., 1]}


def _ellipse(law: Gaussian) -> Tensor:
    """(mean, R) with the 2σ ellipse {mean + R (cos φ, sin φ)}, R = 2 C^½: (F, 6)."""
    values, vectors = torch.linalg.eigh(law.covariance)
    root = vectors * (2 * values.clamp(min=0).sqrt())[:, None, :]
    return torch.cat([law.mean, (root @ vectors.mT).flatten(1)], 1)


def _cameras(law: Gaussian, flow_law: Gaussian) -> dict[str, np.ndarray]:
    """Boxes (centre, half widths) that hold both laws and their trails: one follows them, one holds the whole film."""
    spread = 3 * law.covariance.diagonal(dim1=1, dim2=2).sqrt()
    limit = 2 * spread  # a flow that runs away leaves the picture instead of shrinking everything else
    away = flow_law.mean - law.mean
    reach = 3 * flow_law.covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    low = (law.mean + torch.minimum(-spread, (away - reach).clamp(min=-limit))).numpy()
    high = (law.mean + torch.maximum(spread, (away + reach).clamp(max=limit))).numpy()
    follow = _smooth(_trailing(low, np.min)), _smooth(_trailing(high, np.max))
    whole = (np.broadcast_to(side, low.shape) for side in (low.min(0), high.max(0)))
    return {"follow": _box(*follow), "whole": _box(*whole)}


def _trailing(values: np.ndarray, reduce) -> np.ndarray:
    return reduce(sliding_window_view(np.pad(values, ((TRAIL, 0), (0, 0)), "edge"), TRAIL + 1, axis=0), axis=-1)


def _smooth(values: np.ndarray, width: int = 8) -> np.ndarray:
    return sliding_window_view(np.pad(values, ((width, width), (0, 0)), "edge"), 2 * width + 1, axis=0).mean(-1)


def _box(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.concatenate([(low + high) / 2, (high - low) / 2], axis=1)


def _resample(values: Tensor) -> Tensor:
    """Rows at even times, taken at the frames: straight lines between observations, as an integrator's steps are."""
    rows = values.flatten(1).mT[None]
    return torch.nn.functional.interpolate(rows, FRAMES, mode="linear", align_corners=True)[0].mT.reshape(
        -1, *values.shape[1:]
    )


def _sendable(column: Tensor | np.ndarray) -> np.ndarray:
    """Read-only float32, with what no picture can hold as NaN, which is not drawn."""
    values = np.asarray(column, dtype=np.float64)
    shown = np.where(np.abs(values) < FAR / 10, values, np.nan).astype(np.float32)
    shown.setflags(write=False)
    return shown
