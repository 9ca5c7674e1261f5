"""Networks for states without structure: an MLP, and a residual MLP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from phibe.networks.network import ACTIVATIONS, Network, keywords


class MLP(Network):
    """v = W act(… act(W [x, t])): `depth` hidden layers of `width` units   [paper: 5 × 50 for the OU process].

    The state is flattened. Without `time` the velocity is the same at all times, for stationary processes.
    """

    def __init__(
        self,
        state_shape: Sequence[int],
        *,
        width: int = 50,
        depth: int = 5,
        activation: str = "silu",
        time: bool = True,
    ):
        super().__init__(state_shape, **keywords(locals()))
        size = math.prod(self.state_shape)
        widths = [size + time, *[width] * depth]
        hidden = [(nn.Linear(a, b), ACTIVATIONS[activation]()) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*(layer for pair in hidden for layer in pair), nn.Linear(width, size))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self._check(x, t)
        return self.layers(_flatten(x, t, self.arguments["time"])).reshape(x.shape)


class ResidualMLP(Network):
    """h ← h + W₂ act(W₁ act(h)), `blocks` times between two linear maps   [paper: 256 × 2 blocks for the pendulum].

    The first `angles` coordinates enter as sine and cosine, so that the velocity has their period; the state itself
    stays as it is, and so does the objective. They must then come in radians (see `Normalised.keep`).
    """

    def __init__(
        self,
        state_shape: Sequence[int],
        *,
        width: int = 256,
        blocks: int = 2,
        activation: str = "silu",
        time: bool = True,
        angles: int = 0,
    ):
        super().__init__(state_shape, **keywords(locals()))
        size, act = math.prod(self.state_shape), ACTIVATIONS[activation]
        if not 0 <= angles <= size:
            raise ValueError(f"`angles` must be from 0 to the {size} coordinates of the state; got {angles}.")
        self.enter = nn.Linear(size + angles + time, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(act(), nn.Linear(width, width), act(), nn.Linear(width, width)) for _ in range(blocks)
        )
        self.leave = nn.Sequential(act(), nn.Linear(width, size))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self._check(x, t)
        angle, rest = _flatten(x, t, self.arguments["time"]).tensor_split([self.arguments["angles"]], dim=1)
        h = self.enter(torch.cat([angle.sin(), angle.cos(), rest], dim=1))
        for block in self.blocks:
            h = h + block(h)
        return self.leave(h).reshape(x.shape)


def _flatten(x: Tensor, t: Tensor, time: bool) -> Tensor:
    return torch.cat([x.flatten(1), t[:, None].to(x.dtype)], dim=1) if time else x.flatten(1)
