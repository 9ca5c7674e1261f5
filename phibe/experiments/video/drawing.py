"""Figures, first part: the motion of a body in six actions, and its drawing in grey, many frames at once.

Read next: `figures.py`, which draws the cast of each clip and renders it.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

# -- bodies in motion ------------------------------------------------------------------------------------------------


ACTIONS = ("walking", "jogging", "running", "boxing", "handwaving", "handclapping")
"""The six of the KTH data set; an action is known by its place here."""
FRONTAL = (False, False, False, False, True, True)
"""Who is seen from the front; the others are seen from the side."""
MIRRORED = (True, True, True, True, False, False)
"""Does the left side do what the right side does half a cycle later, or at the same time?"""

JOINTS = (
    *("pelvis", "neck", "head", "hair", "shoulder", "elbow", "hand", "hip", "knee", "ankle", "toe"),
    *("far shoulder", "far elbow", "far hand", "far hip", "far knee", "far ankle", "far toe"),
)

# Parts of the body in units of its height.
TORSO, NECK, UPPER_ARM, FOREARM, THIGH, SHANK, FOOT = 0.31, 0.095, 0.165, 0.205, 0.245, 0.25, 0.10
SHOULDERS, HIPS = 0.100, 0.045
"""Half the distance of the two shoulders and of the two hips."""

CURVES = ("thigh", "knee", "foot", "arm", "elbow", "spread", "turn", "back")
"""Angles: forward from the downward vertical, the thigh and the upper arm; bends, the knee and the elbow; the foot from
the ground; sideways, the upper arm (spread) and the forearm against it (turn); how far the back leans forward."""

_STANDING = {"thigh": (0,) * 8, "knee": (2,) * 8, "foot": (0,) * 8, "back": (0,) * 8}
_ARMS_BESIDE = {"spread": (4,) * 8, "turn": (0,) * 8}
# Degrees at eight equally spaced phases. Walking, jogging and running begin when the foot of that side touches ground.
KEYS: dict[str, dict[str, tuple[float, ...]]] = {
    "walking": {
        "thigh": (28, 21, 6, -10, -20, -10, 14, 28),
        "knee": (5, 17, 13, 5, 11, 42, 60, 26),
        "foot": (14, 0, 0, -4, -24, -55, -28, 8),
        "arm": (-20, -16, -4, 9, 17, 13, 1, -13),
        "elbow": (16, 15, 18, 26, 32, 29, 21, 17),
        "back": (3,) * 8,
        **_ARMS_BESIDE,
    },
    "jogging": {
        "thigh": (26, 15, -2, -19, -20, 4, 30, 37),
        "knee": (14, 36, 29, 18, 48, 88, 82, 36),
        "foot": (6, 0, -6, -38, -75, -70, -32, 4),
        "arm": (-38, -29, -10, 9, 17, 10, -10, -30),
        "elbow": (75, 74, 78, 86, 92, 89, 82, 77),
        "back": (7,) * 8,
        **_ARMS_BESIDE,
    },
    "running": {
        "thigh": (28, 13, -7, -25, -20, 14, 46, 46),
        "knee": (18, 42, 31, 22, 72, 112, 96, 46),
        "foot": (2, -2, -12, -48, -88, -78, -36, 2),
        "arm": (-50, -37, -10, 18, 29, 16, -14, -42),
        "elbow": (88, 86, 90, 97, 105, 100, 92, 88),
        "back": (11,) * 8,
        **_ARMS_BESIDE,
    },
    "boxing": {
        "thigh": (7, 2, -3, 2, 7, 2, -3, 2),
        "knee": (12, 9, 6, 9, 12, 9, 6, 9),
        "foot": (0,) * 8,
        "arm": (86, 62, 26, 10, 8, 10, 20, 60),
        "elbow": (4, 58, 122, 138, 140, 138, 124, 60),
        "spread": (4,) * 8,
        "turn": (-10,) * 8,
        "back": (9, 4, -2, 3, 9, 4, -2, 3),
    },
    "handwaving": {
        **_STANDING,
        "arm": (0,) * 8,
        "elbow": (5,) * 8,
        "spread": (20, 42, 90, 134, 150, 134, 90, 42),
        "turn": (4, 8, 12, 36, 68, 36, 12, 8),
    },
    "handclapping": {
        **_STANDING,
        "arm": (6, 8, 16, 30, 38, 30, 16, 8),
        "elbow": (10, 14, 30, 50, 60, 50, 30, 14),
        "spread": (62, 52, 30, 14, 10, 14, 30, 52),
        "turn": (18, 8, -20, -54, -68, -54, -20, 8),
    },
}
STANCE = torch.tensor([0.0, 0.0, 0.0, 11.0, 2.0, 2.0])
"""Degrees by which the near thigh stands forward and the far one back (boxing) or both apart."""
HOP = torch.tensor([0.0, 0.018, 0.03, 0.0, 0.0, 0.0])
"""How high the body flies between two steps, in heights."""
STRIDE = torch.tensor([0.84, 1.15, 1.50, 0.0, 0.0, 0.0])
"""Way of one cycle, two steps, in heights."""
HERTZ = torch.tensor([0.90, 1.25, 1.38, 0.75, 0.68, 0.90])
"""Cycles a second."""


@cache
def harmonics() -> Tensor:
    """Fourier coefficients c_k, k = 0 … 3, of every curve of every action: (action, curve, 4) complex."""
    keys = torch.tensor([[KEYS[action][curve] for curve in CURVES] for action in ACTIONS], dtype=torch.float64)
    coefficients = torch.fft.rfft(torch.deg2rad(keys)) / keys.shape[-1]
    coefficients[..., 1:] *= 2
    return coefficients[..., :4]


def angles(action: Tensor, phase: Tensor, amplitude: Tensor) -> Tensor:
    """Every curve at the phase, θ = Re Σ_k c_k e^{ikφ}, in radians: (path,), (path, time), (path,) → (path, time, 8).

    `amplitude` scales how far a curve goes from its mean.
    """
    c = harmonics()[action].to(phase.device)
    turn = torch.polar(torch.ones_like(phase, dtype=torch.float64), phase.double())
    theta = torch.zeros((), dtype=torch.float64)
    for k in (3, 2, 1):
        theta = (theta + c[:, None, :, k]) * turn[..., None]
    return c[:, None, :, 0].real + amplitude[:, None, None] * theta.real


def skeleton(action: Tensor, phase: Tensor, *, yaw: Tensor, amplitude: Tensor, lean: Tensor) -> Tensor:
    """Joints of a body of height one on the ground y = 0: (path, time, 18, 2), x forward, y up.

    The origin is below the pelvis of who walks, jogs or runs, and between the feet of who stands.
    The body is three-dimensional and seen from the angle `yaw` (path,): 0 from the front, π/2 from its side, in radians
    like `lean`. Its lower foot touches the ground, but for the hops of jogging and running.
    """
    mirrored = torch.tensor(MIRRORED)[action]
    near = angles(action, phase, amplitude)
    far = angles(action, phase + math.pi * mirrored[:, None], amplitude)
    stance = torch.deg2rad(STANCE)[action].double()[:, None]
    back = near[..., 7] + lean[:, None]
    rise = torch.stack([back.sin(), back.cos(), torch.zeros_like(back)], -1)
    neck = TORSO * rise
    crown = torch.tensor([-0.018, 0.024, 0.0], dtype=torch.float64)
    spots = [torch.zeros_like(rise), neck, neck + NECK * rise, neck + NECK * rise + crown]
    for side, theta in ((1.0, near), (-1.0, far)):
        spots += _arm(theta, 0.95 * neck, side) + _leg(theta, side * stance, side)
    joints = torch.stack(spots, -2)
    view = torch.stack([yaw.sin(), torch.zeros_like(yaw), yaw.cos()], -1)[:, None, None]
    flat = torch.stack([(joints * view).sum(-1), joints[..., 1]], -1)
    stands = (STRIDE[action] == 0).double()[:, None, None]
    flat[..., 0] -= stands * flat[..., [9, 16], 0].mean(-1, keepdim=True)
    lowest = flat[..., [9, 10, 16, 17], 1].amin(-1)
    flight = 0.5 + 0.5 * torch.cos(2 * phase - 2 * 0.42 * 2 * math.pi)
    flat[..., 1] += (HOP[action].double()[:, None] * flight - lowest)[..., None]
    return flat


def _arm(theta: Tensor, root: Tensor, side: float) -> list[Tensor]:
    """Shoulder, elbow and hand, (path, time, 3) each: forward, up, sideways."""
    arm, elbow, spread, turn = theta[..., 3:7].unbind(-1)
    shoulder = root + _sideways(root, side * SHOULDERS)
    bend = shoulder + UPPER_ARM * _direction(arm, spread, side)
    return [shoulder, bend, bend + FOREARM * _direction(arm + elbow, spread + turn, side)]


def _leg(theta: Tensor, stance: Tensor, side: float) -> list[Tensor]:
    """Hip, knee, ankle and toe, (path, time, 3) each."""
    thigh, knee, foot = (part for part in theta[..., :3].unbind(-1))
    thigh, zero = thigh + stance, torch.zeros_like(thigh)
    hip = _sideways(theta[..., :3], side * HIPS)
    bend = hip + THIGH * _direction(thigh, zero, side)
    ankle = bend + SHANK * _direction(thigh - knee, zero, side)
    return [hip, bend, ankle, ankle + FOOT * torch.stack([foot.cos(), foot.sin(), zero], -1)]


def _direction(forward: Tensor, sideways: Tensor, side: float) -> Tensor:
    """Unit vector turned forward and then sideways from hanging down."""
    down = forward.cos() * sideways.cos()
    return torch.stack([forward.sin() * sideways.cos(), -down, side * sideways.sin()], -1)


def _sideways(like: Tensor, way: float) -> Tensor:
    return torch.zeros_like(like) + torch.tensor([0.0, 0.0, way], dtype=like.dtype)


# -- drawing ---------------------------------------------------------------------------------------------------------


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
