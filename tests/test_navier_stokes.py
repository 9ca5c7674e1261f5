"""Navier–Stokes: exact solutions, conserved quantities, balance, symmetries, orders, noise, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from problems import normal, order, real

from phibe.experiments.turbulence.data import generate
from phibe.experiments.turbulence.solver import (
    BOTH_PHASES,
    ONE_PHASE,
    Mode,
    NavierStokes,
    downsample,
    strong_errors,
    weak_statistics,
)
from phibe.io import open_data

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


# -- steps -------------------------------------------------------------------------------------------------------------


def test_the_strong_order_is_that_of_the_scheme():
    """One and a half with noise, four without: on one path of the noise, by steps of different lengths."""
    start = field(16)
    for system, low, high in ((replace(SMALL, epsilon=4.0), 1.3, 2.2), (STILL, 3.6, 4.4)):
        errors = strong_errors(system, start, time=0.64, dt=0.02, levels=3, seed=1)
        assert low < order([e.dt for e in errors], [e.value for e in errors]) < high
        assert all(e.value < 0.05 for e in errors)
    with pytest.raises(ValueError, match="whole number of the longest steps, 0.08 with 3 levels; got 0.5"):
        strong_errors(SMALL, start, time=0.5, dt=0.02, levels=3)


def test_a_step_needs_the_integral_of_the_noise_for_its_order():
    """With J = hz/2, its mean given z, the error of a long step is several times larger."""
    system, start = replace(SMALL, epsilon=4.0), SMALL.spectral(field(16)[:, 0])
    h, truth, step = 0.01, start, system.step(0.01)
    noise = step.draw(16, generator=torch.Generator().manual_seed(0)).unflatten(0, (8, 2))
    for part in noise:
        truth = step(truth, system.advection, part)
    while len(noise) > 1:
        noise, h = system.step(h).joined(noise[::2], noise[1::2]), 2 * h
    z = noise[0][..., 0]
    errors = [
        float((system.step(h)(start, system.advection, part) - truth).abs().square().sum().sqrt())
        for part in (noise[0], torch.stack([z, h * z / 2], dim=-1))
    ]
    assert errors[0] < errors[1] / 4


def test_statistics_of_a_larger_step_are_those_of_a_smaller():
    system = replace(SMALL, viscosity=0.05, damping=0.4)
    arguments = {"paths": 16, "times": torch.arange(0, 8, 1.0), "spin_up": 8, "seed": 3}
    fine, coarse = weak_statistics(system, (0.05, 0.2), **arguments)
    (weaker,) = weak_statistics(replace(system, forcing=system.forcing[:1]), (0.2,), **arguments)
    for name in ("energy", "enstrophy", "dissipation"):
        (a, da), (b, db), (c, dc) = (getattr(case, name) for case in (fine, coarse, weaker))
        assert abs(a - b) < 3 * math.hypot(da, db)
        assert abs(a - c) > 3 * math.hypot(da, dc)
    assert abs(fine.dissipation[0] - system.injection) < 3 * fine.dissipation[1]


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    arguments = {"paths": 2, "times": [0, 0.1, 0.35], "spin_up": 0.5}
    first, again, other = (SMALL.simulate(seed=seed, **arguments).states for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    single = replace(SMALL, dtype=torch.float32).simulate(seed=4, **arguments).states
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), first, atol=1e-5, rtol=0)


def test_steps_follow_irregular_times():
    """Where it is observed in between does not matter to the deterministic field, but for the error of the steps."""
    some = STILL.simulate(start=field(16), times=[0, 0.05, 0.4, 1.0], dt=0.05).states[:, -1]
    few = STILL.simulate(start=field(16), times=[0, 1.0], dt=0.05).states[:, -1]
    torch.testing.assert_close(some, few, atol=1e-6, rtol=0)


def test_a_step_stays_on_the_chosen_device():
    """On torch's `meta` device, which is another one than the CPU on every machine: mixing the two raises."""
    system = replace(SMALL, device="meta")
    step, omega = system.step(0.1), system.spectral(field(16)[:, 0])
    noise = step.draw(2, generator=torch.Generator().manual_seed(0))
    assert step(omega, system.advection, noise).device.type == "meta"
    assert (
        system.velocity_field(field(16)).device.type == system.dissipation(field(16).to("meta")).device.type == "meta"
    )
    with pytest.raises(RuntimeError):
        step(SMALL.spectral(field(16)[:, 0]), SMALL.advection, noise)


