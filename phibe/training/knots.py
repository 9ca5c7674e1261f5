"""Knots: where in time a basis should be fine, found from how fast the law of the data moves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phibe.trajectories import Trajectories


def place_knots(data: Trajectories, count: int, *, bins: int = 32) -> Tensor:
    """Knots in [0, 1] so that the law moves equally far between any two: its mean and spread, in standard units.

    Time is cut into bins; where nothing but noise moves, the knots are even. As a fifth of the weight is even in any
    case, no stretch of time is without one. Two knots are never closer than three typical steps (if even ones are not):
    a shorter stretch, above all the first, where central differences see nothing of t = 0, would hang in the air.
    """
    even = torch.linspace(0, 1, count, dtype=torch.float64)
    if count < 3:
        return even
    data = data[:: max(1, data.states.numel() // 2_000_000)]
    inside = data._observed()
    x, t = data.states[inside].double().flatten(1), data._path_times()[inside]
    start, end = data.interval
    place = ((t - start) / (end - start) * bins).long().clamp(0, bins - 1)
    number = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, torch.ones_like(t))
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-12)
    mean, square = (torch.zeros(bins, x.shape[1], dtype=torch.float64).index_add_(0, place, p) for p in (x, x * x))
    used = number > 1
    mean, square = mean[used] / number[used, None], square[used] / number[used, None]
    spread = (square - mean**2).clamp(min=0).sqrt()
    moved = torch.cat([mean, spread], 1).diff(dim=0).norm(dim=1)
    noise = (2 / number[used][1:]).sqrt() * math.sqrt(x.shape[1])
    moved = (moved - 3 * noise).clamp(min=0)
    centres = ((torch.arange(bins) + 0.5) / bins)[used]
    gaps = centres.diff()
    share = 0.8 * min(1.0, float(moved.sum()))  # a law that moves by less than its spread needs no gathering
    pace = share * moved / moved.sum().clamp(min=1e-12) + (1 - share) * gaps / gaps.sum()
    way = torch.cat([torch.zeros(1), pace.cumsum(0)]).double()
    centres = centres.double()
    centres[0], centres[-1] = 0.0, 1.0
    closest = 3 * data.typical_step / (end - start)
    return _apart(_inverse(way / way[-1], centres, even), even, closest)


def _apart(knots: Tensor, even: Tensor, closest: float) -> Tensor:
    """As much of the even knots mixed in as it takes to part all of them by `closest`."""
    gaps, gap = knots.diff(), float(even[1])
    if closest >= gap:
        return even
    share = ((closest - gaps) / (gap - gaps))[gaps < closest]
    return torch.lerp(knots, even, float(share.max()) if len(share) else 0.0)


def _inverse(way: Tensor, places: Tensor, levels: Tensor) -> Tensor:
    """Where the way, linear between places, reaches each level."""
    right = torch.searchsorted(way, levels).clamp(1, len(way) - 1)
    share = (levels - way[right - 1]) / (way[right] - way[right - 1])
    return places[right - 1] + share * (places[right] - places[right - 1])
