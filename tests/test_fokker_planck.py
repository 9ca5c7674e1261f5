"""The Fokker–Planck solver: its stated orders, mass, positivity, the stationary state, and samples of the SDE."""

import math

import pytest
import torch
from problems import kinetic, normal, order, real

from phibe import OU, Flow
from phibe.metrics import sliced_w2
from phibe.systems.fokker_planck import Lattice, solve_fokker_planck
from phibe.systems.ou import Gaussian
from phibe.systems.sde import SDE, double_well, multiplicative, rotating_well

LINE = OU([[-1.0]], [[1.0]], mu=[1.0], m0=[-1.0], C0=[[0.3]])
TURNING = OU([[-1.0, -1.5], [1.5, -1.0]], [[1.0, 0.0], [0.0, 0.8]], m0=[1.0, 0.5], C0=torch.eye(2) * 0.3)


def points(solution):
    return torch.stack(torch.meshgrid(*solution.axes, indexing="ij"), dim=-1).flatten(0, -2)


def errors(solution, ou):
    """Of the densities, at the largest, and of the velocities, in L²(ρ_t), over the times of the grid."""
    x, t = points(solution), solution.times.tolist()
    exact = [ou.log_density(x, s).exp() for s in t]
    cell = math.prod(float(axis[1] - axis[0]) for axis in solution.axes)
    density = max(float((a.flatten() - b).abs().max()) for a, b in zip(solution.densities, exact, strict=True))
    gaps = [v.flatten(0, -2) - ou.velocity(x, s) for v, s in zip(solution.velocities, t, strict=True)]
    squares = [float((gap.square().sum(1) * rho).sum()) * cell for gap, rho in zip(gaps, exact, strict=True)]
    return density, math.sqrt(max(squares))


def solve(ou, *, cells, step=0.005, half=5.0):
    times = [0.0, 0.4, 1.0]
    return solve_fokker_planck(ou, times, low=-half, high=half, cells=cells, step=step, start=ou.marginal(0.0))


# -- orders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ou", "sizes"), [(LINE, (50, 100, 200)), (TURNING, (30, 60, 120))], ids=["line", "plane"])
def test_densities_and_velocities_converge_with_order_two_in_space(ou, sizes):
    found = [errors(solve(ou, cells=n), ou) for n in sizes]
    for part in zip(*found, strict=True):
        assert 1.8 < order([1 / n for n in sizes], part) < 2.2
    assert found[-1][1] < 0.02
    wrong = OU(ou.A, 1.05 * ou.S, mu=ou.mu, m0=ou.m0, C0=ou.C0)
    assert errors(solve(ou, cells=sizes[-1]), wrong)[1] > 0.04  # five parts in a hundred of noise are seen


def test_densities_converge_with_order_two_in_time():
    finest = solve(LINE, cells=100, step=0.0005).densities
    steps = (0.1, 0.05, 0.025)
    gaps = [float((solve(LINE, cells=100, step=h).densities - finest).abs().max()) for h in steps]
    assert 1.8 < order(steps, gaps) < 2.3


def test_without_noise_in_a_direction_the_order_is_one():
    ou, sizes = kinetic(), (80, 160)
    found = [errors(solve(ou, cells=n, half=4.0), ou)[0] for n in sizes]
    assert 0.6 < order([1 / n for n in sizes], found) < 1.3


# -- mass, sign, stationarity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.005, 0.05])
def test_mass_is_conserved_to_rounding_and_densities_stay_positive(step):
    times = torch.linspace(0, 2, 21, dtype=torch.float64)
    solution = solve_fokker_planck(double_well(), times, low=-3.0, high=3.0, cells=400, step=step)
    assert float((solution.densities.sum(1) * 6 / 400 - 1).abs().max()) < 1e-12
    assert float(solution.densities.min()) >= 0


def test_a_double_well_forgets_its_start():
    system = double_well()
    solution = solve_fokker_planck(system, [0.0, 1.0, 40.0], low=-3.0, high=3.0, cells=800, step=0.05)
    stationary = system.log_density(solution.axes[0][:, None]).exp()
    assert float((solution.densities[-1] - stationary).abs().max()) < 2e-4 * float(stationary.max())
    assert float((solution.densities[1] - stationary).abs().max()) > 0.2 * float(stationary.max())
    inside = stationary > 1e-6
    assert float(solution.velocities[-1][inside].abs().max()) < 0.01 < float(solution.velocities[1][inside].abs().max())


