"""Features of our own: a small network that tells the action and the speed of a figure, for a Fréchet distance.

It knows figures on 64 × 64 pixels and nothing else, so that its distance has a name of its own, and is not the FVD. It
is trained by the experiment `figure_features` at the end of this file, which also ranks corrupted clips by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from phibe.experiments import plan
from phibe.experiments.report import Experiment, Measured, committed_weights
from phibe.experiments.training import seeded
from phibe.experiments.video.drawing import ACTIONS, SIZE
from phibe.experiments.video.figures import Figures, Scenes
from phibe.experiments.video.metrics import Features, frechet, gaussian_means


class FigureFeatures(nn.Module):
    """Clips (clip, time, 1, H, W) in [0, 1] → features (clip, 4·`channels`), each of mean 0 and spread 1 where it was
    trained.

    Filters within frames and along time in turn, on grids of 16, 8 and 4 places a side and 1, ½ and ¼ of the frames.
    The features are the log energies of the filters of the first two grids, and the means of what comes out of the
    last: those alone would forget what recognition has no use for, such as noise. Frames of another size are first made
    64 × 64.
    """

    title = "figure Fréchet distance"
    centre: Tensor
    spread: Tensor

    def __init__(self, *, channels: int = 16, actions: int = 6):
        super().__init__()
        self.arguments = {"channels": channels, "actions": actions}
        widths = (channels, channels, 2 * channels)
        self.stem = nn.Conv2d(16, channels, 3, padding=1)
        self.stages = nn.ModuleList(
            SpaceTimeBlock(a, b, s) for a, b, s in zip((channels, *widths[:2]), widths, (1, 2, 2), strict=True)
        )
        self.action, self.speed = nn.Linear(4 * channels, actions), nn.Linear(4 * channels, 1)
        self.register_buffer("centre", torch.zeros(4 * channels))
        self.register_buffer("spread", torch.ones(4 * channels))

    @property
    def identity(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return f"figure features {digest.hexdigest()[:12]}"

    @torch.no_grad()
    def forward(self, clips: Tensor, *, block: int = 32) -> Tensor:
        return torch.cat([self.standard(part) for part in clips.split(block)])

    def standard(self, clips: Tensor) -> Tensor:
        """The features of a few clips, with gradients."""
        return (self._pooled(clips) - self.centre) / self.spread

    def recognise(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the actions (clip, actions), and the logarithm of the speed (clip,)."""
        h = self.standard(clips)
        return self.action(h), self.speed(h)[:, 0]

    def _pooled(self, clips: Tensor) -> Tensor:
        flat = clips.to(self.centre.dtype).flatten(0, 1)
        if flat.shape[-2:] != (SIZE, SIZE):
            flat = F.interpolate(flat, size=(SIZE, SIZE), mode="bilinear", antialias=True)
        h = self.stem(F.pixel_unshuffle(2 * flat - 1, 4)).unflatten(0, clips.shape[:2])
        energies = []
        for stage in self.stages:
            h, energy = stage(h)
            energies.append(energy)
        return torch.cat([*energies[:2], h.mean((1, 3, 4))], dim=1)

    @torch.no_grad()
    def measure(self, clips: Tensor, *, block: int = 32) -> None:
        """Take mean and spread of the features from these clips; recognition then has to be learnt for them."""
        h = torch.cat([self._pooled(part) for part in clips.split(block)])
        self.centre, self.spread = h.mean(0), h.std(0).clamp(min=1e-6)


