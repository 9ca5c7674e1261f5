"""Training the codec of video: one frame a sample, in the loop that trains flows."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from phibe.codecs import VQCodec
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS
from phibe.training.loop import train
from phibe.training.objective import Loss
from phibe.training.runs import load_weights, read_config, read_weights
from phibe.trajectories import Trajectories

COMMITMENT = 0.01
"""Weight of |z − e|² beside the pixels' |x − x̂|², both means; frames are from 0 to 1, latents of about that size."""


LAPTOP = FitConfig(steps=10_000, batch=16, learning_rate=1e-3, warmup=100, evaluate_every=1000)
"""A quarter of an hour on one core, for frames of 64 × 64: many small batches serve better than few large ones."""


def fit_vq(
    films: Trajectories,
    codec: VQCodec | None = None,
    *,
    commitment: float = COMMITMENT,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> VQCodec:
    """A codec (a copy of the given one) trained on the frames of films (path, time, 1, H, W): by the loop, under the
    options and with the files in `out` of a flow by `phibe.fit`.

    The weights are the best by the loss on the frames of held-out films. Without a `config` it is `LAPTOP`.
    """
    task, config = VQTask(codec, commitment), config or LAPTOP
    return train(films, task, config=config, out=out, held_out=held_out, progress=progress)


def open_vq(folder: str | Path) -> VQCodec:
    """The codec of the run in a folder."""
    about = read_config(folder)
    if "codec" not in about:
        raise ValueError(f"{folder} holds no codec. A flow is opened with `phibe.training.open_flow`.")
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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
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
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed):
            made, moved = self.network(frames, generator=generator)
        return (made - frames).square().flatten(1).mean(1) + self.commitment * moved.flatten(1).mean(1)


def _check_frames(films: Trajectories) -> None:
    shape, least, most = films.state_shape, float(films.states.min()), float(films.states.max())
    if len(shape) != 3 or shape[0] != 1 or shape[1] % 8 or shape[2] % 8:
        raise ValueError(f"Frames must be (1, height, width), both multiples of 8; got {shape}. Make them grey, crop?")
    if least < -0.5 or most > 1.5:
        raise ValueError(f"Frames must be grey from 0 to 1; got {least:g} to {most:g}. Divide by 255?")
