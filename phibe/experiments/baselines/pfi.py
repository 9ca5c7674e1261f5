"""PFI: probabilistic forecasting with stochastic interpolants [Chen and others, 2024]; its sampler is `PFI.sample`.

Read next: `forecaster.py`, how it is trained and rolled out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phibe.calculus import times
from phibe.experiments.baselines.forecaster import Forecaster


class PFI(Forecaster):
    """An SDE in an artificial time τ that transports the present frame x₀ to a sample of the next one.

    z_τ = (1 − τ)x₀ + τ²x₁ + σ(1 − τ)W_τ, W_τ = √τ ε. The network regresses the drift of dz_τ, that is without dW,

        b(z, τ, x₀) = E[−x₀ + 2τ x₁ − σ√τ ε | z_τ = z, x₀],

    and dz = b dτ + σ(1 − τ)dW from z₀ = x₀ has the marginals of z_τ, at τ = 1 the distribution of x₁ given x₀. It is
    integrated by Euler–Maruyama in `steps` equal steps, one evaluation each: its weak error is O(1/steps). With `past`
    > 1 the frames before x₀ are part of the condition.
    """

    name = "pfi"

    def __init__(self, network: nn.Module, *, past: int = 1, sigma: float = 1.0, steps: int = 100):
        super().__init__(network, past=past, frames=1)
        self.sigma, self.steps = sigma, steps
        self.settings = {"past": past, "sigma": sigma, "steps": steps}
        if sigma <= 0 or steps < 1:
            raise ValueError(f"`sigma` must be above 0 and `steps` 1 or more; got {sigma} and {steps}.")

    @property
    def evaluations(self) -> float:
        return float(self.steps)

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """τ (n,) and ε (n, C, *rest)."""
        return torch.rand(n, generator=generator), torch.randn(n, *self.state_shape, generator=generator)

    def regress(self, past: Tensor, future: Tensor, *drawn: Tensor) -> Tensor:
        """Mean square of b(z_τ, τ, past) − (−x₀ + 2τ x₁ − σ√τ ε) over the coordinates, (n,)."""
        tau, noise = drawn
        now, root = self._now(past), self.sigma * tau.sqrt()
        z = times(now, 1 - tau) + times(future, tau**2) + times(noise, root * (1 - tau))
        target = times(future, 2 * tau) - now - times(noise, root)
        return (self.network(z, tau, condition=past) - target).square().flatten(1).mean(1)

    def sample(self, past: Tensor, generator: torch.Generator | None) -> Tensor:
        z, h = self._now(past), 1 / self.steps
        for k in range(self.steps):
            tau = torch.full((len(z),), k * h, dtype=z.dtype, device=z.device)
            z = z + h * self.network(z, tau, condition=past)
            z = z + self.sigma * (1 - k * h) * h**0.5 * self._noise(z, generator)
        return z

    def _now(self, past: Tensor) -> Tensor:
        return past[:, -self.state_shape[0] :]
