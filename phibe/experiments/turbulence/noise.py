"""Spectral noise of periodic fields: the residual of a drift, and the variance that one step dissipates in each wave.

The noise of the mixtures in `methods.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from phibe.calculus import Velocity
from phibe.experiments.turbulence.spectra import over_shells
from phibe.stochastic import StochasticFamily
from phibe.trajectories import Trajectories

ENOUGH = 1024
"""Transitions from which the spectrum of a noise is taken."""


@dataclass(frozen=True)
class FieldNoise:
    """Homogeneous Gaussian fields on a torus: `power` (channels, height, width//2 + 1) is E|f̂(k)|² per
    pixel of what is added in one `step`; in another time h, h/step times as much."""

    power: Tensor
    step: float

    @classmethod
    def of_residuals(cls, drift: Velocity, data: Trajectories) -> FieldNoise:
        """The residual of a drift in steps of periodic fields (channels, height, width): x′ − x − Δt b(x)."""

        def left(x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
            return _power(dx - dt.to(x.dtype)[:, None, None, None] * drift(x, t))

        return cls(_mean(left, data), data.typical_step)

    @classmethod
    def of_balance(cls, process: StochasticFamily, data: Trajectories, *, method: str = "rk4") -> FieldNoise:
        """The variance that one step Φ of a process without its noise dissipates, over an interval of the data:
        E|x̂′|² − E|Φ̂(x)|², averaged over each shell, and 0 where it is negative."""

        def taken(x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
            return _power(x + dx) - _power(process.ode_step(x, times, method=method))

        step = data.typical_step
        times = torch.tensor([0.0, step], dtype=torch.float64)
        return cls(over_shells(_mean(taken, data), data.state_shape[-1]).clamp(min=0), step)

    def __call__(self, x: Tensor, h: float, generator: torch.Generator | None) -> Tensor:
        white = torch.randn(x.shape, dtype=x.dtype, generator=generator).to(x.device)
        shaped = torch.fft.rfft2(white, norm="ortho") * (self.power * abs(h) / self.step).sqrt()
        return torch.fft.irfft2(shaped, s=x.shape[-2:], norm="ortho")


@dataclass(frozen=True)
class CalibratedFamily(StochasticFamily):
    """x′ = Φ(x) + n, with Φ one step along v + θ(b − v) and the noise n that restores the variance Φ dissipates.

    √θ dW belongs to the exact v and b and to short steps. Learnt ones, over an interval that is not short, dissipate
    another amount in each wave than that noise restores, and the spectrum drifts away. Here the noise is measured
    [`FieldNoise.of_balance`]: E|x̂′|² = E|Φ̂(x)|² + E|n̂|² in each shell of waves. As n is independent of x, one step
    then preserves the spectrum of the data, however good v and b are.
    """

    def _step(self, x: Tensor, t: Tensor, method: str, generator: torch.Generator | None) -> Tensor:
        x = self.ode_step(x, t, method=method)
        return x if self.noise is None else x + self.noise(x, float(t[1] - t[0]), generator)


@torch.no_grad()
def _mean(measure: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], data: Trajectories) -> Tensor:
    """The mean of `measure(x, t, dx, dt)`, (n, …), over transitions from all over the data."""
    if len(data.state_shape) != 3:
        raise ValueError(f"Fields (channels, height, width) are needed; got states {data.state_shape}.")
    pairs = data[:: max(1, len(data) // 32)].pairs()
    chosen = torch.arange(0, len(pairs.x), max(1, len(pairs.x) // ENOUGH))
    sums = [measure(*(part[some] for part in pairs)).sum(0) for some in chosen.split(32)]
    return torch.stack(sums).sum(0) / len(chosen)


def _power(fields: Tensor) -> Tensor:
    return torch.fft.rfft2(fields, norm="ortho").abs().square()
