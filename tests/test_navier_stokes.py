"""Navier–Stokes: exact solutions, conserved quantities, balance, symmetries, orders, noise, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from problems import normal, real

from phibe.systems import NavierStokes
from phibe.systems.navier_stokes import BOTH_PHASES, ONE_PHASE, Mode, downsample

SMALL = NavierStokes(16, viscosity=0.02, forcing=(Mode(2, 0), Mode(0, 2), Mode(1, 3)), dtype=torch.float64)
STILL = replace(SMALL, forcing=())
IDEAL = replace(STILL, viscosity=0.0, damping=0.0)


def field(grid: int, *, seed: int = 0, waves: int = 4) -> torch.Tensor:
    """Random vorticity (2, 1, grid, grid) of mean zero, of the waves |k| < `waves`."""
    white = downsample(normal(2, 1, 2 * waves, 2 * waves, seed=seed), 2 * waves)
    coefficients = torch.fft.rfft2(white)
    coefficients[..., 0, 0] = coefficients[..., waves, :] = coefficients[..., waves] = 0
    rows = torch.zeros(2, 1, grid, grid // 2 + 1, dtype=torch.complex128)
    rows[..., :waves, :waves] = coefficients[..., :waves, :waves]
    rows[..., -waves:, :waves] = coefficients[..., -waves:, :waves]
    return torch.fft.irfft2(rows, s=(grid, grid)) * (grid / (2 * waves)) ** 2


def places(grid: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y of every point, ω[j, i] at (x_i, y_j)."""
    ticks = torch.arange(grid, dtype=torch.float64) * (2 * math.pi / grid)
    return ticks[None, :].expand(grid, grid), ticks[:, None].expand(grid, grid)


# -- the equation ------------------------------------------------------------------------------------------------------


def test_taylor_green_vortices_decay_exactly():
    """ω = 2 sin x sin y is carried nowhere by its own velocity: it only decays, as e^{−(2ν + α)t}."""
    x, y = places(16)
    start = (2 * x.sin() * y.sin())[None, None]
    times = real([0, 0.7, 3.0])
    states = STILL.simulate(start=start, times=times, dt=0.5).states
    rate = 2 * STILL.viscosity + STILL.damping
    torch.testing.assert_close(states[0, :, 0], (-rate * times).exp()[:, None, None] * start[0, 0], atol=1e-13, rtol=0)
    moving = STILL.simulate(start=field(16)[:1], times=times, dt=0.05).states[0, -1]
    assert (moving - math.exp(-3 * rate) * field(16)[0]).abs().max() > 0.1  # another field is carried


def test_velocity_and_stream_function_are_those_of_a_known_vortex():
    x, y = places(16)
    omega = (2 * x.sin() * y.sin() + 9 * (3 * x).cos())[None]
    psi = x.sin() * y.sin() + (3 * x).cos()
    v = torch.stack([x.sin() * y.cos(), -(x.cos() * y.sin() - 3 * (3 * x).sin())])
    torch.testing.assert_close(SMALL.stream_function(omega)[0], psi, atol=1e-13, rtol=0)
    torch.testing.assert_close(SMALL.velocity_field(omega), v, atol=1e-13, rtol=0)


def test_the_advection_is_minus_v_grad_omega():
    """Four transforms or five, the same field: against derivatives in space and a product on a finer grid."""
    system, omega = replace(SMALL, grid=32), field(32)
    kx, ky = system.waves
    slope = [system.physical(1j * k * system.spectral(omega)) for k in (kx, ky)]
    plain = -(system.velocity_field(omega) * torch.cat(slope, dim=1)).sum(1)
    torch.testing.assert_close(
        system.physical(system.advection(system.spectral(omega[:, 0]))), plain, atol=1e-12, rtol=0
    )


def test_energy_and_enstrophy_are_kept_without_forcing_and_viscosity():
    """By the equation exactly, with every wave at work; by its steps to fourth order."""
    omega = IDEAL.physical(IDEAL.spectral(normal(3, 1, 16, 16)))
    omega = omega - omega.mean((-2, -1), keepdim=True)
    rate = IDEAL.physical(IDEAL.advection(IDEAL.spectral(omega)))
    change = [(part * rate).mean((-3, -2, -1)).abs().max() for part in (omega, IDEAL.stream_function(omega))]
    assert max(change) < 1e-14 and rate.square().mean() > 1e-3
    loss = []
    for dt in (0.1, 0.05):
        end = IDEAL.simulate(start=omega, times=[0, 2], dt=dt).states
        loss.append([float((f(end[:, 1]) / f(end[:, 0]) - 1).abs().max()) for f in (IDEAL.energy, IDEAL.enstrophy)])
    assert max(loss[1]) < 1e-3
    assert min(a / b for a, b in zip(*loss, strict=True)) > 10
    viscous = STILL.simulate(start=omega, times=[0, 2], dt=0.05).states
    assert (STILL.enstrophy(viscous[:, 1]) < 0.9 * STILL.enstrophy(viscous[:, 0])).all()


