"""Casting: who plays in a film, in which clothes, before which background, and how the camera stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from phibe.systems.drawing import ASPECT, SIZE, TEXTURE
from phibe.systems.gait import FRONTAL, HERTZ, STRIDE


@dataclass(frozen=True)
class Cast:
    """What does not change during a clip, one entry a clip; lengths in pixels, angles in radians, greys in [0, 1].

    Args:
        action: index into ACTIONS
        scenario: 1 outdoors, 2 outdoors with a camera that zooms, 3 outdoors in other clothes, 4 indoors
        direction: 1 to the right, −1 to the left
        height: of the person
        start: where the person is at t = 0, from the left
        ground: the row that the feet stand on
        yaw: 0 seen from the front, π/2 from the side
        omega: ω, the mean angular velocity of the clock
        phase: φ at t = 0
        amplitude: size of the movements against the usual one
        lean: forward, beside what belongs to the action
        bulk: thickness against the usual one
        coat: 1 with a coat to the knees
        shades: greys of jacket, trousers, skin, hair, shoes (clip, 5)
        light: how much brighter one side is than the other
        shadow: shift, slope, height, softness and darkness (clip, 5)
        zoom: amplitude, angular velocity and phase of the camera's zoom (clip, 3)
        noise: standard deviation of the sensor's noise
        grain: the seed of that noise
        texture: the background (clip, 96, 96)
    """

    action: Tensor
    scenario: Tensor
    direction: Tensor
    height: Tensor
    start: Tensor
    ground: Tensor
    yaw: Tensor
    omega: Tensor
    phase: Tensor
    amplitude: Tensor
    lean: Tensor
    bulk: Tensor
    coat: Tensor
    shades: Tensor
    light: Tensor
    shadow: Tensor
    zoom: Tensor
    noise: Tensor
    grain: Tensor
    texture: Tensor

    def player(self, i: int) -> Cast:
        """The entries of one clip."""
        return Cast(**{field.name: getattr(self, field.name)[i] for field in fields(self)})


class Dice:
    """Random numbers for n clips from one generator."""

    def __init__(self, n: int, generator: torch.Generator):
        self.n, self.generator = n, generator

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(self.n, *shape, dtype=torch.float64, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.n, *shape, dtype=torch.float64, generator=self.generator)

    def happens(self, chance: float) -> Tensor:
        return self.uniform(0, 1) < chance

    def one_of(self, values: Sequence[int]) -> Tensor:
        pick = torch.randint(len(values), (self.n,), generator=self.generator)
        return torch.tensor(values)[pick]


def draw_cast(
    n: int, *, actions: Sequence[int], scenarios: Sequence[int], middle: float, generator: torch.Generator
) -> Cast:
    """n clips; walkers are near the picture's middle at the time `middle`, so that they come in and go out."""
    dice = Dice(n, generator)
    action, scenario = dice.one_of(actions), dice.one_of(scenarios)
    frontal = torch.tensor(FRONTAL)[action]
    indoors = scenario == 4
    direction = 2.0 * dice.happens(0.5) - 1
    height = torch.where(indoors, dice.uniform(48, 57), dice.uniform(37, 50))
    yaw = torch.where(frontal, dice.uniform(-0.3, 0.3), math.pi / 2 + dice.uniform(-0.35, 0.35))
    omega = 2 * math.pi * HERTZ.double()[action] * torch.exp(0.08 * dice.normal())
    amplitude = dice.uniform(0.85, 1.15)
    stride = STRIDE.double()[action] * amplitude * height * ASPECT * yaw.sin()
    met = torch.where(stride > 0, dice.uniform(4, SIZE - 4), dice.uniform(24, 40))
    ground = torch.where(indoors, dice.uniform(58, 63), dice.uniform(0, 1) * (SIZE - 6 - height) + height + 3)
    base = torch.where(dice.happens(0.2) & ~indoors, dice.uniform(0.80, 0.90), dice.uniform(0.44, 0.58))
    return Cast(
        action=action,
        scenario=scenario,
        direction=direction,
        height=height,
        start=met - direction * stride * omega * middle / (2 * math.pi),
        ground=ground,
        yaw=yaw,
        omega=omega,
        phase=dice.uniform(0, 2 * math.pi),
        amplitude=amplitude,
        lean=0.04 * dice.normal(),
        bulk=torch.where(frontal, dice.uniform(0.85, 1.1), dice.uniform(0.95, 1.35)),
        coat=dice.happens(0.15) | (dice.happens(0.4) & (scenario == 3)),
        shades=_shades(dice, base, scenario == 3),
        light=dice.uniform(-0.25, 0.25),
        shadow=_shadow(dice, indoors),
        zoom=_zoom(dice, scenario == 2),
        noise=dice.uniform(0.003, 0.005),
        grain=torch.randint(2**62, (n,), generator=generator),
        texture=_texture(dice, base, indoors, ground),
    )


