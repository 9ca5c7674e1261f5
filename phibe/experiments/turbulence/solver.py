"""The stochastic Navier–Stokes equation on the periodic square   [paper: stochastic Navier–Stokes], and its solver.

Lawson's scheme with noise: the linear part and its noise exactly, the rest by the classical Runge–Kutta method. Read
next: `spectra.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.systems.ou import OU, covariance_root
from phibe.trajectories import Trajectories

# -- lawson's scheme with noise --------------------------------------------------------------------------------------


class Forcing(NamedTuple):
    """F dB: r shapes that decay at one rate each, by their values (r, m) at the m coefficients where they are not 0."""

    places: Tensor
    values: Tensor
    rates: Tensor


class LawsonStep:
    """A step h of dω = −λω dt + N(ω)dt + F dB: strong order 1.5, and order 4 without noise.

    The noise of a step is, for each shape, z = ∫e^{−λ(h−s)}dB and J = ∫z ds, drawn jointly and exactly. Without
    N the step is exact, whatever h. In N, z is replaced by the straight line of the same growth and the same integral,
    z̃(s) = J/h + (s/h − ½)z.
    """

    def __init__(self, decay: Tensor, forcing: Forcing, h: float):
        self.h, self.forcing = h, forcing
        transitions = [OU([[-float(rate), 0.0], [1.0, 0.0]], [[1.0], [0.0]]).transition(h) for rate in forcing.rates]
        none = torch.zeros(0, 2, 2, dtype=torch.float64)
        self._propagators = torch.stack([propagator for propagator, _ in transitions]) if transitions else none
        self._roots = (
            torch.stack([covariance_root(covariance) for _, covariance in transitions]) if transitions else none
        )
        real = forcing.values.real.dtype
        self.half, self.whole = ((-decay * part).exp().to(forcing.values.device, real) for part in (h / 2, h))

    def draw(self, paths: int, *, generator: torch.Generator) -> Tensor:
        """(z, J) of every path and shape, (paths, r, 2), in float64."""
        normal = torch.randn(paths, len(self.forcing.rates), 2, dtype=torch.float64, generator=generator)
        return torch.einsum("rij,...rj->...ri", self._roots, normal)

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        """The noise of a longer step, exactly: that of its beginning, and that of the last h; (..., r, 2) each."""
        return torch.einsum("rij,...rj->...ri", self._propagators, first) + second

    def __call__(self, omega: Tensor, rest: Callable[[Tensor], Tensor], noise: Tensor) -> Tensor:
        """ω (paths, ...) a time h later; `rest` is N."""
        h, half, whole = self.h, self.half, self.whole
        z, mean = noise[..., 0], noise[..., 1] / h
        middle = self._coefficients(mean)
        a = rest(self._add(omega.clone(), self._coefficients(mean - z / 2)))
        b = rest(self._add(half * (omega + h / 2 * a), middle))
        c = rest(self._add(half * omega + h / 2 * b, middle))
        d = rest(self._add(whole * omega + (h * half) * c, self._coefficients(mean + z / 2)))
        later = whole * (omega + h / 6 * a) + (h / 3 * half) * (b + c) + h / 6 * d
        return self._add(later, self._coefficients(z))

    def _coefficients(self, amplitudes: Tensor) -> Tensor:
        """Σ amplitude · shape at the forced coefficients: (paths, r) → (paths, m)."""
        values = self.forcing.values
        return amplitudes.to(values.device, values.dtype) @ values

    def _add(self, omega: Tensor, coefficients: Tensor) -> Tensor:
        omega.view(len(omega), -1)[:, self.forcing.places] += coefficients
        return omega


# -- stochastic navier–stokes on the periodic square -----------------------------------------------------------------


class Mode(NamedTuple):
    """A wave that is forced: `cos`·cos(k·x)dB + `sin`·sin(k·x)dB', k = (kx, ky) in whole waves over the square."""

    kx: int
    ky: int
    cos: float = 1.0
    sin: float = 1.0


