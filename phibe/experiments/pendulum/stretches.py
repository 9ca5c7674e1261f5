"""Measured runs in stretches: forecasts from the start of each, their errors, and means with intervals over runs.

Nobody knows the law of a measured pendulum, so a forecast is compared with what happened, and with forecasts that know
nothing. Read next: `real.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phibe.experiments.pendulum.measured import RATE
from phibe.experiments.pendulum.rendering import pose_error
from phibe.experiments.pendulum.scores import rollout
from phibe.flow import Flow

LEADS = (0.1, 0.25, 0.5, 1.0)
"""Seconds after which errors are told."""
FASTEST = 150.0
"""Velocities at which a rollout that diverges is held, rad/s: twice the fastest of the measured runs."""
ARMS = (1.0, 462 / 604)
"""Lengths of the links, in lengths of the first."""

Forecast = Callable[[Tensor, Tensor], Tensor]
"""States (n, time, 4) at `times` from starts (n, 4)."""


def persistence(x0: Tensor, times: Tensor) -> Tensor:
    return x0[:, None].expand(-1, len(times), -1)


def constant_velocity(x0: Tensor, times: Tensor) -> Tensor:
    """Both links go on turning as they do at the start."""
    turning = torch.cat([x0[:, 2:], torch.zeros_like(x0[:, 2:])], dim=1)
    return x0[:, None] + times[:, None] * turning[:, None]


TRIVIAL: dict[str, Forecast] = {"persistence": persistence, "constant velocity": constant_velocity}


def by_flow(flow: Flow, method: str) -> Forecast:
    """The flow from any time on, one step an observation."""
    free = Flow(flow.velocity, None, flow.step)
    return lambda x0, times: rollout(free, x0, times, method, fastest=FASTEST)


class Stretches:
    """A run in stretches that follow one another: short ones of `horizon` s for the errors, long ones of `decay` s for
    the loss of speed; each observed every `stride`-th row."""

    def __init__(self, pieces: Sequence[Tensor], *, stride: int, horizon: float, decay: float):
        self.short, self.long = (_cut(pieces, seconds, stride) for seconds in (horizon, decay))
        self.step = stride / RATE


def _cut(pieces: Sequence[Tensor], seconds: float, stride: int) -> Tensor:
    """As many whole stretches as there are in the pieces of a run: (n, observation, 4)."""
    rows = round(seconds * RATE / stride) * stride
    parts = [piece.unfold(0, rows + 1, rows) for piece in pieces if len(piece) > rows]
    return torch.cat([pieces[0].new_empty(0, 4, rows + 1), *parts])[..., ::stride].mT


@dataclass(frozen=True)
class Scores:
    """Of the stretches of each run: pose errors in degrees (short, time), and speeds of the lower end (long, time)."""

    errors: Sequence[Tensor]
    speeds: Sequence[Tensor]
    step: float

    def after(self, seconds: float) -> list[Tensor]:
        """Errors after so long, (short,) of each run."""
        return [error[:, round(seconds / self.step)] for error in self.errors]

    def late(self) -> list[Tensor]:
        """Root mean square speed over the last second, (long,) of each run."""
        return [speed[:, -round(1 / self.step) :].square().mean(1).sqrt() for speed in self.speeds]

    def minus(self, other: Scores) -> list[Tensor]:
        """Error minus error, stretch by stretch: (short, time) of each run."""
        return [one - two for one, two in zip(self.errors, other.errors, strict=True)]

    def parts(self) -> list[Scores]:
        """Those of each run."""
        return [Scores([error], [speed], self.step) for error, speed in zip(self.errors, self.speeds, strict=True)]

    def summary(self) -> dict[str, Any]:
        """Means in time, and those after each of `LEADS` with their intervals."""
        return {
            "degrees": torch.cat([*self.errors]).mean(0).tolist(),
            "at": means_at(self.errors, self.step),
            "speed": torch.cat([*self.speeds]).square().mean(0).sqrt().tolist(),
        }


def score(forecast: Forecast, runs: Sequence[Stretches], *, slowing: bool = True) -> Scores:
    """A forecast from the start of every stretch, run by run; without `slowing` of the short ones only."""
    step, long = runs[0].step, [run.long if slowing else run.long[:0] for run in runs]
    short = torch.cat([run.short for run in runs])
    errors = pose_error(_forecast(forecast, short, step), short).split([len(run.short) for run in runs])
    speeds = end_speed(_forecast(forecast, torch.cat(long), step)).split([len(part) for part in long])
    return Scores(errors, speeds, step)


def measured(runs: Sequence[Stretches]) -> Scores:
    """What happened, as a forecast without error."""
    none = [torch.zeros(run.short.shape[:2]) for run in runs]
    return Scores(none, [end_speed(run.long) for run in runs], runs[0].step)


def averaged(seeds: Sequence[Scores]) -> Scores:
    """Means over the seeds, stretch by stretch."""
    errors = [torch.stack(some).mean(0) for some in zip(*(one.errors for one in seeds), strict=True)]
    speeds = [torch.stack(some).mean(0) for some in zip(*(one.speeds for one in seeds), strict=True)]
    return Scores(errors, speeds, seeds[0].step)


def joined(runs: Sequence[Scores]) -> Scores:
    """Scores of several runs, from those of each."""
    errors, speeds = [e for one in runs for e in one.errors], [v for one in runs for v in one.speeds]
    return Scores(errors, speeds, runs[0].step)


def _forecast(forecast: Forecast, truth: Tensor, step: float) -> Tensor:
    times = torch.arange(truth.shape[1], dtype=torch.float64) * step
    return forecast(truth[:, 0], times) if len(truth) else truth


def end_speed(x: Tensor) -> Tensor:
    """Speed of the second link's end, in lengths of the first link a second: (..., 4) → (...)."""
    first, both = x[..., 2], x[..., 2] + x[..., 3]
    squared = (ARMS[0] * first) ** 2 + (ARMS[1] * both) ** 2 + 2 * ARMS[0] * ARMS[1] * first * both * x[..., 1].cos()
    return squared.clamp(min=0).sqrt()


