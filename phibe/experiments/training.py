"""Nudges: training that teaches the way back, each sample starting a little beside the path it belongs to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Generic, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from phibe.experiments.turbulence.spectra import enstrophy_spectrum, log_spectral_error
from phibe.metrics import crps, histogram_distance, relative_mse, spread_skill, stability
from phibe.training.config import FitConfig
from phibe.training.loop import Loss, Result, Task
from phibe.trajectories import Trajectories

# -- nudges ----------------------------------------------------------------------------------------------------------


class Placed(Task[Result], Protocol[Result]):
    """A task whose samples start from one of their observations, the `place`-th."""

    @property
    def place(self) -> int: ...


@dataclass(frozen=True)
class Around(Generic[Result]):
    """Another task with a loss of its own: what is built on it brings `loss`."""

    task: Task[Result]

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def width(self) -> int:
        return self.task.width

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        return self.task.about(network, data)

    def result(self, network: nn.Module, data: Trajectories) -> Result:
        return self.task.result(network, data)


@dataclass(frozen=True)
class Nudged(Around[Result]):
    """A task whose samples start beside the observation, by ε ~ N(0, (`size` · s)²), s being the spread of the data.

    The observations before and after stay where they are, so a step ahead is Δx − ε: it also leads back. A regression
    on it finds E[Δx | x + ε] + σ²∇log p_σ, the second term being E[−ε | x + ε], the pull of the noisy data's density
    towards the data. Rollouts that stray a little are led back. (`input_noise` moves a sample as a whole, and teaches
    no way back.) The central difference of `symmetric` does not contain its place: it is smoothed, nothing more.
    """

    task: Placed[Result]
    size: float

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError(f"`size` must be above 0, in standard deviations of the data; got {self.size}.")

    def loss(self, typical: Trajectories, config: FitConfig) -> NudgedLoss:
        return NudgedLoss(self.task.loss(typical, config), self.task, self.size, typical.state_shape)


class NudgedLoss(Loss):
    """A loss of samples that start beside themselves."""

    def __init__(self, loss: Loss, task: Placed[Any], size: float, shape: tuple[int, ...]):
        super().__init__()
        self.loss, self.network, self.place, self.width = loss, loss.network, task.place, task.width
        self.size, self.shape = size, shape
        self.facts, self.jacobian, self.scale = loss.facts | {"nudged": size}, loss.jacobian, loss.scale

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Where to, in standard deviations (n, *state), and what the loss itself draws."""
        return torch.randn(n, *self.shape, generator=generator), *self.loss.draw(n, generator)

    def forward(self, *sample: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.width == 2:
            x, t, dx, dt, nudge, *drawn = sample
            moved = self.size * self.scale * nudge
            return self.loss(x + moved, t, dx - moved, dt, *drawn, generator=generator)
        x, t, dt, nudge, *drawn = sample
        at = torch.zeros(self.width, dtype=x.dtype, device=x.device)
        at[self.place] = self.size
        moved = at.reshape(-1, *[1] * (x.ndim - 2)) * (self.scale * nudge)[:, None]
        return self.loss(x + moved, t, dt, *drawn, generator=generator)


# -- shifts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shifted(Around[Result]):
    """A task on fields (channels, height, width) that are periodic, with a law that no shift changes.

    Each time a sample is seen, all its observations are moved by the same random number of pixels around the torus: one
    film is as good as height × width of them, and no network can learn places by heart.
    """

    def loss(self, typical: Trajectories, config: FitConfig) -> ShiftedLoss:
        if len(typical.state_shape) != 3:
            raise ValueError(f"Shifts are for states (channels, height, width); got {typical.state_shape}.")
        return ShiftedLoss(self.task.loss(typical, config), self.width)


class ShiftedLoss(Loss):
    """A loss of samples that are moved first."""

    def __init__(self, loss: Loss, width: int):
        super().__init__()
        self.loss, self.network, self.width = loss, loss.network, width
        self.facts, self.jacobian, self.scale = loss.facts | {"shifted": True}, loss.jacobian, loss.scale

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Where to, as shares of height and width (n, 2), and what the loss itself draws."""
        return torch.rand(n, 2, generator=generator), *self.loss.draw(n, generator)

    def forward(self, *sample: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.width == 2:
            x, t, dx, dt, to, *drawn = sample
            return self.loss(shift(x, to), t, shift(dx, to), dt, *drawn, generator=generator)
        x, t, dt, to, *drawn = sample
        return self.loss(shift(x, to), t, dt, *drawn, generator=generator)


def shift(x: Tensor, to: Tensor) -> Tensor:
    """Fields (n, …, height, width), each moved around the torus by its own shares (n, 2) of the two sides."""
    fields = x.flatten(1, -3)
    number = torch.arange(len(x), device=x.device).reshape(-1, 1, 1, 1)
    layer = torch.arange(fields.shape[1], device=x.device).reshape(1, -1, 1, 1)
    down, right = (_around(side, share) for side, share in zip(x.shape[-2:], to.unbind(1), strict=True))
    return fields[number, layer, down[:, None, :, None], right[:, None, None, :]].reshape(x.shape)


def _around(side: int, share: Tensor) -> Tensor:
    """Which pixel comes to each place of a side, (n, side)."""
    places = torch.arange(side, device=share.device)
    return (places - (share * side).long()[:, None]) % side


# -- independent jobs, several at a time, in processes of one thread each --------------------------------------------


def run_all(jobs: Sequence[Callable[[], Any]], *, workers: int, progress: str = "fits") -> None:
    """Run jobs that leave their results on disk, `workers` at a time; the first error ends them all.

    Small networks run fastest on one thread, so that several processes share the cores best. However this one ends, the
    others end with it.
    """
    if workers == 1:
        for job in tqdm(jobs, desc=progress, unit="fit"):
            job()
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin) as pool:
        started = [pool.submit(_quiet, job) for job in jobs]
        try:
            for done in tqdm(as_completed(started), total=len(jobs), desc=progress, unit="fit"):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    torch.set_num_threads(1)
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End with the process that started this one: when that is killed, nobody else says so."""
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _quiet(job: Callable[[], Any]) -> None:
    """The result stays on disk: it need not travel between processes."""
    job()


# -- rollouts of fields ----------------------------------------------------------------------------------------------


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
