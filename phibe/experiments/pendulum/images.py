"""The stochastic double pendulum from its images: a distance-preserving codec, a flow of latents, decoded rollouts.

Poses are read back from the decoded frames, so that errors are in degrees. Read next: `real.py`, a measured pendulum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.experiments import plan
from phibe.experiments.conditioned import with_velocity
from phibe.experiments.pendulum.acrobot import RATE
from phibe.experiments.pendulum.codec import CodecConfig, GeometryCodec, curves, fit_codec, plan_codec
from phibe.experiments.pendulum.rendering import GHOST, pose_error, read_pose, render
from phibe.experiments.pendulum.states import PAPER_TRAINING, SMOKE_FLOWS, FlowConfig, observe, trained_flow
from phibe.experiments.report import Experiment, Measured, committed, committed_weights, in_half
from phibe.experiments.training import fit_epochs, network_of, seeded
from phibe.flow import Flow
from phibe.networks.mlp import ResidualMLP
from phibe.trajectories import Trajectories

CODEC = CodecConfig(encoder_steps=1500, decoder_steps=3000, decoder_batch=16, learning_rate=1e-3, floor=0.02)
VALIDATION = 0.1
"""The fraction of the training paths that codec and flows are validated on, and never trained on."""


@dataclass(frozen=True)
class Config(FlowConfig):
    """`paths` clips of `frames` frames 1/30 s apart, `held_out` of them for the test; one codec, and flows of its
    latents; rollouts of `shown` test clips over `horizon` frames, from each frame of `starts`."""

    paths: int = 1000
    frames: int = 240
    sigma: float = 0.2
    held_out: float = 0.2
    codec: CodecConfig = CODEC
    shown: int = 60
    horizon: int = 45
    starts: tuple[int, ...] = (1, 90)
    pairs: int = 1000


PRESETS = {
    "smoke": Config(
        paths=10,
        frames=24,
        codec=CodecConfig(encoder_steps=3, decoder_steps=2, encoder_batch=8, decoder_batch=4),
        integrators=("euler",),
        shown=2,
        horizon=4,
        starts=(1,),
        pairs=40,
        **SMOKE_FLOWS,
    ),
    "laptop": Config(),
    "paper": Config(
        codec=CodecConfig(),
        epochs=50,
        training=replace(PAPER_TRAINING, learning_rate=1e-4),
        shown=200,
    ),
}


def measure(config: Config, fits: Path) -> Measured:
    """Simulate, render, train codec and flows, roll out, read the poses.

    Frames are rendered when they are needed, which is faster than storing them.
    """
    train, test = observe(config)
    fitted, validation = train.split(VALIDATION, seed=config.seed)
    codec = fit_codec(draws(fitted), config.codec, validation=draws(validation), out=fits / "codec")
    latents = encode(codec, train)
    clips = Clips(codec, test, config)
    results: dict[str, Any] = {
        **geometry(codec, test, config),
        "codec_training": curves(fits / "codec"),
        "horizon": [k / RATE for k in range(config.horizon + 1)],
        "starts": list(config.starts),
        "codec": clips.score(lambda start: codec.encode_paths(render(clips.truth(start)))),
        "persistence": clips.score(lambda start: clips.latents(start)[:, :1].expand(-1, config.horizon + 1, -1)),
        "flows": {},
    }
    weights = in_half("codec", codec.state_dict())
    for objective in tqdm(config.objectives, desc="flows", unit="fit"):
        flow = learn(latents, objective, config=config, fits=fits)
        for method in config.integrators:
            rolled = clips.score(lambda start, flow=flow, method=method: clips.rollout(flow, start, method))
            results["flows"][f"{objective}, {method}"] = rolled
        weights |= in_half(objective, network_of(flow).state_dict())
    return Measured(results, weights)


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


def learn(latents: Trajectories, objective: str, *, config: Config, fits: Path) -> Flow:
    """A residual MLP of latent state and time   [paper: latent-space training]; from its folder if that is there."""
    with seeded(config.seed):
        network = ResidualMLP((6,), width=config.width, blocks=config.blocks)
    transitions = len(latents) * (config.frames - 2)
    return fit_epochs(latents, network, objective, transitions=transitions, config=config, out=fits / objective)


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

    def score(self, make: Any) -> dict[str, Any]:
        """Decode what `make(start)` gives and read its poses: mean and median error in degrees by horizon, over
        all starts and the mean for each, and the fraction of frames that show a pendulum."""
        errors, valid, square = [], [], []
        for start in self.config.starts:
            frames = self.codec.decode_paths(make(start))
            pose = read_pose(frames.flatten(0, 1))
            angles = pose.angles.unflatten(0, frames.shape[:2])
            errors.append(pose_error(angles, self.truth(start).float()))
            valid.append((pose.residual <= GHOST).float().unflatten(0, frames.shape[:2]).mean(0))
            square.append((frames - render(self.truth(start))).square().mean((0, 2, 3, 4)))
        return {
            "pose_error": torch.cat(errors).mean(0).tolist(),
            "pose_error_median": torch.cat(errors).median(0).values.tolist(),
            "pose_error_by_start": torch.stack(errors).mean(1).tolist(),
            "valid": torch.stack(valid).mean(0).tolist(),
            "mse": torch.stack(square).mean(0).tolist(),
        }


def plan_images(config: Config) -> plan.Needs:
    train = config.paths - max(1, round(config.paths * config.held_out))
    steps = math.ceil(config.epochs * train * (config.frames - 2) / config.training.batch)
    source = "rendered from simulated states when needed"
    data = [plan.states("frames of 32 × 32:", (config.paths, config.frames, 32, 32), bits=32, source=source)]
    size = {"width": config.width, "blocks": config.blocks}
    flows = [
        plan.training(
            f"{objective}, residual MLP {config.width} × {config.blocks}",
            partial(plan.velocity, "residual", (6,), objective, **size),
            (6,),
            config.training,
            steps=steps,
        )
        for objective in config.objectives
    ]
    return plan.Needs(data, [*plan_codec(config.codec), *flows])


PENDULUM_IMAGES = Experiment("pendulum_images", PRESETS, measure, plan_images)
