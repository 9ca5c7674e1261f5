"""Footage of the video experiment: figures or clips of one's own, split by person, and their latents."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from phibe.experiments.report import MissingData
from phibe.experiments.video.clips import Clips, read_clips
from phibe.experiments.video.drawing import SIZE
from phibe.experiments.video.figures import Figures, frame_times
from phibe.experiments.video.kth import read_kth
from phibe.experiments.video.taming import open_taming
from phibe.experiments.video.vq import Coded, VQCodec, fit_vq, open_vq
from phibe.files import write_json
from phibe.io import open_data, save_data
from phibe.trajectories import Trajectories

FIGURES = "figures"
SIDES = ("train", "validation", "test")
ABOUT = (
    *("data", "figures", "length", "validation", "test", "codec", "checkpoint", "codec_training"),
    *("codec_pieces", "mirrored", "starts", "context", "horizon", "seed"),
)
"""What codec, latents and test clips depend on."""


def footage(config: Any) -> Clips:
    """All clips: figures, those of a .npz, or those of a folder with the official films of KTH."""
    if config.data == FIGURES:
        scenes = Figures().stage(paths=config.figures, times=frame_times(config.length), seed=config.seed)
        return scenes.clips()
    path = Path(config.data)
    if not path.exists():
        raise MissingData(
            f"This experiment needs clips of {SIZE} × {SIZE} pixels in {config.data!r}, a .npz with one array (time, "
            "height, width) a clip, or the folder of the official KTH films (`phibe fetch kth`); there are none. Pass "
            "`--data`; `--preset smoke` films a few figures instead."
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

    Persons are taken in the order of their numbers, the last share of them for the test, that before it for the
    validation; a clip without a person's number in its name stands for a person of its own.
    """
    who = [f"{person:06d}" if person else name for person, name in zip(clips.persons, clips.names, strict=True)]
    persons = sorted(set(who))
    last, chosen = max(1, round(test * len(persons))), max(1, round(validation * len(persons)))
    if last + chosen >= len(persons):
        raise ValueError(
            f"`test` = {test:g} and `validation` = {validation:g} leave none of {len(persons)} persons to train on. "
            "More clips, or smaller shares?"
        )
    ends = (0, len(persons) - last - chosen, len(persons) - last, len(persons))
    sides = {name: set(persons[a:b]) for name, a, b in zip(SIDES, ends, ends[1:], strict=False)}
    return {name: clips[[i for i, person in enumerate(who) if person in side]] for name, side in sides.items()}


def prepare(config: Any, fits: Path) -> None:
    """The trained codec, the latents of training and validation clips, and the test clips, in the folder `fits`; once.

    What is there under the same settings stays; the training of the codec goes on where it was stopped.
    """
    settings = json.loads(json.dumps({name: asdict(config)[name] for name in ABOUT}))
    if (fits / "footage.json").exists() and json.loads((fits / "footage.json").read_text("utf8")) == settings:
        return
    sides = split(footage(config), validation=config.validation, test=config.test)
    test = choose(sides["test"], config)
    codec: Coded = open_taming(config.checkpoint) if config.checkpoint else _trained(sides, config, fits)
    for side in SIDES[:2]:
        save_data(encode(codec, sides[side], mirrored=config.mirrored), fits / f"{side}.npz")
    test.save(fits / "test.npz")
    write_json(fits / "footage.json", settings)


def _trained(sides: dict[str, Clips], config: Any, fits: Path) -> VQCodec:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        fresh = VQCodec(**config.codec)
    train, held = (_frames(sides[side], config) for side in SIDES[:2])
    return fit_vq(train, fresh, config=config.codec_training, out=fits / "codec", held_out=held)


def choose(clips: Clips, config: Any) -> Clips:
    """At most `starts` of the clips that are long enough, evenly among them."""
    long = clips[(clips.lengths >= config.context + config.horizon).nonzero()[0]]
    if len(long) < 4:
        raise ValueError(
            f"The test needs four clips or more of {config.context} + {config.horizon} frames; among {len(clips)} test "
            f"clips are {len(long)}. A shorter `horizon`, or a larger share `test`?"
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
    films, as though each person had also gone the other way."""
    parts: list[Tensor] = []
    starts: list[int] = []
    for i in range(len(clips)):
        film = clips.film(i)
        for seen in (film, film.flip(-1)) if mirrored else (film,):
            pieces = codec.encode_paths(seen[None])[0].split(length)
            kept = [(k * length, piece) for k, piece in enumerate(pieces) if len(piece) >= 3]
            starts += [start for start, _ in kept]
            parts += [piece for _, piece in kept]
    index = torch.tensor(starts, dtype=torch.float64)[:, None] + torch.arange(max(map(len, parts)))
    lengths = torch.tensor([len(part) for part in parts])
    return Trajectories(pad_sequence(parts, batch_first=True), index / clips.rate, lengths)


def opened(config: Any, fits: Path) -> tuple[Coded, Trajectories, Trajectories]:
    """The codec, and the latents to train on and to validate with, as `prepare` left them."""
    train, validation = (open_data(fits / f"{side}.npz") for side in SIDES[:2])
    codec: Coded = open_taming(config.checkpoint) if config.checkpoint else open_vq(fits / "codec")
    return codec, train, validation
