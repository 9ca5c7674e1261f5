"""Figures: rendered clips of a person in one of six actions, whose clock is noisy, before an unsteady camera."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phibe.experiments.video import drawing
from phibe.experiments.video.clips import RATE, Clips
from phibe.experiments.video.drawing import ACTIONS, ASPECT, FRONTAL, HERTZ, SIZE, STRIDE, TEXTURE, skeleton
from phibe.systems.ou import OU
from phibe.trajectories import Trajectories

# -- casting ---------------------------------------------------------------------------------------------------------


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


# -- figures ---------------------------------------------------------------------------------------------------------


EDGE = 1.15
"""Pixels over which a limb fades into what is behind it."""


@dataclass(frozen=True)
class Figures:
    """dφ = ω dt + σ dB: the phase of a walk, a run, a punch, a wave or a clap; and a camera that sways.

    A hidden state is (φ, p, q): the phase, which alone moves the body and carries a walker forward, so that the feet do
    not slide; and the camera's pan in pixels, two OU processes of standard deviation `sway` and relaxation time
    `patience`. With σ = 0.4 the time of a walker's cycle has a standard deviation of 7 %. Everything else is drawn once
    a clip: see `Cast`.
    """

    sigma: float = 0.4
    sway: float = 0.12
    patience: float = 2.0
    actions: tuple[str, ...] = ACTIONS
    scenarios: tuple[int, ...] = (1, 2, 3, 4)

    def __post_init__(self) -> None:
        unknown = [name for name in self.actions if name not in ACTIONS]
        if unknown or not self.actions or not self.scenarios or not set(self.scenarios) <= {1, 2, 3, 4}:
            raise ValueError(
                f"`actions` must be some of {', '.join(ACTIONS)}, and `scenarios` some of 1, 2, 3, 4; got "
                f"{self.actions} and {self.scenarios}."
            )

    def simulate(
        self, *, paths: int, times: Any = None, generator: torch.Generator | None = None, seed: int = 0
    ) -> Trajectories:
        """Clips (path, time, 1, 64, 64) in [0, 1], float32, at `times` (default: 40 frames, 25 a second)."""
        return self.scenes(paths=paths, times=times, generator=generator, seed=seed).render()

    def scenes(
        self, *, paths: int, times: Any = None, generator: torch.Generator | None = None, seed: int = 0
    ) -> Scenes:
        """The hidden states at `times` and the cast of each clip; `simulate` renders them."""
        generator = generator or torch.Generator().manual_seed(seed)
        times = frame_times() if times is None else torch.as_tensor(times, dtype=torch.float64)
        cast = draw_cast(
            paths,
            actions=[ACTIONS.index(name) for name in self.actions],
            scenarios=self.scenarios,
            middle=float(times.mean()),
            generator=generator,
        )
        noise = self.noise().simulate(paths=paths, times=times, generator=generator)
        noise.states[..., 0] += cast.phase[:, None] + cast.omega[:, None] * times
        return Scenes(Trajectories(noise.states, times), cast)

    def noise(self) -> OU:
        """(φ − φ₀ − ωt, p, q), which is an OU process with a Brownian first coordinate."""
        rest = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
        scale = torch.tensor([self.sigma, *[self.sway * math.sqrt(2 / self.patience)] * 2], dtype=torch.float64)
        return OU(torch.diag(-rest / self.patience), torch.diag(scale), C0=torch.diag(rest) * self.sway**2)


@dataclass(frozen=True)
class Scenes:
    """The truth behind clips: `motion` (path, time, 3), the hidden states (φ, p, q), and the `cast` of each path."""

    motion: Trajectories
    cast: Cast

    def __len__(self) -> int:
        return len(self.motion)

    def __getitem__(self, paths: int | slice | Tensor) -> Scenes:
        paths = slice(paths, paths + 1 or None) if isinstance(paths, int) else paths
        return Scenes(self.motion[paths], Cast(**{f.name: getattr(self.cast, f.name)[paths] for f in fields(Cast)}))

    @property
    def actions(self) -> list[str]:
        return [ACTIONS[i] for i in self.cast.action.tolist()]

    @property
    def phase(self) -> Tensor:
        """φ, not wrapped: (path, time)."""
        return self.motion.states[..., 0]

    @property
    def zoom(self) -> Tensor:
        """How much larger than at first glance all is seen, exp(a sin(νt + β)): (path, time); 1 but in scenario 2."""
        a, nu, beta = self.cast.zoom.unbind(1)
        return torch.exp(a[:, None] * torch.sin(nu[:, None] * self.motion.times + beta[:, None]))

    @property
    def place(self) -> Tensor:
        """Where the person is, from the left, in pixels of the still camera: (path, time)."""
        cast = self.cast
        stride = STRIDE.double()[cast.action] * cast.amplitude * cast.height * drawing.ASPECT * cast.yaw.sin()
        turns = (self.phase - cast.phase[:, None]) / (2 * math.pi)
        return cast.start[:, None] + (cast.direction * stride)[:, None] * turns

    def bodies(self) -> Tensor:
        """Joints in pixels of the still camera, from the point of the ground at `place`, y up: (path, time, 18, 2)."""
        cast = self.cast
        body = skeleton(cast.action, self.phase, yaw=cast.yaw, amplitude=cast.amplitude, lean=cast.lean)
        scale = torch.stack([cast.direction * cast.height * drawing.ASPECT, cast.height], 1)
        return body * scale[:, None, None]

    def joints(self) -> Tensor:
        """Joints in pixels of the picture, x to the right, y down, in the order of JOINTS: (path, time, 18, 2)."""
        body = self.bodies()
        return self._seen(body[..., 0] + self.place[..., None], self.cast.ground[:, None, None] - body[..., 1])

    def _seen(self, x: Tensor, y: Tensor) -> Tensor:
        """Where points of the still camera are in the picture: (path, time, n) twice → (path, time, n, 2)."""
        middle = drawing.SIZE / 2
        points = torch.stack([x, y], -1) - middle + self.motion.states[:, :, None, 1:]
        return middle + self.zoom[..., None, None] * points

    def _shadows(self) -> Tensor:
        """Joints of the shadow on the ground or on the wall, as `joints`."""
        body, (shift, slope, up) = self.bodies(), self.cast.shadow[:, :3, None, None].unbind(1)
        x = body[..., 0] + self.place[..., None] + shift + slope * body[..., 1]
        return self._seen(x, self.cast.ground[:, None, None] - up * body[..., 1])

    def render(self, *, block: int = 40) -> Trajectories:
        """The clips, (path, time, 1, 64, 64) in [0, 1], float32: the same to the bit for the same scenes."""
        frames = torch.empty(*self.phase.shape, 1, drawing.SIZE, drawing.SIZE)
        parts = (self.joints(), self._shadows(), self.motion.states[..., 1:], self.zoom)
        whole = [part.float() for part in parts]
        for i, clip in enumerate(frames):
            for first in range(0, len(clip), block):
                now = slice(first, first + block)
                clip[now, 0] = _frames(Shot(*(part[i, now] for part in whole)), self.cast.player(i))
            grain = torch.Generator().manual_seed(int(self.cast.grain[i]))
            clip.add_(_grain(clip.shape, grain), alpha=float(self.cast.noise[i]))
        return Trajectories(frames.clamp_(0, 1), self.motion.times)

    def clips(self) -> Clips:
        """The clips as labelled bytes, a person of its own in each, at 25 frames a second: the record of real ones."""
        labels = zip(self.actions, self.cast.scenario.tolist(), strict=True)
        names = [f"person{i:02d}_{action}_d{scenario}" for i, (action, scenario) in enumerate(labels, 1)]
        blocks = (self[i : i + 50].render().states[:, :, 0] for i in range(0, len(self), 50))
        clips = [clip.numpy() for block in blocks for clip in block.mul_(255).round_().to(torch.uint8)]
        return Clips.of(dict(zip(names, clips, strict=True)), rate=RATE)


class Shot(NamedTuple):
    """Where things are in n frames of one clip: joints and those of the shadow (n, 18, 2), pan (n, 2), zoom (n,)."""

    joints: Tensor
    shadow: Tensor
    pan: Tensor
    zoom: Tensor


def _frames(shot: Shot, player: Cast) -> Tensor:
    """Frames of one player: (n, 64, 64)."""
    canvas = drawing.background(player.texture, pan=shot.pan, zoom=shot.zoom)
    height, bulk = shot.zoom * float(player.height), float(player.bulk)
    left_out = [] if bool(player.coat) else drawing.COAT
    soft, dark = player.shadow[3:].tolist()
    if dark > 0:
        parts = [part for part in drawing.SILHOUETTE if part not in left_out]
        drawing.Pen(shot.shadow, parts, height=height, bulk=bulk, soft=soft).darken(canvas, dark)
    order = drawing.FROM_THE_FRONT if FRONTAL[int(player.action)] else drawing.FROM_THE_SIDE
    parts = [part for part in order if part not in left_out]
    greys = player.shades.float()[[drawing.SHADES.index(part[4]) for part in parts]]
    across = (torch.arange(drawing.SIZE) + 0.5 - shot.joints[:, :1, 0]) / height[:, None]
    pen = drawing.Pen(shot.joints, parts, height=height, bulk=bulk, soft=EDGE)
    pen.paint(canvas, greys[:, None, None] + float(player.light) * across)
    return canvas


def _grain(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Noise of variance one, correlated a little between neighbours of a row, as that of compressed video."""
    noise = torch.randn(*shape[:-1], shape[-1] + 1, generator=generator)
    return (noise[..., 1:] + 0.18 * noise[..., :-1]) / math.hypot(1, 0.18)


def frame_times(frames: int = 40, *, rate: float = RATE) -> Tensor:
    """0, 1/25, 2/25, …: ten frames of context and thirty to predict, as in the paper."""
    return torch.arange(frames, dtype=torch.float64) / rate
