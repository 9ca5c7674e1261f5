"""The stochastic double pendulum from its states: errors of single paths, and the marginals of the whole ensemble.

Chaos and noise pull paths apart, so the scale of an error is the distance between two draws of the SDE from the same
start. Read next: `codec.py` and `images.py`, the same from images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from phibe.experiments import plan
from phibe.experiments.pendulum.acrobot import RATE, Acrobot, frame_times
from phibe.experiments.pendulum.scores import Marginals, Scale, by_path, degrees, rollout
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
from phibe.networks.network import Normalised
from phibe.training.config import FitConfig
from phibe.training.loop import VelocityTask
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories

INPUTS: dict[str, dict[str, Any]] = {"time": {"time": True, "angles": 0}, "circles": {"time": False, "angles": 2}}
"""What the network sees: state and time as in the paper; sines and cosines of the angles, and no time."""
VALIDATION = 0.1
"""The fraction of the training paths on which all is chosen, and which no network is trained on."""

TRAINING = FitConfig(batch=512, learning_rate=1e-3, optimiser="adam", evaluate_every=400)
PAPER_TRAINING = FitConfig(batch=512, learning_rate=1e-3, optimiser="adam", floor=1.0, warmup=0, evaluate_every=2000)
CODE_TRAINING = replace(PAPER_TRAINING, batch=240, learning_rate=1e-4, weight_decay=1e-5)


@dataclass(frozen=True)
class FlowConfig:
    """The flows of a pendulum: a residual MLP for each of `objectives`, `epochs` long, rolled out by each of
    `integrators`."""

    objectives: tuple[str, ...] = ("phibe", "symmetric", "regression")
    integrators: tuple[str, ...] = ("euler", "rk4")
    width: int = 256
    blocks: int = 2
    epochs: int = 8
    training: FitConfig = TRAINING
    seed: int = 0


SMOKE_FLOWS: dict[str, Any] = {
    "objectives": ("phibe", "regression"),
    "width": 16,
    "blocks": 1,
    "epochs": 1,
    "training": FitConfig(batch=32, evaluate_every=5, held_out=0.2),
}


@dataclass(frozen=True)
class Config(FlowConfig):
    """`paths` × `frames` observations 1/30 s apart, `held_out` of the paths for the test; the flows behind *text* and
    *best flow* are trained with each of `seeds`, the code's for as many steps as the text's; marginals of `ensemble`
    paths, compared `every` so many frames with `repeats` ensembles of the SDE."""

    paths: int = 1000
    frames: int = 240
    sigma: float = 0.2
    held_out: float = 0.2
    integrators: tuple[str, ...] = ("euler", "rk4", "leapfrog")
    epochs: int = 50
    training: FitConfig = PAPER_TRAINING
    code_training: FitConfig = CODE_TRAINING
    seeds: tuple[int, ...] = (0, 1)
    ensemble: int = 1000
    repeats: int = 3
    every: int = 15


PRESETS = {
    "smoke": Config(
        paths=20,
        frames=20,
        code_training=FitConfig(batch=32, evaluate_every=5),
        ensemble=30,
        repeats=2,
        every=5,
        **SMOKE_FLOWS | {"epochs": 2},
    ),
    "laptop": Config(),
    "paper": Config(ensemble=5000, seeds=(0, 1, 2)),
}
PROTOCOL = (
    Protocol(
        "data",
        "1,000 paths, 8 s at 30 frames a second, 80/20 by path",
        "σ₁ = σ₂ = 0.2; a tenth of the 800 paths for validation",
    ),
    Protocol(
        "network",
        "residual MLP, width 256, two blocks, state and time",
        "SiLU; states in their standard units",
        "the best flow sees sines and cosines, and no time",
    ),
    Protocol(
        "training",
        "Adam, rate 1e-3, 50 epochs",
        "batches of 512, gradients clipped at 1, the weights of the best validation objective",
    ),
    Protocol(
        "generation",
        "forward Euler, one step a frame",
        "velocities bounded by 60 rad/s",
        "best flow: objective and integrator by validation",
    ),
    Protocol(
        "authors' code",
        "",
        "128, 256, 256, two ReLU residual blocks, 128, 64; Adam 1e-4, decay 1e-5, batches of 240; steps as above",
        "the paths above; the code's have noise drawn inside an adaptive solver, which is no SDE",
    ),
)


# -- what is trained ---------------------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """A training: its objective, what network it is of, its seed, and whether gradients are clipped and the weights
    those of the best validation objective."""

    objective: str
    network: str
    seed: int = 0
    guarded: bool = True

    @property
    def name(self) -> str:
        return f"{self.objective}, {self.network}{'' if self.guarded else ', no clipping, no early stopping'}"


TEXT, CODE, SMOOTH = Fit("phibe", "time"), Fit("phibe", "code"), Fit("phibe", "code with SiLU")
UNGUARDED = TEXT._replace(guarded=False)
CANDIDATES = ("phibe", "symmetric")
"""Objectives whose population minimiser is a probability velocity."""


def trainings(config: Config) -> list[Fit]:
    """All that are trained with one seed; those behind the columns *text* and *best flow* have more."""
    return [
        TEXT,
        *(Fit(objective, "circles") for objective in config.objectives),
        Fit("regression", "time"),
        CODE,
        SMOOTH,
        UNGUARDED,
    ]


NETWORK_LABELS = {"time": "", "circles": " on circles", "code": " by ReLU", "code with SiLU": " by SiLU"}


class CodeMLP(nn.Module):
    """The network of the authors' code: 128, 256, 256, two residual blocks of 256, 128, 64, of state and time."""

    def __init__(self, act: type[nn.Module]):
        super().__init__()
        self.state_shape = (4,)
        widths, head = (5, 128, 256, 256), (256, 128, 64)
        self.enter = nn.Sequential(*(m for a, b in pairwise(widths) for m in (nn.Linear(a, b), act())))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), act(), nn.Linear(256, 256)) for _ in range(2))
        self.act = act()
        leave = [m for a, b in pairwise(head) for m in (nn.Linear(a, b), act())]
        self.leave = nn.Sequential(*leave, nn.Linear(64, 4))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.enter(torch.cat([x, t[:, None].to(x.dtype)], dim=1))
        for block in self.blocks:
            h = self.act(h + block(h))
        return self.leave(h)