@pytest.mark.parametrize("turn", [lambda w: w.rot90(1, (-2, -1)), lambda w: w.flip(-1).neg(), lambda w: w.roll(3, -2)])
def test_turns_reflections_and_shifts_commute_with_the_equation(turn):
    """A quarter turn, a reflection (which turns vortices the other way round) and a shift of the square."""
    omega = field(16)
    there = turn(STILL.simulate(start=omega, times=[0, 1], dt=0.1).states[:, 1])
    back = STILL.simulate(start=turn(omega), times=[0, 1], dt=0.1).states[:, 1]
    torch.testing.assert_close(there, back, atol=1e-12, rtol=0)
    wrong = STILL.simulate(start=turn(omega).neg(), times=[0, 1], dt=0.1).states[:, 1].neg()
    assert (there - wrong).abs().max() > 1e-2  # a change of sign alone is no symmetry


# -- noise -------------------------------------------------------------------------------------------------------------


def test_a_forced_wave_alone_is_an_exact_ornstein_uhlenbeck_process():
    """One wave carries nothing; after a step of any length its two amplitudes have variance ε²(1 − e^{−2λh})/2λ."""
    system = replace(SMALL, grid=8, forcing=(Mode(-1, 2, cos=1.0, sin=0.5),), epsilon=2.0)
    states = system.simulate(paths=4000, times=[0, 3], dt=3.0, spin_up=0, seed=1).states[:, 1, 0]
    x, y = places(8)
    parts = [(states * f(2 * y - x)).mean((-2, -1)) * 2 for f in (torch.cos, torch.sin)]
    rate = 5 * system.viscosity + system.damping
    variance = 4 * (1 - math.exp(-2 * rate * 3)) / (2 * rate)
    for part, share in zip(parts, (1.0, 0.25), strict=True):
        assert abs(part.var() / (variance * share) - 1) < 4 * math.sqrt(2 / 4000)
    rebuilt = parts[0][:, None, None] * (2 * y - x).cos() + parts[1][:, None, None] * (2 * y - x).sin()
    torch.testing.assert_close(states, rebuilt, atol=1e-12, rtol=0)


def test_in_the_stationary_state_what_is_put_in_is_taken_out():
    """Injection = ν⟨|∇ω|²⟩ + α⟨ω²⟩, within its standard error over independent paths."""
    system = replace(SMALL, viscosity=0.05, damping=0.4)
    states = system.simulate(paths=32, times=torch.arange(0, 20, 0.5), dt=0.1, spin_up=10, seed=2).states
    lost = system.dissipation(states).mean(1)
    error = lost.std() / math.sqrt(len(lost))
    assert error < 0.05 * system.injection
    assert abs(lost.mean() - system.injection) < 3 * error
    assert abs(replace(system, damping=0.5).dissipation(states).mean() - system.injection) > 3 * error


def test_the_default_forcing_is_both_phases_of_four_waves():
    assert NavierStokes().injection == 2 == 2 * NavierStokes(forcing=ONE_PHASE).injection
    assert [mode[:2] for mode in BOTH_PHASES] == [mode[:2] for mode in ONE_PHASE]


def ends(system: NavierStokes, start: torch.Tensor, levels: int, *, finest: float, steps: int) -> list[torch.Tensor]:
    """ω̂ at one time on one path of the noise, by steps of finest, 2·finest, 4·finest, …"""
    generator, h = torch.Generator().manual_seed(5), finest
    noise = [system.step(h).draw(len(start), generator=generator) for _ in range(steps)]
    found = []
    for _ in range(levels):
        step, omega = system.step(h), system.spectral(start[:, 0])
        for part in noise:
            omega = step(omega, system.advection, part)
        found.append(omega)
        noise = [step.joined(*pair) for pair in zip(noise[::2], noise[1::2], strict=True)]
        h *= 2
    return found
