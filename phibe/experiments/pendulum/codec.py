"""The distance-preserving codec of the pendulum: networks, losses, training   [paper: geometry-preserving encoder].

First the encoder is trained to preserve distances, then, with it fixed, the decoder to reconstruct. Read next:
`rendering.py`, which draws the frames and reads poses back, and `images.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam
from tqdm.auto import tqdm

from phibe.experiments.plan import Training
from phibe.experiments.training import seeded
from phibe.training.devices import pick
from phibe.training.sampling import seed_of
from phibe.training.tensors import join, load_tensors, optimiser_tensors, part, restore_optimiser, save_tensors

# -- the geometry-preserving encoder and decoder of the pendulum -----------------------------------------------------


LATENT = 3
SLOPE = 0.2


class GeometryCodec(nn.Module):
    """Frames (n, 1, 32, 32) in [0, 1] ↔ latents (n, 3), both networks as in the paper's table   [paper: T_φ, S_ψ].

    The table leaves open the kernels (4 × 4, stride 2, where the size changes, 3 × 3 elsewhere), what stands between
    the decoder's layers (leaky ReLU), and the range of grey. The encoder works with grey from −1 to 1.
    The decoder's tanh gives 0 for black: were black −1, it would saturate there before it has found a rod.
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
        """Latents of clips: (path, time, 1, 32, 32) → (path, time, 3)."""
        flat = frames.flatten(0, 1)
        return torch.cat([self.encode(part) for part in flat.split(block)]).unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def decode_paths(self, z: Tensor, *, block: int = 500) -> Tensor:
        """Clips of latents, of which the first three coordinates count: (path, time, ≥ 3) → (path, time, 1, 32, 32)."""
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


