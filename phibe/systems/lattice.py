"""Lattice: values on a rectangular grid of points, read between them by multilinear interpolation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Lattice:
    """`values` (n₁, …, n_k, *out) at the points of increasing `axes`; O(spacing²) error between, held fixed beyond."""

    axes: tuple[Tensor, ...]
    values: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        """(n, k) → (n, *out)."""
        places = [_place(axis, points[:, i].to(axis.dtype)) for i, axis in enumerate(self.axes)]
        shape = (-1, *[1] * (self.values.ndim - len(self.axes)))
        total = torch.zeros((), dtype=self.values.dtype)
        for corner in product((0, 1), repeat=len(self.axes)):
            weight = torch.ones((), dtype=self.values.dtype)
            for side, (_, share) in zip(corner, places, strict=True):
                weight = weight * (share if side else 1 - share)
            index = tuple(left + side for side, (left, _) in zip(corner, places, strict=True))
            total = total + weight.reshape(shape) * self.values[index]
        return total.to(points.dtype)


def _place(axis: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the node on the left of each x, and how far x is on the way to the next, in [0, 1]."""
    left = torch.searchsorted(axis, x.detach().contiguous()).clamp(1, len(axis) - 1) - 1
    return left, ((x - axis[left]) / (axis[left + 1] - axis[left])).clamp(0, 1)
