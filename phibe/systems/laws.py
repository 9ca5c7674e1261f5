"""Probability laws that can be sampled and whose log-density is known: where a process starts, where it settles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Potential = Callable[[Tensor], Tensor]
"""U of one coordinate, elementwise: (n,) → (n,)."""


class Distribution(Protocol):
    """What `Law` and `Gaussian` share."""

    def log_density(self, x: Tensor) -> Tensor: ...
    def sample(self, n: int, *, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Law:
    """A law given by log ρ, (n, d) → (n,), and by what draws n states (n, d) with a generator."""

    log_density: Callable[[Tensor], Tensor]
    draw: Callable[[int, torch.Generator], Tensor]

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        return self.draw(n, generator)


def boltzmann(*potentials: Potential, width: float = 8.0, nodes: int = 40_001) -> Law:
    """The law ρ(x) = Π e^{−Uᵢ(xᵢ)}/Zᵢ of independent coordinates, one potential each.

    Zᵢ is the trapezoidal sum on [−width, width] (spectrally accurate for a smooth density that vanishes at the ends);
    samples are drawn by the inverse of the distribution function, linear between the nodes: O(width²/nodes²) error.
    """
    grid = torch.linspace(-width, width, nodes, dtype=torch.float64)
    weights = torch.stack([(-U(grid)).exp() for U in potentials])
    masses = torch.trapezoid(weights, grid)
    cumulative = torch.cumulative_trapezoid(weights / masses[:, None], grid)
    cumulative = torch.cat([torch.zeros_like(cumulative[:, :1]), cumulative], dim=1)

    def log_density(x: Tensor) -> Tensor:
        return -sum(U(x[..., i]) for i, U in enumerate(potentials)) - masses.log().sum()

    def draw(n: int, generator: torch.Generator) -> Tensor:
        level = torch.rand(len(potentials), n, dtype=torch.float64, generator=generator)
        right = torch.searchsorted(cumulative, level).clamp(1, nodes - 1)
        low, high = cumulative.gather(1, right - 1), cumulative.gather(1, right)
        return torch.lerp(grid[right - 1], grid[right], (level - low) / (high - low)).mT.contiguous()

    return Law(log_density, draw)
