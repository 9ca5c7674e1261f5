"""What all networks share: the shape of a state with the arguments that rebuild them (`Network`), and the units of the
data around a network that sees standard coordinates (`Normalised`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from phibe.calculus import Velocity
from phibe.trajectories import Trajectories

ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "gelu": nn.GELU, "tanh": nn.Tanh, "softplus": nn.Softplus}


def keywords(scope: dict[str, Any]) -> dict[str, Any]:
    """Of the `locals()` at the beginning of a network's `__init__`, its arguments, as in JSON."""
    own = {name: value for name, value in scope.items() if name not in ("self", "state_shape", "__class__")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


class Network(nn.Module):
    """What the networks here share: the shape of a state, and the `arguments` (plain JSON) that rebuild them."""

    def __init__(self, state_shape: Sequence[int], **arguments: Any):
        super().__init__()
        self.state_shape = tuple(int(size) for size in state_shape)
        self.arguments = arguments
        if not self.state_shape or min(self.state_shape) < 1:
            raise ValueError(f"`state_shape` must be one or more positive sizes, e.g. (2,); got {state_shape}.")
        for name in {"width", "depth", "channels", "blocks"} & arguments.keys():
            if arguments[name] < 1:
                raise ValueError(f"`{name}` must be at least 1; got {arguments[name]}.")
        if arguments.get("activation", "silu") not in ACTIVATIONS:
            smooth = f"one of {', '.join(ACTIVATIONS)}, as the Jacobian in the objective misses what happens at kinks"
            raise ValueError(f"`activation` must be {smooth}; got {arguments['activation']!r}.")

    def extra_repr(self) -> str:
        return ", ".join([f"state_shape={self.state_shape}", *(f"{k}={v!r}" for k, v in self.arguments.items())])

    def conditioned(self: nn.Module, condition: Tensor) -> Velocity:
        """v(x, t) under one condition, of a network that takes one: for objectives and flows."""
        return partial(self, condition=condition)

    def _check(self, x: Tensor, t: Tensor) -> None:
        if tuple(x.shape[1:]) != self.state_shape or t.shape != x.shape[:1]:
            wanted = f"x (n, {', '.join(map(str, self.state_shape))}) and t (n,)"
            raise ValueError(f"This network takes {wanted}; got x {tuple(x.shape)} and t {tuple(t.shape)}.")


class Normalised(nn.Module):
    """v(x, t) = V ⊙ net((x − m)/s, (t − t₀)/T): states, times and velocities of order one for the network inside.

    m, s, V are `mean`, `scale`, `velocity_scale`: one number for each coordinate of a vector state, for each channel of
    a larger one. They are buffers, saved with the weights. Since v is what the objectives differentiate, those stay in
    the original coordinates: ∇v = V ⊙ ∇net ⊘ s. Good values come from `Normalised.fit`; the defaults change nothing.
    """

    mean: Tensor
    scale: Tensor
    velocity_scale: Tensor
    t_start: Tensor
    t_scale: Tensor

    def __init__(
        self,
        network: nn.Module,
        state_shape: tuple[int, ...],
        *,
        mean: Any = 0.0,
        scale: Any = 1.0,
        velocity_scale: Any = 1.0,
        t_start: Any = 0.0,
        t_scale: Any = 1.0,
    ):
        super().__init__()
        self.network = network
        self.state_shape = tuple(state_shape)
        like = next(iter(network.parameters()), torch.empty(0))
        shape = (self.state_shape[0], *[1] * (len(self.state_shape) - 1))
        for name, value in (("mean", mean), ("scale", scale), ("velocity_scale", velocity_scale)):
            value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
            if value.numel() not in (1, shape[0]):
                raise ValueError(f"`{name}` must be one number or {shape[0]}; got {value.numel()}.")
            self.register_buffer(name, value.reshape(shape if value.numel() > 1 else ()).expand(shape).clone())
        for name, value in (("t_start", t_start), ("t_scale", t_scale)):
            self.register_buffer(name, torch.as_tensor(value, dtype=like.dtype, device=like.device))

    @staticmethod
    def fit(network: nn.Module, data: Trajectories) -> Normalised:
        """The network in the units of (the training part of) the data: mean and spread of the states, interval of time,
        and as typical velocity the spread over the time in which a path moves that far.

        Δx/Δt will not do: it grows like σ/√Δt and measures noise. Nor will displacement over a whole path, which
        is far too small when the path turns round many times. The time to move by the spread knows neither. Of more
        than 64 megabytes, evenly chosen paths are measured.
        """
        size, (start, end) = data.states.numel() * data.states.element_size(), data.interval
        some = data[:: max(1, min(len(data), size >> 26))]
        moved, elapsed = _displacements(some)
        mean, variance = channel_moments(some)
        scale = torch.where(variance > 1e-14 * mean**2, variance.sqrt(), 1.0)
        reached = moved >= variance
        reached[-1] = True
        first = reached.int().argmax(dim=0)
        speed = moved.sqrt().gather(0, first[None])[0] / elapsed[first]
        speed = torch.where(speed > 0, speed, scale / (end - start))
        units = {"mean": mean, "scale": scale, "velocity_scale": speed, "t_start": start, "t_scale": end - start}
        return Normalised(network, data.state_shape, **units)

    def keep(self, coordinates: slice) -> Normalised:
        """Leave the units of these coordinates (or channels) as they are in the data: angles stay in radians."""
        self.mean[coordinates], self.scale[coordinates] = 0.0, 1.0
        return self

    def forward(self, x: Tensor, t: Tensor, **options: Any) -> Tensor:
        return self.velocity_scale * self.network(self.standardise(x), (t - self.t_start) / self.t_scale, **options)

    def standardise(self, x: Tensor) -> Tensor:
        """(x − m)/s: the state as the network sees it; conditions made of states go through it too."""
        return (x - self.mean) / self.scale

    conditioned = Network.conditioned  # in the network's own units: `net.conditioned(net.standardise(before))`

    def balanced(
        self,
        objective: Callable[..., Tensor],
        x: Tensor,
        t: Tensor,
        *steps: Tensor,
        given: dict[str, Tensor] | None = None,
        **options: Any,
    ) -> Tensor:
        """The objective with coordinate i of the velocity weighted by 1/Vᵢ²: the same minimiser, but in training
        no coordinate dominates by its units; (n,).

        ‖v‖² − 2 v·Δx/Δt − Δxᵀ(∇v)Δx/Δt is a sum over the coordinates of v, each least at its own v̂ᵢ; the weighted sum
        is the objective of v/V in the units x/V. It needs one that scales with the units: not `isotropic`, with σ²I.
        `given` goes to the network, `options` to the objective.
        """
        unit, given = self.velocity_scale, given or {}
        *dx, dt = steps  # of two observations there are increments and steps, of more only steps
        return objective(
            lambda y, s: self(y * unit, s, **given) / unit, x / unit, t, *(d / unit for d in dx), dt, **options
        )


def channel_moments(data: Trajectories) -> tuple[Tensor, Tensor]:
    """Mean and variance over all observations, (C,) each, summed about the first state."""
    pivot = channels(data.states[:1, 0]).mean((0, 2))
    total, square, count = torch.zeros_like(pivot), torch.zeros_like(pivot), 0
    for chunk in data.chunks():
        x = channels(chunk.states[chunk._observed()]) - pivot[:, None]
        total, square, count = total + x.sum((0, 2)), square + (x * x).sum((0, 2)), count + x[:, 0].numel()
    mean = total / count
    return pivot + mean, (square / count - mean**2).clamp(min=0)


def _displacements(data: Trajectories) -> tuple[Tensor, Tensor]:
    """Mean square displacement (lags, C) and mean time (lags,) over 1, 2, 4, … observations and the whole path."""
    longest = data.states.shape[1] - 1
    lags = [2**k for k in range(longest.bit_length()) if 2**k < longest] + [longest]
    square = torch.zeros(len(lags), data.state_shape[0], dtype=torch.float64, device=data.states.device)
    time, count = torch.zeros(len(lags), 1, dtype=torch.float64, device=square.device), torch.zeros_like(square[:, :1])
    for chunk in data.chunks():
        times = chunk._path_times()
        for i, lag in enumerate(lags):
            inside = chunk._observed(lag + 1)
            moved = channels((chunk.states[:, lag:] - chunk.states[:, :-lag])[inside])
            square[i] += (moved * moved).mean(2).sum(0)
            time[i] += (times[:, lag:] - times[:, :-lag])[inside].sum()
            count[i] += inside.sum()
    seen = count[:, 0] > 0
    return (square / count)[seen], (time / count)[seen, 0]


def channels(x: Tensor) -> Tensor:
    """(n, *state) → (n, C, rest) in float64: the coordinates of a vector, the channels of anything larger."""
    return x.double().reshape(len(x), x.shape[1], -1)
