"""Tasks: what the training loop needs to know of what it trains; here the task of a velocity."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from phibe.flow import Flow
from phibe.networks import Normalised, build, check_network
from phibe.objectives import estimate_noise, find_objective
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS
from phibe.training.objective import Loss, ObjectiveModule
from phibe.training.runs import Fitted, about_flow, of_data
from phibe.trajectories import Trajectories

Result = TypeVar("Result", covariant=True)


class Task(Protocol[Result]):
    """Something to train by the loop: its `name`, and the `width` of the runs of observations that are its samples."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...

    def loss(self, typical: Trajectories, config: FitConfig) -> Loss:
        """The loss of a new network, made for `typical` paths of the training data."""

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        """What opens the result again besides the weights, as JSON; its entry `network` describes the network."""

    def result(self, network: nn.Module, data: Trajectories) -> Result:
        """What the caller gets of a trained network, where the data is and in its floating type."""


@dataclass(frozen=True)
class Around(Generic[Result]):
    """Another task with a loss of its own: what is built on it brings `loss`."""

    task: Task[Result]

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def width(self) -> int:
        return self.task.width

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        return self.task.about(network, data)

    def result(self, network: nn.Module, data: Trajectories) -> Result:
        return self.task.result(network, data)


@dataclass(frozen=True)
class VelocityTask:
    """A velocity network, by name or a module that is copied, trained on an objective; the result is its flow."""

    network: str | nn.Module
    name: str

    @property
    def width(self) -> int:
        return find_objective(self.name).width

    @property
    def place(self) -> int:
        """Which of the observations the network is asked at."""
        return find_objective(self.name).place

    def loss(self, typical: Trajectories, config: FitConfig) -> ObjectiveModule:
        options = {"noise": config.noise or estimate_noise(typical)} if self.name == "isotropic" else {}
        velocity, mixed = self._prepare(typical, config), config.precision == "bf16-mixed"
        return ObjectiveModule(velocity, self.name, balance=config.balance, mixed=mixed, **options)

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        return about_flow(network, of_data(network, data), data.states.dtype)

    def result(self, network: nn.Module, data: Trajectories) -> Flow:
        return of_data(Fitted(network.to(data.states.device, data.states.dtype)), data)

    def _prepare(self, typical: Trajectories, config: FitConfig) -> nn.Module:
        """A new network, or a copy of the given one, in the data's units and known to be right for the objective."""
        dtype = PRECISIONS[config.precision]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            given = self.network
            made = build(given, typical.state_shape) if isinstance(given, str) else copy.deepcopy(given)
        made = made.to(typical.states.device, dtype)
        if config.normalise and not isinstance(made, Normalised):
            made = Normalised.fit(made, typical)
        self._check(made, typical.states[:8, 0].to(dtype), typical._path_times()[:8, 0].to(dtype))
        return made

    def _check(self, network: nn.Module, x: Tensor, t: Tensor) -> None:
        check_network(network, x, t, objective=self.name)
