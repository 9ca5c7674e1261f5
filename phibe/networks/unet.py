"""U-Net for images and fields on a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phibe.networks.network import ACTIVATIONS, Network, keywords


class UNet(Network):
    """A U-Net on states (channels, height, width): residual blocks on grids of 1, ½, ¼ … of the resolution.

    One grid for each of `multipliers`, with `channels · multiplier` features, `blocks` blocks on the way down and as
    many up. With `patch` = p the finest grid is that of squares of p × p pixels, each pixel a channel of its own: about
    p² times cheaper. Padding is "circular" for periodic fields (v then commutes with shifts by p·2^(grids − 1) pixels)
    or "zeros" for images. With `condition_channels` = k it also reads a condition (n, k, height, width), or one
    without n for all samples, in the network's own units: `net.conditioned(c)` is the velocity v(x, t) under it.
    """

    def __init__(
        self,
        state_shape: Sequence[int],
        *,
        channels: int = 32,
        multipliers: Sequence[int] = (1, 2, 2),
        blocks: int = 2,
        patch: int = 1,
        padding: str = "circular",
        condition_channels: int = 0,
        time: bool = True,
        activation: str = "silu",
    ):
        super().__init__(state_shape, **keywords(locals()))
        factor = patch * 2 ** (len(multipliers) - 1)
        if len(self.state_shape) != 3 or any(side % factor for side in self.state_shape[1:]):
            wanted = f"states (channels, height, width) with sides divisible by {factor}"
            raise ValueError(f"This U-Net takes {wanted}; got {self.state_shape}. Fewer `multipliers`, or padding?")
        if padding not in ("circular", "zeros"):
            raise ValueError(f"`padding` must be 'circular' (periodic fields) or 'zeros'; got {padding!r}.")
        size, widths, act = self.state_shape[0], [channels * m for m in multipliers], ACTIVATIONS[activation]
        self.embed = TimeEmbedding(channels, act) if time else None
        block = partial(ResidualBlock, embedding=4 * channels if time else 0, padding=padding, activation=act)
        self.enter = _conv((size + condition_channels) * patch**2, widths[0], padding)
        self.down, self.up, self.shrink, self.grow = (nn.ModuleList() for _ in range(4))
        for i, width in enumerate(widths):
            self.down.append(nn.ModuleList(block(width, width) for _ in range(blocks)))
            if i + 1 < len(widths):
                self.shrink.append(_conv(width, widths[i + 1], padding, stride=2))
                self.grow.append(_conv(widths[i + 1], width, padding))
                self.up.append(nn.ModuleList(block(width * (1 + (k == 0)), width) for k in range(blocks)))
        self.leave = nn.Sequential(act(), _conv(widths[0], size * patch**2, padding))  # no norm: |v| may grow with |x|

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        self._check(x, t)
        e = None if self.embed is None else self.embed(t.to(x.dtype))
        x = join(x, condition, self.arguments["condition_channels"])
        h = self.enter(F.pixel_unshuffle(x, self.arguments["patch"]))
        skips: list[Tensor] = []
        for i, level in enumerate(self.down):
            if i:
                skips.append(h)
                h = self.shrink[i - 1](h)
            h = _through(level, h, e)
        for level, grow in zip(reversed(self.up), reversed(self.grow), strict=True):
            h = grow(F.interpolate(h, scale_factor=2, mode="nearest"))
            h = _through(level, torch.cat([h, skips.pop()], dim=1), e)
        return F.pixel_shuffle(self.leave(h), self.arguments["patch"])


class ResidualBlock(nn.Module):
    """h ← skip(h) + conv(act((1 + a) norm(conv(act(norm(h)))) + b)), with a, b linear in the time embedding."""

    def __init__(self, width: int, out: int, *, embedding: int, padding: str, activation: type[nn.Module]):
        super().__init__()
        self.first = nn.Sequential(_norm(width), activation(), _conv(width, out, padding))
        self.norm = _norm(out)
        self.modulate = nn.Linear(embedding, 2 * out) if embedding else None
        self.second = nn.Sequential(activation(), _conv(out, out, padding))
        self.skip = nn.Identity() if width == out else nn.Conv2d(width, out, 1)

    def forward(self, h: Tensor, e: Tensor | None) -> Tensor:
        r = self.norm(self.first(h))
        if self.modulate is not None:
            a, b = self.modulate(e)[:, :, None, None].chunk(2, dim=1)
            r = (1 + a) * r + b
        return self.skip(h) + self.second(r)


class TimeEmbedding(nn.Module):
    """t (n,) → (n, 4·channels): a small network on sines and cosines of t, at frequencies from 1 to 64 radians."""

    def __init__(self, channels: int, activation: type[nn.Module]):
        super().__init__()
        self.waves = max(2, channels // 2)
        self.layers = nn.Sequential(
            nn.Linear(2 * self.waves, 4 * channels), activation(), nn.Linear(4 * channels, 4 * channels), activation()
        )

    def forward(self, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.logspace(0, 6, self.waves, base=2, dtype=t.dtype, device=t.device)
        return self.layers(torch.cat([angles.sin(), angles.cos()], dim=1))


def join(x: Tensor, condition: Tensor | None, wanted: int) -> Tensor:
    """The state with its condition as further channels, of which a network takes so many."""
    if (got := 0 if condition is None else condition.shape[-3]) != wanted:
        raise ValueError(f"This network takes a condition of {wanted} channels; got {got}. Call `net.conditioned(c)`.")
    return x if condition is None else torch.cat([x, condition.expand(len(x), *condition.shape[-3:])], dim=1)


def _through(level: nn.Module, h: Tensor, e: Tensor | None) -> Tensor:
    for block in level.children():
        h = block(h, e)
    return h


def _conv(width: int, out: int, padding: str, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, stride=stride, padding=1, padding_mode=padding)  # type: ignore[arg-type]


def _norm(width: int) -> nn.GroupNorm:
    """At most eight groups, of at least four channels where there are that many."""
    return nn.GroupNorm(math.gcd(8, width // 4 or 1, width), width)
