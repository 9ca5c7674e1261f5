"""Suspicions: values that are no error, but that someone who knows the data should look at."""

from __future__ import annotations

import torch
from torch import Tensor

from phibe.trajectories import Trajectories

FAR, FEW, HELD, GAP = 20.0, 20, 0.02, 10.0
"""Spreads from the median, different values of a coordinate, share of held states, median steps: where doubt begins."""


def suspicions(data: Trajectories) -> list[str]:
    """A sentence for each doubt: constant or coarsely rounded coordinates, outliers, repeated states, odd times."""
    data = data[:: max(1, data.states.numel() // 5_000_000)]
    return [*_times(data), *_coordinates(data), *_repeats(data)]


def _times(data: Trajectories) -> list[str]:
    found = []
    first = data._path_times()[0][data._observed()[0]]
    rows = torch.arange(len(first), dtype=first.dtype)
    if (
        len(first) > 2
        and data.shared_times
        and bool((first - first[0] == rows).all())
        and float(first[0]) in (0.0, 1.0)
    ):
        found.append(
            f"the times are {first[0]:g}, {first[1]:g}, {first[2]:g}, …: numbers of rows? Velocities are per row"
        )
    steps = data._path_times().diff(dim=1)
    long = (steps > GAP * data.typical_step) & data._observed(2)
    if long.any():
        path, index = (int(i) for i in long.nonzero()[0])
        found.append(
            f"{int(long.sum())} steps are longer than {GAP:g} median ones, the first in path {path} after time index "
            f"{index}: gaps? --missing split cuts there"
        )
    return found


def _coordinates(data: Trajectories) -> list[str]:
    """Of the coordinates of a vector; larger states are looked at as a whole."""
    x = data.states[data._observed()].double()
    columns = x if x.ndim == 2 else x.flatten()[:, None]
    names = data.labels.coordinates(columns.shape[1]) if x.ndim == 2 else ["the state"]
    return [text for name, column in zip(names, columns.unbind(1), strict=True) for text in _column(data, name, column)]


def _column(data: Trajectories, name: object, values: Tensor) -> list[str]:
    if bool((values == values[0]).all()):
        return [f"{name} is {float(values[0]):g} everywhere: a constant has no velocity. Leave it out (--columns)?"]
    different = len(values[:: max(1, len(values) // 100_000)].unique())
    if different < FEW and len(values) > 50 * FEW:
        return [f"{name} takes only {different} different values: rounded, or a category?"]
    middle = values.median()
    spread = 1.4826 * (values - middle).abs().median()
    far = (values - middle).abs() > FAR * spread
    if float(spread) > 0 and far.any() and len(values) == int(data._observed().sum()):
        path, index = (int(i) for i in data._observed().nonzero()[int(far.int().argmax())])
        return [
            f"{name} has {int(far.sum())} values further than {FAR:g} spreads from its median, the first "
            f"{float(values[far][0]):g} in path {path} at time index {index}: outliers, or codes for missing ones?"
        ]
    return []


def _repeats(data: Trajectories) -> list[str]:
    still = (data.states.diff(dim=1) == 0).flatten(2).all(dim=2)[data._observed(2)]
    share = float(still.double().mean())
    if share < HELD:
        return []
    return [f"{share:.0%} of the transitions repeat the state exactly: filled forward, or observed too often?"]
