"""A measured double pendulum: the state experiment on sixteen recorded runs, with friction.

The files are not part of the project, the report is. Read next: `phibe/experiments/turbulence/run.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.experiments import plan
from phibe.experiments.pendulum.acrobot import Acrobot
from phibe.experiments.pendulum.measured import RATE, open_runs, write_markers
from phibe.experiments.pendulum.states import SMOKE_FLOWS, FlowConfig, Scale, degrees, rollout
from phibe.experiments.report import Experiment, Measured, MissingData, committed
from phibe.experiments.training import fit_epochs, seeded
from phibe.flow import Flow
from phibe.networks.mlp import ResidualMLP
from phibe.networks.network import Normalised
from phibe.training.config import FitConfig
from phibe.trajectories import Trajectories

SIMULATED = "simulated"


@dataclass(frozen=True)
class Config(FlowConfig):
    """`folder` holds the runs 0.csv.gz, 1.csv.gz, …, or is 'simulated' for a few of the Acrobot; every `stride`-th
    row is an observation. Rollouts last `horizon` s from `starts` places a run, and `decay` s for the loss of energy.
    """

    folder: str = "data/ibm_double_pendulum"
    train: tuple[int, ...] = tuple(range(12))
    test: tuple[int, ...] = (12, 13, 14, 15)
    stride: int = 4
    width: int = 128
    epochs: int = 20
    starts: int = 50
    horizon: float = 1.0
    decay: float = 10.0


PRESETS = {
    "smoke": Config(
        folder=SIMULATED,
        train=(0, 1, 2),
        test=(3,),
        integrators=("euler",),
        starts=5,
        horizon=0.2,
        decay=0.5,
        **SMOKE_FLOWS | {"training": FitConfig(batch=64, evaluate_every=5, held_out=0.2)},
    ),
    "laptop": Config(),
    "paper": Config(width=256, epochs=50),
}


def measure(config: Config, fits: Path) -> Measured:
    """Read, train on some runs, roll out from places in the others."""
    folder = _folder(config, fits)
    train, test = open_runs(folder, config.train), open_runs(folder, config.test)
    scale = Scale(_observed(train))
    stretches = Stretches(test, scale, config)
    results: dict[str, Any] = {
        "train_seconds": float(_lengths(train).sum()) / RATE,
        "test_seconds": float(_lengths(test).sum()) / RATE,
        "speed": scale.speed.tolist(),
        "times": stretches.times.tolist(),
        "persistence": stretches.persistence(),
        "decay_times": stretches.decay_times.tolist(),
        "measured_speed": stretches.measured_speed(),
        "flows": {},
    }
    for objective in tqdm(config.objectives, desc="fits", unit="fit"):
        flow = learn(train, objective, config=config, fits=fits)
        for method in config.integrators:
            results["flows"][f"{objective}, {method}"] = stretches.score(flow, method)
    return Measured(results)


def _folder(config: Config, fits: Path) -> Path:
    """The folder of the runs; without them an error that says where they come from."""
    if config.folder == SIMULATED:
        return _simulated(fits.parent / "markers", config)
    folder = Path(config.folder)
    if not any((folder / f"{config.test[0]}.csv{end}").exists() for end in ("", ".gz")):
        raise MissingData(
            f"This experiment needs the runs {config.train[0]}.csv to {config.test[-1]}.csv (or .csv.gz) of IBM's data "
            f'set "Double Pendulum Chaotic" (CDLA-Permissive-1.0) in the folder {config.folder!r}; they are not there. '
            "Fetch them and pass `--folder`; `--preset smoke` runs on simulated ones."
        )
    return folder


def _simulated(folder: Path, config: Config) -> Path:
    """Files of the same form, of the noisy Acrobot at 400 rows a second."""
    times = torch.arange(600, dtype=torch.float64) / RATE
    data = Acrobot().simulate(paths=len(config.train) + len(config.test), times=times, substeps=1, seed=config.seed)
    for number, path in enumerate(data.states):
        write_markers(folder / f"{number}.csv", path)
    return folder


def _lengths(data: Trajectories) -> Tensor:
    assert data.lengths is not None
    return data.lengths


def _observed(data: Trajectories) -> Trajectories:
    """All observed states as one path, for their spread."""
    states = data.states[data._observed()]
    return Trajectories(states[None], torch.arange(len(states)))


def learn(train: Trajectories, objective: str, *, config: Config, fits: Path) -> Flow:
    """A residual MLP that sees sines and cosines and no time; every row starts a transition of `stride` rows."""
    parts = [_from(train, offset, config.stride) for offset in range(config.stride)]
    shortest = min(part.states.shape[1] for part in parts)
    states = torch.cat([part.states[:, :shortest] for part in parts])
    lengths = torch.cat([_lengths(part).clamp(max=shortest) for part in parts])
    data = Trajectories(states.float(), parts[0].times[:shortest], lengths)
    with seeded(config.seed):
        inside = ResidualMLP((4,), width=config.width, blocks=config.blocks, time=False, angles=2)
    network = Normalised.fit(inside, data).keep(slice(0, 2))
    transitions = int(lengths.sum())
    return fit_epochs(data, network, objective, transitions=transitions, config=config, out=fits / objective)


def _from(data: Trajectories, offset: int, stride: int) -> Trajectories:
    """Every `stride`-th observation from the `offset`-th on."""
    moved = Trajectories(data.states[:, offset:], data.times[: data.states.shape[1] - offset], _lengths(data) - offset)
    return moved.coarsen(stride)


class Stretches:
    """Stretches of the test runs, and how a flow that starts where they start compares with them."""

    def __init__(self, test: Trajectories, scale: Scale, config: Config):
        self.scale, self.step = scale, config.stride / RATE
        self.times = torch.arange(round(config.horizon / self.step) + 1, dtype=torch.float64) * self.step
        self.decay_times = torch.arange(round(config.decay / self.step) + 1, dtype=torch.float64) * self.step
        self.short = _windows(test, len(self.times), config)
        self.long = _windows(test, len(self.decay_times), config)

    def persistence(self) -> dict[str, list[float]]:
        return self._errors(self.short[:, :1].expand_as(self.short))

    def measured_speed(self) -> list[float]:
        return _end_speed(self.long).tolist()

    def score(self, flow: Flow, method: str) -> dict[str, Any]:
        """Errors over the horizon, and the speed of the end of the second link over the longer time."""
        free = Flow(flow.velocity, None, self.step)
        far = rollout(free, self.long[:, 0], self.decay_times, method)
        return {**self._errors(rollout(free, self.short[:, 0], self.times, method)), "speed": _end_speed(far).tolist()}

    def _errors(self, x: Tensor) -> dict[str, list[float]]:
        return {"error": self.scale.error(x, self.short), "degrees": degrees(x, self.short)}


def _windows(test: Trajectories, count: int, config: Config) -> Tensor:
    """Observed stretches of that many observations, evenly over each run: (n, count, 4)."""
    places = []
    for path, length in zip(test.states, _lengths(test).tolist(), strict=True):
        last = length - (count - 1) * config.stride - 1
        for start in torch.linspace(0, max(last, 0), config.starts).long().tolist() if last >= 0 else []:
            places.append(path[start : start + (count - 1) * config.stride + 1 : config.stride])
    if not places:
        raise ValueError(f"No test run is long enough for {count} observations. Shorten `horizon` or `decay`.")
    return torch.stack(places)


def _end_speed(x: Tensor, *, arms: tuple[float, float] = (1.0, 462 / 604)) -> Tensor:
    """Root mean square speed of the second link's end, in lengths of the first a second: (n, time, 4) → (time,)."""
    first, both = x[..., 2], x[..., 2] + x[..., 3]
    squared = (arms[0] * first) ** 2 + (arms[1] * both) ** 2 + 2 * arms[0] * arms[1] * first * both * x[..., 1].cos()
    return squared.mean(0).sqrt()


def plan_real(config: Config) -> plan.Needs:
    """Steps by the published length of the training runs, which the committed report knows."""
    simulated, runs = config.folder == SIMULATED, len(config.train) + len(config.test)
    known = committed("pendulum_real")
    rows = 600 * len(config.train) if simulated else known["train_seconds"] * RATE / len(known.config["train"])
    rows *= 1 if simulated else len(config.train)
    steps = math.ceil(config.epochs * rows / config.training.batch)
    found = sum(file.stat().st_size for file in Path(config.folder).glob("*.csv*")) / 2**20
    source = "simulated here" if simulated else 'IBM, "Double Pendulum Chaotic" (CDLA-Permissive-1.0)'
    data = [plan.Data(f"{runs} runs of marker positions", found, source, "" if simulated else config.folder)]
    size = {"width": config.width, "blocks": config.blocks, "time": False, "angles": 2}
    return plan.Needs(
        data,
        [
            plan.training(
                f"{objective}, residual MLP {config.width} × {config.blocks}",
                partial(plan.velocity, "residual", (4,), objective, **size),
                (4,),
                config.training,
                steps=steps,
            )
            for objective in config.objectives
        ],
    )


PENDULUM_REAL = Experiment("pendulum_real", PRESETS, measure, plan_real)
