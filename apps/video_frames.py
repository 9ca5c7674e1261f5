"""The rollout explorer's video: a clip and a method in, every frame of truth and prediction out, as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from screens import sendable
from torch import Tensor

from phibe.experiments.report import committed
from phibe.experiments.training import Roll
from phibe.experiments.video import run as video
from phibe.experiments.video.drawing import ACTIONS
from phibe.experiments.video.figures import RATE, Figures, frame_times
from phibe.experiments.video.methods import AUGMENTED, CONDITIONED, best, rolls
from phibe.experiments.video.metrics import mse, score_so_far
from phibe.experiments.video.vq import VQCodec

CLIPS = ACTIONS
PEOPLE = 10
UNSEEN = 10_000
"""Seed of the first of the figures; all clips of the training have one of their own."""
CONTEXTS = (2, 10)
FEW = 4
"""Frames that one's own clip must have after those that are looked at."""
LENGTH = 40

LOCKS = (Lock(), Lock())  # what draws at random takes long: nobody waits for it but others like it

Columns = dict[str, Any]
Menu = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Setting:
    """What a prediction depends on: the clip, the method and its integrator, how much is seen, and how slow it is.

    `upload` numbers the clips that a session has brought; 0 is a figure. `begin` is the first frame of such a clip.
    """

    clip: str = CLIPS[0]
    person: int = 0
    method: str = AUGMENTED
    objective: str = ""
    integrator: str = ""
    context: int = CONTEXTS[1]
    slow: int = 1
    upload: int = 0
    begin: int = 0

    @property
    def name(self) -> str:
        """The method as the experiment calls it."""
        return f"{self.objective} {self.method}" if self.objective else self.method

    @property
    def label(self) -> str:
        """The row of the report."""
        return f"{self.name}, {self.integrator}" if self.integrator else self.name


def menu() -> Menu:
    """What the committed run has trained: {method: {objective: integrators}}, both empty where there is no choice; {}
    if there is no such run."""
    try:
        labels = committed("video")["methods"]
    except ValueError:
        return {}
    return arranged(label for label in labels if label not in (video.BOUND, *video.STILLS))


def favourite() -> Setting:
    """The flow with the least square error in that run; some flow if there is none."""
    try:
        name, integrator = best(committed("video")).split(", ")
    except ValueError:
        return Setting(objective="symmetric", integrator="rk4")
    objective, method = name.split()
    return Setting(method=method, objective=objective, integrator=integrator)


def arranged(labels: Iterable[str]) -> Menu:
    """Rows of a report as a menu: 'phibe conditioned, rk4' is an integrator of an objective of a method."""
    found: Menu = {}
    for label in labels:
        name, _, integrator = label.partition(", ")
        objective, _, kind = name.rpartition(" ")
        method = found.setdefault(kind if kind in (CONDITIONED, AUGMENTED) else name, {})
        if integrator:
            method.setdefault(objective, []).append(integrator)
    return found


# -- clips -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def frames(setting: Setting) -> Columns:
    """The prediction of a test clip. Sessions share it."""
    return predicted(setting, figure(setting.clip, setting.person))


def predicted(setting: Setting, clip: Tensor) -> Columns:
    """Whole frames and `rows`, the frames shown, of which a whole one is `slow`; of a clip (time, 1, 64, 64).

    Before the prediction begins its screen shows what it sees: the frames as the codec returns them. Measures are of
    what is shown, to the byte, at whole frames after the context.
    """
    truth, context = clip[setting.begin :][:LENGTH], setting.context
    if len(truth) < context + FEW:
        raise ValueError(
            f"{context} frames to look at and {FEW} more are needed; this clip has {len(truth)}. Look at fewer?"
        )
    codec = _codec()
    z = codec.encode_paths(truth[None])
    seen = codec.decode_paths(z)[0]
    ahead = codec.decode_paths(_rolled(setting, z))[0]
    rows = _bytes(torch.cat([seen[: context - 1].repeat_interleave(setting.slow, 0), ahead]))
    shown = {"guess": rows[:: setting.slow], "still": seen[context - 1 : context].expand_as(truth), "codec": seen}
    return {
        "t": (np.arange(len(truth)) - (context - 1)) / RATE,
        "truth": sendable(truth),
        "difference": sendable((truth - shown["guess"]).abs()),
        "rows": sendable(rows),
        **{key: value for name, made in shown.items() for key, value in _measures(name, made, truth, context).items()},
    }


def _rolled(setting: Setting, z: Tensor) -> Tensor:
    """Latents from the last frame of the context on, `slow` a frame; of what knows whole frames alone each that often.

    The generator is a new one each time: the same setting draws the same frames.
    """
    model, context, slow = _method(setting.name), setting.context, setting.slow
    if getattr(model, "past", 2) > context:
        raise ValueError(
            f"{setting.name.upper()} has to look at {model.past} frames or more, and is shown {context}. Show it more?"
        )
    roll: Roll = rolls(setting.name, model, video.CONFIGS["laptop"])[setting.label]
    steps = 1 if roll.random else slow
    times = (context - 1 + torch.arange((z.shape[1] - context) * steps + 1, dtype=torch.float64) / steps) / RATE
    with LOCKS[roll.random]:
        made = roll.frames(z[:, :context], times)
    if not roll.random:
        return made
    return made.repeat_interleave(slow, 1)[:, : (z.shape[1] - context) * slow + 1]


def _measures(name: str, made: Tensor, truth: Tensor, context: int) -> Columns:
    """MSE of each frame, and the scores so far; not a number where nothing is predicted yet."""
    pair = (_bytes(made)[None, context:], _bytes(truth)[None, context:])
    before = np.full(context, np.nan)
    columns = {f"{name}_{key}": value for key, value in score_so_far(*pair)._asdict().items()}
    return {key: np.concatenate([before, value]) for key, value in {name: mse(*pair)[0], **columns}.items()}


def _bytes(pictures: Tensor) -> Tensor:
    """The pictures as they are sent."""
    return (pictures.clamp(0, 1) * 255).round() / 255


# -- what is there -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=len(CLIPS) * PEOPLE)
def figure(action: str, person: int) -> Tensor:
    """A clip of a figure that no training has seen: (time, 1, 64, 64)."""
    scenes = Figures(actions=(action,)).scenes(paths=1, times=frame_times(LENGTH), seed=UNSEEN + person)
    return scenes.clips().frames(0)


@lru_cache(maxsize=1)
def _codec() -> VQCodec:
    return video.committed_codec()


@lru_cache(maxsize=16)
def _method(name: str) -> Any:
    return video.committed_method(name)
