"""The Navier–Stokes run that comes with the project: its true clips, its methods, and new rollouts of any of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phibe.experiments.report import Report, committed, committed_weights
from phibe.experiments.turbulence.methods import restore, rolls
from phibe.experiments.turbulence.run import Config
from phibe.training.config import FitConfig

Progress = Callable[[float], None]
"""`progress(frames)` is called before each evaluation of a network; what it raises ends the rollout."""


class Clip(NamedTuple):
    """A true clip at one interval: the frames (n, 1, h, w) up to its start, those from there on, and their times."""

    history: Tensor
    truth: Tensor
    times: Tensor


class Rollout(NamedTuple):
    """Generated frames (frame, 1, n, n), the start first; evaluations for each, whether drawn, and seconds for all."""

    states: Tensor
    evaluations: float
    random: bool
    seconds: float


@dataclass(frozen=True)
class SavedRun:
    """A finished run of the experiment: its configuration, its measurements, its weights."""

    config: Config
    report: Report
    weights: dict[str, Tensor]

    @staticmethod
    def open() -> SavedRun:
        """The run that comes with the project; a ValueError if it does not."""
        report = committed("navier_stokes")
        config = Config(**{**report.config, "training": FitConfig(**report.config["training"])})
        return SavedRun(config, report, committed_weights("navier_stokes"))

    def labels(self, interval: float) -> list[str]:
        """All that was measured at an interval: a method, or a method and its integrator, as in "symmetric, rk4 ×2"."""
        return list(self.report[f"{interval:g}"])

    @property
    def clips(self) -> int:
        return len(self.weights["fields"])

    def clip(self, number: int, interval: float) -> Clip:
        """A true clip (numbers from 0 on) at one interval."""
        finest, past = self.config.intervals[0], self.config.history - 1
        every, fields = round(interval / finest), self.weights["fields"][number].float()
        start = len(fields) - 1 - round(self.config.horizon / finest)
        truth = fields[start::every]
        times = torch.arange(len(truth), dtype=torch.float64) * interval
        return Clip(fields[start - past * every : start + 1 : every], truth, times)

    def method(self, name: str, interval: float) -> Any:
        """A fresh copy of a method as it was trained at an interval: a flow, a mixture or a forecaster."""
        return restore(name, interval, config=self.config, weights=self.weights)

    def roll(self, label: str, clip: Clip, *, seed: int = 0, progress: Progress | None = None) -> Rollout:
        """A rollout of the method of that label from the beginning of a clip, over all its times."""
        name, interval = label.partition(", ")[0], float(clip.times[1])
        model = self.method(name, interval)
        roll = rolls(name, model, self.config, seed=seed)[label]
        if progress:
            _report_progress(model, roll.evaluations, progress)
        began = time.perf_counter()
        states = roll.frames(clip.history[None], clip.times)[0]
        return Rollout(states, roll.evaluations, roll.random, time.perf_counter() - began)


def _report_progress(model: Any, each: float, progress: Progress) -> None:
    """Call `progress` before each evaluation of the networks of a method, which is used by this rollout alone."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        progress(calls / each)
        calls += 1

    for part in (getattr(model, name, None) for name in ("velocity", "drift", "network")):
        if isinstance(part, nn.Module):
            part.register_forward_pre_hook(count)
