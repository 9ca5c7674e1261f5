"""Drawing: limbs, their shadows and a textured background as grey pictures with soft edges, many frames at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from phibe.systems.gait import JOINTS

SIZE = 64
ASPECT = 0.75
"""A picture of 160 × 120 squashed to a square: what is as wide as high becomes narrower."""
TEXTURE = 96
"""Width of a background, larger than the picture, so that the camera can move over it."""
SHADES = ("jacket", "trousers", "skin", "hair", "shoes")

Part = tuple[str, str, float, float, str]
"""From which joint to which, the radii at both ends in units of the body's height, and the shade."""


def _limbs(side: str) -> tuple[list[Part], list[Part]]:
    """An arm and a leg."""
    arm: list[Part] = [
        (f"{side}shoulder", f"{side}elbow", 0.036, 0.030, "jacket"),
        (f"{side}elbow", f"{side}hand", 0.030, 0.020, "jacket"),
        (f"{side}hand", f"{side}hand", 0.024, 0.024, "skin"),
    ]
    leg: list[Part] = [
        (f"{side}hip", f"{side}knee", 0.056, 0.042, "trousers"),
        (f"{side}knee", f"{side}ankle", 0.042, 0.029, "trousers"),
        (f"{side}ankle", f"{side}toe", 0.029, 0.020, "shoes"),
    ]
    return arm, leg


TRUNK: list[Part] = [
    ("hip", "far hip", 0.060, 0.060, "trousers"),
    ("shoulder", "far shoulder", 0.042, 0.042, "jacket"),
    ("pelvis", "neck", 0.072, 0.062, "jacket"),
]
HEAD: list[Part] = [
    ("neck", "head", 0.032, 0.040, "skin"),
    ("head", "head", 0.062, 0.062, "skin"),
    ("hair", "hair", 0.054, 0.054, "hair"),
]
(_ARM, _LEG), (_FAR_ARM, _FAR_LEG) = _limbs(""), _limbs("far ")
COAT: list[Part] = [("pelvis", "hem", 0.080, 0.095, "jacket")]
FROM_THE_SIDE = [*_FAR_ARM, *_FAR_LEG, *_LEG, *TRUNK, *COAT, *HEAD, *_ARM]
FROM_THE_FRONT = [*_FAR_LEG, *_LEG, *TRUNK, *COAT, *HEAD, *_FAR_ARM, *_ARM]
"""What is painted first lies behind."""
SILHOUETTE = [*_FAR_LEG[:2], *_LEG[:2], *TRUNK[2:], *COAT, *HEAD[1:2]]
"""What throws a shadow."""


def spots(joints: Tensor) -> dict[str, Tensor]:
    """The joints (n, 17, 2) by name, (n, 2) each, and two more: the back of the head, and the hem of a coat."""
    named = dict(zip(JOINTS, joints.unbind(1), strict=True))
    named["hair"] = named["head"] + 0.25 * (named["head"] - named["neck"])
    named["hem"] = (named["pelvis"] + named["knee"] + named["far knee"]) / 3
    return named


def covered(places: dict[str, Tensor], part: Part, *, height: Tensor, bulk: float, soft: float) -> Tensor:
    """How much of each pixel lies inside a part: (n, 64, 64) in [0, 1], from the distance to its tapering axis.

    Positions in pixels, `height` (n,) in pixels too. The edge goes from 0 to 1 over `soft` pixels.
    """
    first, last, wide, narrow, _ = part
    axis = torch.arange(SIZE, dtype=height.dtype) + 0.5
    (sx, sy), (ax, ay) = places[first].unbind(1), (places[last] - places[first]).unbind(1)
    dx = axis[None, None, :] / ASPECT - sx[:, None, None] / ASPECT
    dy = axis[None, :, None] - sy[:, None, None]
    ax, ay = ax[:, None, None] / ASPECT, ay[:, None, None]
    length = (ax.square() + ay.square()).clamp(min=1e-6)
    share = (dx * (ax / length) + dy * (ay / length)).clamp_(0, 1)
    across = torch.addcmul(dx, share, ax, value=-1)
    along = torch.addcmul(dy, share, ay, value=-1)
    distance = across.square_().addcmul_(along, along).sqrt_()
    scale = bulk * height[:, None, None] / soft
    inside = share.mul_(scale * (narrow - wide)).add_(scale * wide + 0.5)
    return inside.sub_(distance, alpha=1 / soft).clamp_(0, 1)


def shadow(places: dict[str, Tensor], parts: list[Part], *, height: Tensor, bulk: float, soft: float) -> Tensor:
    """How much of each pixel lies inside any of the parts."""
    area = covered(places, parts[0], height=height, bulk=bulk, soft=soft)
    for part in parts[1:]:
        area = torch.maximum(area, covered(places, part, height=height, bulk=bulk, soft=soft))
    return area


def background(texture: Tensor, *, pan: Tensor, zoom: Tensor) -> Tensor:
    """What the camera sees of a texture (96, 96): (n, 64, 64), for pan (n, 2) in pixels and zoom (n,) about the middle."""
    axis = torch.arange(SIZE, dtype=texture.dtype) + 0.5 - SIZE / 2
    seen = (axis / zoom[:, None])[:, :, None] - pan[:, None, :]
    x, y = (2 / TEXTURE * seen).unbind(-1)
    grid = torch.stack([x[:, None, :].expand(-1, SIZE, -1), y[:, :, None].expand(-1, -1, SIZE)], -1)
    sheets = texture.expand(len(grid), 1, -1, -1)
    return F.grid_sample(sheets, grid, padding_mode="reflection", align_corners=False)[:, 0]