class SpaceTimeBlock(nn.Module):
    """A convolution within frames, then one along time, of `stride` s: (n, t, c, h, w) → (n, t/s, c', h/s, w/s); and
    the log energy of each filter, (n, c')."""

    def __init__(self, width: int, out: int, stride: int):
        super().__init__()
        self.within = nn.Conv2d(width, out, 3, stride=stride, padding=1)
        self.along = nn.Conv3d(out, out, (3, 1, 1), stride=(stride, 1, 1), padding=(1, 0, 0))
        self.norm = nn.GroupNorm(max(1, out // 8), out)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        within = F.silu(self.within(h.flatten(0, 1))).unflatten(0, h.shape[:2])
        response = self.along(within.transpose(1, 2))
        energy = response.flatten(2).var(2).add(1e-4).log()
        return F.silu(self.norm(response)).transpose(1, 2), energy


# -- training ----------------------------------------------------------------------------------------------------------


def fit_features(
    clips: Tensor,
    action: Tensor,
    speed: Tensor,
    *,
    network: FigureFeatures | None = None,
    steps: int = 600,
    batch: int = 16,
    frames: int = 24,
    learning_rate: float = 2e-3,
    seed: int = 0,
    progress: bool = True,
) -> FigureFeatures:
    """A network trained to tell each clip's action (clip,) and the logarithm of its speed (clip,) > 0.

    Cross-entropy plus the squared error of log speed in units of its spread; each sample is a run of `frames` frames,
    mirrored or not.
    """
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed):
        network = network or FigureFeatures(actions=int(action.max()) + 1)
    pace = speed.log().float()
    pace = (pace - pace.mean()) / pace.std().clamp(min=1e-6)
    network.measure(clips[:64])
    optimiser = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=steps)
    for _ in (bar := tqdm(range(steps), desc="features", unit="step", disable=not progress)):
        chosen = torch.randint(len(clips), (batch,), generator=generator)
        scores, log_speed = network.recognise(_runs(clips, chosen, frames, generator))
        loss = F.cross_entropy(scores, action[chosen]) + F.mse_loss(log_speed, pace[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        bar.set_postfix(loss=float(loss.detach()))
    return network.eval().requires_grad_(False)


def _runs(clips: Tensor, chosen: Tensor, frames: int, generator: torch.Generator) -> Tensor:
    """Runs of frames of the chosen clips, each from a random first one, half of them mirrored."""
    frames = min(frames, clips.shape[1])
    first = torch.randint(clips.shape[1] - frames + 1, (len(chosen), 1), generator=generator)
    runs = clips[chosen[:, None], first + torch.arange(frames)]
    mirrored = torch.rand(len(chosen), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None, None], runs.flip(-1), runs)


def embedded() -> FigureFeatures:
    """The network of the committed laptop run of `figure_features`."""
    weights = committed_weights("figure_features")
    network = FigureFeatures(channels=len(weights["centre"]) // 4, actions=len(weights["action.bias"]))
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


# -- corruptions -----------------------------------------------------------------------------------------------------


def noisy(clips: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Sensor noise of that standard deviation."""
    return (clips + level * torch.randn(clips.shape, generator=generator, dtype=clips.dtype)).clamp(0, 1)


def blurred(clips: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """A Gaussian blur of that many pixels."""
    reach = max(1, round(3 * level))
    return gaussian_means(F.pad(clips.flatten(0, 1), (reach,) * 4, mode="replicate"), level, reach=reach).view_as(clips)


def frozen(clips: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """The last part of the clip, that fraction of it, is one still frame."""
    last = max(0, round(clips.shape[1] * (1 - level)) - 1)
    index = torch.arange(clips.shape[1]).clamp(max=last)
    return clips[:, index]


def shuffled(clips: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Frames change places within runs of that many."""
    keys = torch.arange(clips.shape[1]) // int(level) + torch.rand(len(clips), clips.shape[1], generator=generator)
    return clips[torch.arange(len(clips))[:, None], keys.argsort(1)]


def slowed(clips: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """The clip's beginning at that many times less speed, neighbouring frames blended."""
    place = torch.arange(clips.shape[1], dtype=clips.dtype) / level
    before = place.long().clamp(max=clips.shape[1] - 2)
    weight = (place - before)[:, None, None, None]
    return clips[:, before] * (1 - weight) + clips[:, before + 1] * weight


CORRUPTIONS: dict[str, tuple[Callable[[Tensor, float, torch.Generator], Tensor], tuple[float, ...]]] = {
    "noise": (noisy, (0.05, 0.1, 0.2)),
    "blur": (blurred, (1.0, 2.0, 4.0)),
    "frozen": (frozen, (0.25, 0.5, 1.0)),
    "shuffled": (shuffled, (3, 8, 40)),
    "slowed": (slowed, (1.5, 2.0, 4.0)),
}
"""Corruptions of a clip, each from mild to severe: a useful distance grows along each."""


def ladders(clips: Tensor, features: Features, *, seed: int = 0) -> dict[str, list[float]]:
    """The Fréchet distance of corrupted clips from other true ones at each level of each corruption; `floor` is that of
    the clips before the corruption.

    The clips are cut into two halves, of which one is corrupted.
    """
    source, true = clips.chunk(2)
    there = features(true)
    found = {"floor": [frechet(features(source), there)]}
    for name, (corrupt, levels) in CORRUPTIONS.items():
        generator = torch.Generator().manual_seed(seed)
        found[name] = [frechet(features(corrupt(source, level, generator)), there) for level in levels]
    return found


# -- the experiment ----------------------------------------------------------------------------------------------------


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
        Figures().scenes(paths=paths, seed=config.seed + i) for i, paths in enumerate((config.clips, config.test))
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
    return Measured(results, features.state_dict())


def learn(scenes: Scenes, config: Config) -> FigureFeatures:
    """A network that tells the action and ω, the speed of the clock."""
    with seeded(config.seed):
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
