"""Rollouts of fields: test films to start from, what a method makes of their beginnings, and what that is worth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.metrics import (
    crps,
    enstrophy_spectrum,
    histogram_distance,
    log_spectral_error,
    relative_mse,
    spread_skill,
    stability,
)
from phibe.trajectories import Trajectories


class Roll(NamedTuple):
    """A way to go on: `frames(history, times)` gives states (n, time, *state) at `times`, the first of which is that
    of the last of `history` (n, past, *state); at how many `evaluations` a frame, and whether by chance."""

    frames: Callable[[Tensor, Tensor], Tensor]
    evaluations: float
    random: bool = False


class Rollouts:
    """Films (start, before + frame, *state) of test paths; `fields` are all the test fields, for their statistics.

    `config` says how many `starts`, `every` so much time along the paths, over which `horizon`.
    """

    def __init__(self, test: Trajectories, config: Any, *, before: int | None = None):
        self.config, self.step = config, test.typical_step
        self.before = config.history - 1 if before is None else before
        self.horizon = round(config.horizon / self.step)
        self.fields = test.states.flatten(0, 1)
        last = test.states.shape[1] - 1 - self.horizon
        first = [k for k in range(0, last + 1, round(config.every / self.step)) if k >= self.before]
        places = [(path, k) for k in first for path in range(len(test))]
        if not places:
            raise ValueError(
                f"Test paths of {test.states.shape[1]} frames are too short for {self.before} before a start and "
                f"{self.horizon} after it. Simulate a longer `duration`, or ask for a shorter `horizon`."
            )
        chosen = [places[i * len(places) // config.starts] for i in range(min(config.starts, len(places)))]
        self.films = torch.stack([test.states[p, k - self.before : k + self.horizon + 1] for p, k in chosen])

    @property
    def history(self) -> Tensor:
        return self.films[:, : self.before + 1]

    @property
    def truth(self) -> Tensor:
        """From the start on, (start, frame, *state)."""
        return self.films[:, self.before :]

    def times(self, frames: int) -> Tensor:
        return torch.arange(frames + 1, dtype=torch.float64) * self.step

    def judge(self, roll: Roll) -> dict[str, Any]:
        """All measures of a method, those against lead time from the first generated frame on.

        The spectrum of the generated fields is compared with that of all test fields, at each lead and by shell at the
        last; the long rollout is judged by its size and its last fields' spectrum.
        """
        few, times = self.config.few, self.times(self.horizon)
        began = time.perf_counter()
        made = roll.frames(self.history, times)
        seconds = time.perf_counter() - began
        drawn = [roll.frames(self.history[:few], times) for _ in range(self.config.members)] if roll.random else []
        return {
            "lead": times[1:].tolist(),
            "relative_mse": relative_mse(made, self.truth)[1:].tolist(),
            **self._statistics(made[:, 1:]),
            "long": self._long(roll.frames(self.history[:few], self.times(self.config.frames))),
            "ensemble": self._ensemble(torch.stack(drawn)) if drawn else None,
            "absolute_error": (made - self.truth)[:few].abs().mean((0, 2, 3, 4))[1:].tolist(),
            "evaluations": roll.evaluations,
            "milliseconds": 1000 * seconds / (len(made) * self.horizon),
        }

    def judge_truth(self) -> dict[str, Any]:
        """The same statistics of the true films: what is left of them is the noise of so few samples."""
        return {"lead": self.times(self.horizon)[1:].tolist(), **self._statistics(self.truth[:, 1:])}

    def _statistics(self, made: Tensor) -> dict[str, Any]:
        """Size, spectrum and values of fields (start, frame, 1, n, n), against all test fields."""
        shells = log_spectral_error(made, self.fields)[:, 0]
        return {
            "rms_ratio": stability(made, self.fields[:, None]).ratio.tolist(),
            "log_spectral_error": shells.square().mean(-1).sqrt().tolist(),
            "shell_error": shells[-1].tolist(),
            "spectrum": enstrophy_spectrum(made[:, -1]).mean.mean((0, 1)).tolist(),
            "histogram_distance": histogram_distance(made[:, -1], self.fields),
        }

    def _long(self, made: Tensor) -> dict[str, Any]:
        found, quarter = stability(made[:, 1:], self.fields[:, None]), max(1, made.shape[1] // 4)
        last = made[:, -quarter:].flatten(0, 1)
        return {
            "frames": made.shape[1] - 1,
            "stable": found.stable,
            "rms_ratio": found.ratio.tolist(),
            "log_spectral_error": float(log_spectral_error(last, self.fields).square().mean().sqrt()),
        }

    def _ensemble(self, drawn: Tensor) -> dict[str, Any]:
        truth = self.truth[: drawn.shape[1]]
        return {
            "members": len(drawn),
            "crps": crps(drawn, truth)[1:].tolist(),
            "spread_skill": spread_skill(drawn[:, :, 1:], truth[:, 1:]).tolist(),
            "relative_mse_of_mean": relative_mse(drawn.mean(0), truth)[1:].tolist(),
        }
