"""The codec of video: a codebook, encoder and decoder, trained by the loop that trains flows   [paper: appendix, KTH].

Read next: `taming.py`, a codec with weights from elsewhere; `methods.py`, the flows of its latents.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from phibe.experiments.training import seeded
from phibe.networks.unet import ResidualBlock
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS, bfloat16
from phibe.training.loop import Loss, train
from phibe.training.runs import load_weights, read_config, read_weights
from phibe.trajectories import Trajectories

# -- a codebook ------------------------------------------------------------------------------------------------------


BLOCK = 8192
"""Vectors compared with all codes at once: a table of 32 MB for 1,024 codes."""


class Codebook(nn.Module):
    """`size` codes e in ℝ^`dimension`; each vector is replaced by its nearest code   [van den Oord et al. 2017].

    In training every batch moves the codes to the mean of what they stood for, with the memory γ = `decay`:
    N ← γN + (1 − γ)n, m ← γm + (1 − γ)Σz, e = m/N, for the n vectors z nearest to the code. A code that stands for less
    than the fraction `dead` of what it would under equal use begins anew at a vector of the batch; so do all at the
    first.
    """

    codes: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, size: int, dimension: int, *, decay: float = 0.99, dead: float = 0.03):
        super().__init__()
        self.decay, self.dead = decay, dead
        self.register_buffer("codes", torch.zeros(size, dimension))
        self.register_buffer("counts", torch.zeros(size))
        self.register_buffer("sums", torch.zeros(size, dimension))

    def nearest(self, z: Tensor) -> Tensor:
        """Numbers of the codes next to the vectors, by |e|² − 2 z·e: (n, d) → (n,)."""
        norms, codes = self.codes.square().sum(1), self.codes.mT
        with torch.autocast(z.device.type, enabled=False):  # neighbouring codes differ by less than bfloat16 tells
            return torch.cat([torch.addmm(norms, part, codes, alpha=-2).argmin(1) for part in z.detach().split(BLOCK)])

    def forward(self, z: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The codes of the vectors along dimension 1, (n, d, *grid); in training the codes then move."""
        flat = z.detach().movedim(1, -1).reshape(-1, z.shape[1])
        if self.training and not self.counts.any():
            self._revive(torch.ones_like(self.counts, dtype=torch.bool), flat, generator)
        index = self.nearest(flat)
        codes = self.codes[index].reshape(*z.shape[:1], *z.shape[2:], -1).movedim(-1, 1)
        if self.training:
            self.update(flat, index, generator=generator)
        return codes

    @torch.no_grad()
    def update(self, z: Tensor, index: Tensor, *, generator: torch.Generator | None = None) -> None:
        """Move the codes towards the vectors z (n, d) that they stand for, by number; all processes move them alike."""
        counts = torch.bincount(index, minlength=len(self.codes)).to(z.dtype)
        sums = torch.zeros_like(self.sums).index_add_(0, index, z)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts)
            dist.all_reduce(sums)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        alive = self.counts >= self.dead * counts.sum() / len(counts)
        self.codes[alive] = self.sums[alive] / self.counts[alive, None]
        self._revive(~alive, z, generator)

    @torch.no_grad()
    def _revive(self, dead: Tensor, z: Tensor, generator: torch.Generator | None) -> None:
        """Put the dead codes on vectors drawn from z, with the memory of a code under equal use."""
        drawn = torch.randint(len(z), (len(dead),), generator=generator, device=z.device)
        fair = len(z) / len(dead)
        self.codes[dead], self.counts[dead] = z[drawn][dead], fair
        self.sums[dead] = fair * self.codes[dead]

    def usage(self) -> float:
        """The perplexity exp(−Σ p log p) of the codes' use, as a fraction of their number: 1 if all are used alike."""
        p = self.counts / self.counts.sum()
        return float(torch.special.entr(p).sum().exp()) / len(p)


def straight_through(z: Tensor, codes: Tensor) -> Tensor:
    """The codes, with the gradient of z: what follows is as if nothing had been rounded."""
    return z + (codes - z).detach()


# -- the codec of video ----------------------------------------------------------------------------------------------


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
        """Frames of latents, each put on its nearest code first (the decoder knows nothing else) unless `quantise` is
        False."""
        return self.paint(self.codebook(z) if quantise else z)

    @torch.no_grad()
    def encode_paths(self, frames: Tensor, *, block: int = 256) -> Tensor:
        """Latents of clips: (path, time, 1, H, W) → (path, time, d, h, w)."""
        flat = frames.flatten(0, 1).to(self.codebook.codes.dtype)
        z = torch.cat([self.encode(part) for part in flat.split(block)])
        return z.unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def decode_paths(self, z: Tensor, *, quantise: bool = True, block: int = 256) -> Tensor:
        """Clips of latents, of which the first d channels count: (path, time, ≥ d, h, w) → (path, time, 1, H, W)."""
        flat = z[:, :, : self.codebook.codes.shape[1]].flatten(0, 1).to(self.codebook.codes.dtype)
        frames = torch.cat([self.decode(part, quantise=quantise).clamp(0, 1) for part in flat.split(block)])
        return frames.unflatten(0, z.shape[:2])


