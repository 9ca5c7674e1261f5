"""The spectrum explorer's frames: a start and a method in, every field of truth and rollout and its spectrum out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from phibe.experiments.turbulence.saved import Progress, SavedRun
from phibe.experiments.turbulence.spectra import enstrophy_spectrum
from phibe.metrics import relative_mse

STILL = "persistence"
LEVELS = 127
"""A pixel is one of the bytes 0 … 2 · LEVELS; the one in the middle is 0."""
ROOM = 24
"""Rollouts that the server remembers, a megabyte each."""

Columns = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What a rollout depends on. Methods that leave no choice have no integrator, and those without chance one draw."""

    clip: int = 1
    interval: float = 0.1
    method: str = "symmetric"
    integrator: str = "rk4"
    draw: int = 1

    @property
    def label(self) -> str:
        return f"{self.method}, {self.integrator}" if self.integrator else self.method

    @property
    def still(self) -> Setting:
        """The same clip, with the field at its start for all times: no network is asked."""
        return replace(self, method=STILL, integrator="", draw=1)


@dataclass(frozen=True)
class Rollout:
    """A row of `columns` for each frame, the `limit` of their colours, and what they cost."""

    columns: Columns
    limit: float
    evaluations: float
    seconds: float


# -- what can be asked ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def saved() -> SavedRun:
    """The run that comes with the project; a ValueError while there is none."""
    return SavedRun.open()


class Menu(NamedTuple):
    """What there is to choose from: how many clips of how many frames, intervals, the integrators of each method, and
    the last shell of wavenumbers that is a whole circle on the grid."""

    clips: int = 1
    frames: int = 1
    intervals: tuple[float, ...] = ()
    methods: Mapping[str, list[str]] = MappingProxyType({})
    shells: int = 1

    @property
    def integrators(self) -> list[str]:
        """Those of methods that leave a choice."""
        return list(dict.fromkeys(one for some in self.methods.values() if len(some) > 1 for one in some))


def menu() -> Menu:
    """All that the committed report has; nothing if there is none."""
    try:
        config = saved().config
    except (ValueError, OSError):
        return Menu()
    frames = round(config.horizon / config.intervals[0]) + 1
    return Menu(saved().clips, frames, tuple(config.intervals), _methods(), shells())


def _methods() -> dict[str, list[str]]:
    """The integrators of each method at any interval, in the order of the report."""
    found: dict[str, list[str]] = {}
    for label in (label for interval in saved().config.intervals for label in saved().labels(interval)):
        name, _, integrator = label.partition(", ")
        found.setdefault(name, [])
        if integrator not in ("", *found[name]):
            found[name].append(integrator)
    return found


def drawn(setting: Setting) -> bool:
    """Whether each rollout is another draw: those were measured as an ensemble."""
    return bool(saved().report[f"{setting.interval:g}"][setting.label]["ensemble"])


def shells() -> int:
    """The last shell of wavenumbers that is a whole circle on the grid."""
    return saved().config.grid // 2 - 1


def truth() -> np.ndarray:
    """The mean enstrophy spectrum of all test fields in the shells from 1 on."""
    return np.array(saved().report["system"]["enstrophy_spectrum"])[1 : shells() + 1]


# -- rollouts ------------------------------------------------------------------------------------------------------

_known: OrderedDict[Setting, Rollout] = OrderedDict()
_lock = Lock()


def known(setting: Setting) -> Rollout | None:
    """The rollout of a setting if some session has had it computed."""
    with _lock:
        if setting in _known:
            _known.move_to_end(setting)
        return _known.get(setting)


def frames(setting: Setting, progress: Progress | None = None) -> Rollout:
    """The rollout of a setting; sessions share what is known. `progress` is told how many frames are done."""
    if rollout := known(setting):
        return rollout
    made = _roll(setting, progress)
    with _lock:
        _known[setting] = made
        while len(_known) > ROOM:
            _known.popitem(last=False)
    return made


def _roll(setting: Setting, progress: Progress | None) -> Rollout:
    clip = saved().clip(setting.clip - 1, setting.interval)
    made = saved().roll(setting.label, clip, seed=setting.draw, progress=progress)
    fields, still = made.states, clip.truth[:1].expand_as(clip.truth)
    limit = colour_limit(setting.clip)
    size = fields.square().mean((1, 2, 3)).sqrt() / saved().report["system"]["rms"]
    columns = {
        "t": clip.times.numpy(),
        "truth": pictures(clip.truth, limit),
        "guess": pictures(fields, limit),
        "difference": pictures(fields - clip.truth, limit),
        "error": relative_mse(fields[None], clip.truth[None]).double().numpy(),
        "still": relative_mse(still[None], clip.truth[None]).double().numpy(),
        "size": size.double().numpy(),
        "truth_spectrum": spectra(clip.truth),
        "guess_spectrum": spectra(fields),
    }
    return Rollout(columns, limit, made.evaluations, made.seconds)


def colour_limit(clip: int) -> float:
    """Three times the root mean square of a true clip, at whatever interval it is seen."""
    truth = saved().clip(clip - 1, saved().config.intervals[0]).truth
    return 3 * float(truth.square().mean().sqrt())


def spectra(fields: Tensor) -> np.ndarray:
    """log₁₀ of the enstrophy spectrum of each field in the shells from 1 on, (frame, shell)."""
    mean = enstrophy_spectrum(fields.double()).mean[:, 0, 1 : shells() + 1]
    return mean.clamp(min=1e-30).log10().float().numpy()


def pictures(fields: Tensor, limit: float) -> list[np.ndarray]:
    """Fields as the browser draws them, the first row at the bottom; what is beyond ±limit is shown as that."""
    levels = (fields[:, 0].nan_to_num() / limit).clamp(-1, 1).mul(LEVELS).round().add(LEVELS)
    return [np.ascontiguousarray(one) for one in levels.flip(1).byte().numpy()]
