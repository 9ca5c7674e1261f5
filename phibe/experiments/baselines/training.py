"""Forecasters trained by the loop that trains flows, and had back from the folder of their run."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from phibe.experiments.baselines.forecaster import Forecaster
from phibe.experiments.baselines.mcvd import MCVD
from phibe.experiments.baselines.pfi import PFI
from phibe.flow import Flow
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS, bfloat16
from phibe.training.loop import Loss, train
from phibe.training.runs import about_flow, load_weights, read_config, read_weights, rebuild
from phibe.trajectories import Trajectories

FORECASTERS: dict[str, type[Forecaster]] = {kind.name: kind for kind in (PFI, MCVD)}

Kind = TypeVar("Kind", bound=Forecaster)


def fit_forecaster(
    data: Trajectories,
    model: Kind,
    *,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> Kind:
    """A copy of the model, trained on the data: by the same loop, under the same options and with the same files in
    `out` as a flow by `phibe.fit`.

    The weights are the best by the loss on held-out paths, at random numbers that are the same at each evaluation.
    """
    return train(data, ForecastTask(model), config=config, out=out, held_out=held_out, progress=progress)


def open_forecaster(folder: str | Path, *, network: nn.Module | None = None) -> Forecaster:
    """The forecaster of the run in a folder. One around a module of your own needs that module as `network`."""
    about = read_config(folder)
    if "forecaster" not in about:
        raise ValueError(f"{folder} holds a flow, not a forecaster. Open it with `phibe.training.runs.open_flow`.")
    kept = about["forecaster"]
    model, tensors = (
        FORECASTERS[kept["name"]](rebuild(about, folder, network), **kept["settings"]),
        read_weights(folder),
    )
    model = model.double() if tensors["scale"].dtype == torch.float64 else model
    load_weights(model, tensors, folder)
    return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class ForecastTask(Generic[Kind]):
    """A forecaster, copied and trained; the result is the copy."""

    model: Kind

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def width(self) -> int:
        return self.model.width

    @property
    def place(self) -> int:
        """The last frame that is seen."""
        return self.model.past - 1

    def loss(self, typical: Trajectories, config: FitConfig) -> ForecastLoss:
        model = copy.deepcopy(self.model).to(typical.states.device, PRECISIONS[config.precision])
        if config.normalise:
            model.measure(typical)
        return ForecastLoss(model, mixed=config.precision == "bf16-mixed")

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        model = cast(Forecaster, network)
        seen = Flow(model.network, data.interval, float(model.step), data.labels)
        about = about_flow(model.network, seen, data.states.dtype)
        return about | {"forecaster": {"name": model.name, "settings": model.settings}}

    def result(self, network: nn.Module, data: Trajectories) -> Kind:
        return cast(Kind, network.to(data.states.device).eval().requires_grad_(False))


class ForecastLoss(Loss):
    """A forecaster's own loss."""

    network: Forecaster

    def __init__(self, model: Forecaster, *, mixed: bool):
        super().__init__()
        self.network, self.mixed = model, mixed
        self.facts, self.scale = {"name": model.name, **model.settings}, model.scale

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.network.draw(n, generator)

    def forward(self, *sample: Tensor, generator: torch.Generator | None = None) -> Tensor:
        with bfloat16(sample[0].device, enabled=self.mixed):
            return self.network.loss(*sample)
