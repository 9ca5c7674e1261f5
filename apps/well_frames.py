"""The double well's animation: density by the Fokker–Planck equation, SDE samples, flows of polynomial fields."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from flow_setting import EXACT, FRAMES, PARTICLES, Setting, knots_in_time, resample, second, simulate
from torch import Tensor

from phibe.bases import InTime, lift, polynomials
from phibe.calculus import Velocity
from phibe.flow import Flow
from phibe.linear.basis import fit_basis
from phibe.metrics import sliced_w2
from phibe.systems.fokker_planck import GridSolution, solve_fokker_planck
from phibe.systems.sde import double_well
from phibe.trajectories import Trajectories

LOW, HIGH = -2.4, 2.4  # the picture; hardly any path ever leaves it
CELLS, DRAWN = 400, 160
BINS = 48
KNOTS = 9
CLEAR = 0.02  # of the density's peak: above it the velocity matters, and is drawn
FRESH = 3000  # paths that no fit has seen, to measure distributions against


def animation(setting: Setting) -> dict[str, Tensor | np.ndarray]:
    """Simulate, fit, integrate, compare; densities and fields are on `DRAWN` points from LOW to HIGH."""
    seen, shown = simulate(setting)
    fresh = simulate(setting, paths=FRESH, seed=setting.seed + 1000)[1]
    solution = exact_solution(setting.end, setting.observations)
    x = torch.linspace(LOW, HIGH, DRAWN, dtype=torch.float64)
    density, truth = _table(solution.density, x, shown.times), _table(solution.velocity, x, shown.times)
    columns = {
        "t": shown.times,
        "density": density,
        "exact": torch.where(clear := density > CLEAR * density.amax(1, keepdim=True), truth, torch.nan),
        "reach": _reach(torch.where(clear, truth, 0.0)),
        "speed": _norm(truth, density),
        "sample": shown.states[:PARTICLES, :, 0].mT,
        "sample_error": _distances(shown.states, fresh),
    }
    for i, estimator in enumerate(setting.estimators):
        flow = estimate(solution, seen, estimator, setting.degree)
        states = integrate(flow, seen, setting.integrator)
        fitted = _table(flow.velocity, x, shown.times)
        own = {
            "fitted": fitted,
            "particle": _inside(states[:PARTICLES, :, 0].mT),
            "bars": _bars(states),
            "lost": 1 - _inside(states[..., 0]).isfinite().double().mean(0),
            "velocity_error": _norm(fitted - truth, density),
            "marginal_error": _distances(states, fresh),
        }
        columns |= {second(name): column for name, column in own.items()} if i else own
    return columns


@lru_cache(maxsize=16)
def exact_solution(end: float, observations: int) -> GridSolution:
    """ρ_t and v of the double well at every time that an animation or an integrator looks at."""
    times = torch.linspace(0, end, max(FRAMES - 1, observations) + 1, dtype=torch.float64)
    return solve_fokker_planck(double_well(), times, low=LOW - 0.6, high=HIGH + 0.6, cells=CELLS)


def estimate(solution: GridSolution, seen: Trajectories, estimator: str, degree: int) -> Flow:
    """The flow of a field polynomial in x and piecewise linear in time, fitted in closed form; or the `exact` one.

    Beyond the picture, where there is no data, the field is held at its value on the edge: a polynomial that runs
    away leaves the picture at a finite speed.
    """
    if estimator == EXACT:
        return Flow(_held(solution.velocity), seen.interval)
    count = min(KNOTS, len(seen.times) // 4)  # a few observations between two knots
    basis = lift(InTime(polynomials(degree), knots_in_time(seen.times, estimator, count)))
    flow = fit_basis(seen, basis, estimator)
    return Flow(_held(flow.velocity), seen.interval)


def integrate(flow: Flow, seen: Trajectories, method: str) -> Tensor:
    """The flow from where the paths start, with a step for each observation: states at the frames, (path, F, 1)."""
    generated = flow.generate(seen.states[:, 0], seen.times, method=method, tolerance=1e-4).states
    return resample(generated.movedim(1, 0)).movedim(0, 1)


def _held(velocity: Velocity) -> Velocity:
    return lambda x, t: velocity(x.clamp(LOW, HIGH), t)


def _table(function: Velocity, x: Tensor, times: Tensor) -> Tensor:
    """A function of (x, t) on all points at all times: (F, points)."""
    values = function(x.repeat(len(times))[:, None], times.repeat_interleave(len(x)))
    return values.reshape(len(times), len(x)).detach()


def _reach(values: Tensor) -> Tensor:
    """Half the height of the figure of each row, which shrinks slowly as an animation goes on and never grows: (F,)."""
    return 1.3 * values.abs().amax(1).flip(0).cummax(0).values.flip(0).clamp(min=0.5)


def _norm(values: Tensor, density: Tensor) -> Tensor:
    """‖·‖ in L²(ρ_t) by the rectangle rule, for each row: (F, points) → (F,)."""
    return (values.square() * density).sum(1).mul((HIGH - LOW) / (DRAWN - 1)).sqrt()


def _bars(states: Tensor) -> np.ndarray:
    """A histogram for each frame, whose area is the share of the states in the picture: (path, F, 1) → (F, BINS)."""
    width = (HIGH - LOW) / BINS
    counts = [np.histogram(row, bins=BINS, range=(LOW, HIGH))[0] for row in states[..., 0].mT.numpy()]
    return np.stack(counts) / (len(states) * width)


def _inside(x: Tensor) -> Tensor:
    """What is in the picture; the rest NaN, which is not drawn."""
    return torch.where((x >= LOW) & (x <= HIGH), x, torch.nan)


def _distances(states: Tensor, fresh: Trajectories) -> Tensor:
    """W₂ from samples that no fit has seen, at each frame; on a line one direction is all there is."""
    pairs = zip(states.unbind(1), fresh.states.unbind(1), strict=True)
    return torch.tensor([sliced_w2(a, b, directions=1) for a, b in pairs])
