"""The codec of video: frames to a small grid of latents, which a codebook rounds before they become frames again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phibe.codecs.codebook import Codebook, straight_through
from phibe.networks.unet import ResidualBlock


class Coded(nn.Module):
    """A codec with a codebook: `encode` before it, `decode` behind it; frames are grey, from 0 to 1."""

    codebook: Codebook

    def encode(self, frames: Tensor) -> Tensor:
        """Latents before rounding, in which a motion is smooth: (n, 1, H, W) → (n, d, h, w)."""
        raise NotImplementedError

    def paint(self, codes: Tensor) -> Tensor:
        """Frames of latents as they are: (n, d, h, w) → (n, 1, H, W)."""
        raise NotImplementedError

    def decode(self, z: Tensor, *, quantise: bool = True) -> Tensor:
        """Frames of latents, each put on its nearest code first (the decoder knows nothing else) unless told not to."""
        return self.paint(self.codebook(z) if quantise else z)

    @torch.no_grad()
    def encode_paths(self, frames: Tensor, *, block: int = 256) -> Tensor:
        """Latents of films: (path, time, 1, H, W) → (path, time, d, h, w)."""
        flat = frames.flatten(0, 1).to(self.codebook.codes.dtype)
        z = torch.cat([self.encode(part) for part in flat.split(block)])
        return z.unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def decode_paths(self, z: Tensor, *, quantise: bool = True, block: int = 256) -> Tensor:
        """Films of latents, of which the first d channels count: (path, time, ≥ d, h, w) → (path, time, 1, H, W)."""
        flat = z[:, :, : self.codebook.codes.shape[1]].flatten(0, 1).to(self.codebook.codes.dtype)
        frames = torch.cat([self.decode(part, quantise=quantise).clamp(0, 1) for part in flat.split(block)])
        return frames.unflatten(0, z.shape[:2])


class VQCodec(Coded):
    """Frames (n, 1, H, W) ↔ latents (n, `latent`, H/8, W/8), of which `codes` are told apart   [paper: appendix, KTH].

    Squares of 4 × 4 pixels become channels at once, so that the finest grid is that of H/4: `blocks` residual blocks
    with `channels` features there and with twice as many on that of H/8, the same on the way back.
    """

    def __init__(self, *, channels: int = 32, blocks: int = 1, latent: int = 4, codes: int = 2048, patch: int = 4):
        super().__init__()
        self.arguments = {"channels": channels, "blocks": blocks, "latent": latent, "codes": codes, "patch": patch}
        fine, coarse = channels, 2 * channels
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(patch),
            _conv(patch**2, fine),
            *_blocks(fine, blocks),
            _conv(fine, coarse, stride=2),
            *_blocks(coarse, blocks),
            nn.SiLU(),
            nn.Conv2d(coarse, latent, 1),
        )
        self.decoder = nn.Sequential(
            _conv(latent, coarse),
            *_blocks(coarse, blocks),
            _conv(coarse, 4 * fine),
            nn.PixelShuffle(2),
            *_blocks(fine, blocks),
            nn.SiLU(),
            _conv(fine, patch**2),
            nn.PixelShuffle(patch),
        )
        self.codebook = Codebook(codes, latent)

    def encode(self, frames: Tensor) -> Tensor:
        return self.encoder(2 * frames - 1)

    def paint(self, codes: Tensor) -> Tensor:
        return (1 + self.decoder(codes)) / 2

    def forward(self, frames: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Frames as they come back, and what the rounding moved: |z − e|² for each latent vector's coordinate."""
        z = self.encode(frames).to(self.codebook.codes.dtype)
        codes = self.codebook(z, generator=generator)
        return self.paint(straight_through(z, codes)), F.mse_loss(z, codes, reduction="none")


def _blocks(width: int, count: int) -> list[nn.Module]:
    return [_Block(width, width, embedding=0, padding="zeros", activation=nn.SiLU) for _ in range(count)]


class _Block(ResidualBlock):
    def forward(self, h: Tensor, e: Any = None) -> Tensor:
        return super().forward(h, e)


def _conv(width: int, out: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, stride=stride, padding=1)