BOTH_PHASES = (Mode(6, 0), Mode(7, 0), Mode(5, 5), Mode(8, 8))
"""Sine and cosine of each wave: the distribution of ω is the same at every place."""
ONE_PHASE = (Mode(6, 0, cos=0), Mode(7, 0, sin=0), Mode(5, 5, cos=0), Mode(8, 8, sin=0))
"""sin 6x, cos 7x, sin 5(x+y), cos 8(x+y): half the forcing."""


@dataclass(frozen=True)
class NavierStokes:
    """dω + v·∇ω dt = νΔω dt − αω dt + ε dη   [paper: stochastic Navier–Stokes], −Δψ = ω, v = (∂yψ, −∂xψ).

    Fields are (..., 1, grid, grid), ω[..., 0, j, i] at x = i·length/grid, y = j·length/grid. Waves from a third of the
    grid on are left out, so that products have no aliases and energy and enstrophy are conserved by the advection.
    Viscosity, damping and forcing have the paper's values; `forcing` says which waves are forced, and how strongly.
    """

    grid: int = 64
    viscosity: float = 1e-3
    damping: float = 0.1
    forcing: tuple[Mode, ...] = BOTH_PHASES
    epsilon: float = 1.0
    length: float = 2 * math.pi
    dtype: torch.dtype = torch.float32
    device: str | torch.device = "cpu"

    def __post_init__(self) -> None:
        if self.grid < 4 or self.grid % 2 or self.length <= 0:
            raise ValueError(f"`grid` must be even, 4 or more, on a `length` > 0; got {self.grid} on {self.length:g}.")
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"`dtype` must be torch.float32 or torch.float64; got {self.dtype}.")
        if min(self.viscosity, self.damping) < 0:
            raise ValueError(
                f"`viscosity` and `damping` must not be negative, or the field blows up; got {self.viscosity:g} and "
                f"{self.damping:g}. The damping here is +α in −αω."
            )
        for mode in self.forcing:
            if not 0 < max(abs(mode.kx), abs(mode.ky)) < self.grid / 3:
                raise ValueError(
                    f"A forced wave must lie between 0 and a third of the grid; got ({mode.kx}, {mode.ky}) on "
                    f"{self.grid} points, which resolve |k| < {self.grid / 3:.3g}. Take a finer grid?"
                )

    # -- operators -------------------------------------------------------------------------------------------------

    @cached_property
    def waves(self) -> tuple[Tensor, Tensor]:
        """kx (1, grid/2 + 1) and ky (grid, 1) of the coefficients of `rfft2`, in float64."""
        unit = 2 * math.pi / self.length
        kx, ky = torch.fft.rfftfreq(self.grid, 1 / self.grid), torch.fft.fftfreq(self.grid, 1 / self.grid)
        return unit * kx.double()[None, :], unit * ky.double()[:, None]

    @cached_property
    def kept(self) -> Tensor:
        """Which coefficients are not aliased by a product: |kx|, |ky| < grid/3; on the CPU."""
        kx, ky = self.waves
        most = 2 * math.pi / self.length * self.grid / 3 * (1 - 1e-9)
        return (kx.abs() < most) & (ky.abs() < most)

    @cached_property
    def decay(self) -> Tensor:
        """ν|k|² + α, the rate of every coefficient; float64, on the CPU."""
        kx, ky = self.waves
        return self.viscosity * (kx**2 + ky**2) + self.damping

    @cached_property
    def _inverse(self) -> Tensor:
        """1/|k|², and 0 for the mean: what makes ψ̂ of ω̂; float64, on the CPU."""
        kx, ky = self.waves
        return torch.where(kx**2 + ky**2 > 0, 1 / (kx**2 + ky**2), 0)

    @cached_property
    def _to_velocity(self) -> Tensor:
        """i(ky, −kx)/|k|², which makes v̂ of ω̂: (2, grid, grid/2 + 1)."""
        kx, ky = self.waves
        return self._complex(1j * torch.stack([ky * self._inverse, -kx * self._inverse]) * self.kept)

    @cached_property
    def _to_advection(self) -> Tensor:
        """kx² − ky² and kx·ky, which make the advection of the transforms of v₁v₂ and v₂² − v₁²."""
        kx, ky = self.waves
        return (torch.stack([kx**2 - ky**2, kx * ky]) * self.kept).to(self.device, self.dtype)

    def _complex(self, values: Tensor) -> Tensor:
        return values.to(self.device, torch.complex64 if self.dtype == torch.float32 else torch.complex128)

    def spectral(self, omega: Tensor) -> Tensor:
        """ω̂ without the waves that are left out: (..., grid, grid) → (..., grid, grid/2 + 1)."""
        return torch.fft.rfft2(omega.to(self.device, self.dtype)) * self.kept.to(self.device)

    def physical(self, coefficients: Tensor) -> Tensor:
        return torch.fft.irfft2(coefficients, s=(self.grid, self.grid))

    def advection(self, coefficients: Tensor) -> Tensor:
        """−v·∇ω in Fourier space, four transforms: (kx² − ky²)(v₁v₂)^ + kx ky (v₂² − v₁²)^   [Basdevant 1983]."""
        u, v = self.physical(coefficients.unsqueeze(-3) * self._to_velocity).unbind(-3)
        products = torch.fft.rfft2(torch.stack([u * v, (v - u) * (v + u)], dim=-3))
        return (products * self._to_advection).sum(-3)

    def velocity_field(self, omega: Tensor) -> Tensor:
        """v = (∂yψ, −∂xψ): (..., 1, grid, grid) → (..., 2, grid, grid)."""
        return self.physical(self.spectral(omega) * self._to_velocity)

    def stream_function(self, omega: Tensor) -> Tensor:
        """ψ with −Δψ = ω and mean zero; the shape of ω."""
        return self.physical(self.spectral(omega) * self._inverse.to(self.device, self.dtype))

    # -- balances --------------------------------------------------------------------------------------------------

    def energy(self, omega: Tensor) -> Tensor:
        """½⟨|v|²⟩, the mean over the square: (..., 1, grid, grid) → (...)."""
        return 0.5 * self.velocity_field(omega).square().sum(-3).mean((-2, -1))

    def enstrophy(self, omega: Tensor) -> Tensor:
        """½⟨ω²⟩: (..., 1, grid, grid) → (...)."""
        return 0.5 * omega.square().mean((-3, -2, -1))

    def dissipation(self, omega: Tensor) -> Tensor:
        """ν⟨|∇ω|²⟩ + α⟨ω²⟩, what viscosity and damping take from the enstrophy in a unit of time."""
        damped = self.physical(self.spectral(omega) * self.decay.to(self.device, self.dtype))
        return (omega * damped).mean((-3, -2, -1))

    @property
    def injection(self) -> float:
        """ε²/4 Σ(cos² + sin²), what the forcing gives to E[enstrophy] in a unit of time, by Itô's formula."""
        return self.epsilon**2 / 4 * sum(mode.cos**2 + mode.sin**2 for mode in self.forcing)

    # -- simulation ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def simulate(
        self,
        *,
        times: Any,
        paths: int | None = None,
        start: Tensor | None = None,
        generator: torch.Generator | None = None,
        seed: int = 0,
        dt: float | None = None,
        spin_up: float = 50.0,
        size: int | None = None,
        progress: bool = False,
    ) -> Trajectories:
        """Vorticity (path, time, 1, grid, grid) at `times`, in equal steps of at most `dt` (default: `largest_step`).

        Starts at `start` (path, 1, grid, grid), or at ω = 0 a time `spin_up` before the first observation: the paper
        discards 50. With `size` the fields are saved on a coarser grid, by `downsample`. The noise is drawn on the CPU
        in float64, the same for every device and dtype.
        """
        dt, size = self.largest_step if dt is None else dt, size or self.grid
        generator = generator or torch.Generator().manual_seed(seed)
        times = torch.as_tensor(times, dtype=torch.float64)
        gaps = [spin_up if start is None else 0.0, *times.diff().tolist()]
        self._check(paths, start, gaps, dt)
        rest = torch.zeros(paths or 0, *self.decay.shape)
        omega = self._complex(rest) if start is None else self.spectral(start[:, 0])
        states = torch.empty(len(omega), len(gaps), 1, size, size, dtype=self.dtype)
        step = self.step(dt)
        with tqdm(total=round(sum(gaps), 6), disable=not progress, unit="t", desc="Navier–Stokes") as bar:
            for index, gap in enumerate(gaps):
                count = math.ceil(gap / dt - 1e-9)
                if count and not math.isclose(step.h * count, gap, rel_tol=1e-12):
                    step = self.step(gap / count)
                for _ in range(count):
                    omega = step(omega, self.advection, step.draw(len(omega), generator=generator))
                states[:, index, 0] = downsample(self.physical(omega), size).cpu()
                if not bool(states[:, index].sum().isfinite()):
                    raise ArithmeticError(
                        f"The vorticity blew up before t = {float(times[index]):g} with steps of {dt:g}. "
                        f"Take a smaller `dt`, e.g. {dt / 2:g}."
                    )
                bar.update(gap)
        return Trajectories(states, times)

    def _check(self, paths: int | None, start: Tensor | None, gaps: list[float], dt: float) -> None:
        if (paths is None) == (start is None) or paths == 0 or not dt > 0:
            raise ValueError(
                f"Give either `paths`, one or more, or `start`, and `dt` > 0; got paths={paths}, "
                f"start={None if start is None else tuple(start.shape)}, dt={dt:g}."
            )
        if len(gaps) < 2 or not all(gap > 0 for gap in gaps[1:]):
            raise ValueError("`times` must be two or more increasing times, e.g. `torch.arange(51) * 0.1`.")
        if start is not None and start.shape[1:] != (1, self.grid, self.grid):
            raise ValueError(
                f"`start` must be (path, 1, {self.grid}, {self.grid}); got {tuple(start.shape)}. "
                "A field of another size? Set `grid` to it, or `downsample` first."
            )

    def step(self, h: float) -> LawsonStep:
        """The scheme for a step h on ω̂: `step(omega, system.advection, step.draw(paths, generator=generator))`."""
        return LawsonStep(self.decay, self._forced, h)

    @property
    def largest_step(self) -> float:
        """2.56/grid, but at most 0.04: a third of where the scheme gets unstable in the paper's stationary state."""
        return min(0.04, 2.56 / self.grid)

    @cached_property
    def _forced(self) -> Forcing:
        """ε cos(k·x) and ε sin(k·x) of the forced waves, by their coefficients."""
        values = torch.zeros(len(self.forcing), 2, *self.decay.shape, dtype=torch.complex128)
        size = self.epsilon * self.grid**2 / 2
        for both, mode in zip(values, self.forcing, strict=True):
            for sign in (1, -1):
                if sign * mode.kx >= 0:  # `rfft2` keeps one half of the waves
                    place = sign * mode.ky, sign * mode.kx
                    both[0][place], both[1][place] = size * mode.cos, -1j * sign * size * mode.sin
        flat = values.flatten(0, 1).flatten(1)
        index = flat.abs().sum(0).nonzero()[:, 0]
        rates = [float(self.decay[mode.ky, abs(mode.kx)]) for mode in self.forcing for _ in range(2)]
        return Forcing(index.to(self.device), self._complex(flat[:, index]), torch.tensor(rates, dtype=torch.float64))


