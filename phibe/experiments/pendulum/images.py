"""The stochastic double pendulum from its pictures: a geometry-preserving code, a flow of latents, decoded rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.experiments.pendulum.acrobot import RATE, Acrobot, frame_times
from phibe.experiments.pendulum.codec import CodecConfig, GeometryCodec, fit_codec, with_velocity
from phibe.experiments.pendulum.rendering import GHOST, pose_error, read_pose, render
from phibe.experiments.report import Report, committed, committed_weights, record
from phibe.flow import Flow
from phibe.networks.mlp import ResidualMLP
from phibe.networks.normalised import Normalised
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class Config:
    """`paths` films of `frames` pictures 1/30 s apart, `held_out` of them for the test; one codec; a flow of its
    latents for each of `objectives`, `epochs` long; rollouts of `shown` test films over `horizon` frames, from each
    frame of `starts`."""

    paths: int = 1000
    frames: int = 240
    sigma: float = 0.2
    held_out: float = 0.2
    codec: CodecConfig = field(
        default_factory=lambda: CodecConfig(
            encoder_steps=1500, decoder_steps=3000, decoder_batch=16, learning_rate=1e-3, floor=0.02
        )
    )
    objectives: tuple[str, ...] = ("phibe", "symmetric", "regression")
    integrators: tuple[str, ...] = ("euler", "rk4")
    width: int = 256
    blocks: int = 2
    epochs: int = 8
    training: FitConfig = field(
        default_factory=lambda: FitConfig(
            batch=512, learning_rate=1e-3, optimiser="adam", held_out=0.1, evaluate_every=400
        )
    )
    shown: int = 60
    horizon: int = 45
    starts: tuple[int, ...] = (1, 90)
    pairs: int = 1000
    seed: int = 0


CONFIGS = {
    "smoke": Config(
        paths=10,
        frames=24,
        codec=CodecConfig(encoder_steps=3, decoder_steps=2, encoder_batch=8, decoder_batch=4),
        objectives=("phibe", "regression"),
        integrators=("euler",),
        width=16,
        blocks=1,
        epochs=1,
        training=FitConfig(batch=32, evaluate_every=5, held_out=0.2),
        shown=2,
        horizon=4,
        starts=(1,),
        pairs=40,
    ),
    "laptop": Config(),
    "paper": Config(
        codec=CodecConfig(),
        epochs=50,
        training=FitConfig(batch=512, learning_rate=1e-4, optimiser="adam", floor=1.0, warmup=0, evaluate_every=2000),
        shown=200,
    ),
}


def run(preset: str = "laptop", *, out: Path | None = None, config: Config | None = None) -> Report:
    """Simulate, draw, train codec and flows (kept under `fits/`, from where they resume), roll out, read the poses."""
    config = config or CONFIGS[preset]
    out = out or Path("runs") / "pendulum_images" / preset
    return record("pendulum_images", preset, config, lambda: _measure(config, out / "fits"), out)


def _measure(config: Config, fits: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    train, test = observe(config)
    codec = fit_codec(draws(train), config.codec, out=fits / "codec")
    latents = encode(codec, train)
    films = Films(codec, test, config)
    results: dict[str, Any] = {
        **geometry(codec, test, config),
        "horizon": [k / RATE for k in range(config.horizon + 1)],
        "starts": list(config.starts),
        "codec": films.judge(lambda start: codec.encode_paths(render(films.truth(start)))),
        "persistence": films.judge(lambda start: films.latents(start)[:, :1].expand(-1, config.horizon + 1, -1)),
        "flows": {},
    }
    weights = {f"codec.{name}": _half(tensor) for name, tensor in codec.state_dict().items()}
    for objective in tqdm(config.objectives, desc="flows", unit="fit"):
        flow = learn(latents, objective, config=config, fits=fits)
        for method in config.integrators:
            rolled = films.judge(lambda start, flow=flow, method=method: films.rollout(flow, start, method))
            results["flows"][f"{objective}, {method}"] = rolled
        assert isinstance(flow.velocity, Fitted)
        weights |= {f"{objective}.{k}": _half(v) for k, v in flow.velocity.network.state_dict().items()}
    return results, weights


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


# -- data and fits -----------------------------------------------------------------------------------------------------


def observe(config: Config) -> tuple[Trajectories, Trajectories]:
    """Training and test paths; the pictures are drawn when they are needed, which is faster than keeping them."""
    acrobot = Acrobot(config.sigma, config.sigma)
    data = acrobot.simulate(paths=config.paths, times=frame_times(config.frames), seed=config.seed)
    return data.split(config.held_out, seed=config.seed)


def draws(train: Trajectories) -> Any:
    """`draw(n, generator)`: n pairs of consecutive pictures of the training paths."""

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
    steps = math.ceil(config.epochs * len(latents) * (config.frames - 2) / config.training.batch)
    training = replace(config.training, steps=steps, seed=config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = ResidualMLP((6,), width=config.width, blocks=config.blocks)
    return fit_network(latents, network, objective, config=training, out=fits / objective, progress=False)


def committed_codec() -> GeometryCodec:
    """The codec of the laptop run that comes with the project."""
    codec, weights = GeometryCodec(), committed_weights("pendulum_images")
    own = {name.removeprefix("codec."): value for name, value in weights.items() if name.startswith("codec.")}
    codec.load_state_dict({name: v.float() if v.is_floating_point() else v for name, v in own.items()})
    return codec.eval().requires_grad_(False)


def committed_flow(objective: str) -> Flow:
    """The flow of latents of the laptop run that comes with the project."""
    config, weights = committed("pendulum_images").config, committed_weights("pendulum_images")
    own = {k.removeprefix(f"{objective}."): v.float() for k, v in weights.items() if k.startswith(f"{objective}.")}
    velocity = Normalised(ResidualMLP((6,), width=config["width"], blocks=config["blocks"]), (6,))
    velocity.load_state_dict(own)
    return Flow(Fitted(velocity), (1 / RATE, (config["frames"] - 1) / RATE), 1 / RATE)


# -- measures ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def geometry(codec: GeometryCodec, test: Trajectories, config: Config) -> dict[str, Any]:
    """How well held-out pictures keep their distances, and how well they come back.

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
    """Latents of a flow from `start` (n, 6), a step a frame   [paper: single-state prediction]; what runs away is held
    six spreads from the mean of the training data."""
    assert isinstance(flow.velocity, Fitted)
    units = flow.velocity.network
    assert isinstance(units, Normalised)
    low, high = (units.mean + side * units.scale for side in (-6, 6))
    bounded = Flow(lambda x, t: flow.velocity(x.clamp(low, high), t), flow.interval, flow.step)
    return bounded.generate(start, times, method=method).states.clamp(low, high)


class Films:
    """Test films, what a flow makes of their beginnings, and how far that is from the truth."""

    def __init__(self, codec: GeometryCodec, test: Trajectories, config: Config):
        self.codec, self.config, self.states, self.times = codec, config, test.states[: config.shown], test.times

    def truth(self, start: int) -> Tensor:
        return self.states[:, start : start + self.config.horizon + 1]

    def latents(self, start: int) -> Tensor:
        """Latents with velocities along the true film from frame `start` on; the velocity needs the frame before."""
        seen = render(self.states[:, start - 1 : start + self.config.horizon + 1])
        z = self.codec.encode_paths(seen)
        return with_velocity(z, self.times[start - 1 : start + self.config.horizon + 1]).states

    def rollout(self, flow: Flow, start: int, method: str) -> Tensor:
        """Latents of the flow from the true state at frame `start` on."""
        return rollout(flow, self.latents(start)[:, 0], self.times[start : start + self.config.horizon + 1], method)

    def judge(self, make: Any) -> dict[str, Any]:
        """Decode what `make(start)` gives and read its poses: mean and median error in degrees by horizon, over
        all starts and the mean for each, and the share of frames that are a pendulum."""
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
