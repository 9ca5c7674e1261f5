"""Video: latent flows of human actions, with PFI and MCVD beside them, decoded and measured; on films of figures."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from phibe.experiments.report import Experiment, Measured, committed_weights
from phibe.experiments.training import run_all
from phibe.experiments.video.clips import read_clips
from phibe.experiments.video.features_run import embedded
from phibe.experiments.video.figures import RATE
from phibe.experiments.video.footage import FIGURES, opened, prepare
from phibe.experiments.video.frechet import Features
from phibe.experiments.video.i3d import open_i3d
from phibe.experiments.video.measures import Judge
from phibe.experiments.video.methods import learn, methods, restore, rolls
from phibe.experiments.video.vq import Coded, VQCodec
from phibe.files import write_json
from phibe.training.config import FitConfig
from phibe.training.tensors import save_tensors
from phibe.trajectories import Trajectories

MEASURED, FILMS, WEIGHTS = "measured.json", "films.safetensors", "weights.safetensors"
FREE = {"evaluations": 0.0, "milliseconds": 0.0}
BOUND = "codec"
"""The row of what the codec makes of the true frames: no method that is decoded can be better."""
STILLS = ("last frame", "mean frame")
"""The rows of two still pictures: the last frame of the context, and the mean of all its frames, a blur."""


@dataclass(frozen=True)
class Config:
    """Clips of `data`: 'figures' for as many of `length` frames, a .npz of clips, or the folder of the official KTH
    films. The last share `test` of the persons is for the test, the share `validation` before them chooses weights.

    A VQ codec of size `codec` is trained on pieces of `codec_pieces` (length, stride) frames, all also mirrored if
    `mirrored`; unless `checkpoint` is that of one in the layout of taming-transformers. On its latents a `network` is
    trained for each objective of `conditioned`, told the latents of the frame before, and of `augmented`, whose state
    holds its own velocity, and one for PFI and MCVD each, all with the same `training`; with `time` the velocities know
    the time since the beginning of a clip, with `nudge` all samples start beside themselves by that many spreads. From
    `context` frames of `starts` test clips all go on for `horizon` frames, flows by each of `integrators` (method,
    substeps), stochastic methods also with `samples` futures of the first `few` clips. `features` are 'figures' or the
    path of I3D weights. Of `shown` clips every `every`-th frame is kept, and with `kept` the weights.
    """

    data: str = FIGURES
    figures: int = 1000
    length: int = 40
    validation: float = 0.05
    test: float = 0.1
    codec: dict[str, Any] = field(default_factory=lambda: {"channels": 32, "blocks": 1, "latent": 4, "codes": 2048})
    checkpoint: str = ""
    codec_training: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=4000, batch=16, learning_rate=1e-3, warmup=100, evaluate_every=1000, checkpoint_every=500
        )
    )
    codec_pieces: tuple[int, int] = (4, 16)
    mirrored: bool = True
    conditioned: tuple[str, ...] = ("phibe", "symmetric", "regression")
    augmented: tuple[str, ...] = ("symmetric", "regression")
    pfi: dict[str, Any] = field(default_factory=lambda: {"past": 2, "sigma": 1.0, "steps": 100})
    mcvd: dict[str, Any] = field(default_factory=lambda: {"past": 10, "frames": 5, "steps": 100})
    network: dict[str, Any] = field(
        default_factory=lambda: {
            "name": "unet", "channels": 48, "multipliers": [1, 2], "blocks": 1, "padding": "zeros"
        }
    )  # fmt: skip
    time: bool = False
    nudge: float = 0.0
    training: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=4000, batch=32, learning_rate=1e-3, warmup=100, evaluate_every=500, checkpoint_every=250
        )
    )
    context: int = 10
    horizon: int = 30
    integrators: tuple[tuple[str, int], ...] = (("euler", 1), ("rk4", 1))
    starts: int = 64
    few: int = 12
    samples: int = 10
    features: str = FIGURES
    shown: int = 3
    every: int = 1
    kept: bool = True
    workers: int = 2
    seed: int = 0


CONFIGS = {
    "smoke": Config(
        figures=12,
        length=14,
        validation=0.1,
        test=0.4,
        codec={"channels": 4, "blocks": 1, "latent": 4, "codes": 16},
        codec_training=FitConfig(steps=2, batch=4, evaluate_every=2),
        codec_pieces=(2, 8),
        conditioned=("phibe", "regression"),
        augmented=("symmetric",),
        pfi={"past": 2, "steps": 2},
        mcvd={"past": 2, "frames": 4, "steps": 2},
        network={"name": "unet", "channels": 4, "multipliers": [1, 2], "blocks": 1, "padding": "zeros"},
        nudge=0.2,
        training=FitConfig(steps=2, batch=4, evaluate_every=2),
        context=4,
        horizon=10,
        integrators=(("euler", 1),),
        starts=4,
        few=2,
        samples=3,
        shown=1,
        workers=1,
    ),
    "laptop": Config(nudge=0.2),
    "paper": Config(
        data="data/kth",
        validation=0.04,
        test=0.2,
        codec={"channels": 128, "blocks": 2, "latent": 4, "codes": 16384},
        codec_training=FitConfig(steps=200_000, batch=64, learning_rate=2e-4, evaluate_every=5000),
        augmented=("phibe", "symmetric", "regression"),
        network={"name": "transformer", "width": 768, "depth": 13, "heads": 8},
        time=True,
        training=FitConfig(steps=400_000, batch=128, learning_rate=2e-4, ema=0.999, evaluate_every=5000),
        starts=256,
        few=256,
        workers=1,
    ),
}


def measure(config: Config, fits: Path) -> Measured:
    """Render or read clips, train the codec, train every method on its latents, roll out, decode, score."""
    prepare(config, fits)
    names = [*methods(config), BOUND]
    run_all([partial(work, name, config=config, fits=fits) for name in names], workers=config.workers)
    codec, *latents = opened(config, fits)
    results: dict[str, Any] = {"about": describe(codec, *latents, config=config, fits=fits), "methods": {}}
    weights = {f"codec.{key}": _half(value) for key, value in codec.state_dict().items()}
    for name in names:
        folder = fits / name
        results["methods"] |= json.loads((folder / MEASURED).read_text("utf8"))["results"]
        weights |= {f"films.{label}": film for label, film in load_file(folder / FILMS).items()}
        if (folder / WEIGHTS).exists():
            weights |= {f"{name}.{key}": _half(value) for key, value in load_file(folder / WEIGHTS).items()}
    return results, weights if config.kept else {k: v for k, v in weights.items() if k.startswith("films.")}


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() and tensor.numel() > 1 else tensor


def describe(
    codec: Coded, train: Trajectories, validation: Trajectories, *, config: Config, fits: Path
) -> dict[str, Any]:
    """What was trained on and tested with, and how large all is."""
    test = read_clips(fits / "test.npz")
    return {
        "training_frames": int(train._observed().sum()),
        "validation_frames": int(validation._observed().sum()),
        "test_clips": list(test.names),
        "codec_parameters": sum(p.numel() for p in codec.parameters()),
        "codec_usage": codec.codebook.usage(),
        "latent_shape": list(train.state_shape),
        "rate": test.rate,
        "shown": list(test.names[: config.shown]),
    }


def work(name: str, *, config: Config, fits: Path) -> None:
    """Train one method, roll it out, and leave its measures and films in its folder.

    Persistence repeats a frame that has gone through the codec, as all that is generated; beside it are two stills that
    have not.
    """
    folder, settings = fits / name, json.loads(json.dumps(asdict(config)))
    if (folder / MEASURED).exists() and json.loads((folder / MEASURED).read_text("utf8"))["config"] == settings:
        return
    codec, train, validation = opened(config, fits)
    judge = Judge(read_clips(fits / "test.npz"), codec, feature_network(config), config)
    results, films = {}, {}
    if name == BOUND:
        made = judge.rebuilt[:, config.context :]
        results[BOUND], films = judge.measure(made) | FREE, {BOUND: made, "truth": judge.films}
    else:
        model = learn(name, train, validation, config=config, out=folder)
        for label, roll in rolls(name, model, config).items():
            results[label], films[label] = judge.judge(roll)
    if name == "persistence":
        seen, ahead = judge.films[:, : config.context], judge.films[:, config.context :]
        for label, still in zip(STILLS, (seen[:, -1:], seen.mean(1, keepdim=True)), strict=True):
            results[label] = judge.measure(still.expand_as(ahead)) | FREE
    save_tensors(folder / FILMS, {label: _bytes(film, config) for label, film in films.items()})
    write_json(folder / MEASURED, {"config": settings, "results": results})


def _bytes(film: Tensor, config: Config) -> Tensor:
    """The shown clips, (clip, frame, 64, 64), grey from 0 to 255."""
    return film[: config.shown, :: config.every, 0].mul(255).round().to(torch.uint8).contiguous()


def feature_network(config: Config) -> Features:
    return embedded() if config.features == FIGURES else open_i3d(config.features)


# -- the committed run -------------------------------------------------------------------------------------------------


def committed_codec() -> VQCodec:
    """The codec of the laptop run that comes with the project."""
    codec = VQCodec(**CONFIGS["laptop"].codec)
    codec.load_state_dict(_kept("codec"))
    return codec.eval().requires_grad_(False)


def committed_method(name: str) -> Any:
    """A method as that run has trained it on the latents of that codec; `video_methods.rolls` says how to use it."""
    config = CONFIGS["laptop"]
    shape = (config.codec["latent"], 8, 8)
    return restore(name, _kept(name), shape=shape, step=1 / RATE, config=config)


def _kept(name: str) -> dict[str, Tensor]:
    key = f"{name}."
    return {k.removeprefix(key): v.float() for k, v in committed_weights("video").items() if k.startswith(key)}


VIDEO = Experiment("video", CONFIGS, measure)
