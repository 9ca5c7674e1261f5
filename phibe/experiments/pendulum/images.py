"""The stochastic double pendulum from its images: a distance-preserving codec, a flow of latents, decoded rollouts.

Poses are read back from the decoded frames, so that errors are in degrees. Read next: `real.py`, a measured pendulum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.experiments import plan
from phibe.experiments.conditioned import with_velocity
from phibe.experiments.pendulum.acrobot import RATE
from phibe.experiments.pendulum.codec import CodecConfig, GeometryCodec, curves, fit_codec, plan_codec
from phibe.experiments.pendulum.rendering import GHOST, pose_error, read_pose, render
from phibe.experiments.pendulum.states import (
    PAPER_TRAINING,
    SMOKE_FLOWS,
    VALIDATION,
    FlowConfig,
    observe,
    trained_flow,
)
from phibe.experiments.report import (
    Choice,
    Claim,
    Experiment,
    Measured,
    Protocol,
    committed,
    committed_weights,
    digest,
    in_half,
    judged,
)
from phibe.experiments.training import fit_one, network_of, seeded
from phibe.flow import Flow
from phibe.networks.mlp import ResidualMLP
from phibe.training.config import FitConfig
from phibe.trajectories import Trajectories

CODEC = CodecConfig(encoder_steps=12_000, decoder_steps=40_000, decoder_batch=16, learning_rate=1e-3, floor=0.02)
TEXT_TRAINING = replace(PAPER_TRAINING, learning_rate=1e-4)
FIGURE, FRAMES, AIM = "Figure pendulum, images", 10, 20.0
"""The pose error after so many frames, in degrees, below which a rollout counts as following; fixed before any run."""


@dataclass(frozen=True)
class Config(FlowConfig):
    """`paths` clips of `frames` frames 1/30 s apart, `held_out` of them for the test; one codec, and flows of its
    latents, those behind *text* and *best flow* with each of `seeds`; `phibe` is trained as published, by
    `text_training`. Rollouts of `shown` test clips over `horizon` frames, from each frame of `starts`."""

    paths: int = 1000
    frames: int = 240
    sigma: float = 0.2
    held_out: float = 0.2
    codec: CodecConfig = CODEC
    epochs: int = 50
    text_training: FitConfig = TEXT_TRAINING
    seeds: tuple[int, ...] = (0,)
    shown: int = 100
    horizon: int = 45
    starts: tuple[int, ...] = (1, 90)
    pairs: int = 1000


PRESETS = {
    "smoke": Config(
        paths=20,
        frames=24,
        codec=CodecConfig(encoder_steps=3, decoder_steps=2, encoder_batch=8, decoder_batch=4),
        text_training=FitConfig(batch=32, evaluate_every=5),
        integrators=("euler",),
        shown=2,
        horizon=4,
        starts=(1,),
        pairs=40,
        **SMOKE_FLOWS,
    ),
    "laptop": Config(),
    "paper": Config(codec=CodecConfig(), seeds=(0, 1, 2), shown=200),
}
PROTOCOL = (
    Protocol("frames", "28 × 28 in the text, 32 × 32 in the appendix", "32 × 32; grey from 0 to 1"),
    Protocol(
        "codec",
        "three latents; 50,000 and 100,000 steps of 100 at rate 1e-4; σ = 0.3, smoothness 25",
        "kernels of 4 and 3, leaky ReLU in the decoder too",
        "fewer steps, the decoder's of 16 pairs, at rate 1e-3 on a cosine",
    ),
    Protocol("state", "latents with difference quotients, and time"),
    Protocol(
        "flow",
        "Adam 1e-4, 50 epochs; one Euler step a frame; the network is left open",
        "the residual MLP of the states; batches of 512, gradients clipped at 1, the best validation objective",
        "best flow and regression: rate 1e-3 on a cosine",
    ),
    Protocol("authors' code", "", "", "its codec has 64 latents and weights that are not public: not run"),
)
CANDIDATES = ("phibe", "symmetric")
"""Objectives whose population minimiser is a probability velocity."""


def measure(config: Config, fits: Path) -> Measured:
    """Simulate, render, train codec and flows, choose on validation clips, roll out, read the poses.

    Frames are rendered when they are needed, which is faster than storing them.
    """
    train, test = observe(config)
    fitted, validation = train.split(VALIDATION, seed=config.seed)
    codec = fit_codec(draws(fitted), config.codec, validation=draws(validation), out=fits / "codec")
    latents, held_out = encode(codec, fitted), encode(codec, validation)
    learn_one = partial(learn, latents, held_out, config=config, fits=fits)
    flows = {(name, 0): learn_one(name) for name in tqdm(config.objectives, desc="flows", unit="fit")}
    choice = _choose(flows, Clips(codec, validation, replace(config, horizon=min(10, config.horizon))), config)
    chosen, integrator = choice.chosen.split(", ")
    flows |= {(name, k): learn_one(name, seed=k) for k in config.seeds[1:] for name in {"phibe", chosen}}

    clips = Clips(codec, test, config)
    scores: dict[str, list[Score]] = {
        "codec": [clips.score(lambda start: codec.encode_paths(render(clips.truth(start))))],
        "persistence": [clips.score(lambda start: clips.latents(start)[:, :1].expand(-1, config.horizon + 1, -1))],
    }
    for (name, seed), flow in flows.items():
        for method in config.integrators if seed == 0 else {"euler", integrator}:
            rolled = clips.score(lambda start, flow=flow, method=method: clips.rollout(flow, start, method))
            scores.setdefault(f"{name}, {method}", []).append(rolled)
    results: dict[str, Any] = {
        **geometry(codec, test, config),
        "codec_training": curves(fits / "codec"),
        "horizon": [k / RATE for k in range(config.horizon + 1)],
        "starts": list(config.starts),
        **{name: scores[name][0].summary() for name in ("codec", "persistence")},
        "flows": {name: some[0].summary() for name, some in scores.items() if ", " in name},
    }
    weights = in_half("codec", codec.state_dict())
    for name in config.objectives:
        weights |= in_half(name, network_of(flows[name, 0]).state_dict())
    calls = {"euler": 1.0, "rk4": 4.0}
    claims = _claims(scores, choice.chosen)
    return Measured(results, weights, claims, [choice], {"training paths": digest(train.states)}, calls)


def _choose(flows: dict[tuple[str, int], Flow], clips: Clips, config: Config) -> Choice:
    """Objective and integrator of the best flow, by the mean pose error over ten frames of validation clips."""
    errors = {
        f"{name}, {method}": float(
            clips.score(lambda start, flow=flow, method=method: clips.rollout(flow, start, method)).error[:, 1:].mean()
        )
        for (name, _), flow in flows.items()
        if name in CANDIDATES
        for method in config.integrators
    }
    return Choice("objective and integrator of the best flow", "degrees, mean over ten frames", errors)


def _claims(scores: dict[str, list[Score]], chosen: str) -> list[Claim]:
    """Of each method, on the test clips: the pose after ten frames, and whether frames show a pendulum for a second."""
    methods = [("text", "phibe, euler"), ("best flow", chosen), ("controls", "regression, euler")]
    claims = []
    for column, name in [*methods, ("controls", "persistence"), ("controls", "codec")]:
        pose = torch.stack([score.error[:, : FRAMES + 1][:, -1] for score in scores[name]]).mean(0)
        lost = torch.stack([score.valid - scores["codec"][0].valid for score in scores[name]]).mean(0)[:, 1:31].mean(1)
        about = FIGURE, "the rollout follows the truth", f"pose error after {FRAMES} frames, degrees"
        claims.append(judged(about, column, name, pose.numpy(), "below", AIM))
        about = FIGURE, "the rollout keeps the shape of the pendulum", "valid frames in 1 s minus those of the codec"
        claims.append(judged(about, column, name, lost.numpy(), "near", tolerance=0.05))
    return claims


# -- data and fits -----------------------------------------------------------------------------------------------------


def draws(train: Trajectories) -> Any:
    """`draw(n, generator)`: n pairs of consecutive frames of the training paths."""

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        path = torch.randint(len(train), (n,), generator=generator)
        time = torch.randint(train.states.shape[1] - 1, (n,), generator=generator)
        return render(train.states[path, time]), render(train.states[path, time + 1])

    return draw


def encode(codec: GeometryCodec, data: Trajectories) -> Trajectories:
    """The paths as latents with their velocities, (path, time − 1, 6)."""
    z = torch.cat([codec.encode_paths(render(part.states)) for part in data.chunks(megabytes=0.25)])
    return with_velocity(z, data.times)


def learn(
    latents: Trajectories, held_out: Trajectories, objective: str, *, config: Config, fits: Path, seed: int = 0
) -> Flow:
    """A residual MLP of latent state and time   [paper: latent-space training]; from its folder if that is there."""
    with seeded(seed):
        network = ResidualMLP((6,), width=config.width, blocks=config.blocks)
    training, out = replace(_training(config, objective), seed=seed), fits / f"{objective}-{seed}"
    return fit_one(latents, network, objective, config=training, out=out, held_out=held_out)


def _training(config: Config, objective: str) -> FitConfig:
    """As published for `phibe`; the steps of all are those of so many epochs."""
    clips = round(config.paths * (1 - config.held_out) * (1 - VALIDATION))
    steps = math.ceil(config.epochs * clips * (config.frames - 2) / config.training.batch)
    return replace(config.text_training if objective == "phibe" else config.training, steps=steps)


def committed_codec() -> GeometryCodec:
    """The codec of the laptop run that comes with the project."""
    codec = GeometryCodec()
    codec.load_state_dict(committed_weights("pendulum_images", "codec"))
    return codec.eval().requires_grad_(False)


def committed_flow(objective: str) -> Flow:
    """The flow of latents of the laptop run that comes with the project."""
    config = committed("pendulum_images").config
    network = ResidualMLP((6,), width=config["width"], blocks=config["blocks"])
    return trained_flow(network, committed_weights("pendulum_images", objective), first=1, frames=config["frames"])


# -- measures ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def geometry(codec: GeometryCodec, test: Trajectories, config: Config) -> dict[str, Any]:
    """How well the codec preserves distances between held-out frames, and how well it reconstructs them.

    Correlation of |z − z'| with |x − x'| over pairs; quantiles of their ratio over its median, which are the constants
    of a bi-Lipschitz map for all but a few pairs; mean square error and PSNR = 10 log₁₀(1/MSE) of reconstructions.
    """
    states = test.states.flatten(0, 1)
    chosen = torch.randperm(len(states), generator=torch.Generator().manual_seed(config.seed))[: 2 * config.pairs]
    frames = render(states[chosen])
    z = codec.encode_paths(frames[None])[0]
    (x1, x2), (z1, z2) = frames.flatten(1).chunk(2), z.chunk(2)
    far, apart = (x1 - x2).norm(dim=1), (z1 - z2).norm(dim=1)
    ratio = (apart / far).quantile(torch.tensor([0.01, 0.05, 0.5, 0.95, 0.99]))
    mse = float((codec.decode_paths(z[None])[0] - frames).square().mean())
    return {
        "distance_correlation": float(torch.corrcoef(torch.stack([far, apart]))[0, 1]),
        "distance_ratios": (ratio / ratio[2]).tolist(),
        "latent_spread": z.std(0).tolist(),
        "reconstruction_mse": mse,
        "reconstruction_psnr": 10 * math.log10(1 / mse),
        "black_psnr": 10 * math.log10(1 / float(frames.square().mean())),
    }


def rollout(flow: Flow, start: Tensor, times: Tensor, method: str) -> Tensor:
    """Latents of a flow from `start` (n, 6), a step a frame   [paper: single-state prediction]; what diverges is held
    six standard deviations from the mean of the training data."""
    units = network_of(flow)
    low, high = (units.mean + side * units.scale for side in (-6, 6))
    bounded = Flow(lambda x, t: flow.velocity(x.clamp(low, high), t), flow.interval, flow.step)
    return bounded.generate(start, times, method=method).states.clamp(low, high)


class Clips:
    """Test clips, what a flow generates from their first frames, and how far that is from the truth."""

    def __init__(self, codec: GeometryCodec, test: Trajectories, config: Config):
        self.codec, self.config, self.states, self.times = codec, config, test.states[: config.shown], test.times

    def truth(self, start: int) -> Tensor:
        return self.states[:, start : start + self.config.horizon + 1]

    def latents(self, start: int) -> Tensor:
        """Latents with velocities along the true clip from frame `start` on; the velocity needs the frame before."""
        seen = render(self.states[:, start - 1 : start + self.config.horizon + 1])
        z = self.codec.encode_paths(seen)
        return with_velocity(z, self.times[start - 1 : start + self.config.horizon + 1]).states

    def rollout(self, flow: Flow, start: int, method: str) -> Tensor:
        """Latents of the flow from the true state at frame `start` on."""
        return rollout(flow, self.latents(start)[:, 0], self.times[start : start + self.config.horizon + 1], method)

    def score(self, make: Any) -> Score:
        """Decode what `make(start)` gives, read its poses and compare, for every start."""
        errors, valid, square = [], [], []
        for start in self.config.starts:
            frames = self.codec.decode_paths(make(start))
            pose = read_pose(frames.flatten(0, 1))
            angles = pose.angles.unflatten(0, frames.shape[:2])
            errors.append(pose_error(angles, self.truth(start).float()))
            valid.append((pose.residual <= GHOST).float().unflatten(0, frames.shape[:2]))
            square.append((frames - render(self.truth(start))).square().mean((0, 2, 3, 4)))
        return Score(torch.stack(errors), torch.stack(valid).mean(0), torch.stack(square).mean(0))


class Score(NamedTuple):
    """Pose errors in degrees (start, clip, time); the fraction of starts from which a clip's frame shows a pendulum
    (clip, time); mean square error of frames (time,)."""

    errors: Tensor
    valid: Tensor
    mse: Tensor

    @property
    def error(self) -> Tensor:
        """Mean over the starts, (clip, time)."""
        return self.errors.mean(0)

    def summary(self) -> dict[str, Any]:
        """By horizon, over clips and starts."""
        return {
            "pose_error": self.errors.mean((0, 1)).tolist(),
            "pose_error_median": self.errors.flatten(0, 1).median(0).values.tolist(),
            "pose_error_by_start": self.errors.mean(1).tolist(),
            "valid": self.valid.mean(0).tolist(),
            "mse": self.mse.tolist(),
        }


def plan_images(config: Config) -> plan.Needs:
    source = "rendered from simulated states when needed"
    data = [plan.states("frames of 32 × 32:", (config.paths, config.frames, 32, 32), bits=32, source=source)]
    size = {"width": config.width, "blocks": config.blocks}
    flows = [
        plan.training(
            f"{objective}, residual MLP {config.width} × {config.blocks}",
            partial(plan.velocity, "residual", (6,), objective, **size),
            (6,),
            _training(config, objective),
            steps=_training(config, objective).steps,
            count=len(config.seeds) if objective in CANDIDATES else 1,
        )
        for objective in config.objectives
    ]
    return plan.Needs(data, [*plan_codec(config.codec), *flows])


PENDULUM_IMAGES = Experiment("pendulum_images", PRESETS, measure, plan_images, PROTOCOL)