def measure(config: Config, fits: Path) -> Measured:
    """Simulate, train every fit, choose on the validation paths, roll out on the test paths, compare."""
    train, test = observe(config)
    fitted, validation = train.split(VALIDATION, seed=config.seed)
    scale = Scale(fitted)
    marginals = Marginals(config, scale)
    train_one = partial(learn, fitted, validation, config=config, fits=fits)
    flows = {fit: train_one(fit) for fit in tqdm(trainings(config), desc="fits", unit="fit")}
    choice = _choose(flows, validation, config)
    chosen = Fit(choice.chosen.split(", ")[0], "circles")
    flows |= {fit._replace(seed=k): train_one(fit._replace(seed=k)) for k in config.seeds[1:] for fit in (TEXT, chosen)}
    results: dict[str, Any] = {
        "speed": scale.speed.tolist(),
        "horizon": test.times.tolist(),
        **_references(config, test, scale),
        "marginal_times": (marginals.frames / RATE).tolist(),
        "floor": marginals.floor(),
        "flows": {},
    }
    for fit, flow in flows.items():
        for method in config.integrators if fit.seed == 0 else ():
            results["flows"][f"{fit.name}, {method}"] = {
                **_path_errors(flow, test, scale, method),
                **marginals.distances(flow, method)[0],
            }
    judge = Judge(config, test, marginals, flows)
    weights = {
        name: value
        for fit, flow in flows.items()
        if fit.seed == 0 and (fit.network == "circles" or fit == TEXT)
        for name, value in in_half(f"{fit.objective}.{fit.network}", network_of(flow).state_dict()).items()
    }
    calls = {"euler": 1.0, "rk4": 4.0, "leapfrog": 1.0}
    return Measured(
        results, weights, judge.claims(choice.chosen), [choice], {"training paths": digest(train.states)}, calls
    )


# -- data and fits -----------------------------------------------------------------------------------------------------


def observe(config: Any) -> tuple[Trajectories, Trajectories]:
    """Training and test paths, as the paper splits them."""
    acrobot = Acrobot(config.sigma, config.sigma)
    data = acrobot.simulate(paths=config.paths, times=frame_times(config.frames), seed=config.seed)
    return data.split(config.held_out, seed=config.seed)


