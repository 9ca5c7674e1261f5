"""What the flow explorer's animations share: the setting that decides one, its length, and the form of its columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phibe.experiments.pendulum import states as pendulum_states
from phibe.experiments.pendulum.acrobot import Acrobot
from phibe.objectives import OBJECTIVES
from phibe.systems.ou import OU
from phibe.systems.sde import SDE, double_well
from phibe.trajectories import Trajectories

FRAMES = 121
PARTICLES = 200  # drawn; the fit sees all paths
FAR = 1e8
GROWTH = 1e3  # an unstable process is shown until it has grown by this factor
WELL, PENDULUM, EXACT, NONE = "double well", "double pendulum", "exact", "none"
TRAINED = pendulum_states.PENDULUM_STATES.presets["laptop"].objectives  # networks that come with the project

Matrix = tuple[tuple[float, float], tuple[float, float]]
Columns = dict[str, np.ndarray]
"""A row for each frame. What belongs to the second of two flows has the name of the first's with `second` behind it."""


def second(name: str) -> str:
    return f"{name}_2"


@dataclass(frozen=True)
class Setting:
    """All that an animation depends on.

    `drift` and `noise` are the matrices A and S of a custom process; `knots` are those of a linear process's field in
    time, `degree` is that of the double well's in x.
    """

    process: str = "non-reversible"
    drift: Matrix = ((-2.0, -1.0), (-1.0, -2.0))
    noise: Matrix = ((1.0, 0.0), (0.0, 0.7))
    paths: int = 1000
    observations: int = 4800
    horizon: float = 10.0
    seed: int = 0
    estimator: str = "phibe"
    compare: str = NONE
    knots: int = 30
    degree: int = 3
    integrator: str = "rk4"

    def system(self) -> OU | SDE | Acrobot:
        """The process; the linear ones are around μ = (4, 4) and start from N(0, I), as in the paper."""
        if self.process == WELL:
            return double_well()
        if self.process == PENDULUM:
            return Acrobot()
        if self.process == "custom":
            return OU(self.drift, self.noise, mu=[4.0, 4.0])
        return OU.reversible() if self.process == "reversible" else OU.nonreversible()

    @property
    def estimators(self) -> tuple[str, ...]:
        """One, or the two that are compared; for the pendulum those of them that there is a network of."""
        asked = (self.estimator,) if self.compare in (NONE, self.estimator) else (self.estimator, self.compare)
        return tuple(name for name in asked if name in TRAINED) if self.process == PENDULUM else asked

    @property
    def end(self) -> float:
        """The last time shown: the horizon, or when an unstable process has grown by `GROWTH`."""
        if self.process in (WELL, PENDULUM):
            return self.horizon
        rate = float(torch.linalg.eigvals(self.system().A).real.max())
        return min(self.horizon, math.log(GROWTH) / rate) if rate > 0 else self.horizon

    @property
    def step(self) -> float:
        return self.end / self.observations


def simulate(setting: Setting, *, paths: int | None = None, seed: int | None = None) -> tuple[Trajectories, ...]:
    """The paths as the estimator sees them, at the observation times, and as they are shown, at the frames."""
    frames, observations = FRAMES - 1, setting.observations
    times = torch.linspace(0, setting.end, max(frames, observations) + 1, dtype=torch.float64)
    seed = setting.seed if seed is None else seed
    data = setting.system().simulate(paths=paths or setting.paths, times=times, seed=seed)
    return data.coarsen(max(1, frames // observations)), data.coarsen(max(1, observations // frames))


def times_seen(times: Tensor, estimator: str) -> Tensor:
    """Those of the observation times at which the estimator learns the velocity from all sides that it looks to."""
    kind, path = OBJECTIVES[estimator], Trajectories(torch.zeros(1, len(times), 1, dtype=torch.float64), times)
    options = {"noise": 1.0} if estimator == "isotropic" else {}
    seen, looks = kind.stencil(*kind.samples(path), **options).t.unique(return_counts=True)
    return seen[looks == looks.max()]


def knots_in_time(times: Tensor, estimator: str, count: int) -> Tensor:
    """About `count` of the observation times that the estimator sees, denser at the start where it changes fast.

    Fewer knots average out the noise of a fit, as fewer bins do for a histogram.
    """
    seen = times_seen(times, estimator)
    return seen[((len(seen) - 1) * torch.linspace(0, 1, max(count, 2)) ** 2).round().long().unique()]


def resample(values: Tensor) -> Tensor:
    """Rows at even times, taken at the frames: straight lines between observations, as an integrator's steps are."""
    rows = values.flatten(1).mT[None]
    return torch.nn.functional.interpolate(rows, FRAMES, mode="linear", align_corners=True)[0].mT.reshape(
        -1, *values.shape[1:]
    )


def sendable(columns: dict[str, Tensor | np.ndarray]) -> Columns:
    """Read-only float32, with what no picture can hold as NaN, which is not drawn."""

    def shown(column: Tensor | np.ndarray) -> np.ndarray:
        values = np.asarray(column, dtype=np.float64)
        kept = np.where(np.abs(values) < FAR / 10, values, np.nan).astype(np.float32)
        kept.setflags(write=False)
        return kept

    return {name: shown(column) for name, column in columns.items()}
