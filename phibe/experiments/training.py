"""What the experiments share in training and in comparing: random changes of the samples, parallel fits, rollouts.

`InputNoise` and `RandomShift` wrap any task of `phibe/training/loop.py`. `run_all` trains independent models, several
at a time; `Rollouts` scores any method on fields. Read next: `conditioned.py`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Generic, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from phibe.experiments.turbulence.spectra import enstrophy_spectrum, log_spectral_error
from phibe.flow import Flow
from phibe.metrics import crps, histogram_distance, relative_mse, spread_skill, stability
from phibe.networks.network import Normalised
from phibe.training.config import FitConfig
from phibe.training.devices import pick
from phibe.training.loop import Loss, Result, Task, fit_network
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories

# -- random changes of a sample ----------------------------------------------------------------------------------------


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


class ChangedLoss(Loss):
    """A loss of samples that are changed at random first; a subclass says what is drawn and what it does."""

    def __init__(self, loss: Loss, width: int, **facts: Any):
        super().__init__()
        self.loss, self.network, self.width = loss, loss.network, width
        self.facts, self.jacobian, self.scale = loss.facts | facts, loss.jacobian, loss.scale

    def draw_change(self, n: int, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    def change_pair(self, x: Tensor, dx: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Of states (n, *state) and their increments."""
        raise NotImplementedError

    def change_window(self, x: Tensor, change: Tensor) -> Tensor:
        """Of observations (n, width, *state)."""
        raise NotImplementedError

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The change, and what the loss itself draws."""
        return self.draw_change(n, generator), *self.loss.draw(n, generator)

    def forward(self, *sample: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.width == 2:
            x, t, dx, dt, change, *drawn = sample
            x, dx = self.change_pair(x, dx, change)
            return self.loss(x, t, dx, dt, *drawn, generator=generator)
        x, t, dt, change, *drawn = sample
        return self.loss(self.change_window(x, change), t, dt, *drawn, generator=generator)


@dataclass(frozen=True)
class InputNoise(Around[Result]):
    """A task with noise ε ~ N(0, (`size` · s)²) on the observation a sample starts from, s being the data's spread.

    The other observations keep their places, so a step ahead is Δx − ε, and leads back. A regression on it finds
    E[Δx | x + ε] + σ²∇log p_σ; the second term, E[−ε | x + ε], is a restoring term towards the data. Rollouts that
    stray a little return. (`FitConfig.input_noise` moves a sample as a whole, and adds no such term.) The central
    difference of `symmetric` does not contain its place: it is smoothed, nothing more.
    """

    task: Placed[Result]
    size: float

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError(f"`size` must be above 0, in standard deviations of the data; got {self.size}.")

    def loss(self, typical: Trajectories, config: FitConfig) -> NoisyLoss:
        return NoisyLoss(self.task.loss(typical, config), self.task, self.size, typical.state_shape)


class NoisyLoss(ChangedLoss):
    """A loss of samples that start beside their observation."""

    def __init__(self, loss: Loss, task: Placed[Any], size: float, shape: tuple[int, ...]):
        super().__init__(loss, task.width, noise_at_start=size)
        self.place, self.size, self.shape = task.place, size, shape

    def draw_change(self, n: int, generator: torch.Generator) -> Tensor:
        """In standard deviations, (n, *state)."""
        return torch.randn(n, *self.shape, generator=generator)

    def change_pair(self, x: Tensor, dx: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        moved = self.size * self.scale * change
        return x + moved, dx - moved

    def change_window(self, x: Tensor, change: Tensor) -> Tensor:
        at = torch.zeros(self.width, dtype=x.dtype, device=x.device)
        at[self.place] = self.size
        return x + at.reshape(-1, *[1] * (x.ndim - 2)) * (self.scale * change)[:, None]


@dataclass(frozen=True)
class RandomShift(Around[Result]):
    """A task on periodic fields (channels, height, width) whose distribution is invariant under translations.

    Each time a sample is seen, all its observations are moved by the same random number of pixels around the torus: a
    sequence is as good as height × width of them, and no network can learn places by heart.
    """

    def loss(self, typical: Trajectories, config: FitConfig) -> ShiftedLoss:
        if len(typical.state_shape) != 3:
            raise ValueError(
                f"Random shifts need periodic fields (channels, height, width); got states {typical.state_shape}."
            )
        return ShiftedLoss(self.task.loss(typical, config), self.width, random_shift=True)


class ShiftedLoss(ChangedLoss):
    """A loss of samples that are moved around the torus."""

    def draw_change(self, n: int, generator: torch.Generator) -> Tensor:
        """Where to, in units of height and width, (n, 2)."""
        return torch.rand(n, 2, generator=generator)

    def change_pair(self, x: Tensor, dx: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        return shift(x, change), shift(dx, change)

    def change_window(self, x: Tensor, change: Tensor) -> Tensor:
        return shift(x, change)


def shift(x: Tensor, to: Tensor) -> Tensor:
    """Fields (n, …, height, width), each moved around the torus by its own part (n, 2) of the two sides."""
    fields = x.flatten(1, -3)
    number = torch.arange(len(x), device=x.device).reshape(-1, 1, 1, 1)
    layer = torch.arange(fields.shape[1], device=x.device).reshape(1, -1, 1, 1)
    down, right = (_around(side, part) for side, part in zip(x.shape[-2:], to.unbind(1), strict=True))
    return fields[number, layer, down[:, None, :, None], right[:, None, None, :]].reshape(x.shape)


def _around(side: int, part: Tensor) -> Tensor:
    """Which pixel comes to each place of a side, (n, side)."""
    places = torch.arange(side, device=part.device)
    return (places - (part * side).long()[:, None]) % side


# -- networks ----------------------------------------------------------------------------------------------------------


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initial weights made here depend on the seed alone, and leave torch's own random numbers as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def network_of(flow: Flow) -> Normalised:
    """The trained network of a flow, in its units."""
    assert isinstance(flow.velocity, Fitted) and isinstance(flow.velocity.network, Normalised)
    return flow.velocity.network


# -- independent jobs, in processes of one thread each ----------------------------------------------------------------


def fit_one(data: Trajectories, network: nn.Module | str, objective: str, **options: Any) -> Flow:
    """`fit_network` without a bar, and without its warning that training and held-out objective have parted: the best
    weights are kept, and what they are worth is in the report."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "At step .* have parted", UserWarning)
        return fit_network(data, network, objective, progress=False, **options)