def downsample(fields: Tensor, size: int) -> Tensor:
    """The waves |k| < size/2 of a field on a coarser grid, exactly: (..., n, n) → (..., size, size)."""
    n = fields.shape[-1]
    if size == n and fields.shape[-2] == n:
        return fields
    if fields.shape[-2] != n or not 2 <= size <= n or size % 2:
        raise ValueError(
            f"`size` must be even, from 2 to the {n} points of a square field; got {size} for {tuple(fields.shape)}."
        )
    half = size // 2
    coefficients = torch.fft.rfft2(fields)
    rows = torch.cat([coefficients[..., :half, :half], coefficients[..., n - half :, :half]], dim=-2)
    rows[..., half, :] = 0  # the wave of size/2 has no phase on the coarse grid
    return torch.fft.irfft2(rows, s=(size, size)) * (size / n) ** 2


# -- what the time step does to the solver ---------------------------------------------------------------------------


class StrongError(NamedTuple):
    """Root mean square over paths of ‖ω_h − ω‖/‖ω‖ at the end, and its standard error."""

    dt: float
    value: float
    error: float


def strong_errors(
    system: NavierStokes, start: Tensor, *, time: float, dt: float, levels: int = 4, seed: int = 0
) -> list[StrongError]:
    """Errors at `time` of steps dt, 2dt, 4dt, … on one path of the noise, against steps of dt/4   [strong order 1.5].

    `start` is (path, 1, grid, grid). The noise of a long step is exactly that of the short ones it consists of.
    """
    count = round(4 * time / dt)
    if count % 2 ** (levels + 1) or abs(count * dt / 4 - time) > 1e-9 * time:
        raise ValueError(
            f"`time` must be a whole number of the longest steps, {2 ** (levels - 1) * dt:g} with {levels} levels; "
            f"got {time:g}."
        )
    generator, h = torch.Generator().manual_seed(seed), dt / 4
    noise = system.step(h).draw(count * len(start), generator=generator).unflatten(0, (count, -1))
    ends: list[tuple[float, Tensor]] = []
    while len(ends) < levels + 2:
        step, omega = system.step(h), system.spectral(start[:, 0])
        for part in noise:
            omega = step(omega, system.advection, part)
        ends.append((h, system.physical(omega)))
        noise, h = step.joined(noise[:-1:2], noise[1::2]), 2 * h
    truth = ends[0][1]
    return [_error(h, end, truth) for h, end in ends[2:]]


