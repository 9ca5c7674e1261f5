"""The committed Navier–Stokes run, opened: its true films, its methods, and a fresh rollout of any of them."""

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

Watch = Callable[[float], None]
"""`watch(frames)`: told before each evaluation of a network how many frames are done; what it raises ends the rollout.
"""


class Film(NamedTuple):
    """A true film at one interval: the frames (n, 1, h, w) up to its start, those from there on, and their times."""

    history: Tensor
    truth: Tensor
    times: Tensor


class Rolled(NamedTuple):
    """Generated frames (frame, 1, n, n), the start first; evaluations for each, whether drawn, and seconds for all."""

    states: Tensor
    evaluations: float
    random: bool
    seconds: float


@dataclass(frozen=True)
class KeptFields:
    """A run of the experiment as it was left: what it was asked, what it measured, what it learnt."""

    config: Config
    report: Report
    weights: dict[str, Tensor]

    @staticmethod
    def open() -> KeptFields:
        """The run that comes with the project; a ValueError if it does not."""
        report = committed("navier_stokes")
        config = Config(**{**report.config, "training": FitConfig(**report.config["training"])})
        return KeptFields(config, report, committed_weights("navier_stokes"))

    def labels(self, interval: float) -> list[str]:
        """All that was measured at an interval: a method, or a method and its integrator, as in "symmetric, rk4 ×2"."""
        return list(self.report[f"{interval:g}"])

    @property
    def films(self) -> int:
        return len(self.weights["fields"])

    def film(self, number: int, interval: float) -> Film:
        """A true film from 0 on, seen at an interval."""
        finest, past = self.config.intervals[0], self.config.history - 1
        every, fields = round(interval / finest), self.weights["fields"][number].float()
        start = len(fields) - 1 - round(self.config.horizon / finest)
        truth = fields[start::every]
        times = torch.arange(len(truth), dtype=torch.float64) * interval
        return Film(fields[start - past * every : start + 1 : every], truth, times)

    def method(self, name: str, interval: float) -> Any:
        """A method as it was trained at an interval: a flow, a mixture or a forecaster, for nobody else."""
        return restore(name, interval, config=self.config, weights=self.weights)

    def roll(self, label: str, film: Film, *, seed: int = 0, watch: Watch | None = None) -> Rolled:
        """What the method of that label makes of the beginning of a film, over all its times."""
        name, interval = label.partition(", ")[0], float(film.times[1])
        model = self.method(name, interval)
        roll = rolls(name, model, self.config, seed=seed)[label]
        if watch:
            _tell(model, roll.evaluations, watch)
        began = time.perf_counter()
        made = roll.frames(film.history[None], film.times)[0]
        return Rolled(made, roll.evaluations, roll.random, time.perf_counter() - began)


def _tell(model: Any, each: float, watch: Watch) -> None:
    """Let the networks of a method say how far it is; the method is ours alone, so nobody else is told."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        watch(calls / each)
        calls += 1

    for part in (getattr(model, name, None) for name in ("velocity", "drift", "network")):
        if isinstance(part, nn.Module):
            part.register_forward_pre_hook(count)
