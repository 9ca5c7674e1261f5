"""Video: latent flows of human actions, with PFI and MCVD beside them, decoded and evaluated.

`video` draws its clips of figures, `video_real` takes clips of one's own, such as those of KTH.

Clips, codec and latents are made once (`prepare`); each method is trained, rolled out and evaluated by `work`. Read
next: `methods.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from phibe.experiments import plan
from phibe.experiments.report import Experiment, Measured, MissingData, committed_weights
from phibe.experiments.training import run_all, seeded
from phibe.experiments.video.clips import Clips, read_clips
from phibe.experiments.video.drawing import SIZE
from phibe.experiments.video.features import embedded
from phibe.experiments.video.figures import RATE, Figures, frame_times
from phibe.experiments.video.i3d import open_i3d
from phibe.experiments.video.kth import ADDRESS, MEGABYTES, read_kth
from phibe.experiments.video.methods import (
    AUGMENTED,
    UNTRAINED,
    Evaluation,
    assemble,
    learn,
    methods,
    restore,
    rolls,
    task_of,
)
from phibe.experiments.video.metrics import Features
from phibe.experiments.video.taming import open_taming
from phibe.experiments.video.vq import COMMITMENT, Coded, VQCodec, VQLoss, fit_vq, open_vq
from phibe.files import write_json
from phibe.training.config import FitConfig
from phibe.training.tensors import save_tensors
from phibe.trajectories import Trajectories

FIGURES = "figures"
SIDES = ("train", "validation", "test")
ABOUT = (
    *("data", "figures", "length", "validation", "test", "codec", "checkpoint", "codec_training"),
    *("codec_pieces", "mirrored", "starts", "context", "horizon", "seed"),
)
"""The settings on which codec, latents and test clips depend."""
MEASURED, CLIPS, WEIGHTS = "measured.json", "clips.safetensors", "weights.safetensors"
FREE = {"evaluations": 0.0, "milliseconds": 0.0}
BOUND = "codec"
"""The row of the true frames after the codec, a bound for every method that is decoded."""
STILLS = ("last frame", "mean frame")
"""The rows of two still pictures: the last frame of the context, and the mean of all its frames, a blur."""


CODEC_TRAINING = FitConfig(
    steps=4000, batch=16, learning_rate=1e-3, warmup=100, evaluate_every=1000, checkpoint_every=500
)
TRAINING = FitConfig(steps=4000, batch=32, learning_rate=1e-3, warmup=100, evaluate_every=500, checkpoint_every=250)


@dataclass(frozen=True)
class Config:
    """Clips of `data`: 'figures' for as many of `length` frames, a .npz of clips, or the folder of the official KTH
    videos. The last fraction `test` of the people is for the test, the fraction `validation` before it for validation.

    A VQ codec of size `codec` is trained on pieces of `codec_pieces` (length, stride) frames, all also mirrored if
    `mirrored`; unless `checkpoint` is that of one in the layout of taming-transformers. On its latents a `network` is
    trained for each objective of `conditioned` (conditioned on the previous frame) and of `augmented` (the state holds
    its own velocity), and one for PFI and MCVD each, all with the same `training`; with `time` the velocities depend on
    the time since the beginning of a clip; `input_noise`, in standard deviations, is added to where a sample starts.
    From `context` frames of `starts` test clips all predict `horizon` frames, flows by each of `integrators` (method,
    substeps), stochastic methods also with `samples` futures of the first `few` clips. `features` are 'figures' or the
    path of I3D weights. Of `shown` clips every `every`-th frame is saved, and with `kept` the weights.
    """

    data: str = FIGURES
    figures: int = 1000
    length: int = 40
    validation: float = 0.05
    test: float = 0.1
    codec: dict[str, Any] = field(default_factory=lambda: {"channels": 32, "blocks": 1, "latent": 4, "codes": 2048})
    checkpoint: str = ""
    codec_training: FitConfig = CODEC_TRAINING
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
    input_noise: float = 0.0
    training: FitConfig = TRAINING
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
        input_noise=0.2,
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
    "laptop": Config(input_noise=0.2),
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

REAL_CONFIGS = {
    "smoke": replace(CONFIGS["smoke"], conditioned=("regression",), augmented=(), every=5, kept=False),
    "laptop": replace(CONFIGS["laptop"], data="data/kth_clips.npz", validation=0.1, test=0.2, every=5, kept=False),
    "paper": replace(CONFIGS["paper"], every=5, kept=False),
}
"""On clips of real people, which are no part of the project; the report with a few clip strips is."""


def measure(config: Config, fits: Path) -> Measured:
    """Render or read clips, train the codec, train every method on its latents, roll out, decode, score."""
    prepare(config, fits)
    names = [*methods(config), BOUND]
    run_all([partial(work, name, config=config, fits=fits) for name in names], workers=config.workers)
    codec, *latents = open_latents(config, fits)
    results: dict[str, Any] = {"about": describe(codec, *latents, config=config, fits=fits), "methods": {}}
    weights = {f"codec.{key}": _half(value) for key, value in codec.state_dict().items()}
    for name in names:
        folder = fits / name
        results["methods"] |= json.loads((folder / MEASURED).read_text("utf8"))["results"]
        weights |= {f"clips.{label}": clip for label, clip in load_file(folder / CLIPS).items()}
        if (folder / WEIGHTS).exists():
            weights |= {f"{name}.{key}": _half(value) for key, value in load_file(folder / WEIGHTS).items()}
    return Measured(results, weights if config.kept else {k: v for k, v in weights.items() if k.startswith("clips.")})


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() and tensor.numel() > 1 else tensor


def describe(
    codec: Coded, train: Trajectories, validation: Trajectories, *, config: Config, fits: Path
) -> dict[str, Any]:
    """What was trained on and tested with, and the size of codec and latents."""
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
    """Train one method, roll it out, and save its measures and clips in its folder.

    Persistence repeats a frame that has gone through the codec, as everything generated; beside it are two still frames
    that have not.
    """
    folder, settings = fits / name, json.loads(json.dumps(asdict(config)))
    if (folder / MEASURED).exists() and json.loads((folder / MEASURED).read_text("utf8"))["config"] == settings:
        return
    codec, train, validation = open_latents(config, fits)
    evaluation = Evaluation(read_clips(fits / "test.npz"), codec, feature_network(config), config)
    results, clips = {}, {}
    if name == BOUND:
        decoded = evaluation.ahead(evaluation.reconstructed)
        results[BOUND], clips = evaluation.measure(decoded) | FREE, {BOUND: decoded, "truth": evaluation.truth}
    else:
        model = learn(name, train, validation, config=config, out=folder)
        for label, roll in rolls(name, model, config).items():
            results[label], clips[label] = evaluation.score(roll)
    if name == "persistence":
        seen, ahead = evaluation.truth[:, : config.context], evaluation.ahead(evaluation.truth)
        for label, still in zip(STILLS, (seen[:, -1:], seen.mean(1, keepdim=True)), strict=True):
            results[label] = evaluation.measure(still.expand_as(ahead)) | FREE
    save_tensors(folder / CLIPS, {label: _bytes(clip, config) for label, clip in clips.items()})
    write_json(folder / MEASURED, {"config": settings, "results": results})


def _bytes(clip: Tensor, config: Config) -> Tensor:
    """The shown clips, (clip, frame, 64, 64), grey from 0 to 255."""
    return clip[: config.shown, :: config.every, 0].mul(255).round().to(torch.uint8).contiguous()


def feature_network(config: Config) -> Features:
    return embedded() if config.features == FIGURES else open_i3d(config.features)


# -- clips and their latents -------------------------------------------------------------------------------------------


def source_clips(config: Any) -> Clips:
    """All clips: figures, those of a .npz, or those of a folder with the official videos of KTH."""
    if config.data == FIGURES:
        scenes = Figures().scenes(paths=config.figures, times=frame_times(config.length), seed=config.seed)
        return scenes.clips()
    path = Path(config.data)
    if not path.exists():
        raise MissingData(
            f"This experiment needs clips of {SIZE} × {SIZE} pixels in {config.data!r}, a .npz with one array (time, "
            "height, width) a clip, or the folder of the official KTH videos (`phibe fetch kth`); there are none. Pass "
            "`--data`; `--preset smoke` draws a few figures instead."
        )
    clips = read_kth(path) if path.is_dir() else read_clips(path)
    if clips.shape != (SIZE, SIZE):
        raise ValueError(
            f"Clips must have frames of {SIZE} × {SIZE} pixels; those of {config.data} have {clips.shape[0]} × "
            f"{clips.shape[1]}. Make them so with `phibe.experiments.video.clips.shrink` first?"
        )
    return clips


def split(clips: Clips, *, validation: float, test: float) -> dict[str, Clips]:
    """Clips to train on, to choose the weights by, and to test: no person is on two sides.

    People are taken in the order of their numbers, the last fraction of them for the test, that before it for the
    validation; a clip without a person's number in its name counts as one more person.
    """
    who = [f"{person:06d}" if person else name for person, name in zip(clips.people, clips.names, strict=True)]
    people = sorted(set(who))
    last, chosen = max(1, round(test * len(people))), max(1, round(validation * len(people)))
    if last + chosen >= len(people):
        raise ValueError(
            f"`test` = {test:g} and `validation` = {validation:g} leave none of {len(people)} people to train on. "
            "More clips, or smaller shares?"
        )
    ends = (0, len(people) - last - chosen, len(people) - last, len(people))
    sides = {name: set(people[a:b]) for name, a, b in zip(SIDES, ends, ends[1:], strict=False)}
    return {name: clips[[i for i, person in enumerate(who) if person in side]] for name, side in sides.items()}


def prepare(config: Any, fits: Path) -> None:
    """The trained codec, the latents of training and validation clips, and the test clips, in the folder `fits`; once.

    What is there under the same settings is reused; the training of the codec resumes where it was stopped.
    """
    settings = json.loads(json.dumps({name: asdict(config)[name] for name in ABOUT}))
    if (fits / "clips.json").exists() and json.loads((fits / "clips.json").read_text("utf8")) == settings:
        return
    sides = split(source_clips(config), validation=config.validation, test=config.test)
    test = choose_test_clips(sides["test"], config)
    codec: Coded = open_taming(config.checkpoint) if config.checkpoint else _trained(sides, config, fits)
    for side in SIDES[:2]:
        _save_latents(encode(codec, sides[side], mirrored=config.mirrored), fits / f"{side}.safetensors")
    test.save(fits / "test.npz")
    write_json(fits / "clips.json", settings)


def _save_latents(data: Trajectories, path: Path) -> None:
    parts = {"states": data.states, "times": data.times, "lengths": data.lengths}
    save_tensors(path, {name: part for name, part in parts.items() if part is not None})


def _read_latents(path: Path) -> Trajectories:
    parts = load_file(path)
    return Trajectories(parts["states"], parts["times"], parts.get("lengths"))


def _trained(sides: dict[str, Clips], config: Any, fits: Path) -> VQCodec:
    with seeded(config.seed):
        fresh = VQCodec(**config.codec)
    train, held = (_frames(sides[side], config) for side in SIDES[:2])
    return fit_vq(train, fresh, config=config.codec_training, out=fits / "codec", held_out=held)


def choose_test_clips(clips: Clips, config: Any) -> Clips:
    """At most `starts` of the clips that are long enough, evenly among them."""
    long = clips[(clips.lengths >= config.context + config.horizon).nonzero()[0]]
    if len(long) < 4:
        raise ValueError(
            f"The test needs four clips or more of {config.context} + {config.horizon} frames; among {len(clips)} test "
            f"clips are {len(long)}. A shorter `horizon`, or a larger fraction `test`?"
        )
    count = min(config.starts, len(long))
    return long[[i * len(long) // count for i in range(count)]]


def _frames(clips: Clips, config: Any) -> Trajectories:
    """Short pieces of the clips, some way apart: frames that differ, for the codec."""
    length, stride = config.codec_pieces
    pieces = clips.pieces(length, stride=stride)
    if not config.mirrored:
        return pieces
    return Trajectories(torch.cat([pieces.states, pieces.states.flip(-1)]), pieces.times)


def encode(codec: Coded, clips: Clips, *, mirrored: bool, length: int = 40) -> Trajectories:
    """Latents before rounding, in paths of `length` frames or less, at the times of their clips; and of the mirrored
    clips, as if each person had also moved the other way."""
    parts: list[Tensor] = []
    starts: list[int] = []
    for i in range(len(clips)):
        clip = clips.frames(i)
        for seen in (clip, clip.flip(-1)) if mirrored else (clip,):
            pieces = codec.encode_paths(seen[None])[0].split(length)
            kept = [(k * length, piece) for k, piece in enumerate(pieces) if len(piece) >= 3]
            starts += [start for start, _ in kept]
            parts += [piece for _, piece in kept]
    index = torch.tensor(starts, dtype=torch.float64)[:, None] + torch.arange(max(map(len, parts)))
    lengths = torch.tensor([len(part) for part in parts])
    return Trajectories(pad_sequence(parts, batch_first=True), index / clips.rate, lengths)


def open_latents(config: Any, fits: Path) -> tuple[Coded, Trajectories, Trajectories]:
    """The codec, and the latents to train on and to validate with, as `prepare` left them."""
    train, validation = (_read_latents(fits / f"{side}.safetensors") for side in SIDES[:2])
    codec: Coded = open_taming(config.checkpoint) if config.checkpoint else open_vq(fits / "codec")
    return codec, train, validation


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


# -- what it needs -----------------------------------------------------------------------------------------------------


def plan_video(config: Any) -> plan.Needs:
    """The codec, unless it comes from a checkpoint, and every method on its latents."""
    latent = (config.codec["latent"], SIZE // 8, SIZE // 8)
    trainings = []
    if not config.checkpoint:
        training = config.codec_training
        trainings.append(
            plan.Training(
                f"VQ codec, {config.codec['channels']} channels",
                lambda: VQLoss(VQCodec(**config.codec), COMMITMENT),
                lambda n: [(n, 1, 1, SIZE, SIZE)],
                training.batch,
                training.steps,
                average=training.ema > 0,
                per_sample=True,  # which codes begin anew depends on the values
            )
        )
    for name in [name for name in methods(config) if name not in UNTRAINED]:
        shape = (2 * latent[0], *latent[1:]) if name.endswith(AUGMENTED) else latent
        task = partial(_planned, name, latent, config)
        trainings.append(plan.training(f"{name}, {config.network['name']}", task, shape, config.training))
    weights = {"VQ codec of taming-transformers": config.checkpoint, "I3D weights": config.features}
    files = [plan.file(what, path) for what, path in weights.items() if path not in ("", FIGURES)]
    return plan.Needs([_source(config), *files], trainings)


def _planned(name: str, latent: tuple[int, ...], config: Any) -> Any:
    return task_of(name, assemble(name, latent, config), config)


def _source(config: Any) -> plan.Data:
    """Drawn figures, a file of clips, or the archives of KTH, as they are published."""
    if config.data == FIGURES:
        return plan.states("drawn figures:", (config.figures, config.length, SIZE, SIZE), bits=32)
    path = Path(config.data)
    if path.suffix == ".npz":
        return plan.file("clips of 64 × 64 pixels", config.data, source="a file of your own, such as shrunk KTH clips")
    return plan.Data("six archives of KTH human actions", sum(MEGABYTES.values()), ADDRESS, config.data)


VIDEO = Experiment("video", CONFIGS, measure, plan_video)
VIDEO_REAL = Experiment("video_real", REAL_CONFIGS, measure, plan_video)
