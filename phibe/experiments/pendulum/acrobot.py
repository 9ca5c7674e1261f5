"""The stochastic Acrobot: a double pendulum of two rigid links with white noise in its angular accelerations.

The system of the paper's pendulum experiments   [paper: stochastic Acrobot]. Read next: `states.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phibe.trajectories import Trajectories

RATE = 30.0
"""Frames a second in the paper."""


@dataclass(frozen=True)
class Acrobot:
    """dθ = θ̇ dt, dθ̇ᵢ = fᵢ(θ, θ̇) dt + σᵢ dBᵢ   [paper: stochastic Acrobot], with no torque at the joints.

    A state is (θ₁, θ₂, θ̇₁, θ̇₂): θ₁ from the downward vertical, θ₂ from the first link, angles not wrapped, so that no
    increment jumps. The constants are the paper's; σ₁, σ₂ it does not give. At the default 0.2 two draws from one
    start are about 10° apart after one second and 60° after three; at 0.02 the noise is hardly seen, at 1 it is all.
    """

    sigma1: float = 0.2
    sigma2: float = 0.2
    m1: float = 1.0
    m2: float = 1.0
    l1: float = 1.0
    lc1: float = 0.5
    lc2: float = 0.5
    I1: float = 1.0
    I2: float = 1.0
    g: float = 9.8

    # -- the SDE ---------------------------------------------------------------------------------------------------

    def drift(self, x: Tensor, t: Tensor | float = 0.0) -> Tensor:
        """b(x) = (θ̇₁, θ̇₂, f₁, f₂), the equations of motion M(θ₂) θ̈ = −(c₁ + ∂V/∂θ₁, c₂ + ∂V/∂θ₂); (..., 4)."""
        theta1, theta2, w1, w2 = x.unbind(-1)
        d1, d2, d3 = self.inertia(theta2)
        weight, sine = self.m2 * self.lc2 * self.g * torch.sin(theta1 + theta2), torch.sin(theta2)
        pull = (self.m1 * self.lc1 + self.m2 * self.l1) * self.g * torch.sin(theta1) + weight
        reach = self.m2 * self.l1 * self.lc2 * sine
        force1 = reach * w2 * (w2 + 2 * w1) - pull
        force2 = -reach * w1 * w1 - weight
        determinant = d1 * d3 - d2 * d2
        f1 = (d3 * force1 - d2 * force2) / determinant
        f2 = (d1 * force2 - d2 * force1) / determinant
        return torch.stack([w1, w2, f1, f2], dim=-1)

    def inertia(self, theta2: Tensor) -> tuple[Tensor, Tensor, float]:
        """The mass matrix M(θ₂) = [[d₁, d₂], [d₂, d₃]]."""
        cosine = self.m2 * self.l1 * self.lc2 * torch.cos(theta2)
        d3 = self.m2 * self.lc2**2 + self.I2
        return self.m1 * self.lc1**2 + self.I1 + self.m2 * self.l1**2 + d3 + 2 * cosine, cosine + d3, d3

    def diffusion(self, x: Tensor) -> Tensor:
        """Σ = diag(0, 0, σ₁², σ₂²), the same everywhere: the angles feel no noise of their own."""
        return torch.diag(self._noise(x).square()).expand(*x.shape, 4)

    def _noise(self, like: Tensor) -> Tensor:
        return torch.tensor([0.0, 0.0, self.sigma1, self.sigma2], dtype=like.dtype, device=like.device)

    def step(self, x: Tensor, h: float, noise: tuple[Tensor, Tensor]) -> Tensor:
        """One step: strong order 1.5, and the classical fourth-order Runge–Kutta step when σ = 0.

        `noise` is ΔB and ∫(B − B₀)ds over the step, (..., 2) each. The two middle stages look where the noise has
        moved the state on average, J = (3/2h) S∫(B − B₀)ds, which fulfils the order conditions of [Rößler 2010] for
        additive noise: Σαᵢβᵢ = 1 and Σαᵢβᵢ² = 3/2 with α = (1, 2, 2, 1)/6 and β = (0, 3/2, 3/2, 0).
        """
        scale = self._noise(x)[2:]
        ahead, jump = (torch.cat([torch.zeros_like(part), scale * part], dim=-1) for part in noise)
        middle = x + 1.5 / h * jump
        k1 = self.drift(x)
        k2 = self.drift(middle + h / 2 * k1)
        k3 = self.drift(middle + h / 2 * k2)
        k4 = self.drift(x + h * k3)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4) + ahead

    def simulate(
        self,
        *,
        paths: int | None = None,
        times: Any = None,
        start: Tensor | None = None,
        substeps: int = 4,
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> Trajectories:
        """All paths at once at `times` (default: the paper's 240 frames), `substeps` equal steps between two of them.

        They begin at `start` (n, 4), or at so many draws of the paper's distribution. Four substeps a frame leave an
        error far below what the noise does; without noise, the energy changes by 1e-6 of its range in eight seconds.
        """
        generator = generator or torch.Generator().manual_seed(seed)
        times = frame_times() if times is None else torch.as_tensor(times, dtype=torch.float64)
        if (paths is None) == (start is None) or substeps < 1:
            raise ValueError(
                f"Give either `paths` or `start`, and `substeps` from 1; got paths={paths}, "
                f"start={None if start is None else tuple(start.shape)}, substeps={substeps}."
            )
        x = self.draw_start(paths or 0, generator=generator) if start is None else start.double()
        states = [x]
        for gap in times.diff().tolist():
            for _ in range(substeps):
                x = self.step(x, gap / substeps, brownian(len(x), gap / substeps, generator=generator))
            states.append(x)
        return Trajectories(torch.stack(states, dim=1), times)

    def draw_start(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Angles uniform on [−π, π], velocities on [−0.1, 0.1]   [paper: Ω]; (n, 4)."""
        half = torch.tensor([math.pi, math.pi, 0.1, 0.1], dtype=torch.float64)
        return half * (2 * torch.rand(n, 4, dtype=torch.float64, generator=generator) - 1)

    # -- exact answers ---------------------------------------------------------------------------------------------

    def energy(self, x: Tensor) -> Tensor:
        """½ θ̇ᵀM(θ₂)θ̇ + V(θ), conserved without noise; (..., 4) → (...)."""
        theta1, theta2, w1, w2 = x.unbind(-1)
        d1, d2, d3 = self.inertia(theta2)
        first = (self.m1 * self.lc1 + self.m2 * self.l1) * self.g * torch.cos(theta1)
        potential = -first - self.m2 * self.lc2 * self.g * torch.cos(theta1 + theta2)
        return 0.5 * (d1 * w1 * w1 + d3 * w2 * w2) + d2 * w1 * w2 + potential

    def heating(self, x: Tensor) -> Tensor:
        """d E[energy]/dt = E[½(σ₁² d₁(θ₂) + σ₂² d₃)], by Itô's formula: the mean energy gained; (..., 4) → (...)."""
        d1, _, d3 = self.inertia(x[..., 1])
        return 0.5 * (self.sigma1**2 * d1 + self.sigma2**2 * d3)


def brownian(n: int, h: float, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """ΔB ~ N(0, h) and ∫₀ʰ(B − B₀)ds = ½h(ΔB + √(h/3) η), two of each for n paths: (n, 2), (n, 2)."""
    normal = torch.randn(2, n, 2, dtype=torch.float64, generator=generator) * math.sqrt(h)
    return normal[0], 0.5 * h * (normal[0] + normal[1] / math.sqrt(3))


def frame_times(frames: int = 240, *, rate: float = RATE) -> Tensor:
    """0, 1/30, 2/30, …: 240 frames are the paper's eight seconds, the last one at 239/30."""
    return torch.arange(frames, dtype=torch.float64) / rate


def wrap(angle: Tensor) -> Tensor:
    """The same angle in [−π, π)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def on_circles(x: Tensor, *, speed: Tensor | float = 1.0) -> Tensor:
    """(sin θ₁, cos θ₁, sin θ₂, cos θ₂, θ̇₁/s, θ̇₂/s): a state as a point whose distances know no wrapping; (..., 6)."""
    angles, velocities = x[..., :2], x[..., 2:]
    return torch.cat([angles.sin(), angles.cos(), velocities / speed], dim=-1)