def _error(h: float, end: Tensor, truth: Tensor) -> StrongError:
    squares = (end - truth).square().mean((-2, -1)).double() / truth.square().mean((-2, -1)).double()
    value = float(squares.mean().sqrt())
    spread = float(squares.std()) / len(squares) ** 0.5 if len(squares) > 1 else float("nan")
    return StrongError(h, value, spread / (2 * value) if value else 0.0)


class Statistics(NamedTuple):
    """Means over paths and times, each with its standard error over paths, and the `data` for more, as spectra."""

    dt: float
    energy: tuple[float, float]
    enstrophy: tuple[float, float]
    dissipation: tuple[float, float]
    data: Trajectories


def weak_statistics(
    system: NavierStokes, dts: Sequence[float], *, paths: int, times: Any, spin_up: float = 50.0, seed: int = 0
) -> list[Statistics]:
    """What the stationary state looks like at each of the steps; the dissipation must equal `system.injection`."""
    found = []
    for dt in dts:
        data = system.simulate(paths=paths, times=times, spin_up=spin_up, seed=seed, dt=dt)
        energy, enstrophy, dissipation = (
            _mean(measure(data.states)) for measure in (system.energy, system.enstrophy, system.dissipation)
        )
        found.append(Statistics(dt, energy, enstrophy, dissipation, data))
    return found


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean of values (path, time), with the standard error over paths."""
    by_path = values.double().mean(1)
    return float(by_path.mean()), float(by_path.std()) / len(by_path) ** 0.5
