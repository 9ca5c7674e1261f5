"""Images of a two-link pendulum: rendered from its angles, and its angles read back from an image.

Read next: `codec.py`, which encodes them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

ROD, JOINT = 0.1, 0.18
"""Half the width of a rod and the radius of a joint, in units of a link's length; the paper gives neither."""


def joints(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the two links, (..., 2) each: (sin θ₁, −cos θ₁), and (sin(θ₁ + θ₂), −cos(θ₁ + θ₂)) further."""
    first, second = angles[..., 0], angles[..., 0] + angles[..., 1]
    elbow = torch.stack([first.sin(), -first.cos()], dim=-1)
    return elbow, elbow + torch.stack([second.sin(), -second.cos()], dim=-1)


def render(angles: Tensor, *, size: int = 32, block: int = 512) -> Tensor:
    """White rods and joints on black, anti-aliased: (..., ≥ 2) → (..., 1, size, size) in [0, 1]   [paper: image data].

    The window is [−2, 2]², the first row at the top. A pixel's grey is the part of it that lies inside, to first
    order: ½ plus the signed distance of its centre from the edge in pixels, between 0 and 1.
    """
    flat = angles[..., :2].reshape(-1, 2).float()
    frames = torch.cat([_draw(part, size) for part in flat.split(block)]) if len(flat) else flat.new_zeros(0, size**2)
    return frames.reshape(*angles.shape[:-1], 1, size, size)


def _draw(angles: Tensor, size: int) -> Tensor:
    """(n, 2) → (n, size²). The greatest of the three parts' greys, each from a squared distance."""
    pixel = 4 / size
    axis = (torch.arange(size, dtype=angles.dtype, device=angles.device) + 0.5) * pixel - 2
    x, y = axis.repeat(size), axis.flip(0).repeat_interleave(size)
    elbow, end = joints(angles)
    inside = _edge(_rod(x, y, torch.zeros_like(elbow), elbow), ROD)
    inside = torch.maximum(inside, _edge(_rod(x, y, elbow, end), ROD))
    for centre in (torch.zeros_like(elbow[:1]), elbow, end):
        inside = torch.maximum(inside, _edge(_squared(x - centre[:, :1], y - centre[:, 1:]), JOINT))
    return (inside / pixel + 0.5).clamp_(0, 1)


def _rod(x: Tensor, y: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Squared distance of the points (p,) from segments of length one: (n, p)."""
    dx, dy = x - start[:, :1], y - start[:, 1:]
    along = end - start
    place = torch.addcmul(dx * along[:, :1], dy, along[:, 1:]).clamp_(0, 1)
    return _squared(dx.addcmul_(place, along[:, :1], value=-1), dy.addcmul_(place, along[:, 1:], value=-1))


def _squared(dx: Tensor, dy: Tensor) -> Tensor:
    return dx.square_().add_(dy.square_())


def _edge(squared: Tensor, radius: float) -> Tensor:
    """How far inside the edge, in units of length."""
    return squared.sqrt_().neg_().add_(radius)


class Pose(NamedTuple):
    """Angles read from images (n, 2), and the part of each image that is not such a pendulum (n,)."""

    angles: Tensor
    residual: Tensor


GHOST = 0.35
"""An image whose residual is above this shows no pendulum: two poses at once, a missing or a doubled rod."""


def read_pose(frames: Tensor, *, grid: int = 90) -> Pose:
    """The pose whose image is nearest to each of (n, 1, size, size), found on a grid and then refined to about 1°.

    The residual is |frame − image|²/|image|², 0 for a rendered pendulum and 1 for a black frame.
    """
    size = frames.shape[-1]
    flat = frames.reshape(len(frames), -1).float()
    angles, images = _gallery(grid, size)
    nearest = torch.cat([_nearest(part, images) for part in flat.split(1024)])
    best, step = angles[nearest], 2 * math.pi / grid
    for _ in range(2):
        step /= 2
        best = torch.cat([_refine(f, a, step, size) for f, a in zip(flat.split(128), best.split(128), strict=True)])
    drawn = render(best, size=size).flatten(1)
    return Pose(best, (flat - drawn).square().sum(1) / drawn.square().sum(1))


def pose_error(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square of the angles between the first and between the second links, in degrees: (..., 2)² → (...).

    A link's own direction counts, θ₁ and θ₁ + θ₂, so that an error of the first is not counted twice.
    """
    gap = torch.stack([a[..., 0] - b[..., 0], (a[..., :2] - b[..., :2]).sum(-1)], dim=-1)
    gap = torch.remainder(gap + math.pi, 2 * math.pi) - math.pi
    return torch.rad2deg(gap.square().mean(-1).sqrt())


@lru_cache(maxsize=4)
def _gallery(grid: int, size: int) -> tuple[Tensor, Tensor]:
    """Poses (grid², 2) on a regular grid and their images (grid², size²)."""
    axis = torch.arange(grid) * (2 * math.pi / grid) - math.pi
    angles = torch.cartesian_prod(axis, axis)
    return angles, render(angles, size=size).flatten(1)


def _nearest(frames: Tensor, images: Tensor) -> Tensor:
    return (images.square().sum(1) - 2 * frames @ images.mT).argmin(1)


def _refine(frames: Tensor, angles: Tensor, step: float, size: int) -> Tensor:
    """The best of the nine poses one step around each; the second angle moves against the first, link by link."""
    offsets = torch.cartesian_prod(*[torch.tensor([-step, 0.0, step])] * 2)
    offsets = torch.stack([offsets[:, 0], offsets[:, 1] - offsets[:, 0]], dim=1)
    around = angles[:, None] + offsets
    gap = (render(around, size=size).flatten(2) - frames[:, None]).square().sum(2)
    return around.gather(1, gap.argmin(1)[:, None, None].expand(-1, 1, 2))[:, 0]