class VQCodec(Coded):
    """Frames (n, 1, H, W) ↔ latents (n, `latent`, H/8, W/8), rounded to `codes` codes   [paper: appendix, KTH].

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


# -- training the codec of video -------------------------------------------------------------------------------------


COMMITMENT = 0.01
"""Weight of |z − e|² beside the pixels' |x − x̂|², both means; frames are from 0 to 1, latents of about that size."""


LAPTOP = FitConfig(steps=10_000, batch=16, learning_rate=1e-3, warmup=100, evaluate_every=1000)
"""A quarter of an hour on one core, for frames of 64 × 64: many small batches serve better than few large ones."""


def fit_vq(
    clips: Trajectories,
    codec: VQCodec | None = None,
    *,
    commitment: float = COMMITMENT,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> VQCodec:
    """A codec (a copy of the given one) trained on the frames of clips (path, time, 1, H, W): by the loop, under the
    options and with the files in `out` of a flow by `phibe.fit`.

    The weights are the best by the loss on the frames of held-out clips. Without a `config` it is `LAPTOP`.
    """
    task, config = VQTask(codec, commitment), config or LAPTOP
    return train(clips, task, config=config, out=out, held_out=held_out, progress=progress)


def open_vq(folder: str | Path) -> VQCodec:
    """The codec of the run in a folder."""
    about = read_config(folder)
    if "codec" not in about:
        raise ValueError(f"{folder} holds no codec. A flow is opened with `phibe.training.runs.open_flow`.")
    codec = VQCodec(**about["network"]["arguments"])
    load_weights(codec, read_weights(folder), folder)
    return codec.eval().requires_grad_(False)


@dataclass(frozen=True)
class VQTask:
    """A codec of video, copied (without one a new one of the default size) and trained; the result is the copy."""

    codec: VQCodec | None = None
    commitment: float = COMMITMENT
    name: str = "vq"
    width: int = 1

    def loss(self, typical: Trajectories, config: FitConfig) -> VQLoss:
        _check_frames(typical)
        with seeded(config.seed):
            codec = copy.deepcopy(self.codec) if self.codec else VQCodec()
        codec = codec.to(typical.states.device, PRECISIONS[config.precision]).train().requires_grad_(True)
        return VQLoss(codec, self.commitment, mixed=config.precision == "bf16-mixed")

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        codec = cast(VQCodec, network)
        described = {"name": self.name, "arguments": codec.arguments}
        return {
            "network": described,
            "codec": self.name,
            "state_shape": list(data.state_shape),
            "interval": None,
            "step": None,
            "dtype": str(codec.codebook.codes.dtype).removeprefix("torch."),
        }

    def result(self, network: nn.Module, data: Trajectories) -> VQCodec:
        return cast(VQCodec, network.to(data.states.device).eval().requires_grad_(False))


class VQLoss(Loss):
    """Mean |x − x̂|² over the pixels plus β times mean |z − e|² over the latents, one value per frame; e is fixed in it,
    and moves by itself   [van den Oord et al. 2017, equation 3, with their moving averages for the codes]."""

    network: VQCodec

    def __init__(self, codec: VQCodec, commitment: float, *, mixed: bool = False):
        super().__init__()
        self.network, self.commitment, self.mixed = codec, commitment, mixed
        self.facts = {"name": "vq", "commitment": commitment}

    def forward(self, x: Tensor, *times: Tensor, generator: torch.Generator | None = None) -> Tensor:
        frames = x.flatten(0, 1)
        with bfloat16(x.device, enabled=self.mixed):
            made, moved = self.network(frames, generator=generator)
        return (made - frames).square().flatten(1).mean(1) + self.commitment * moved.flatten(1).mean(1)


def _check_frames(clips: Trajectories) -> None:
    shape, least, most = clips.state_shape, float(clips.states.min()), float(clips.states.max())
    if len(shape) != 3 or shape[0] != 1 or shape[1] % 8 or shape[2] % 8:
        raise ValueError(f"Frames must be (1, height, width), both multiples of 8; got {shape}. Make them grey, crop?")
    if least < -0.5 or most > 1.5:
        raise ValueError(f"Frames must be grey from 0 to 1; got {least:g} to {most:g}. Divide by 255?")