def learn(data: Trajectories, validation: Trajectories, fit: Fit, *, config: Config, fits: Path) -> Flow:
    """A network trained for so many epochs; read from its folder if that is there."""
    data = data.to(torch.float32)
    training = config.code_training if fit.network.startswith("code") else config.training
    if not fit.guarded:
        training = replace(training, clip=0.0, held_out=0.0)
    return fit_one(
        data,
        _network(data, fit, config),
        fit.objective,
        config=replace(training, steps=_steps(config, len(data)), seed=fit.seed),
        out=fits / f"{fit.name}-{fit.seed}".replace(", ", "-").replace(" ", "-"),
        held_out=validation.to(torch.float32) if fit.guarded else None,
        check=fit != CODE,  # its kinks have wrong gradients, which is what it is here to show
    )


def _steps(config: Config, paths: int) -> int:
    return math.ceil(config.epochs * paths * (config.frames - 1) / config.training.batch)


def _network(data: Trajectories, fit: Fit, config: Config) -> Normalised:
    with seeded(fit.seed):
        if fit.network.startswith("code"):
            return Normalised.fit(CodeMLP(nn.ReLU if fit == CODE else nn.SiLU), data)
        network = ResidualMLP((4,), width=config.width, blocks=config.blocks, **INPUTS[fit.network])
    wrapped = Normalised.fit(network, data)
    return wrapped.keep(slice(0, 2)) if INPUTS[fit.network]["angles"] else wrapped


def committed_flow(objective: str, inputs: str = "circles") -> Flow:
    """A flow of the laptop run that comes with the project."""
    config = committed("pendulum_states").config
    network = ResidualMLP((4,), width=config["width"], blocks=config["blocks"], **INPUTS[inputs])
    weights = committed_weights("pendulum_states", f"{objective}.{inputs}")
    return trained_flow(network, weights, first=0, frames=config["frames"])


def trained_flow(network: ResidualMLP, weights: dict[str, Tensor], *, first: int, frames: int) -> Flow:
    """The flow of these weights, fitted from frame `first` to the last of `frames`."""
    velocity = Normalised(network, network.state_shape)
    velocity.load_state_dict(weights)
    return Flow(Fitted(velocity), (first / RATE, (frames - 1) / RATE), 1 / RATE)


def _choose(flows: dict[Fit, Flow], validation: Trajectories, config: Config) -> Choice:
    """Objective and integrator of the best flow: the least error in angle over two seconds of the validation paths."""
    times = validation.times[:61]
    errors = {
        f"{fit.objective}, {method}": float(
            by_path(rollout(flow, validation.states[:, 0], times, method), validation.states[:, : len(times)]).mean()
        )
        for fit, flow in flows.items()
        if fit.seed == 0 and fit.network == "circles" and fit.objective in CANDIDATES
        for method in config.integrators
    }
    return Choice("objective and integrator of the best flow", "degrees, mean over two seconds", errors)


# -- measures ----------------------------------------------------------------------------------------------------------


def _references(config: Config, test: Trajectories, scale: Scale) -> dict[str, Any]:
    """Errors of a second draw of the noise from the same starts, and of a persistence forecast."""
    other, still = second_draw(config, test), test.states[:, :1].expand_as(test.states)
    return {
        "divergence": scale.error(other, test.states),
        "divergence_degrees": degrees(other, test.states),
        "persistence": scale.error(still, test.states),
        "persistence_degrees": degrees(still, test.states),
    }


def second_draw(config: Config, test: Trajectories) -> Tensor:
    """The SDE once more from the starts of the test paths, with other noise: what no forecast can know."""
    acrobot = Acrobot(config.sigma, config.sigma)
    return acrobot.simulate(start=test.states[:, 0], times=test.times, seed=config.seed + 1).states


def _path_errors(flow: Flow, test: Trajectories, scale: Scale, method: str) -> dict[str, Any]:
    x = rollout(flow, test.states[:, 0], test.times, method)
    return {"error": scale.error(x, test.states), "degrees": degrees(x, test.states)}


