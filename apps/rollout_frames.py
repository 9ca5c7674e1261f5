"""The rollout explorer's frames: a test path and a flow in, every picture of truth and prediction out, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from screens import sendable
from torch import Tensor

from phibe.experiments.pendulum import images as pendulum_images
from phibe.experiments.pendulum import states as pendulum_states
from phibe.experiments.pendulum.acrobot import RATE, frame_times
from phibe.experiments.pendulum.codec import GeometryCodec
from phibe.experiments.pendulum.rendering import pose_error, read_pose, render
from phibe.experiments.report import committed
from phibe.flow import Flow
from phibe.trajectories import Trajectories

SOURCES = {"states": "pendulum_states", "pictures": "pendulum_images"}
FRAMES = 91
PATHS = 60
STARTS = {"from rest": 1, "in full swing": 90}

LOCK = Lock()

Columns = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What an animation depends on: where the flow was learnt, the test path, its start, and the integrator."""

    source: str = "pictures"
    path: int = 0
    start: str = "from rest"
    objective: str = "symmetric"
    integrator: str = "rk4"


@lru_cache(maxsize=32)
def frames(setting: Setting) -> Columns:
    """The columns of an animation, a row for each frame. Sessions share them. One is made at a time."""
    with LOCK:
        return _clip(setting)


def _clip(setting: Setting) -> Columns:
    first = STARTS[setting.start]
    path = _test_paths().states[setting.path, first - 1 : first + FRAMES]
    make = _from_pictures if setting.source == "pictures" else _from_states
    guess, plane = make(setting, path, frame_times(first + FRAMES)[first:])
    truth = path[1:]
    pose = read_pose(guess).angles if setting.source == "pictures" else plane["guess_angles"]
    return {
        "t": (np.arange(FRAMES) / RATE).astype(np.float32),
        "truth": sendable(render(truth)),
        "guess": sendable(guess),
        "error": pose_error(pose.double(), truth[:, :2]).numpy(),
        "still": pose_error(truth[:1, :2], truth[:, :2]).numpy(),
        "truth_plane": plane["truth"].double().numpy(),
        "guess_plane": plane["guess"].double().numpy(),
    }


def _from_pictures(setting: Setting, path: Tensor, times: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Encode what is seen, roll the latents on from the first two pictures, decode."""
    codec = _codec()
    z = pendulum_images.with_velocity(codec.encode_paths(render(path)[None]), frame_times(len(path))).states
    rolled = pendulum_images.rollout(_flow("pictures", setting.objective), z[:, 0], times, setting.integrator)
    return codec.decode_paths(rolled)[0], {"truth": z[0, :, :2], "guess": rolled[0, :, :2]}


def _from_states(setting: Setting, path: Tensor, times: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Roll the first state on; the plane shows the two angles."""
    flow = _flow("states", setting.objective)
    rolled = pendulum_states.rollout(flow, path[1:2], times, setting.integrator)[0]
    return render(rolled), {"truth": path[1:, :2], "guess": rolled[:, :2], "guess_angles": rolled[:, :2]}


@lru_cache(maxsize=1)
def _test_paths() -> Trajectories:
    """Paths that neither the flows nor the codec were trained on."""
    config = pendulum_states.PENDULUM_STATES.presets["laptop"]
    return pendulum_states.observe(config)[1][:PATHS]


@lru_cache(maxsize=1)
def _codec() -> GeometryCodec:
    return pendulum_images.committed_codec()


@lru_cache(maxsize=8)
def _flow(source: str, objective: str) -> Flow:
    module = pendulum_images if source == "pictures" else pendulum_states
    return module.committed_flow(objective)


def objectives() -> list[str]:
    """The objectives that the committed flows were trained with."""
    return list(committed(SOURCES["pictures"]).config["objectives"])
