"""A codec from outside: weights in the layout of taming-transformers, as RIVER trained them on KTH, read safely.

Everything about the network is read off the names and shapes of its weights, so that no configuration is needed. The
files are pickles of tensors and of whatever else was saved with them; only the tensors are ever read.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from phibe.experiments.video.vq import Codebook, Coded

MARK = "encoder.conv_in.weight"
KEPT = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.")
CODES = "quantize.embedding.weight"


def open_taming(path: str | Path) -> TamingCodec:
    """The codec of a checkpoint of taming-transformers' `VQModel` (.ckpt, .pt, .safetensors), alone or inside a larger
    model; weights of its discriminator and the like are left out."""
    tensors = _without_prefix(_read(Path(path)), path)
    codec = TamingCodec(CodecLayout.of(tensors))
    own = codec.state_dict()
    given = {name: tensor for name, tensor in tensors.items() if name.startswith(KEPT)}
    given |= {"codebook.codes": tensors[CODES]} | {n: own[n] for n in ("codebook.counts", "codebook.sums")}
    for name in [*own, *given]:
        here, there = (tuple(state[name].shape) if name in state else "absent" for state in (own, given))
        if here != there:
            raise ValueError(f"{path} is not of taming's layout: `{name}` is {there} there and {here} in that layout.")
    codec.load_state_dict(given)
    return codec.eval().requires_grad_(False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    if path.suffix == ".safetensors":
        return load_file(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read safely: it is damaged, or holds more than tensors and could run code. Where you "
            "trust it, save its `state_dict` as .safetensors and open that."
        ) from error
    for inner in ("state_dict", "model"):
        content = content.get(inner, content) if isinstance(content, dict) else content
    return {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}


def _without_prefix(tensors: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """The weights of the codec alone, e.g. those under `module.ae.` of a larger model."""
    found = [name.removesuffix(MARK) for name in tensors if name.endswith(MARK)]
    if len(found) != 1 or found[0] + CODES not in tensors:
        raise ValueError(
            f"{path} must hold one `{MARK}` and one `{CODES}`; among its {len(tensors)} tensors are {len(found)} of "
            "the first. Is it a checkpoint of taming-transformers' VQModel?"
        )
    return {name.removeprefix(found[0]): t for name, t in tensors.items() if name.startswith(found[0])}


class CodecLayout(NamedTuple):
    """Sizes of a network: channels of the frames, feature `widths` and presence of `attention` on each grid from the
    finest on, residual `blocks` a grid, channels of the latents before (`inner`) and in the codebook of `codes`
    vectors (`latent`)."""

    frames: int
    stem: int
    widths: tuple[int, ...]
    attention: tuple[bool, ...]
    blocks: int
    inner: int
    latent: int
    codes: int

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> CodecLayout:
        """The sizes that the names and shapes of the weights tell."""
        levels = 1 + max(int(m[1]) for name in tensors if (m := re.match(r"encoder\.down\.(\d+)\.", name)))
        blocks = sum(re.fullmatch(r"encoder\.down\.0\.block\.\d+\.conv1\.weight", name) is not None for name in tensors)
        stem, frames = tensors[MARK].shape[:2]
        latent, inner = tensors["quant_conv.weight"].shape[:2]
        return CodecLayout(
            frames=frames,
            stem=stem,
            widths=tuple(tensors[f"encoder.down.{i}.block.0.conv1.weight"].shape[0] for i in range(levels)),
            attention=tuple(f"encoder.down.{i}.attn.0.q.weight" in tensors for i in range(levels)),
            blocks=blocks,
            inner=inner,
            latent=latent,
            codes=tensors[CODES].shape[0],
        )


class TamingCodec(Coded):
    """Frames (n, 1, H, W) ↔ latents (n, d, H/2^k, W/2^k) by a network whose modules have taming's names."""

    def __init__(self, layout: CodecLayout):
        super().__init__()
        self.layout = layout
        self.encoder, self.decoder = Encoder(layout), Decoder(layout)
        self.quant_conv = nn.Conv2d(layout.inner, layout.latent, 1)
        self.post_quant_conv = nn.Conv2d(layout.latent, layout.inner, 1)
        self.codebook = Codebook(layout.codes, layout.latent)

    def encode(self, frames: Tensor) -> Tensor:
        grey = frames.expand(-1, self.layout.frames, -1, -1)
        return self.quant_conv(self.encoder(2 * grey - 1))

    def paint(self, codes: Tensor) -> Tensor:
        return (1 + self.decoder(self.post_quant_conv(codes)).mean(1, keepdim=True)) / 2