def _shades(dice: Dice, base: Tensor, other: Tensor) -> Tensor:
    """Mostly dark clothes; light ones at times, in scenario 3 often. Skin is near the background's grey."""
    dark = base[:, None] * torch.stack([dice.uniform(0.12, 0.5), dice.uniform(0.15, 0.6)], 1)
    light = dice.uniform(0.65, 0.95, 2)
    clothes = torch.where((dice.uniform(0, 1, 2) < (0.06 + 0.2 * other)[:, None]), light, dark)
    skin = (base * dice.uniform(0.75, 1.2)).clamp(max=0.8)
    hair = torch.where(dice.happens(0.08), dice.uniform(0.8, 0.95), base * dice.uniform(0.15, 0.6))
    return torch.stack([*clothes.unbind(1), skin, hair, base * dice.uniform(0.15, 0.5)], 1)


def _shadow(dice: Dice, indoors: Tensor) -> Tensor:
    """A soft one on the wall; on the ground a sharper one, long, short or none."""
    side = 2.0 * dice.happens(0.5) - 1
    wall = [side * dice.uniform(2, 9), 0 * side, 0 * side + 1, dice.uniform(4, 9), dice.uniform(0.1, 0.4)]
    dark = dice.uniform(0.1, 0.45) * dice.happens(0.4)
    ground = [0 * side, side * dice.uniform(0.2, 1.3), dice.uniform(-0.12, 0.3), dice.uniform(2, 4), dark]
    return torch.where(indoors[:, None], torch.stack(wall, 1), torch.stack(ground, 1))


def _zoom(dice: Dice, zooming: Tensor) -> Tensor:
    size = dice.uniform(0.15, 0.4) * zooming
    return torch.stack([size, 2 * math.pi / dice.uniform(5, 10), dice.uniform(0, 2 * math.pi)], 1)


def _texture(dice: Dice, base: Tensor, indoors: Tensor, ground: Tensor) -> Tensor:
    """Grass, earth or snow in streaks, brighter or darker above, at times with sky; or a lit wall above a floor."""
    edge, base, ground = (TEXTURE - SIZE) / 2, base.float(), ground.float()
    rows = (torch.arange(TEXTURE) + 0.5 - TEXTURE / 2) / TEXTURE
    level = torch.arange(TEXTURE)[None, :, None] + 0.5
    fine, broad = _streaks(dice, 1, 0.011), _streaks(dice, 9, 0.016)
    field = base[:, None, None] + fine + broad + (dice.uniform(-0.22, 0.12)[:, None] * rows)[:, :, None].float()
    horizon = edge + torch.where(dice.happens(0.12), dice.uniform(0, 9), torch.full_like(base, -1e3))
    field = torch.lerp(field, torch.full_like(field, 0.95), (horizon[:, None, None] - level + 0.5).clamp(0, 1).float())
    glow = _glow(rows, dice.uniform(-0.4, 0.4), dice.uniform(0.22, 0.5)) - 0.35
    wall = base[:, None, None] - 0.04 + (dice.uniform(0.1, 0.4)[:, None, None] * glow).float() + 0.25 * fine
    floor = wall * dice.uniform(0.45, 0.95)[:, None, None].float() + 0.5 * fine
    seam = edge + ground - dice.uniform(2, 7)
    room = torch.lerp(wall, floor, ((level - seam[:, None, None]) / 1.5 + 0.5).clamp(0, 1).float())
    return torch.where(indoors[:, None, None], room, field).clamp(0.03, 1)


def _streaks(dice: Dice, width: int, size: float) -> Tensor:
    """Smooth noise, three times as long as high, of standard deviation `size`: (clip, 96, 96)."""
    grain = F.pad(dice.normal(1, TEXTURE, TEXTURE).float(), (3 * width // 2,) * 2 + (width // 2,) * 2, mode="circular")
    smooth = F.avg_pool2d(F.avg_pool2d(grain, (1, 3 * width), 1), (width, 1), 1)[:, 0]
    return size * smooth / smooth.std((1, 2), keepdim=True)


def _glow(rows: Tensor, spot: Tensor, reach: Tensor) -> Tensor:
    """A round patch of light: (clip, 96, 96)."""
    across, down = rows - spot[:, None], rows + 0.1
    return torch.exp(
        -(across.square()[:, None, :] + down.square()[None, :, None]) / (2 * reach.square()[:, None, None])
    )
