"""SDE: any Itô diffusion given by its drift and noise, simulated with a stated order, with its stationary answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from phibe.systems.laws import Distribution
from phibe.trajectories import Trajectories


@dataclass(frozen=True, eq=False)
class SDE:
    """dX = b(X)dt + σ(X)dB, Itô, X₀ ~ `start`   [paper: Itô SDE]; points are x (n, d), everything in float64.

    `b` maps (n, d) → (n, d). `sigma` is a matrix (d, r), or a function (n, d) → (n, d, r) when the noise depends on the
    state; it may be degenerate. `stationary` is the law at which the process rests, where it is known. `substep` is the
    default time step of the simulation.
    """

    b: Callable[[Tensor], Tensor]
    sigma: Tensor | Callable[[Tensor], Tensor]
    start: Distribution
    stationary: Distribution | None = None
    substep: float = 0.005

    def at_rest(self) -> SDE:
        """The same process, started from its stationary law."""
        return replace(self, start=self._resting(math.inf))

    def drift(self, x: Tensor, t: Any = 0.0) -> Tensor:
        return self.b(x)

    def noise(self, x: Tensor) -> Tensor:
        """σ(x): (n, d) → (n, d, r)."""
        return self.sigma.expand(len(x), -1, -1) if isinstance(self.sigma, Tensor) else self.sigma(x)

    def diffusion(self, x: Tensor) -> Tensor:
        """Σ(x) = σσᵀ: (n, d) → (n, d, d)."""
        sigma = self.noise(x)
        return sigma @ sigma.mT

    def simulate(
        self,
        *,
        paths: int,
        times: Any,
        generator: torch.Generator | None = None,
        seed: int = 0,
        substep: float | None = None,
    ) -> Trajectories:
        """Paths at `times` (time,) or (path, time), started at t = 0, by equal steps of `heun_milstein` in each gap.

        A step is at most `substep` long. Weak order 2 and strong order 1 for constant noise, otherwise as stated there.
        """
        generator = generator or torch.Generator().manual_seed(seed)
        times = torch.as_tensor(times, dtype=torch.float64)
        substep = self.substep if substep is None else substep
        gaps = times.diff(dim=-1, prepend=torch.zeros_like(times[..., :1]))
        if not substep > 0 or not bool((gaps >= 0).all()):
            raise ValueError(
                f"`times` must increase from t = 0 on, where the process starts, and `substep` must be positive; got a "
                f"smallest gap of {float(gaps.min()):g} (the first one from t = 0) and substeps of {substep:g}."
            )
        x = self.start.sample(paths, generator=generator)
        states = []
        for gap in gaps.unbind(-1):
            count = math.ceil(float(gap.max()) / substep - 1e-9)
            x = self._march(x, (gap / max(count, 1))[..., None], count, generator)
            states.append(x)
        return Trajectories(_bounded(torch.stack(states, dim=1), substep), times)

    def _march(self, x: Tensor, h: Tensor, count: int, generator: torch.Generator) -> Tensor:
        r = self.noise(x[:1]).shape[-1]
        for _ in range(count):
            x = heun_milstein(self, x, h, torch.randn(len(x), r, dtype=x.dtype, generator=generator) * h.sqrt())
        return x

    # -- answers ---------------------------------------------------------------------------------------------------

    def current(self, x: Tensor, score: Tensor) -> Tensor:
        """v = b − ½Σ∇log ρ − ½∇·Σ for the density with that score   [paper: probability velocity]; (n, d)."""
        v = self.drift(x) - 0.5 * torch.einsum("nij,nj->ni", self.diffusion(x), score)
        return v if isinstance(self.sigma, Tensor) else v - 0.5 * matrix_divergence(self.diffusion, x)

    def log_density(self, x: Tensor, t: Any = math.inf) -> Tensor:
        """log ρ_t where the law rests: at every t if the process starts there, else in the limit t = ∞ alone; (n,)."""
        return self._resting(t).log_density(x)

    def score(self, x: Tensor, t: Any = math.inf) -> Tensor:
        """∇log ρ_t where the law rests; (n, d)."""
        law = self._resting(t)
        return vmap(grad(lambda point: law.log_density(point[None])[0]))(x)

    def velocity(self, x: Tensor, t: Any = math.inf) -> Tensor:
        """Probability velocity where the law rests; (n, d). For a law that moves: `solve_fokker_planck`."""
        return self.current(x, self.score(x, t))

    def _resting(self, t: Any) -> Distribution:
        if self.stationary is None:
            raise ValueError("The stationary law of this system is not known. Use `solve_fokker_planck` on a grid?")
        if self.start is not self.stationary and bool((torch.as_tensor(t) < math.inf).any()):
            raise ValueError(
                "The law of this process is still moving at a finite t, and only its limit is known in closed form. "
                "Pass t = math.inf for the limit, take `.at_rest()`, or use `solve_fokker_planck`."
            )
        return self.stationary


def heun_milstein(system: SDE, x: Tensor, h: Tensor, dw: Tensor) -> Tensor:
    """One Itô step: Heun's rule for the drift, Milstein's for the noise; x (n, d), h () or (n, 1), dw ~ N(0, h) (n, r).

    x + h/2 [b(x) + b(x + hb + σΔW)] + σΔW + ½ Σⱼₖ (∇σₖ)σⱼ (ΔWⱼΔWₖ − δⱼₖh).
    The derivatives of σ are differences along the steps, which changes neither order.
    Constant noise: strong order 1, weak order 2. Noise that depends on the state: weak order 1; strong order 1 when it
    commutes (one source, or each coordinate its own), else ½, since the Lévy areas are left out.
    """
    sigma, here = system.noise(x), system.drift(x)
    kick = torch.einsum("nir,nr->ni", sigma, dw)
    moved = x + h / 2 * (here + system.drift(x + h * here + kick)) + kick
    if isinstance(system.sigma, Tensor):
        return moved
    root = h.sqrt()
    product = torch.einsum("nir,nr->ni", system.noise(x + kick) - sigma, dw)
    ito = sum(
        (system.noise(x + root * column) - system.noise(x - root * column))[..., k]
        for k, column in enumerate(sigma.unbind(-1))
    )
    return moved + 0.5 * product - 0.25 * root * ito


def matrix_divergence(matrix: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(∇·M)_i = Σ_j ∂_j M_ij at each point, for M: (n, d) → (n, d, d); (n, d)."""
    return torch.einsum("nijj->ni", vmap(jacrev(lambda point: matrix(point[None])[0]))(x))


def _bounded(states: Tensor, substep: float) -> Tensor:
    if not torch.isfinite(states).all():
        raise ValueError(
            f"The simulation ran away with substeps of {substep:g}. Is the drift confining? Then take a smaller "
            "`substep`: an explicit step must be short beside 1/|∇b| wherever a path may go."
        )
    return states