# -- training a codec ------------------------------------------------------------------------------------------------


Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""`draw(n, generator)`: n pairs of consecutive frames, (n, 1, 32, 32) each, in [0, 1]."""

PARTS, WHERE = ("encoder", "decoder"), ("accelerator", "checkpoint_every")
PIECE = 8


@dataclass(frozen=True)
class CodecConfig:
    """How to train a codec   [paper: geometry-preserving encoder and decoder].

    Args:
        encoder_steps: updates of the encoder.
        decoder_steps: updates of the decoder.
        encoder_batch: pairs of frames in an encoder's batch.
        decoder_batch: pairs of frames in a decoder's batch.
        learning_rate: of both, at the start.
        floor: the rate at the end of a cosine, as a fraction of the first; 1 keeps it constant.
        smooth: weight of the distance between neighbouring frames' latents.
        noise: standard deviation of what is added to the decoder's latents.
        seed: of the weights and the batches.
        accelerator: auto (CUDA, else MPS, else CPU), cpu, cuda, gpu or mps.
        checkpoint_every: steps between two checkpoints.
    """

    encoder_steps: int = 50_000
    decoder_steps: int = 100_000
    encoder_batch: int = 100
    decoder_batch: int = 100
    learning_rate: float = 1e-4
    floor: float = 1.0
    smooth: float = 25.0
    noise: float = 0.3
    seed: int = 0
    accelerator: str = "auto"
    checkpoint_every: int = 500


def fit_codec(
    draw: Draw,
    config: CodecConfig | None = None,
    *,
    validation: Draw | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> GeometryCodec:
    """A codec trained on the pairs of frames that `draw` gives; in a folder `out` a run that was stopped resumes.

    At every checkpoint the loss of the same few pairs of `validation` is noted: see `curves`.
    """
    config = config or CodecConfig()
    with seeded(config.seed):
        codec = GeometryCodec().to(device := pick(config.accelerator))

    def distances(x: Tensor, after: Tensor, generator: torch.Generator) -> Tensor:
        z, z_after = codec.encode(torch.cat([x, after])).chunk(2)
        preserved = (distortion(z, 2 * x) + distortion(z_after, 2 * after)) / 2  # grey runs from −1 to 1 there
        return preserved + config.smooth * smoothness(z, z_after)

    def images(x: Tensor, after: Tensor, generator: torch.Generator) -> Tensor:
        both = torch.cat([x, after])
        with torch.no_grad():
            z = codec.encode(both)
        noise = config.noise * torch.randn(z.shape, generator=generator).to(device)
        return reconstruction(both, codec.decode(z + noise))

    codec.train()
    descent = Descent(draw, validation, config, Path(out) if out else None, progress)
    descent.run("encoder", codec.encoder, distances)
    codec.eval()
    descent.run("decoder", codec.decoder, images, piece=PIECE)
    return codec.requires_grad_(False).cpu()


@dataclass
class Descent:
    """What the training of encoder and decoder shares: where frames come from, the schedule, and the files."""

    draw: Draw
    validation: Draw | None
    config: CodecConfig
    folder: Path | None
    progress: bool

    def run(self, name: str, network: nn.Module, loss: Callable[..., Tensor], *, piece: int | None = None) -> None:
        """Adam on the loss of the part of that name; every random number is a function of the seed and the step.

        A batch is worked through in pieces of so many pairs, for memory that stays in the cache.
        """
        steps, batch = (getattr(self.config, f"{name}_{what}") for what in ("steps", "batch"))
        optimiser = Adam(network.parameters(), lr=self.config.learning_rate)
        first, curve = self._open(network, optimiser, name)
        with tqdm(total=steps, initial=first, desc=name, unit="step", disable=not self.progress) as bar:
            for step in range(first, steps):
                generator = torch.Generator().manual_seed(seed_of(self.config.seed, PARTS.index(name), step))
                for group in optimiser.param_groups:
                    group["lr"] = self._rate(step / steps)
                optimiser.zero_grad()
                frames = (part.to(next(network.parameters()).device) for part in self.draw(batch, generator))
                value = 0.0
                for x, after in zip(*(part.split(piece or batch) for part in frames), strict=True):
                    part_loss = loss(x, after, generator) * (len(x) / batch)
                    part_loss.backward()
                    value += float(part_loss.detach())
                optimiser.step()
                bar.update()
                if (step + 1) % self.config.checkpoint_every == 0 or step + 1 == steps:
                    bar.set_postfix(loss=value)
                    curve.append([step + 1, value, self._validate(network, loss)])
                    self._save(network, optimiser, name, step + 1, curve)

    @torch.no_grad()
    def _validate(self, network: nn.Module, loss: Callable[..., Tensor], *, pairs: int = 500) -> float | None:
        """The loss of the same validation pairs each time, with the same noise."""
        if self.validation is None:
            return None
        generator, training = torch.Generator().manual_seed(seed_of(self.config.seed, len(PARTS))), network.training
        network.eval()
        parts = (part.split(100) for part in self.validation(pairs, generator))
        device = next(network.parameters()).device
        losses = [float(loss(x.to(device), after.to(device), generator)) for x, after in zip(*parts, strict=True)]
        network.train(training)
        return sum(losses) / len(losses)

    def _rate(self, done: float) -> float:
        low = self.config.floor
        return self.config.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))

    def _file(self, name: str) -> Path | None:
        return self.folder / f"{name}.safetensors" if self.folder else None

    def _save(self, network: nn.Module, optimiser: Adam, name: str, step: int, curve: list[Any]) -> None:
        if (file := self._file(name)) is not None:
            tensors = join(network=network.state_dict(), optimiser=optimiser_tensors(optimiser))
            save_tensors(file, tensors, {"step": step, "curve": curve, "config": self._identity(name)})

    def _open(self, network: nn.Module, optimiser: Adam, name: str) -> tuple[int, list[Any]]:
        """The step to go on from and the curve so far; a run of another configuration is not continued."""
        file = self._file(name)
        if file is None or not file.exists():
            return 0, []
        tensors, facts = load_tensors(file)
        if facts["config"] != self._identity(name):
            raise ValueError(
                f"{file} is of another configuration, {facts['config']}. Give another folder, or delete it."
            )
        network.load_state_dict(part(tensors, "network"))
        restore_optimiser(optimiser, part(tensors, "optimiser"))
        return facts["step"], facts["curve"]

    def _identity(self, name: str) -> dict[str, Any]:
        """What makes two runs of a part the same: the decoder's steps are nothing to the encoder."""
        others = PARTS[1:] if name == PARTS[0] else ()
        return {k: value for k, value in asdict(self.config).items() if k not in WHERE and not k.startswith(others)}


def curves(folder: str | Path) -> dict[str, list[Any]]:
    """Of the codec trained in a folder, for both parts: step, loss of the last batch, loss of the validation pairs."""
    return {name: load_tensors(Path(folder) / f"{name}.safetensors")[1]["curve"] for name in PARTS}


# -- what that needs ---------------------------------------------------------------------------------------------------


class _EncoderLoss(GeometryCodec):
    def forward(self, frames: Tensor) -> Tensor:
        z, z_after = self.encode(frames).chunk(2)
        return distortion(z, frames.chunk(2)[0]) + smoothness(z, z_after)


class _DecoderLoss(GeometryCodec):
    def forward(self, frames: Tensor) -> Tensor:
        with torch.no_grad():
            z = self.encode(frames)
        return reconstruction(frames, self.decode(z))


def plan_codec(config: CodecConfig) -> list[Training]:
    """The trainings of both parts; the parameters are those of both together."""
    shapes = lambda n: [(2 * n, 1, 32, 32)]  # noqa: E731  # pairs of frames
    return [
        Training("encoder", _EncoderLoss, shapes, config.encoder_batch, config.encoder_steps),
        Training("decoder", _DecoderLoss, shapes, config.decoder_batch, config.decoder_steps),
    ]
