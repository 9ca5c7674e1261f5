"""Training a codec: first the encoder, for distances, then with it fixed the decoder, for pictures."""

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

from phibe.codecs import GeometryCodec, distortion, reconstruction, smoothness
from phibe.training.checkpoints import join, load_tensors, optimiser_tensors, part, restore_optimiser, save_tensors
from phibe.training.devices import pick
from phibe.training.sampling import seed_of

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""`draw(n, generator)`: n pairs of consecutive frames, (n, 1, 32, 32) each, in [0, 1]."""

STAGES, WHERE = ("encoder", "decoder"), ("accelerator", "checkpoint_every")
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
        floor: the rate at the end of a cosine, as a share of the first; 1 keeps it constant.
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
    draw: Draw, config: CodecConfig | None = None, *, out: str | Path | None = None, progress: bool = True
) -> GeometryCodec:
    """A codec trained on the pairs of frames that `draw` gives; in a folder `out` it goes on where it was killed."""
    config = config or CodecConfig()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        codec = GeometryCodec().to(device := pick(config.accelerator))

    def distances(x: Tensor, after: Tensor, generator: torch.Generator) -> Tensor:
        z, z_after = codec.encode(torch.cat([x, after])).chunk(2)
        preserved = (distortion(z, 2 * x) + distortion(z_after, 2 * after)) / 2  # grey runs from −1 to 1 there
        return preserved + config.smooth * smoothness(z, z_after)

    def pictures(x: Tensor, after: Tensor, generator: torch.Generator) -> Tensor:
        both = torch.cat([x, after])
        with torch.no_grad():
            z = codec.encode(both)
        noise = config.noise * torch.randn(z.shape, generator=generator).to(device)
        return reconstruction(both, codec.decode(z + noise))

    codec.train()
    stage = Stage(draw, config, Path(out) if out else None, progress)
    stage.descend(codec.encoder, distances, steps=config.encoder_steps, batch=config.encoder_batch, piece=None)
    codec.eval()
    stage.descend(codec.decoder, pictures, steps=config.decoder_steps, batch=config.decoder_batch, piece=PIECE)
    return codec.requires_grad_(False).cpu()


@dataclass
class Stage:
    """What the two stages share: where frames come from, the schedule, and the files."""

    draw: Draw
    config: CodecConfig
    folder: Path | None
    progress: bool

    def descend(
        self, network: nn.Module, loss: Callable[..., Tensor], *, steps: int, batch: int, piece: int | None
    ) -> None:
        """Adam on the loss, step after step; every random number is a function of the seed and the step.

        A batch is worked through in pieces of so many pairs, for memory that stays in the cache.
        """
        name = STAGES[piece is not None]
        optimiser = Adam(network.parameters(), lr=self.config.learning_rate)
        first = self._open(network, optimiser, name)
        with tqdm(total=steps, initial=first, desc=name, unit="step", disable=not self.progress) as bar:
            for step in range(first, steps):
                generator = torch.Generator().manual_seed(seed_of(self.config.seed, STAGES.index(name), step))
                for group in optimiser.param_groups:
                    group["lr"] = self._rate(step / steps)
                optimiser.zero_grad()
                frames = (part.to(next(network.parameters()).device) for part in self.draw(batch, generator))
                value = 0.0
                for x, after in zip(*(part.split(piece or batch) for part in frames), strict=True):
                    share = loss(x, after, generator) * (len(x) / batch)
                    share.backward()
                    value += float(share.detach())
                optimiser.step()
                bar.update()
                if (step + 1) % self.config.checkpoint_every == 0 or step + 1 == steps:
                    bar.set_postfix(loss=value)
                    self._save(network, optimiser, name, step + 1)

    def _rate(self, share: float) -> float:
        low = self.config.floor
        return self.config.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * share)))

    def _file(self, name: str) -> Path | None:
        return self.folder / f"{name}.safetensors" if self.folder else None

    def _save(self, network: nn.Module, optimiser: Adam, name: str, step: int) -> None:
        if (file := self._file(name)) is not None:
            tensors = join(network=network.state_dict(), optimiser=optimiser_tensors(optimiser))
            save_tensors(file, tensors, {"step": step, "config": self._identity(name)})

    def _open(self, network: nn.Module, optimiser: Adam, name: str) -> int:
        """The step to go on from; a run of another configuration is not continued."""
        file = self._file(name)
        if file is None or not file.exists():
            return 0
        tensors, facts = load_tensors(file)
        if facts["config"] != self._identity(name):
            raise ValueError(
                f"{file} is of another configuration, {facts['config']}. Give another folder, or delete it."
            )
        network.load_state_dict(part(tensors, "network"))
        restore_optimiser(optimiser, part(tensors, "optimiser"))
        return facts["step"]

    def _identity(self, name: str) -> dict[str, Any]:
        """What makes two runs of a stage the same: the decoder's steps are nothing to the encoder."""
        others = STAGES[1:] if name == STAGES[0] else ()
        return {k: value for k, value in asdict(self.config).items() if k not in WHERE and not k.startswith(others)}