def run_all(
    jobs: Sequence[Callable[[], Any]], *, workers: int, accelerator: str = "cpu", progress: str = "fits"
) -> None:
    """Run jobs that leave their results on disk, `workers` at a time; one at a time if they share an accelerator.

    Small networks run fastest on one thread, so several processes use the cores best. The first error ends them all,
    and however this process ends, the others end with it.
    """
    if workers == 1 or pick(accelerator).type != "cpu":
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
    """A forecaster: `frames(history, times)` gives states (n, time, *state) at `times`, the first of which is that of
    the last of `history` (n, past, *state); with so many network `evaluations` a frame; `random` if it is a sampler."""

    frames: Callable[[Tensor, Tensor], Tensor]
    evaluations: float
    random: bool = False


class Rollouts:
    """Clips (start, before + frame, *state) of test paths; `fields` are all the test fields, for their statistics.

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
        self.clips = torch.stack([test.states[p, k - self.before : k + self.horizon + 1] for p, k in chosen])

    @property
    def history(self) -> Tensor:
        return self.clips[:, : self.before + 1]

    @property
    def truth(self) -> Tensor:
        """From the start on, (start, frame, *state)."""
        return self.clips[:, self.before :]

    def times(self, frames: int) -> Tensor:
        return torch.arange(frames + 1, dtype=torch.float64) * self.step

    def score(self, roll: Roll) -> dict[str, Any]:
        """All measures of a method, those against lead time from the first generated frame on.

        The spectrum of the generated fields is compared with that of all test fields, at each lead and by shell at the
        last; the long rollout is scored by its RMS amplitude and its last fields' spectrum.
        """
        few, times = self.config.few, self.times(self.horizon)
        began = time.perf_counter()
        forecast = roll.frames(self.history, times)
        seconds = time.perf_counter() - began
        drawn = [roll.frames(self.history[:few], times) for _ in range(self.config.members)] if roll.random else []
        return {
            "lead": times[1:].tolist(),
            "relative_mse": relative_mse(forecast, self.truth)[1:].tolist(),
            **self._statistics(forecast[:, 1:]),
            "long": self._long(roll.frames(self.history[:few], self.times(self.config.frames))),
            "ensemble": self._ensemble(torch.stack(drawn)) if drawn else None,
            "absolute_error": (forecast - self.truth)[:few].abs().mean((0, 2, 3, 4))[1:].tolist(),
            "evaluations": roll.evaluations,
            "milliseconds": 1000 * seconds / (len(forecast) * self.horizon),
        }

    def score_truth(self) -> dict[str, Any]:
        """The same statistics of the true clips: not 0, as there are only so few of them."""
        return {"lead": self.times(self.horizon)[1:].tolist(), **self._statistics(self.truth[:, 1:])}

    def _statistics(self, forecast: Tensor) -> dict[str, Any]:
        """RMS amplitude, spectrum and values of fields (start, frame, 1, n, n), against all test fields."""
        shells = log_spectral_error(forecast, self.fields)[:, 0]
        return {
            "rms_ratio": stability(forecast, self.fields[:, None]).ratio.tolist(),
            "log_spectral_error": shells.square().mean(-1).sqrt().tolist(),
            "shell_error": shells[-1].tolist(),
            "spectrum": enstrophy_spectrum(forecast[:, -1]).mean.mean((0, 1)).tolist(),
            "histogram_distance": histogram_distance(forecast[:, -1], self.fields),
        }

    def _long(self, forecast: Tensor) -> dict[str, Any]:
        found, quarter = stability(forecast[:, 1:], self.fields[:, None]), max(1, forecast.shape[1] // 4)
        last = forecast[:, -quarter:].flatten(0, 1)
        return {
            "frames": forecast.shape[1] - 1,
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