class Encoder(nn.Module):
    def __init__(self, layout: CodecLayout):
        super().__init__()
        last = len(layout.widths) - 1
        self.conv_in = _conv(layout.frames, layout.stem)
        before = (layout.stem, *layout.widths)
        self.down = nn.ModuleList(
            Level(before[i], width, layout.blocks, attention=layout.attention[i], end="downsample" if i < last else "")
            for i, width in enumerate(layout.widths)
        )
        self.mid = _middle(layout.widths[-1])
        self.norm_out, self.conv_out = _norm(layout.widths[-1]), _conv(layout.widths[-1], layout.inner)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv_in(x)
        for part in (*self.down, *self.mid.values()):
            h = part(h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Decoder(nn.Module):
    """One block more on each grid than the encoder; `up.0` is the finest grid, though it comes last."""

    def __init__(self, layout: CodecLayout):
        super().__init__()
        before = (*layout.widths[1:], layout.widths[-1])
        self.conv_in = _conv(layout.inner, layout.widths[-1])
        self.mid = _middle(layout.widths[-1])
        self.up = nn.ModuleList(
            Level(before[i], width, layout.blocks + 1, attention=layout.attention[i], end="upsample" if i else "")
            for i, width in enumerate(layout.widths)
        )
        self.norm_out, self.conv_out = _norm(layout.widths[0]), _conv(layout.widths[0], layout.frames)

    def forward(self, z: Tensor) -> Tensor:
        h = self.conv_in(z)
        for part in (*self.mid.values(), *reversed(self.up)):
            h = part(h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Level(nn.Module):
    """The blocks of one grid, each followed by attention where there is any, and the way to the next grid."""

    def __init__(self, before: int, width: int, blocks: int, *, attention: bool, end: str):
        super().__init__()
        self.block = nn.ModuleList(Residual(before if j == 0 else width, width) for j in range(blocks))
        self.attn = nn.ModuleList(Attention(width) for _ in range(blocks if attention else 0))
        self.end = end
        if end:
            self.add_module(end, {"downsample": Halve, "upsample": Double}[end](width))

    def forward(self, h: Tensor) -> Tensor:
        for j, block in enumerate(self.block):
            h = block(h)
            h = self.attn[j](h) if len(self.attn) else h
        return getattr(self, self.end)(h) if self.end else h


class Residual(nn.Module):
    def __init__(self, width: int, out: int):
        super().__init__()
        self.norm1, self.conv1 = _norm(width), _conv(width, out)
        self.norm2, self.conv2 = _norm(out), _conv(out, out)
        if width != out:
            self.nin_shortcut = nn.Conv2d(width, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class Attention(nn.Module):
    """One head over all places of the grid."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = _norm(width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (part(h).flatten(2).mT for part in (self.q, self.k, self.v))
        return x + self.proj_out(F.scaled_dot_product_attention(q, k, v).mT.unflatten(2, x.shape[2:]))


class Halve(nn.Module):
    """Every second place of a 3 × 3 convolution, with a margin only to the right and below."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, h: Tensor) -> Tensor:
        return self.conv(F.pad(h, (0, 1, 0, 1)))


class Double(nn.Module):
    """Each place four times, then a 3 × 3 convolution."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = _conv(width, width)

    def forward(self, h: Tensor) -> Tensor:
        return self.conv(F.interpolate(h, scale_factor=2, mode="nearest"))


def _middle(width: int) -> nn.ModuleDict:
    return nn.ModuleDict(
        {"block_1": Residual(width, width), "attn_1": Attention(width), "block_2": Residual(width, width)}
    )


def _conv(width: int, out: int) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, padding=1)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, width, eps=1e-6)