class Mean(NamedTuple):
    """A mean over stretches, and where it lies at 95 % confidence."""

    value: float
    low: float
    high: float


def mean_of(values: Sequence[Tensor], *, seed: int = 0, resamples: int = 2000) -> Mean:
    """The mean over the stretches of all runs, `values` (n,) of each run, and its bootstrap interval grouped by run: a
    resample draws runs, and of each run that it draws, stretches. Of two runs it hardly knows how runs differ.

    >>> mean_of([torch.zeros(40), torch.ones(40)])
    Mean(value=0.5, low=0.0, high=1.0)
    """
    parts, generator = [part.double().numpy() for part in values if len(part)], np.random.default_rng(seed)
    drawn = generator.integers(len(parts), size=(resamples, len(parts)))
    sums, sizes = np.zeros(drawn.shape), np.array([len(part) for part in parts])[drawn]
    for i, part in enumerate(parts):
        chosen = generator.integers(len(part), size=(int((drawn == i).sum()), len(part)))
        sums[drawn == i] = part[chosen].sum(1)
    low, high = np.quantile(sums.sum(1) / sizes.sum(1), [0.025, 0.975])
    return Mean(float(np.concatenate(parts).mean()), float(low), float(high))


def means_at(errors: Sequence[Tensor], step: float) -> dict[str, Mean]:
    """Of errors (short, time) of each run, the means after each of `LEADS` that they reach."""
    leads = {f"{lead:g}": round(lead / step) for lead in LEADS if round(lead / step) < errors[0].shape[1]}
    return {lead: mean_of([error[:, i] for error in errors]) for lead, i in leads.items()}
