"""The features behind the figure Fréchet distance: trained on the embedded figures, and what their distance ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from phibe.experiments import plan
from phibe.experiments.report import Experiment, Measured
from phibe.experiments.video.drawing import ACTIONS
from phibe.experiments.video.features import CORRUPTIONS, FigureFeatures, fit_features, ladders
from phibe.experiments.video.figures import Figures, Scenes


@dataclass(frozen=True)
class Config:
    """A network of `channels` learns action and speed of `clips` clips in `steps` steps of `batch` runs of `frames`
    frames; `test` others are recognised, then half of them corrupted and compared with the other half."""

    channels: int = 16
    clips: int = 480
    steps: int = 600
    batch: int = 16
    frames: int = 24
    learning_rate: float = 2e-3
    test: int = 160
    seed: int = 0


CONFIGS = {
    "smoke": Config(channels=8, clips=8, steps=2, batch=2, frames=8, test=8),
    "laptop": Config(),
    "paper": Config(channels=32, clips=4800, steps=10_000, batch=32, test=2000),
}


def measure(config: Config, fits: Path) -> Measured:
    """Render, train, recognise, corrupt."""
    train, test = (
        Figures().stage(paths=paths, seed=config.seed + i) for i, paths in enumerate((config.clips, config.test))
    )
    features = learn(train, config)
    clips = test.render().states
    found = ladders(clips, features, seed=config.seed)
    results = {
        **recognition(features, clips, test),
        "features": features.identity,
        "clips_a_side": config.test // 2,
        "floor": found.pop("floor")[0],
        "levels": {name: list(levels) for name, (_, levels) in CORRUPTIONS.items()},
        "distances": found,
    }
    return results, features.state_dict()


def learn(scenes: Scenes, config: Config) -> FigureFeatures:
    """A network that tells the action and ω, the speed of the clock."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = FigureFeatures(channels=config.channels, actions=len(ACTIONS))
    return fit_features(
        scenes.render().states,
        scenes.cast.action,
        scenes.cast.omega,
        network=network,
        steps=config.steps,
        batch=config.batch,
        frames=config.frames,
        learning_rate=config.learning_rate,
        seed=config.seed,
    )


def recognition(features: FigureFeatures, clips: Tensor, scenes: Scenes) -> dict[str, float]:
    """Accuracy of the recognised actions, and the correlation of the logarithms of recognised and true speed."""
    found = [features.recognise(part) for part in clips.split(32)]
    actions, speeds = (torch.cat(part) for part in zip(*found, strict=True))
    pairs = torch.stack([speeds.double(), scenes.cast.omega.log()])
    return {
        "accuracy": float((actions.argmax(1) == scenes.cast.action).double().mean()),
        "speed_correlation": float(torch.corrcoef(pairs)[0, 1]),
    }


class _Recognition(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.features = FigureFeatures(channels=channels, actions=len(ACTIONS))

    def forward(self, clips: Tensor) -> Tensor:
        actions, speed = self.features.recognise(clips)
        return actions.mean(1) + speed


def plan_features(config: Config) -> plan.Needs:
    data = [plan.states("drawn figures:", (config.clips + config.test, 40, 64, 64), bits=32)]
    make = partial(_Recognition, config.channels)
    shapes = lambda n: [(n, config.frames, 1, 64, 64)]  # noqa: E731
    return plan.Needs(data, [plan.Training("features", make, shapes, config.batch, config.steps)])


FIGURE_FEATURES = Experiment("figure_features", CONFIGS, measure, plan_features)
