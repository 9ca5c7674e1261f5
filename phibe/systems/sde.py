"""Stochastic differential equations with known answers: simulation, velocities, and the example systems.

An `SDE` knows its drift, its noise and, where there is a closed form, its stationary distribution, and with it the
probability velocity   [paper: Itô SDE, probability velocity]. Read next: `fokker_planck.py`, for marginals without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from phibe.systems.ou import Gaussian
from phibe.trajectories import Trajectories

# -- distributions with a log-density and samples ------------------------------------------------------------------


Potential = Callable[[Tensor], Tensor]
"""U of one coordinate, elementwise: (n,) → (n,)."""


class Distribution(Protocol):
    """Where a process starts, or what it converges to: `Gaussian`, `ExplicitDistribution`."""

    def log_density(self, x: Tensor) -> Tensor: ...
    def sample(self, n: int, *, generator: torch.Generator) -> Tensor: ...


class ExplicitDistribution(NamedTuple):
    """A distribution given by log ρ, (n, d) → (n,), and by what draws n states (n, d) with a generator."""

    log_density: Callable[[Tensor], Tensor]
    sample: Callable[..., Tensor]


def boltzmann(*potentials: Potential) -> ExplicitDistribution:
    """The distribution ρ(x) = Π e^{−Uᵢ(xᵢ)}/Zᵢ of independent coordinates, one potential each, on [−8, 8].

    Zᵢ is a trapezoidal sum (spectrally accurate for a smooth density that vanishes at the ends); samples are drawn by
    the inverse of the distribution function, linear between the nodes.
    """
    grid = torch.linspace(-8.0, 8.0, 40_001, dtype=torch.float64)
    weights = torch.stack([(-U(grid)).exp() for U in potentials])
    masses = torch.trapezoid(weights, grid)
    cumulative = torch.cumulative_trapezoid(weights / masses[:, None], grid)
    cumulative = torch.cat([torch.zeros_like(cumulative[:, :1]), cumulative], dim=1)

    def log_density(x: Tensor) -> Tensor:
        return -sum(U(x[..., i]) for i, U in enumerate(potentials)) - masses.log().sum()

    def sample(n: int, *, generator: torch.Generator) -> Tensor:
        level = torch.rand(len(potentials), n, dtype=torch.float64, generator=generator)
        right = torch.searchsorted(cumulative, level).clamp(1, len(grid) - 1)
        low, high = cumulative.gather(1, right - 1), cumulative.gather(1, right)
        return torch.lerp(grid[right - 1], grid[right], (level - low) / (high - low)).mT.contiguous()

    return ExplicitDistribution(log_density, sample)


class Diffusion(Protocol):
    """dX = b(X)dt + σ(X)dB, by b and Σ = σσᵀ: `SDE`, `OU`, or a system of one's own."""

    def drift(self, x: Tensor, t: Any = 0.0) -> Tensor: ...
    def diffusion(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class SDE:
    """dX = b(X)dt + σ(X)dB, Itô, X₀ ~ `start`   [paper: Itô SDE]; points are x (n, d), everything in float64.

    `b` maps (n, d) → (n, d). `sigma` is a matrix (d, r), or a function (n, d) → (n, d, r) when the noise depends on the
    state; it may be degenerate. `stationary` is the stationary distribution, where it is known. `substep` is the
    default time step of the simulation.
    """

    b: Callable[[Tensor], Tensor]
    sigma: Tensor | Callable[[Tensor], Tensor]
    start: Distribution
    stationary: Distribution | None = None
    substep: float = 0.005

    def from_stationary(self) -> SDE:
        """The same process, started from its stationary distribution."""
        return replace(self, start=self._known(math.inf))

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
            got = f"a smallest gap of {float(gaps.min()):g} and substeps of {substep:g}"
            raise ValueError(f"`times` must increase from t = 0 on, and `substep` must be positive; got {got}.")
        x = self.start.sample(paths, generator=generator)
        sources, states = self.noise(x[:1]).shape[-1], []
        for gap in gaps.unbind(-1):
            count = math.ceil(float(gap.max()) / substep - 1e-9)
            h = (gap / max(count, 1))[..., None]
            for _ in range(count):
                normal = torch.randn(paths, sources, dtype=x.dtype, generator=generator)
                x = heun_milstein(self, x, h, normal * h.sqrt())
            states.append(x)
        found = torch.stack(states, dim=1)
        if not torch.isfinite(found).all():
            fix = "Is the drift confining? Then take a smaller `substep`, short beside 1/|∇b| wherever a path may go."
            raise ValueError(f"The simulation diverged with substeps of {substep:g}. {fix}")
        return Trajectories(found, times)

    # -- exact answers -------------------------------------------------------------------------------------------------

    def current(self, x: Tensor, score: Tensor) -> Tensor:
        """v = b − ½Σ∇log ρ − ½∇·Σ for the density with that score   [paper: probability velocity]; (n, d)."""
        v = self.drift(x) - 0.5 * torch.einsum("nij,nj->ni", self.diffusion(x), score)
        return v if isinstance(self.sigma, Tensor) else v - 0.5 * matrix_divergence(self.diffusion, x)

    def log_density(self, x: Tensor, t: Any = math.inf) -> Tensor:
        """Stationary log ρ, (n,): at every t if the process starts from it, else in the limit t = ∞ alone."""
        return self._known(t).log_density(x)

    def score(self, x: Tensor, t: Any = math.inf) -> Tensor:
        """∇log ρ of the stationary distribution; (n, d)."""
        stationary = self._known(t)
        return vmap(grad(lambda point: stationary.log_density(point[None])[0]))(x)

    def velocity(self, x: Tensor, t: Any = math.inf) -> Tensor:
        """Stationary probability velocity; (n, d). For marginals that change: `solve_fokker_planck`."""
        return self.current(x, self.score(x, t))

    def _known(self, t: Any) -> Distribution:
        if self.stationary is None:
            raise ValueError("The stationary distribution of this system is not known. Use `solve_fokker_planck`?")
        if self.start is not self.stationary and bool((torch.as_tensor(t) < math.inf).any()):
            ways = "Pass t = math.inf for their limit, take `.from_stationary()`, or use `solve_fokker_planck`."
            raise ValueError(f"The marginals of this process change with t, in no closed form. {ways}")
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


# -- the example systems ---------------------------------------------------------------------------------------------


def quartic(x: Tensor) -> Tensor:
    """U(x) = (x² − 1)²: two wells at ±1 and a barrier of height 1 between them."""
    return (x * x - 1) ** 2


def quartic_slope(x: Tensor) -> Tensor:
    """U′(x) = 4x(x² − 1)."""
    return 4 * x * (x * x - 1)


def double_well(*, start: Distribution | None = None) -> SDE:
    """dX = −U′(X)dt + √(2T) dB, U = (x² − 1)², T = ½, from N(−½, 0.3²): the marginal splits, then crosses the barrier.

    Stationary density e^{−U/T}/Z, where v = 0 (detailed balance). The marginals on the way are not known in closed
    form; `solve_fokker_planck` gives them.
    """
    start = start or Gaussian(_real([-0.5]), _real([[0.09]]))
    return SDE(lambda x: -quartic_slope(x), _real([[1.0]]), start, boltzmann(lambda x: 2 * quartic(x)))


def rotating_well() -> SDE:
    """dX = (−∇U + J∇U)dt + √2 dB, U = (x² − 1)² + y²/2, J = [[0, −1], [1, 0]], T = 1: not in detailed balance.

    J∇U is free of divergence and runs along the level lines of U, so the density e^{−U}/Z is stationary, with v = J∇U.
    Starts from it.
    """

    def drift(x: Tensor) -> Tensor:
        gx, gy = quartic_slope(x[..., 0]), x[..., 1]
        return torch.stack([-gx - gy, -gy + gx], dim=-1)

    stationary = boltzmann(quartic, lambda y: y * y / 2)
    return SDE(drift, math.sqrt(2.0) * torch.eye(2, dtype=torch.float64), stationary, stationary)


def multiplicative(*, start: Distribution | None = None) -> SDE:
    """dX = (−X + JX)dt + √(2D) dB with D = a + b|X|², a = ¾, b = ⅛, J = [[0, −1], [1, 0]]: noise grows with the state.

    The stationary density ∝ (a + b|x|²)^{−1−1/(2b)} is a Student distribution with 8 degrees of freedom
    (E|X|² = 2, E|X|⁴ = 12); there v = JX, a rotation. Without ½∇·Σ = 2bX the flow would spiral outwards as e^{t/4}.
    At any time E X turns and decays, d E X/dt = (−1 + J)E X, and d E|X|²/dt = −(2 − 4b)E|X|² + 4a.
    The noise does not commute, so that paths converge with order ½ only; expectations with order 1.
    """
    a, b = 0.75, 0.125
    k = 1 / (2 * b)
    constant = math.log(b * k / (math.pi * a))

    def spread(x: Tensor) -> Tensor:
        return a + b * (x * x).sum(-1)

    def drift(x: Tensor) -> Tensor:
        return torch.stack([-x[..., 0] - x[..., 1], -x[..., 1] + x[..., 0]], dim=-1)

    def sample(n: int, *, generator: torch.Generator) -> Tensor:
        """|X|² from its distribution function 1 − (1 + b s/a)^{−k}, the angle at random."""
        level, turn = torch.rand(2, n, dtype=torch.float64, generator=generator)
        radius = (a / b * torch.expm1(-torch.log1p(-level) / k)).sqrt()
        return radius[:, None] * torch.stack([(2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()], dim=1)

    stationary = ExplicitDistribution(lambda x: constant - (1 + k) * (spread(x) / a).log(), sample)
    eye = torch.eye(2, dtype=torch.float64)
    return SDE(drift, lambda x: (2 * spread(x)).sqrt()[..., None, None] * eye, start or stationary, stationary)


def langevin() -> SDE:
    """dq = p dt, dp = (−U′(q) − p)dt + √2 dB, U = (q² − 1)²: noise in the velocity alone, Σ has rank 1.

    Stationary density e^{−H}/Z with H = U + p²/2, where friction and noise balance and v = (p, −U′(q)) is Hamilton's
    flow. Starts from it.
    """

    def drift(x: Tensor) -> Tensor:
        q, p = x[..., 0], x[..., 1]
        return torch.stack([p, -quartic_slope(q) - p], dim=-1)

    stationary = boltzmann(quartic, lambda p: p * p / 2)
    return SDE(drift, _real([[0.0], [math.sqrt(2.0)]]), stationary, stationary)


def lorenz() -> SDE:
    """dx = 10(y − x)dt, dy = (28x − y − xz)dt, dz = (xy − 8z/3)dt, each with noise 2 dB: stochastic Lorenz.

    From N((0, 0, 25), 2²I), between the two wings, over which the paths then spread. No closed form of its marginals is
    known; within about a time unit the flow forgets the details of where it came from.
    """

    def drift(state: Tensor) -> Tensor:
        x, y, z = state.unbind(-1)
        return torch.stack([10 * (y - x), 28 * x - y - x * z, x * y - 8 / 3 * z], dim=-1)

    eye = torch.eye(3, dtype=torch.float64)
    return SDE(drift, 2 * eye, Gaussian(_real([0.0, 0.0, 25.0]), 4 * eye), substep=0.0025)


def _real(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
