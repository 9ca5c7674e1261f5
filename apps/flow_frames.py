"""The flow explorer's frames: one setting in, every frame of its animation out, as arrays for the browser."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock

import numpy as np
import pendulum_frames
import torch
import well_frames
from flow_setting import (
    EXACT,
    FAR,
    PARTICLES,
    PENDULUM,
    WELL,
    Columns,
    Setting,
    knots_in_time,
    resample,
    second,
    sendable,
    simulate,
)
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from phibe.flow import Flow
from phibe.linear.affine import AffineField, fit_affine
from phibe.metrics import gaussian_w2, matrix_root, moments
from phibe.systems.ou import OU, Gaussian
from phibe.theory import affine_coefficients, affine_gap, flow_map, pushforward
from phibe.trajectories import Trajectories

TRAIL = 30  # frames a trail looks back

LOCK = Lock()

Affine = tuple[Tensor, Tensor]  # A (F, 2, 2) and b (F, 2)


@lru_cache(maxsize=16)
def frames(setting: Setting) -> Columns:
    """The columns of an animation, a row for each frame. Sessions share them. One is made at a time."""
    with LOCK:
        make = {WELL: well_frames.animation, PENDULUM: pendulum_frames.animation}.get(setting.process, animation)
        return sendable(make(setting))


def animation(setting: Setting) -> dict[str, Tensor | np.ndarray]:
    """The animation of a linear process: simulate, fit, integrate, compare."""
    system = setting.system()
    seen, shown = simulate(setting)
    marginal = system.marginal(shown.times)
    exact = affine_coefficients(system.velocity, shown.times, 2)
    marginals = _each(marginal)
    columns = {
        "t": shown.times,
        **_points("sample", shown.states[:PARTICLES].movedim(1, 0)),
        "marginal": _ellipse(marginal),
        "exact": torch.cat([exact[0].flatten(1), exact[1]], 1),
        "speed": torch.tensor([affine_gap(*parts) for parts in zip(marginals, *exact, strict=True)]),
        "sample_error": torch.tensor([gaussian_w2(moments(shown.states[:, i]), b) for i, b in enumerate(marginals)]),
    }
    flow_marginals = []
    for estimator in setting.estimators:
        flow = estimate(system, seen, estimator, setting.knots)
        maps = _maps(flow, seen.times, setting.integrator)
        flow_marginals.append(pushforward(system.marginal(0.0), *maps))
        own = {
            **_points("particle", shown.states[:PARTICLES, 0] @ maps[0].mT + maps[1][:, None]),
            "flow_marginal": _ellipse(flow_marginals[-1]),
            **_errors(affine_coefficients(flow.velocity, shown.times, 2), exact, marginals, flow_marginals[-1]),
        }
        columns |= own if len(flow_marginals) == 1 else {second(name): column for name, column in own.items()}
    return {**columns, **_cameras(marginal, flow_marginals)}


def estimate(system: OU, seen: Trajectories, estimator: str, knots: int) -> Flow:
    """The fitted flow; for `exact` the true one, tabulated at the observations and half-way, where the methods look.

    The field is piecewise linear in time between `knots` observation times, or free at every one for 0.
    """
    if estimator != EXACT:
        return fit_affine(seen, estimator, knots=knots_in_time(seen.times, estimator, knots) if knots else None)
    times = torch.linspace(*seen.interval, 2 * len(seen.times) - 1, dtype=torch.float64)
    return Flow(AffineField(times, *affine_coefficients(system.velocity, times, 2)), seen.interval)


def _maps(flow: Flow, times: Tensor, method: str) -> list[Tensor]:
    """x₀ ↦ M x₀ + c at each frame; a flow that diverges is kept at `FAR`, where it is not drawn."""
    try:
        maps = flow_map(flow.velocity, times, 2, method=method)
    except (ValueError, AssertionError):  # what the adaptive method says when no step is small enough
        maps = torch.full((len(times), 2, 2), FAR), torch.full((len(times), 2), FAR)
    return [resample(part.double().nan_to_num(FAR).clamp(-FAR, FAR)) for part in maps]


def _errors(fitted: Affine, exact: Affine, marginals: list[Gaussian], flow_marginal: Gaussian) -> dict[str, Tensor]:
    """The fitted field as (A | b), the L²(ρ_t) norm of v̂ − v, and W₂ of the flow's distribution from the exact one."""
    gap = [a - b for a, b in zip(fitted, exact, strict=True)]
    return {
        "fitted": torch.cat([fitted[0].flatten(1), fitted[1]], 1),
        "velocity_error": torch.tensor([affine_gap(*parts) for parts in zip(marginals, *gap, strict=True)]),
        "marginal_error": torch.tensor(
            [gaussian_w2(a, b) for a, b in zip(_each(flow_marginal), marginals, strict=True)]
        ),
    }


def _each(marginal: Gaussian) -> list[Gaussian]:
    """The distribution at each time, from all of them in one."""
    return [Gaussian(*parts) for parts in zip(marginal.mean, marginal.covariance, strict=True)]


def _points(name: str, x: Tensor) -> dict[str, Tensor]:
    return {f"{name}_x": x[..., 0], f"{name}_y": x[..., 1]}


def _ellipse(marginal: Gaussian) -> Tensor:
    """(mean, R) with the 2σ ellipse {mean + R (cos φ, sin φ)}, R = 2 C^½: (F, 6)."""
    return torch.cat([marginal.mean, 2 * matrix_root(marginal.covariance).flatten(1)], 1)


def _cameras(marginal: Gaussian, flow_marginals: list[Gaussian]) -> dict[str, np.ndarray]:
    """Boxes (centre, half widths) that hold all marginals and their trails: one follows, one holds all frames."""
    spread = 3 * marginal.covariance.diagonal(dim1=1, dim2=2).sqrt()
    low, high = marginal.mean - spread, marginal.mean + spread
    for flow_marginal in flow_marginals:  # one that diverges leaves the figure instead of shrinking everything else
        away = flow_marginal.mean - marginal.mean
        reach = 3 * flow_marginal.covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        low = torch.minimum(low, marginal.mean + (away - reach).clamp(min=-2 * spread))
        high = torch.maximum(high, marginal.mean + (away + reach).clamp(max=2 * spread))
    sides = low.numpy(), high.numpy()
    follow = (_smooth(_trailing(side, reduce)) for side, reduce in zip(sides, (np.min, np.max), strict=True))
    whole = (np.broadcast_to(side, low.shape) for side in (sides[0].min(0), sides[1].max(0)))
    return {"follow": _box(*follow), "whole": _box(*whole)}


def _trailing(values: np.ndarray, reduce) -> np.ndarray:
    return reduce(sliding_window_view(np.pad(values, ((TRAIL, 0), (0, 0)), "edge"), TRAIL + 1, axis=0), axis=-1)


def _smooth(values: np.ndarray, width: int = 8) -> np.ndarray:
    return sliding_window_view(np.pad(values, ((width, width), (0, 0)), "edge"), 2 * width + 1, axis=0).mean(-1)


def _box(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.concatenate([(low + high) / 2, (high - low) / 2], axis=1)
