"""A transformer over the cells of a small grid, such as that of a video's latents."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phibe.networks.network import ACTIVATIONS, Network, keywords
from phibe.networks.unet import TimeEmbedding, join


class Transformer(Network):
    """A transformer on states (channels, height, width), one token for each place: `depth` layers of attention among
    all cells with `heads` heads and of an MLP, `width` features each   [paper: appendix, KTH, 13 × 768].

    Each place has a learned code, and time is added to all of them. A condition of `condition_channels` is read as by
    the U-Net. Attention is written out, softmax(q kᵀ/√d) v, since the fused kernels have no forward derivative; on 64
    places nothing is lost by it.
    """

    def __init__(
        self,
        state_shape: Sequence[int],
        *,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        condition_channels: int = 0,
        time: bool = True,
        activation: str = "gelu",
    ):
        super().__init__(state_shape, **keywords(locals()))
        if len(self.state_shape) != 3 or width % (4 * heads):
            wanted = "states (channels, height, width) and a `width` divisible by 4 × `heads`"
            raise ValueError(f"This transformer takes {wanted}; got {self.state_shape}, {width} and {heads}.")
        size, height, breadth = self.state_shape
        act = ACTIVATIONS[activation]
        self.enter = nn.Linear(size + condition_channels, width)
        self.places = nn.Parameter(0.02 * torch.randn(height * breadth, width))
        self.embed = TimeEmbedding(width // 4, act) if time else None
        self.layers = nn.ModuleList(Layer(width, heads, act) for _ in range(depth))
        self.leave = nn.Linear(width, size)

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        self._check(x, t)
        h = self.enter(join(x, condition, self.arguments["condition_channels"]).flatten(2).mT) + self.places
        if self.embed is not None:
            h = h + self.embed(t.to(x.dtype))[:, None]
        for layer in self.layers:
            h = layer(h)
        return self.leave(h).mT.unflatten(2, self.state_shape[1:])


class Layer(nn.Module):
    """h ← h + attention(norm(h)), then h ← h + MLP(norm(h)); h (n, cells, width)."""

    def __init__(self, width: int, heads: int, activation: type[nn.Module]):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), activation(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.ask(self.before(h)).unflatten(2, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        share = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        h = h + self.answer((share @ v).transpose(1, 2).flatten(2))
        return h + self.think(self.after(h))
