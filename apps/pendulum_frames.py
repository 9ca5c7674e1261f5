"""The double pendulum's animation: an ensemble of the SDE, trained flows from its starts, and how far they part."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from flow_setting import FRAMES, Setting, second
from torch import Tensor

from phibe.experiments.pendulum import states as pendulum_states
from phibe.experiments.pendulum.acrobot import RATE, Acrobot, frame_times, on_circles, wrap
from phibe.experiments.report import committed
from phibe.metrics import sliced_w2

DRAWN = 150  # of the ensemble; the first of it is the one path
ENSEMBLE = 300
FRESH = 500  # paths from starts of their own, to measure distributions against
UNSEEN = 5000  # added to seeds: the flows were trained on paths of seed 0

distance = partial(sliced_w2, directions=64)


def animation(setting: Setting) -> dict[str, Tensor]:
    """Simulate, roll out the trained flows, compare; a second flow's columns have `second` names."""
    seed, seconds = setting.seed, setting.horizon
    shown, energy = shown_frames(seconds), setting.system().energy
    paths, twins, fresh = (states[:, shown] for states in truth(seed, seconds))
    columns = {
        "t": shown / RATE,
        **_ensemble("sample", paths),
        "divergence": _apart(twins, paths),
        "sample_error": _distance(paths, fresh),
        "sample_gain": _gain(energy(paths)),
    }
    for i, estimator in enumerate(setting.estimators):
        integrated = integrate(estimator, setting.integrator, seed, seconds)[:, shown]
        own = {
            **_ensemble("particle", integrated),
            "path_error": _apart(integrated, paths),
            "marginal_error": _distance(integrated, fresh),
            "gain": _gain(energy(integrated)),
        }
        columns |= {second(name): column for name, column in own.items()} if i else own
    return columns


def shown_frames(seconds: float) -> Tensor:
    """Which of the observed frames, 1/30 s apart, are shown: all of four seconds, every other one of eight."""
    return torch.linspace(0, len(_times(seconds)) - 1, FRAMES, dtype=torch.float64).round().long()


@lru_cache(maxsize=4)
def truth(seed: int, seconds: float) -> tuple[Tensor, Tensor, Tensor]:
    """Paths of the SDE, others by a second draw of the noise from the same starts, a fresh ensemble: (n, time, 4)."""
    sigma, times, seed = committed("pendulum_states").config["sigma"], _times(seconds), 3 * seed + UNSEEN
    acrobot = Acrobot(sigma, sigma)
    paths = acrobot.simulate(paths=ENSEMBLE, times=times, seed=seed).states
    twins = acrobot.simulate(start=paths[:, 0], times=times, seed=seed + 1).states
    return paths, twins, acrobot.simulate(paths=FRESH, times=times, seed=seed + 2).states


@lru_cache(maxsize=16)
def integrate(estimator: str, integrator: str, seed: int, seconds: float) -> Tensor:
    """The flow that was trained with the estimator, from where the paths start, a step for each frame: (n, time, 4)."""
    start = truth(seed, seconds)[0][:, 0]
    flow = pendulum_states.committed_flow(estimator)
    states = pendulum_states.rollout(flow, start.float(), _times(seconds), integrator)
    return torch.cat([start[:, None], states[:, 1:].double()], dim=1)  # the start itself, not rounded


def _times(seconds: float) -> Tensor:
    """The frames up to so many seconds, as far as the data of the fits went."""
    return frame_times(min(round(seconds * RATE) + 1, committed("pendulum_states").config["frames"]))


def _ensemble(name: str, states: Tensor) -> dict[str, Tensor]:
    """Angles, wrapped, and velocities of the paths that are drawn: (F, DRAWN) each."""
    x = states[:DRAWN].movedim(1, 0)
    angles = {f"{name}_angle{i + 1}": wrap(x[..., i]) for i in range(2)}
    return angles | {f"{name}_velocity{i + 1}": x[..., 2 + i] for i in range(2)}


def _embed(x: Tensor) -> Tensor:
    return on_circles(x, speed=torch.tensor(committed("pendulum_states")["speed"], dtype=x.dtype))


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """Root mean square distance of path from path, at each frame."""
    return (_embed(x) - _embed(y)).square().sum(-1).mean(0).sqrt()


def _distance(x: Tensor, y: Tensor) -> Tensor:
    """Sliced W₂ between two ensembles on circles, at each frame."""
    pairs = zip(_embed(x).unbind(1), _embed(y).unbind(1), strict=True)
    return torch.tensor([distance(a, b) for a, b in pairs], dtype=x.dtype)


def _gain(energy: Tensor) -> Tensor:
    """The mean energy gained since the start, at each frame: (n, F) → (F,)."""
    return (energy - energy[:, :1]).mean(0)
