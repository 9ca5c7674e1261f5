"""What the time step does to the solver: the error on one path of the noise, and the statistics that it changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.systems.navier_stokes import NavierStokes
from phibe.trajectories import Trajectories


class StrongError(NamedTuple):
    """Root mean square over paths of ‖ω_h − ω‖/‖ω‖ at the end, and its standard error."""

    dt: float
    value: float
    error: float


def strong_errors(
    system: NavierStokes, start: Tensor, *, time: float, dt: float, levels: int = 4, seed: int = 0
) -> list[StrongError]:
    """Errors at `time` of steps dt, 2dt, 4dt, … on one path of the noise, against steps of dt/4   [strong order 1.5].

    `start` is (path, 1, grid, grid). The noise of a long step is exactly that of the short ones it consists of.
    """
    count = round(4 * time / dt)
    if count % 2 ** (levels + 1) or abs(count * dt / 4 - time) > 1e-9 * time:
        raise ValueError(
            f"`time` must be a whole number of the longest steps, {2 ** (levels - 1) * dt:g} with {levels} levels; "
            f"got {time:g}."
        )
    generator, h = torch.Generator().manual_seed(seed), dt / 4
    noise = system.step(h).draw(count * len(start), generator=generator).unflatten(0, (count, -1))
    ends: list[tuple[float, Tensor]] = []
    while len(ends) < levels + 2:
        step, omega = system.step(h), system.spectral(start[:, 0])
        for part in noise:
            omega = step(omega, system.advection, part)
        ends.append((h, system.physical(omega)))
        noise, h = step.joined(noise[:-1:2], noise[1::2]), 2 * h
    truth = ends[0][1]
    return [_error(h, end, truth) for h, end in ends[2:]]


def _error(h: float, end: Tensor, truth: Tensor) -> StrongError:
    squares = (end - truth).square().mean((-2, -1)).double() / truth.square().mean((-2, -1)).double()
    value = float(squares.mean().sqrt())
    spread = float(squares.std()) / len(squares) ** 0.5 if len(squares) > 1 else float("nan")
    return StrongError(h, value, spread / (2 * value) if value else 0.0)


class Statistics(NamedTuple):
    """Means over paths and times, each with its standard error over paths, and the `data` for more, as spectra."""

    dt: float
    energy: tuple[float, float]
    enstrophy: tuple[float, float]
    dissipation: tuple[float, float]
    data: Trajectories


def weak_statistics(
    system: NavierStokes, dts: Sequence[float], *, paths: int, times: Any, spin_up: float = 50.0, seed: int = 0
) -> list[Statistics]:
    """What the stationary state looks like at each of the steps; the dissipation must equal `system.injection`."""
    found = []
    for dt in dts:
        data = system.simulate(paths=paths, times=times, spin_up=spin_up, seed=seed, dt=dt)
        energy, enstrophy, dissipation = (
            _mean(measure(data.states)) for measure in (system.energy, system.enstrophy, system.dissipation)
        )
        found.append(Statistics(dt, energy, enstrophy, dissipation, data))
    return found


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean of values (path, time), with the standard error over paths."""
    by_path = values.double().mean(1)
    return float(by_path.mean()), float(by_path.std()) / len(by_path) ** 0.5