class Judge:
    """What the methods of each column say of the paper's claim, on the test paths."""

    def __init__(self, config: Config, test: Trajectories, marginals: Marginals, flows: dict[Fit, Flow]):
        self.config, self.test, self.marginals, self.flows = config, test, marginals, flows
        self.other = second_draw(config, test)
        energies = [marginals.compare(marginals.draw(200 + k))[1] for k in range(config.repeats)]
        self.floor = float(torch.tensor(energies).mean())
        self.spread = float(self._energy(test.states)[:, 0].std())

    def claims(self, chosen: str) -> list[Claim]:
        """Of each method: the angles over two and eight seconds, the energy, and the marginals."""
        objective, integrator = chosen.split(", ")
        flows = [("text", TEXT, "euler"), ("code", CODE, "euler"), ("best flow", Fit(objective, "circles"), integrator)]
        flows += [("controls", Fit("regression", inputs), "euler") for inputs in INPUTS]
        still = self.test.states[:, :1].expand_as(self.test.states)
        turning = still + self.test.times[:, None] * torch.cat([still[..., 2:], torch.zeros_like(still[..., 2:])], -1)
        claims = [
            claim
            for column, fit, method in flows
            for claim in self._of_paths(column, _label(fit, method), self._rolled(fit, method))
        ]
        for name, forecast in (("persistence", still), ("constant velocity", turning)):
            claims += self._of_paths("controls", name, [forecast])
        return claims + [self._of_marginals(*row) for row in flows]

    def _seeds(self, fit: Fit) -> list[Flow]:
        return [flow for other, flow in self.flows.items() if other._replace(seed=fit.seed) == fit]

    def _rolled(self, fit: Fit, method: str) -> list[Tensor]:
        return [rollout(flow, self.test.states[:, 0], self.test.times, method) for flow in self._seeds(fit)]

    def _of_paths(self, column: str, name: str, rolled: list[Tensor]) -> list[Claim]:
        """Paired with a second draw of the noise path by path, means over the seeds."""
        truth, claims = self.test.states, []
        for seconds in (2, 8):
            until = slice(0, seconds * round(RATE) + 1)
            error, own = (
                torch.stack([by_path(x[:, until], truth[:, until]) for x in some]).mean(0)
                for some in (rolled, [self.other])
            )
            about = (
                "Figure pendulum, states",
                "generated paths follow the truth",
                f"degrees over {seconds} s, minus those of a second draw",
            )
            claims.append(judged(about, column, name, (error - own).numpy()))
        gained = torch.stack([self._energy(x)[:, -1] - self._energy(truth)[:, -1] for x in rolled]).mean(0)
        about = (
            "Figure pendulum, states",
            "generated paths keep the energy",
            "energy after 8 s minus the true one, in spreads",
        )
        return [*claims, judged(about, column, name, (gained / self.spread).numpy(), "near", tolerance=0.1)]

    def _energy(self, x: Tensor) -> Tensor:
        return self.marginals.acrobot.energy(x.double())

    def _of_marginals(self, column: str, fit: Fit, method: str) -> Claim:
        """Against the distance of two true ensembles; a value for each seed and truth."""
        ratios = [d / self.floor for flow in self._seeds(fit) for d in self.marginals.distances(flow, method)[1]]
        about = ("Section 4.1", "the flow has the marginals of the process", "sliced W₂ over that of two true samples")
        return judged(about, column, _label(fit, method), ratios, "below", 1.5)


def _label(fit: Fit, method: str) -> str:
    return f"{fit.objective}{NETWORK_LABELS[fit.network]}, {method}"


def plan_states(config: Config) -> plan.Needs:
    train = round(config.paths * (1 - config.held_out) * (1 - VALIDATION))
    data = [plan.states("double pendulum: paths × frames × 4 =", (config.paths, config.frames, 4))]
    needs = []
    for fit in trainings(config):
        training = config.code_training if fit.network.startswith("code") else config.training
        count = len(config.seeds) if fit in (TEXT, Fit("symmetric", "circles")) else 1
        make = partial(_task, fit, config)
        needs.append(plan.training(fit.name, make, (4,), training, steps=_steps(config, train), count=count))
    return plan.Needs(data, needs)


def _task(fit: Fit, config: Config) -> VelocityTask:
    if fit.network.startswith("code"):
        return VelocityTask(CodeMLP(nn.ReLU if fit == CODE else nn.SiLU), fit.objective)
    return plan.velocity(
        "residual", (4,), fit.objective, width=config.width, blocks=config.blocks, **INPUTS[fit.network]
    )


PENDULUM_STATES = Experiment("pendulum_states", PRESETS, measure, plan_states, PROTOCOL)
