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
    ("neck", "head", 0.034, 0.040, "skin"),
    ("far shoulder", "shoulder", 0.046, 0.046, "jacket"),
    ("far hip", "far shoulder", 0.058, 0.045, "jacket"),
    ("hip", "shoulder", 0.058, 0.045, "jacket"),
    ("pelvis", "neck", 0.076, 0.058, "jacket"),
]
HEAD: list[Part] = [
    ("hair", "hair", 0.058, 0.058, "hair"),
    ("head", "head", 0.054, 0.054, "skin"),
]
(_ARM, _LEG), (_FAR_ARM, _FAR_LEG) = _limbs(""), _limbs("far ")
COAT: list[Part] = [("pelvis", "hem", 0.080, 0.105, "jacket")]
FROM_THE_SIDE = [*_FAR_ARM, *_FAR_LEG, *_LEG, *TRUNK, *COAT, *HEAD, *_ARM]
FROM_THE_FRONT = [*_FAR_LEG, *_LEG, *TRUNK, *COAT, *HEAD, *_FAR_ARM, *_ARM]
"""What is painted first lies behind."""
SILHOUETTE = [*_FAR_LEG[:2], *_LEG[:2], *TRUNK[2:], *COAT, *HEAD[:1]]
"""What throws a shadow."""
_SPOTS = (*JOINTS, "hem")
_KNEES = [JOINTS.index("knee"), JOINTS.index("far knee")]


class Pen:
    """Draws parts of a body on n pictures, from its joints (n, 18, 2) in pixels and its `height` (n,).

    `bulk` is its thickness against the usual one. An edge goes from 0 to 1 over `soft` pixels. What all parts need is
    computed for all of them at once, (part, n, …), in units in which a circle is round.
    """

    def __init__(self, joints: Tensor, parts: list[Part], *, height: Tensor, bulk: float, soft: float):
        hem = (joints[:, _SPOTS.index("pelvis")] + joints[:, _KNEES].sum(1)) / 3
        places = torch.cat([joints, hem[:, None]], 1).transpose(0, 1)
        first, last = (places[[_SPOTS.index(part[end]) for part in parts]] for end in (0, 1))
        wide, narrow = (torch.tensor([part[end] for part in parts])[:, None] * bulk * height for end in (2, 3))
        self.windows = _windows(torch.stack([first, last]), torch.maximum(wide, narrow).amax(1, True) + soft)
        self.wide, self.taper, self.soft = (wide / soft + 0.5)[..., None, None], _plane((narrow - wide) / soft), soft
        round_ = torch.tensor([1 / ASPECT, 1.0])
        limb = (last - first) * round_
        along = limb / limb.square().sum(-1, keepdim=True).clamp(min=1e-6)
        grid = torch.arange(SIZE, dtype=joints.dtype) + 0.5
        away = (grid[:, None] - first[:, :, None]) * round_
        self.limb = [_plane(part) for part in limb.unbind(-1)]
        self.away = away[..., 0][:, :, None, :], away[..., 1][..., None]
        self.share = [part * _plane(one) for part, one in zip(self.away, along.unbind(-1), strict=True)]

    def covered(self, k: int) -> Tensor:
        """How much of each pixel of its window lies inside part k, (n, rows, columns) in [0, 1].

        It follows from the distance of the pixel's centre from the part's tapering axis.
        """
        _, rows, columns = self.windows[k]
        share = (self.share[0][k][..., columns] + self.share[1][k][:, rows]).clamp_(0, 1)
        across = torch.addcmul(self.away[0][k][..., columns], share, self.limb[0][k], value=-1)
        along = torch.addcmul(self.away[1][k][:, rows], share, self.limb[1][k], value=-1)
        distance = across.square_().addcmul_(along, along).sqrt_()
        return share.mul_(self.taper[k]).add_(self.wide[k]).sub_(distance, alpha=1 / self.soft).clamp_(0, 1)

    def paint(self, canvas: Tensor, tones: Tensor) -> None:
        """Lay the parts over the pictures (n, 64, 64), one after another, in greys (part, n, 64), column by column."""
        for k, window in enumerate(self.windows):
            below = canvas[window]
            if below.numel():
                below.lerp_(tones[k][:, None, window[2]].expand_as(below), self.covered(k))

    def darken(self, canvas: Tensor, share: float) -> None:
        """Take that share of the light from what any of the parts covers."""
        area = torch.zeros_like(canvas)
        for k, window in enumerate(self.windows):
            if area[window].numel():
                area[window] = torch.maximum(area[window], self.covered(k))
        canvas.mul_(1 - share * area)


def _plane(numbers: Tensor) -> Tensor:
    """(part, n) → (part, n, 1, 1)."""
    return numbers[..., None, None]


def _windows(ends: Tensor, reach: Tensor) -> list[tuple[slice, slice, slice]]:
    """All pictures, rows and columns that each part may touch, from the ends of its axis (2, part, n, 2)."""
    low, high = (ends.amin((0, 2)) - reach).floor(), (ends.amax((0, 2)) + reach).ceil()
    edges = torch.stack([low, high], -1).clamp(0, SIZE).int().tolist()
    return [(slice(None), slice(*rows), slice(*columns)) for columns, rows in edges]


def background(texture: Tensor, *, pan: Tensor, zoom: Tensor) -> Tensor:
    """What the camera sees of a texture (96, 96): (n, 64, 64), for pan (n, 2) in pixels and zoom (n,) at the middle."""
    axis = torch.arange(SIZE, dtype=texture.dtype) + 0.5 - SIZE / 2
    seen = (axis / zoom[:, None])[:, :, None] - pan[:, None, :]
    x, y = (2 / TEXTURE * seen).unbind(-1)
    grid = torch.stack([x[:, None, :].expand(-1, SIZE, -1), y[:, :, None].expand(-1, -1, SIZE)], -1)
    sheets = texture.expand(len(grid), 1, -1, -1)
    return F.grid_sample(sheets, grid, padding_mode="reflection", align_corners=False)[:, 0]
