"""The geometry-preserving encoder and decoder of the pendulum: pictures to three numbers and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phibe.trajectories import Trajectories

LATENT = 3
SLOPE = 0.2


class GeometryCodec(nn.Module):
    """Frames (n, 1, 32, 32) in [0, 1] ↔ latents (n, 3), both networks as in the paper's table   [paper: T_φ, S_ψ].

    The table leaves open the kernels (4 × 4, stride 2, where the size changes, 3 × 3 elsewhere), what stands between
    the decoder's layers (leaky ReLU), and the range of grey. The encoder sees and keeps distances of grey from −1 to 1.
    The decoder's tanh gives 0 for black: were black −1, it would saturate there before it has found a rod, and stay so.
    Batch normalisation and kinks are harmless here: no objective differentiates through the codec.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder(), decoder()
        self.decoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU

    def encode(self, frames: Tensor) -> Tensor:
        return self.encoder(2 * frames - 1)

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(z[:, :, None, None])

    @torch.no_grad()
    def encode_paths(self, frames: Tensor, *, block: int = 500) -> Tensor:
        """Latents of films: (path, time, 1, 32, 32) → (path, time, 3)."""
        flat = frames.flatten(0, 1)
        return torch.cat([self.encode(part) for part in flat.split(block)]).unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def decode_paths(self, z: Tensor, *, block: int = 500) -> Tensor:
        """Films of latents, of which the first three coordinates count: (path, time, ≥ 3) → (path, time, 1, 32, 32)."""
        flat = z[..., :LATENT].flatten(0, 1).float()
        frames = torch.cat([self.decode(part) for part in flat.split(block)]).clamp(0, 1)
        return frames.unflatten(0, z.shape[:2])


def encoder() -> nn.Sequential:
    """1 × 32 × 32 → 32 × 16 × 16 → 64 × 8 × 8 → 128 × 4 × 4 → 3, batch normalisation after the first and third."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1),
        nn.LeakyReLU(SLOPE),
        nn.BatchNorm2d(32),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.LeakyReLU(SLOPE),
        nn.Conv2d(64, 128, 4, stride=2, padding=1),
        nn.LeakyReLU(SLOPE),
        nn.BatchNorm2d(128),
        nn.Flatten(),
        nn.Linear(2048, LATENT),
    )


def decoder() -> nn.Sequential:
    """3 × 1 × 1 → 128 × 4 × 4 → 64 × 8 × 8 → 32 × 16 × 16 → 1 × 32 × 32, each a transposed and a plain convolution."""
    stages = [(LATENT, 64, 128), (128, 64, 64), (64, 32, 32), (32, 128, 1)]
    layers: list[nn.Module] = []
    for i, (before, middle, after) in enumerate(stages):
        grow = nn.ConvTranspose2d(before, middle, 4, stride=2 if i else 1, padding=1 if i else 0)
        layers += [grow, nn.LeakyReLU(SLOPE), nn.Conv2d(middle, after, 3, padding=1), nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers[:-1], nn.Tanh())


# -- what they are trained on ------------------------------------------------------------------------------------------


def distortion(z: Tensor, x: Tensor) -> Tensor:
    """Mean over all pairs of a batch of [log(1 + |zᵢ − zⱼ|²) − log(1 + |xᵢ − xⱼ|²)]²   [paper: L_GME]."""
    return (torch.log1p(_squares(z)) - torch.log1p(_squares(x))).square().mean()


def smoothness(z: Tensor, after: Tensor) -> Tensor:
    """Mean of |z_{t+1} − z_t|²   [paper: L_smooth]."""
    return (after - z).square().sum(1).mean()


def reconstruction(x: Tensor, decoded: Tensor) -> Tensor:
    """Mean of |x − x̂|², the pixels summed   [paper: L_recon]."""
    return (x - decoded).square().flatten(1).sum(1).mean()


def _squares(x: Tensor) -> Tensor:
    """|xᵢ − xⱼ|² of all pairs: (n, …) → (n, n)."""
    flat = x.flatten(1)
    norms = flat.square().sum(1)
    return (norms[:, None] + norms - 2 * flat @ flat.mT).clamp(min=0)


def with_velocity(z: Tensor, times: Tensor, lengths: Tensor | None = None) -> Trajectories:
    """States s_t = (z_t, (z_t − z_{t−1})/Δt) of films' latents (path, time, d, …), from the second frame on: the
    velocity follows along the first dimension of a state, (…, 2d, …)   [paper: latent-space dynamics]."""
    gaps = times.diff(dim=-1).to(z.dtype)
    velocity = z.diff(dim=1) / gaps.reshape(*gaps.shape, *[1] * (z.ndim - 2))
    states = torch.cat([z[:, 1:], velocity], dim=2)
    return Trajectories(states, times[..., 1:], None if lengths is None else lengths - 1)
