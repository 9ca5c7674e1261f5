"""Corruptions: known ways to spoil films, from mild to severe, by which a distance between films shows what it sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from phibe.metrics.frechet import Features, frechet


def noisy(films: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Sensor noise of that standard deviation."""
    return (films + level * torch.randn(films.shape, generator=generator, dtype=films.dtype)).clamp(0, 1)


def blurred(films: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """A Gaussian blur of that many pixels."""
    reach = max(1, round(3 * level))
    place = torch.arange(-reach, reach + 1, dtype=films.dtype)
    bell = torch.exp(-((place / level) ** 2) / 2)
    bell = bell / bell.sum()
    flat = F.pad(films.flatten(0, 1), (reach,) * 4, mode="replicate")
    smooth = F.conv2d(F.conv2d(flat, bell[None, None, :, None]), bell[None, None, None, :])
    return smooth.reshape(films.shape)


def frozen(films: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """The last part of the film, that share of it, is one still frame."""
    last = max(0, round(films.shape[1] * (1 - level)) - 1)
    index = torch.arange(films.shape[1]).clamp(max=last)
    return films[:, index]


def shuffled(films: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Frames change places within runs of that many."""
    keys = torch.arange(films.shape[1]) // int(level) + torch.rand(len(films), films.shape[1], generator=generator)
    return films[torch.arange(len(films))[:, None], keys.argsort(1)]


def slowed(films: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """The film's beginning at that many times less speed, neighbouring frames blended."""
    place = torch.arange(films.shape[1], dtype=films.dtype) / level
    before = place.long().clamp(max=films.shape[1] - 2)
    share = (place - before)[:, None, None, None]
    return films[:, before] * (1 - share) + films[:, before + 1] * share


CORRUPTIONS: dict[str, tuple[Callable[[Tensor, float, torch.Generator], Tensor], tuple[float, ...]]] = {
    "noise": (noisy, (0.05, 0.1, 0.2)),
    "blur": (blurred, (1.0, 2.0, 4.0)),
    "frozen": (frozen, (0.25, 0.5, 1.0)),
    "shuffled": (shuffled, (3, 8, 40)),
    "slowed": (slowed, (1.5, 2.0, 4.0)),
}
"""Ways to spoil a film, each from mild to severe: a distance worth its name grows along each."""


def ladders(films: Tensor, features: Features, *, seed: int = 0) -> dict[str, list[float]]:
    """The Fréchet distance of spoilt films from other true ones at each level of each corruption; `floor` is that of
    the films before they were spoilt.

    The films are cut into two halves: one is spoilt, the other stays true.
    """
    spoil, true = films.chunk(2)
    there = features(true)
    found = {"floor": [frechet(features(spoil), there)]}
    for name, (corrupt, levels) in CORRUPTIONS.items():
        generator = torch.Generator().manual_seed(seed)
        found[name] = [frechet(features(corrupt(spoil, level, generator)), there) for level in levels]
    return found
