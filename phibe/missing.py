"""Missing values: what to do with observations that are not there, by the user's explicit choice."""

from __future__ import annotations

import numpy as np

from phibe.tables import padded

CHOICES = ("error", "drop", "split")
GAP = 10
"""A step of so many median ones is a gap at which `split` cuts."""


def settle(arrays: dict[str, np.ndarray], choice: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays without missing values (NaN), and a sentence on what was done, empty if nothing was.

    `error` refuses them and names the first. `drop` leaves out every transition that touches one: what is before and
    after becomes a path each, and an observation alone between two of them is lost. `split` does so, and cuts where a
    path was not observed for ten median steps, too.
    """
    if choice not in CHOICES:
        raise ValueError(f"`missing` must be one of {', '.join(CHOICES)}; got {choice!r}.")
    states, shape = arrays["states"], np.shape(arrays["times"])
    if (
        states.dtype.kind != "f"
        or states.ndim < 3
        or not states.size
        or shape not in (states.shape[1:2], states.shape[:2])
    ):
        return arrays, ""  # nothing that can be missing, or no trajectories, which `Trajectories` will say
    inside = observed(arrays)
    bad = np.isnan(states.reshape(*states.shape[:2], -1)).any(axis=2) & inside
    if bad.any() and choice == "error":
        raise ValueError(_message(arrays, bad, int(inside.sum())))
    times = np.broadcast_to(arrays["times"], bad.shape)
    steps = np.diff(times, axis=1)
    joined = (inside & ~bad)[:, 1:] & (inside & ~bad)[:, :-1]  # is this observation one path with the next?
    gaps = joined & (steps > GAP * np.median(steps[inside[:, 1:]])) if choice == "split" else np.zeros_like(joined)
    if not bad.any() and not gaps.any():
        return arrays, ""
    return _pieces(arrays, times, joined & ~gaps, f"{bad.sum()} missing observations, {gaps.sum()} gaps in time")


def observed(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """(path, time): is there an observation, or padding?"""
    paths, steps = arrays["states"].shape[:2]
    return np.arange(steps) < np.asarray(arrays.get("lengths", np.full(paths, steps)))[:, None]


def _pieces(
    arrays: dict[str, np.ndarray], times: np.ndarray, joined: np.ndarray, why: str
) -> tuple[dict[str, np.ndarray], str]:
    """A path for each run of joined observations."""
    if not joined.any():
        raise ValueError(f"{why}: no two neighbouring observations are left. Is a whole column missing?")
    edge = np.diff(joined.astype(np.int8), axis=1, prepend=0, append=0)
    lengths = (edge == -1).nonzero()[1] - (edge == 1).nonzero()[1] + 1
    none = np.zeros((len(joined), 1), dtype=bool)
    kept = np.concatenate([joined, none], axis=1) | np.concatenate([none, joined], axis=1)
    made = padded(arrays["states"][kept], times[kept], lengths)
    note = f"{why}: {len(joined)} paths became {len(lengths)} with {int(joined.sum())} transitions"
    return {name: array for name, array in arrays.items() if name == "labels"} | made, note


def _message(arrays: dict[str, np.ndarray], bad: np.ndarray, total: int) -> str:
    path, index = (int(i) for i in np.argwhere(bad)[0])
    t = np.broadcast_to(arrays["times"], bad.shape)[path, index]
    return (
        f"{int(bad.sum())} of {total} observations have a missing value, the first in path {path} at time index "
        f"{index} (t = {t:g}). Choose what to do: --missing drop leaves out the transitions that touch one, --missing "
        "split cuts paths there and at gaps in time."
    )