# -- coarser grids -----------------------------------------------------------------------------------------------------


def test_down_sampling_is_exact_for_a_field_that_the_coarse_grid_resolves():
    fine = field(32)
    torch.testing.assert_close(downsample(fine, 8), fine[..., ::4, ::4], atol=1e-13, rtol=0)
    x, _ = places(32)
    rough = fine + (9 * x).cos()
    torch.testing.assert_close(downsample(rough, 8), fine[..., ::4, ::4], atol=1e-13, rtol=0)
    assert (rough[..., ::4, ::4] - fine[..., ::4, ::4]).abs().max() > 0.5  # taking every fourth point is not exact
    kept = SMALL.simulate(start=field(16), times=[0, 1], size=8, dt=0.1).states
    whole = SMALL.simulate(start=field(16), times=[0, 1], dt=0.1).states
    assert torch.equal(kept, downsample(whole, 8))


# -- many paths --------------------------------------------------------------------------------------------------------

SET = {"paths": 5, "times": [0.0, 0.1, 0.2], "shard": 2, "spin_up": 0.2, "size": 8, "progress": False}


def test_a_stopped_generation_goes_on_and_ends_with_the_same_bits(tmp_path, monkeypatch):
    def stops(self, **options):
        calls.append(options["seed"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return simulate(self, **options)

    calls, simulate = [], NavierStokes.simulate
    whole = open_data(generate(SMALL, tmp_path / "whole.zarr", **SET))
    monkeypatch.setattr(NavierStokes, "simulate", stops)
    with pytest.raises(KeyboardInterrupt):
        generate(SMALL, tmp_path / "cut.zarr", **SET)
    assert not (tmp_path / "cut.zarr").exists()
    cut = open_data(generate(SMALL, tmp_path / "cut.zarr", **SET))
    assert len(calls) == 4 and len(set(calls)) == 3  # two shards were kept, the third was made again
    assert torch.equal(whole.states, cut.states) and torch.equal(whole.times, cut.times)
    assert whole.states.shape == (5, 3, 1, 8, 8) and len(whole.states[:, 0].flatten(1).unique(dim=0)) == 5
    assert not (tmp_path / "cut.parts").exists()


def test_a_store_of_another_run_is_refused(tmp_path):
    store = generate(SMALL, tmp_path / "a.zarr", **SET)
    before = sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*"))
    assert generate(SMALL, store, **SET) == store
    for system, change, message in (
        (SMALL, {"seed": 1}, "seed was 0, now it is 1"),
        (replace(SMALL, damping=0.2), {}, "damping=0.1.*now it is .*damping=0.2"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(system, store, **SET | change)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*"))
    with pytest.raises(ValueError, match="ends in .zarr"):
        generate(SMALL, tmp_path / "a.npz", **SET)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": 15}, "`grid` must be even"),
        ({"viscosity": -1e-3}, "must not be negative"),
        ({"damping": -0.1}, r"got 0.02 and -0.1. The damping here is \+α"),
        ({"dtype": torch.float16}, "torch.float32 or torch.float64; got torch.float16"),
        ({"forcing": (Mode(0, 6),)}, r"got \(0, 6\) on 16 points, which resolve \|k\| < 5.33"),
        ({"forcing": (Mode(0, 0),)}, "between 0 and a third"),
    ],
)
def test_systems_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"times": [0, 1]}, "either `paths`, one or more, or `start`"),
        ({"times": [0, 1], "paths": 1, "start": field(16)}, r"got paths=1, start=\(2, 1, 16, 16\)"),
        ({"times": [0, 1], "paths": 1, "dt": 0.0}, "`dt` > 0"),
        ({"times": [0, 1, 1], "paths": 1}, "two or more increasing times"),
        ({"times": [0, 1], "start": field(32)}, r"must be \(path, 1, 16, 16\); got \(2, 1, 32, 32\)"),
        ({"times": [0, 1], "start": field(16), "size": 32}, "from 2 to the 16 points"),
    ],
)
def test_simulations_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SMALL.simulate(**arguments)


def test_a_step_that_is_too_long_is_named():
    with pytest.raises(ArithmeticError, match="blew up before t = 20 with steps of 2. Take a smaller `dt`, e.g. 1"):
        IDEAL.simulate(start=100 * field(16), times=[0, 20], dt=2.0)