@pytest.mark.parametrize("make", [rotating_well, multiplicative])
def test_the_stationary_grid_velocity_is_the_exact_one(make):
    """The multiplicative noise has ∇·Σ ≠ 0: the flux must know it, or the density would not be stationary."""
    system = make()
    half = (2.6, 5.5) if make is rotating_well else (12.0, 12.0)
    sizes, gaps = (60, 120), []
    for n in sizes:
        solution = solve_fokker_planck(system, [0.0, 0.5], low=[-a for a in half], high=half, cells=n, step=0.01)
        x, rho = points(solution), solution.densities[1].flatten()
        square = (solution.velocities[1].flatten(0, 1) - system.velocity(x)).square().sum(1)
        gaps.append(math.sqrt(float((square * rho).sum() / rho.sum())))
    assert 1.6 < order([1 / n for n in sizes], gaps) < 2.4
    assert gaps[-1] < 0.1


# -- what it is for ----------------------------------------------------------------------------------------------------


def test_the_flow_of_the_grid_velocity_has_the_marginals_of_the_sde():
    system, times = double_well(), torch.linspace(0, 1.5, 61, dtype=torch.float64)
    solution = solve_fokker_planck(system, times, low=-3.0, high=3.0, cells=400)
    data = system.simulate(paths=20_000, times=[0.0, 0.5, 1.5], seed=2)
    x0 = system.start.sample(20_000, generator=torch.Generator().manual_seed(3))
    carried = Flow(solution.velocity, (0.0, 1.5)).generate(x0, times, method="rk4", substeps=2)
    for index, t in ((1, 0.5), (2, 1.5)):
        now = carried.states[:, int((times - t).abs().argmin())]
        assert sliced_w2(now, data.states[:, index]) < 0.03
        assert sliced_w2(x0, data.states[:, index]) > 0.3  # persistence
        mean = float((solution.densities[int((times - t).abs().argmin())] * solution.axes[0]).sum() * 6 / 400)
        assert abs(mean - float(data.states[:, index].mean())) < 4 * float(data.states[:, index].std()) / math.sqrt(2e4)


def test_a_late_first_time_is_reached_from_the_start():
    whole = solve_fokker_planck(double_well(), [0.0, 0.5, 1.0], low=-3.0, high=3.0, step=0.005)
    late = solve_fokker_planck(double_well(), [0.5, 1.0], low=-3.0, high=3.0, step=0.005)
    torch.testing.assert_close(late.densities, whole.densities[1:], rtol=1e-12, atol=0)


def test_between_the_nodes_density_and_velocity_are_of_second_order():
    x, t = normal(200, 1), real(0.7).expand(200)
    gaps = []
    for n in (50, 100, 200):
        times = torch.linspace(0, 1, n // 5 + 1, dtype=torch.float64)
        solution = solve_fokker_planck(LINE, times, low=-5, high=5, cells=n, start=LINE.marginal(0.0))
        gaps.append(float((solution.density(x, t) - LINE.log_density(x, 0.7).exp()).abs().max()))
        assert solution.velocity(x, t).shape == x.shape
    assert 1.6 < order([1 / 50, 1 / 100, 1 / 200], gaps) < 2.4
    assert float((solution.velocity(x, t) - LINE.velocity(x, 0.7)).abs().max()) < 0.05


def test_a_lattice_is_exact_for_multilinear_functions_and_held_fixed_beyond():
    axes = (real([0.0, 0.5, 2.0]), real([-1.0, 1.0, 1.5, 4.0]))
    f = lambda p: torch.stack([2 * p[..., 0] * p[..., 1] - p[..., 0], p[..., 1]], dim=-1)  # noqa: E731
    lattice = Lattice(axes, f(torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)))
    inside = torch.rand(50, 2, dtype=torch.float64) * real([2.0, 5.0]) + real([0.0, -1.0])
    torch.testing.assert_close(lattice(inside), f(inside), rtol=0, atol=1e-12)
    torch.testing.assert_close(lattice(real([[9.0, -7.0]])), f(real([[2.0, -1.0]])), rtol=0, atol=1e-12)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_solved_is_refused_with_the_reason():
    box = {"low": -3.0, "high": 3.0, "cells": 50}
    with pytest.raises(ValueError, match="hold a mass of 0.0.*wider box"):
        solve_fokker_planck(double_well(), [0.0, 1.0], low=0.0, high=3.0, cells=50)
    with pytest.raises(ValueError, match="no start distribution.*`start=ou.marginal"):
        solve_fokker_planck(LINE, [0.0, 1.0], **box)
    mixed = SDE(lambda x: -x, real([[1.0, 0.0], [0.5, 1.0]]), Gaussian(real([0.0, 0.0]), torch.eye(2).double() / 4))
    with pytest.raises(ValueError, match="Σ must be diagonal"):
        solve_fokker_planck(mixed, [0.0, 1.0], **box)
    with pytest.raises(ValueError, match="increasing values, none negative"):
        solve_fokker_planck(double_well(), [1.0, 0.0], **box)
    with pytest.raises(ValueError, match="low < high and three or more cells"):
        solve_fokker_planck(double_well(), [0.0, 1.0], low=1.0, high=-1.0)
