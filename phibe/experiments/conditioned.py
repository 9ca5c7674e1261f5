"""Conditioned flows: a velocity conditioned on the previous observation, v(x, t | x₋), as in the published video code.

The theory is that of a Markov state: no theorem here covers the Jacobian term of a conditional density, and a central
difference contains the condition itself. The clean way is a state that holds its own past (`pendulum/codec.py`,
`with_velocity`); this one is here for comparison. Read next: `video/methods.py`, which uses both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phibe.experiments.baselines.forecaster import Forecaster, forecast
from phibe.experiments.training import Roll
from phibe.flow import Flow
from phibe.integrators import INTEGRATORS
from phibe.networks.checks import check_network
from phibe.networks.network import Network, Normalised
from phibe.objectives import find_objective
from phibe.training.config import FitConfig
from phibe.training.loop import ObjectiveModule, VelocityTask, train
from phibe.training.runs import Fitted, load_weights, read_config, read_weights, rebuild
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class ConditionedFlow:
    """dx/dt = v(x, t | x₋), from data observed every `step`: along each step, x₋ is the state one step before its
    start, or, if `delayed`, one step before the present. For a single Euler step both are the same."""

    network: nn.Module
    step: float

    @torch.no_grad()
    def generate(
        self,
        history: Tensor,
        times: Any,
        *,
        method: str = "euler",
        substeps: int = 1,
        bound: float = math.inf,
        delayed: bool = False,
    ) -> Trajectories:
        """Trajectories at `times` from the last two of `history` (n, past, *state), the very last being at `times[0]`.

        Between two observations, and between any of `times` on the way, `method` takes `substeps` steps. What diverges
        is clamped to ±`bound` for the network. If `delayed`, x₋ = x(t − `step`), on the straight line between two
        observations: x − x₋ is then always the change over one step, as in the data.
        """
        if history.ndim < 3 or history.shape[1] < 2:
            raise ValueError(f"`history` must be (n, two states or more, *state); got {tuple(history.shape)}.")
        times = torch.as_tensor(times, dtype=torch.float64)
        before, x = history[:, -2], history[:, -1]
        states = [x[:, None]]
        count = math.ceil(float(times[-1] - times[0]) / self.step - 1e-6)
        for begin in times[0] + torch.arange(count, dtype=torch.float64) * self.step:
            asked = times[(times > begin + 1e-6 * self.step) & (times < begin + (1 + 1e-6) * self.step)]
            on_the_way = asked[asked < begin + (1 - 1e-6) * self.step]
            knots = torch.cat([begin[None], on_the_way, begin[None] + self.step])
            behind = partial(_on_line, before, x, begin=float(begin), step=self.step) if delayed else before
            flow = Flow(partial(self.velocity, before=behind, bound=bound))
            path = flow.generate(x, knots, method=method, substeps=substeps).states
            states.append(path[:, 1 : 1 + len(asked)])
            before, x = x, path[:, -1]
        return Trajectories(torch.cat(states, dim=1), times)

    def velocity(self, x: Tensor, t: Tensor, *, before: Any, bound: float = math.inf) -> Tensor:
        """v(x, t | x₋), (n, *state); x₋ is a state, or a function of time."""
        before = before(t) if callable(before) else before
        return self.network(x.clamp(-bound, bound), t, **given(self.network, before.clamp(-bound, bound)))


def _on_line(first: Tensor, second: Tensor, t: Tensor, *, begin: float, step: float) -> Tensor:
    """On the straight line from the first state, at `begin`, to the second, a `step` later; t (n,)."""
    weight = (t - begin) / step
    return torch.lerp(first, second, weight.reshape(-1, *[1] * (first.ndim - 1)))


def given(network: nn.Module, before: Tensor) -> dict[str, Tensor]:
    """The condition as the network takes it: in its own units."""
    return {"condition": network.standardise(before) if isinstance(network, Normalised) else before}


def fit_conditioned(
    data: Trajectories,
    network: nn.Module,
    objective: str = "phibe",
    *,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> ConditionedFlow:
    """What `phibe.fit` is for v(x, t), for a network that is called as net(x, t, condition=x₋)."""
    task = ConditionedTask(network, objective)
    return train(data, task, config=config, out=out, held_out=held_out, progress=progress)


def open_conditioned(folder: str | Path, *, network: nn.Module | None = None) -> ConditionedFlow:
    """The conditioned flow of the run in a folder. One of a module of your own needs that module as `network`."""
    about = read_config(folder)
    restored = rebuild(about, folder, network)
    load_weights(restored, read_weights(folder), folder)
    return ConditionedFlow(restored.eval().requires_grad_(False), about["step"])


@dataclass(frozen=True)
class ConditionedTask(VelocityTask):
    """A velocity network that also takes the previous observation as its `condition`."""

    @property
    def width(self) -> int:
        """As wide as the objective, and one more if its place is the first of the window."""
        if self.name == "stratonovich":
            raise ValueError(
                "`stratonovich` evaluates the velocity at two places: take 'phibe', 'symmetric' or 'regression'."
            )
        return max(3, find_objective(self.name).width + (find_objective(self.name).place == 0))

    @property
    def place(self) -> int:
        objective = find_objective(self.name)
        return self.width - objective.width + objective.place

    def loss(self, typical: Trajectories, config: FitConfig) -> ConditionedObjective:
        velocity, mixed = self._prepare(typical, config), config.precision == "bf16-mixed"
        return ConditionedObjective(velocity, self.name, balance=config.balance, mixed=mixed)

    def result(self, network: nn.Module, data: Trajectories) -> Any:
        trained = network.to(data.states.device, data.states.dtype).eval().requires_grad_(False)
        return ConditionedFlow(trained, data.typical_step)

    def _check(self, network: nn.Module, x: Tensor, t: Tensor) -> None:
        check_network(SelfConditioned(network), x, t, objective=self.name)


class SelfConditioned(nn.Module):
    """v(x, t | x) as a velocity of x alone, to be checked like any other."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.network(x, t, **given(self.network, x))


