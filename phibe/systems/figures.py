"""Figures: films of a person in one of six actions, seen by an unsteady camera, whose clock is a noisy one."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phibe.clips import Clips
from phibe.systems import drawing
from phibe.systems.casting import Cast, draw_cast
from phibe.systems.gait import ACTIONS, FRONTAL, STRIDE, skeleton
from phibe.systems.ou import OU
from phibe.trajectories import Trajectories

RATE = 25.0
"""Frames a second in KTH."""
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
        """Films (path, time, 1, 64, 64) in [0, 1], float32, at `times` (default: 40 frames, 25 a second)."""
        return self.stage(paths=paths, times=times, generator=generator, seed=seed).render()

    def stage(
        self, *, paths: int, times: Any = None, generator: torch.Generator | None = None, seed: int = 0
    ) -> Scenes:
        """What is to be filmed: the hidden states at `times`, and who plays; `simulate` shows the films of it."""
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
    """The truth behind films: `motion` (path, time, 3), the hidden states (φ, p, q), and the `cast` of each path."""

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
        """The films, (path, time, 1, 64, 64) in [0, 1], float32: the same to the bit for the same scenes."""
        frames = torch.empty(*self.phase.shape, 1, drawing.SIZE, drawing.SIZE)
        parts = (self.joints(), self._shadows(), self.motion.states[..., 1:], self.zoom)
        whole = [part.float() for part in parts]
        for i, film in enumerate(frames):
            for first in range(0, len(film), block):
                now = slice(first, first + block)
                film[now, 0] = _film(Shot(*(part[i, now] for part in whole)), self.cast.player(i))
            grain = torch.Generator().manual_seed(int(self.cast.grain[i]))
            film.add_(_grain(film.shape, grain), alpha=float(self.cast.noise[i]))
        return Trajectories(frames.clamp_(0, 1), self.motion.times)

    def clips(self) -> Clips:
        """The films as labelled bytes, a person of its own in each, at 25 frames a second: the record of real ones."""
        labels = zip(self.actions, self.cast.scenario.tolist(), strict=True)
        names = [f"person{i:02d}_{action}_d{scenario}" for i, (action, scenario) in enumerate(labels, 1)]
        blocks = (self[i : i + 50].render().states[:, :, 0] for i in range(0, len(self), 50))
        films = [film.numpy() for block in blocks for film in block.mul_(255).round_().to(torch.uint8)]
        return Clips.of(dict(zip(names, films, strict=True)), rate=RATE)


class Shot(NamedTuple):
    """Where things are in n frames of one film: joints and those of the shadow (n, 18, 2), pan (n, 2), zoom (n,)."""

    joints: Tensor
    shadow: Tensor
    pan: Tensor
    zoom: Tensor


def _film(shot: Shot, player: Cast) -> Tensor:
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
    """Noise of variance one, correlated a little between neighbours of a row, as that of compressed film."""
    noise = torch.randn(*shape[:-1], shape[-1] + 1, generator=generator)
    return (noise[..., 1:] + 0.18 * noise[..., :-1]) / math.hypot(1, 0.18)


def frame_times(frames: int = 40, *, rate: float = RATE) -> Tensor:
    """0, 1/25, 2/25, …: ten frames to look at and thirty to foretell, as in the paper."""
    return torch.arange(frames, dtype=torch.float64) / rate
