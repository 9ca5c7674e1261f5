"""Forecasters: networks that draw the next frames given the past ones, trained by the loop that trains flows.

What each of them regresses and how it samples is in `pfi` and `mcvd`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from phibe.flow import Flow
from phibe.networks.network import channel_moments
from phibe.networks.unet import UNet
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS, bfloat16
from phibe.training.loop import Loss, train
from phibe.training.runs import about_flow, load_weights, read_config, read_weights, rebuild
from phibe.trajectories import Trajectories


class Forecaster(nn.Module):
    """The conditional distribution of the next `frames` states given the last `past`, one `step` of the data apart.

    A network is called as net(z, τ, condition=c): z (n, frames·C, *rest) becomes the next frames, stacked
    along their channels, c (n, past·C, *rest) are the past ones. Both are in standard units, (x − m)/s, with a mean for
    each channel (or coordinate) and one spread s for the whole state; `bound` is the largest such value in the data.
    These are buffers, saved with the weights; `settings` are the keywords that make the same forecaster again.
    """

    name: ClassVar[str]
    settings: dict[str, Any]
    mean: Tensor
    scale: Tensor
    bound: Tensor
    step: Tensor

    def __init__(self, network: nn.Module, *, past: int, frames: int):
        super().__init__()
        self.network, self.past, self.frames = network, past, frames
        shape = getattr(network, "state_shape", None)
        if shape is None or past < 1 or frames < 1 or shape[0] % frames:
            raise ValueError(
                f"A network with `state_shape` (frames · channels, *rest) is needed, and one past frame or more; got "
                f"state_shape {shape}, past {past}, frames {frames}. See `conditional_unet`."
            )
        self.state_shape = (shape[0] // frames, *shape[1:])
        self.register_buffer("mean", torch.zeros(self.state_shape[0], *[1] * (len(shape) - 1)))
        for name, value in (("scale", 1.0), ("bound", torch.inf), ("step", 1.0)):
            self.register_buffer(name, torch.tensor(value))

    # -- what each forecaster defines ----------------------------------------------------------------------------------

    @property
    def evaluations(self) -> float:
        """Evaluations of the network for each generated frame."""
        raise NotImplementedError

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The random numbers of n training samples."""
        raise NotImplementedError

    def regress(self, past: Tensor, future: Tensor, *drawn: Tensor) -> Tensor:
        """The loss of each sample, in standard units: past (n, past·C, *rest), future (n, frames·C, *rest) → (n,)."""
        raise NotImplementedError

    def sample(self, past: Tensor, generator: torch.Generator | None) -> Tensor:
        """A draw of the future given the past, in standard units."""
        raise NotImplementedError

    # -- training --------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: str | Path, *, network: nn.Module | None = None) -> Self:
        """The forecaster of the run in a folder. One around a module of your own needs that module as `network`."""
        saved, tensors = read_config(folder).get("forecaster"), read_weights(folder)
        if saved is None or saved["name"] != cls.name:
            found = f"a {saved['name']}" if saved else "a flow"
            raise ValueError(f"{folder} holds {found}, not a {cls.name}. Flows open with `phibe.open_flow`.")
        model = cls(rebuild(read_config(folder), folder, network), **saved["settings"])
        model = model.double() if tensors["scale"].dtype == torch.float64 else model
        load_weights(model, tensors, folder)
        return model.eval().requires_grad_(False)

    @property
    def width(self) -> int:
        return self.past + self.frames

    def measure(self, data: Trajectories) -> None:
        """Set the units, the range and the step from the data."""
        if data.state_shape != self.state_shape:
            raise ValueError(f"This network is for states {self.state_shape}; the data has {data.state_shape}.")
        step, gaps = data.typical_step, data._path_times().diff(dim=1)[data._observed(2)]
        if float((gaps - step).abs().max()) > 0.01 * step:
            raise ValueError(
                f"A forecaster needs frames at equal steps; here they are from {float(gaps.min()):g} to "
                f"{float(gaps.max()):g} apart. Interpolate the paths to a regular grid first?"
            )
        mean, variance = channel_moments(data)
        self.mean.copy_(mean.reshape(self.mean.shape))
        self.scale.fill_(float(variance.mean().sqrt()) or 1.0)
        self.step.fill_(step)
        self.bound.fill_(max(float(self.standardise(chunk.states).abs().max()) for chunk in data.chunks()))

    def loss(self, *sample: Tensor) -> Tensor:
        """The loss of each sample of `width` observations, with the numbers drawn for it, (n,)."""
        if self.width == 2:
            x, _, dx, _, *drawn = sample
            window = torch.stack([x, x + dx], dim=1)
        else:
            window, _, _, *drawn = sample
        z = self.standardise(window)
        return self.regress(z[:, : self.past].flatten(1, 2), z[:, self.past :].flatten(1, 2), *drawn)

    def standardise(self, x: Tensor) -> Tensor:
        """(x − m)/s of states (…, *state)."""
        return (x - self.mean) / self.scale

    # -- generation ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self, history: Tensor, times: Any, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> Trajectories:
        """Trajectories at `times`, sampled block by block, each conditioned on the frames before it.

        `history` is (n, past or more, *state), its last frame being that of `times[0]`, or, when one is enough,
        (n, *state). The times lie whole steps of the data apart; frames between them are generated and left out.
        """
        steps = self._indices(times)
        seen = self._history(torch.as_tensor(history))
        frames = list(self.standardise(seen.to(self.mean)).unbind(1))
        with tqdm(total=steps[-1], desc=self.name, unit="frame", disable=not progress) as bar:
            while len(frames) - self.past < steps[-1]:
                block = self.sample(torch.cat(frames[-self.past :], dim=1), generator)
                if not torch.isfinite(block).all():
                    raise ValueError(f"{self.name} diverged: frame {len(frames) - self.past + 1} is not finite.")
                frames += block.unflatten(1, (self.frames, -1)).unbind(1)
                bar.update(min(self.frames, steps[-1] - bar.n))
        states = torch.stack([frames[self.past + k - 1] for k in steps], dim=1) * self.scale + self.mean
        states = states.to(seen.device, seen.dtype)
        states[:, 0] = seen[:, -1]  # the given frame, to the bit
        return Trajectories(states, torch.as_tensor(times, dtype=torch.float64).to(states.device))

    def _history(self, history: Tensor) -> Tensor:
        """The last `past` frames (n, past, *state)."""
        if self.past == 1 and history.shape[1:] == self.state_shape:
            return history[:, None]
        if history.ndim < 2 or history.shape[2:] != self.state_shape or history.shape[1] < self.past:
            raise ValueError(
                f"`history` must be (n, {self.past} frames or more, {', '.join(map(str, self.state_shape))}); got "
                f"{tuple(history.shape)}."
            )
        return history[:, -self.past :]

    def _indices(self, times: Any) -> list[int]:
        """How many steps after the first time each of them is."""
        times = torch.as_tensor(times, dtype=torch.float64).cpu()
        gaps = times.diff() / self.step.double().cpu() if times.ndim == 1 else times.new_zeros(0)
        counts = gaps.round()
        if not len(counts) or not (counts > 0).all() or (gaps - counts).abs().max() > 0.05:
            raise ValueError(
                f"`times` must be two or more that increase by whole steps of {float(self.step):g}, those of the data "
                f"that this {self.name} was trained on."
            )
        return [0, *(int(k) for k in counts.cumsum(0))]

    def _noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Standard normal numbers, drawn on the generator's device: the same on every device."""
        where = generator.device if generator else like.device
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=where).to(like.device)


def forecast(model: Any, history: Tensor, times: Tensor, *, generator: torch.Generator) -> Tensor:
    """States (n, time, *state) that a forecaster samples, those of persistence among them."""
    return model.generate(history, times, generator=generator).states


def conditional_unet(state_shape: Sequence[int], *, past: int = 1, frames: int = 1, **arguments: Any) -> UNet:
    """A U-Net for a forecaster of states (C, height, width), with the `arguments` of any other."""
    channels, *grid = state_shape
    return UNet((frames * channels, *grid), condition_channels=past * channels, **arguments)


# -- training ----------------------------------------------------------------------------------------------------------


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