class ConditionedObjective(ObjectiveModule):
    """The objective of v(·, · | x₋), x₋ being the observation before its place."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.facts, self.jacobian = self.facts | {"conditioned": True}, False  # no validation of its Jacobian

    def forward(self, *sample: Tensor, generator: torch.Generator | None = None, **_: Any) -> Tensor:
        x, t, dt = sample
        objective = find_objective(self.objective)
        first = x.shape[1] - objective.width  # of the observations that the objective itself looks at
        condition = given(self.network, x[:, first + objective.place - 1])
        x, t, dt = x[:, first:], t[:, first:], dt[:, first:]
        if objective.width == 2:
            return super().forward(x[:, 0], t[:, 0], x[:, 1] - x[:, 0], dt[:, 0], generator=generator, given=condition)
        return super().forward(x, t, dt, generator=generator, given=condition)


def with_velocity(z: Tensor, times: Tensor, lengths: Tensor | None = None) -> Trajectories:
    """States s_t = (z_t, (z_t − z_{t−1})/Δt) of clips' latents (path, time, d, …), from the second frame on: the
    velocity is appended along the first dimension of a state, (…, 2d, …)   [paper: latent-space dynamics]."""
    gaps = times.diff(dim=-1).to(z.dtype)
    velocity = z.diff(dim=1) / gaps.reshape(*gaps.shape, *[1] * (z.ndim - 2))
    states = torch.cat([z[:, 1:], velocity], dim=2)
    return Trajectories(states, times[..., 1:], None if lengths is None else lengths - 1)


def restored(made: Network | Forecaster, weights: dict[str, Tensor], *, step: float, conditioned: bool) -> Any:
    """A trained method from the `weights` of a report: a forecaster, or the flow of a network, seen every `step`."""
    model = made if isinstance(made, Forecaster) else Normalised(made, made.state_shape)
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    model.eval().requires_grad_(False)
    if isinstance(model, Forecaster):
        return model
    return ConditionedFlow(model, step) if conditioned else Flow(Fitted(model), step=step)


def rolls_of(
    name: str, model: Any, integrators: Iterable[tuple[str, int]], *, integrate: Any, seed: int
) -> dict[str, Roll]:
    """The ways to roll a method out, by their labels: a flow has one for each of the `integrators` (method, substeps),
    by `integrate`; the draws of a forecaster begin from the `seed`."""
    if isinstance(model, (Flow, ConditionedFlow)):
        return {
            f"{name}, {method}{f' ×{substeps}' if substeps > 1 else ''}": Roll(
                partial(integrate, model, method=method, substeps=substeps), INTEGRATORS[method].evaluations * substeps
            )
            for method, substeps in integrators
        }
    frames = partial(forecast, model, generator=torch.Generator().manual_seed(seed))
    return {name: Roll(frames, model.evaluations, isinstance(model, Forecaster))}
