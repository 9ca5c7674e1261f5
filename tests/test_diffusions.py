"""Nonlinear systems: stationary distributions, velocities that preserve them, simulation with the stated orders."""

import math

import pytest
import torch
from problems import continuity_residual, normal, order, real
from torch.func import hessian, jacrev, vmap

from phibe import Flow, theory
from phibe.metrics import sliced_w2
from phibe.systems.ou import Gaussian
from phibe.systems.sde import SDE, boltzmann, double_well, heun_milstein, langevin, multiplicative, rotating_well

SYSTEMS = {f.__name__: f for f in (double_well, rotating_well, multiplicative, langevin)}
GENERATOR = torch.Generator


def stationary(name):
    return SYSTEMS[name]().from_stationary()


def draws(system, n=12, seed=0):
    return system.stationary.sample(n, generator=GENERATOR().manual_seed(seed))


def one(f):
    return lambda point: f(point[None])[0]


def fokker_planck_residual(log_density, system, x):
    """|−∇·(bρ) + ½∂ᵢ∂ⱼ(Σᵢⱼρ)|/ρ at its largest, by second derivatives of Σρ: zero where ρ is stationary."""

    def density(point):
        return log_density(point[None])[0].exp()

    flow = vmap(jacrev(lambda z: one(system.drift)(z) * density(z)))(x).diagonal(dim1=1, dim2=2).sum(1)
    spread = torch.einsum("nijij->n", vmap(hessian(lambda z: one(system.diffusion)(z) * density(z)))(x))
    return float(((0.5 * spread - flow) / vmap(density)(x)).abs().max())


# -- the stationary distributions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_stationary_density_rests_under_the_fokker_planck_operator(name):
    system = SYSTEMS[name]()
    x = draws(system)
    assert fokker_planck_residual(system.log_density, system, x) < 1e-10
    hotter = lambda z: 0.8 * system.log_density(z)  # noqa: E731
    assert fokker_planck_residual(hotter, system, x) > 1e-1


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_velocity_preserves_the_stationary_distribution(name):
    system = stationary(name)
    x = draws(system)
    log_density = lambda z, t: system.log_density(z, t) + 0 * t  # noqa: E731
    assert continuity_residual(log_density, system.velocity, x, 0.7) < 1e-10
    assert continuity_residual(log_density, system.drift, x, 0.7) > 1e-1


def test_the_velocities_are_those_of_the_closed_forms():
    x = {name: draws(SYSTEMS[name](), 200) for name in SYSTEMS}
    v = {name: stationary(name).velocity(x[name], 0.3) for name in SYSTEMS}
    slope = 4 * x["rotating_well"][:, 0] * (x["rotating_well"][:, 0] ** 2 - 1)
    expected = {
        "double_well": torch.zeros(200, 1),
        "rotating_well": torch.stack([-x["rotating_well"][:, 1], slope], dim=1),
        "multiplicative": torch.stack([-x["multiplicative"][:, 1], x["multiplicative"][:, 0]], dim=1),
    }
    q, p = x["langevin"].unbind(1)
    expected["langevin"] = torch.stack([p, -4 * q * (q * q - 1)], dim=1)
    for name in SYSTEMS:
        torch.testing.assert_close(v[name], real(expected[name]), rtol=0, atol=1e-11)


def test_without_the_divergence_of_the_noise_the_rotation_becomes_a_spiral():
    system = multiplicative()
    x = draws(system, 50)
    half = 0.5 * theory.matrix_divergence(system.diffusion, x)
    torch.testing.assert_close(half, x / 4, rtol=0, atol=1e-12)
    spiral = Flow(lambda z, t: system.velocity(z) + z / 4)
    turned = Flow(system.velocity).generate(x, [0.0, 4.0], method="rk4", substeps=50).states[:, -1]
    thrown = spiral.generate(x, [0.0, 4.0], method="rk4", substeps=50).states[:, -1]
    torch.testing.assert_close(turned.norm(dim=1), x.norm(dim=1), rtol=1e-5, atol=0)
    torch.testing.assert_close(thrown.norm(dim=1), math.e * x.norm(dim=1), rtol=1e-5, atol=0)


def test_changing_marginals_have_no_stationary_answer_at_a_finite_time():
    system = double_well()
    for answer in (system.log_density, system.score, system.velocity):
        with pytest.raises(ValueError, match="marginals of this process change.*solve_fokker_planck"):
            answer(normal(3, 1), 1.0)
        answer(normal(3, 1), math.inf)
    unknown = SDE(lambda x: -x, torch.eye(1, dtype=torch.float64), system.start)
    with pytest.raises(ValueError, match="stationary distribution of this system is not known"):
        unknown.velocity(normal(3, 1))


@pytest.mark.parametrize("name", SYSTEMS)
def test_draws_have_the_moments_of_the_density(name):
    """E[x·∇log ρ] = −d for any density, and E|x|² against a sum over a fine grid."""
    system = SYSTEMS[name]()
    x = draws(system, 200_000)
    virial = (x * system.score(x)).sum(1)
    assert abs(float(virial.mean()) + x.shape[1]) < 4 * float(virial.std()) / math.sqrt(len(x))
    assert abs(float(virial[x[:, 0] > 0.5].mean()) + x.shape[1]) > 0.1  # a part of the draws has another distribution


def test_a_boltzmann_distribution_of_a_quadratic_is_a_gaussian():
    density = boltzmann(lambda x: (x - 1) ** 2 / 0.5, lambda y: y * y / 2)
    exact = Gaussian(real([1.0, 0.0]), real([[0.25, 0.0], [0.0, 1.0]]))
    x = density.sample(100_000, generator=GENERATOR().manual_seed(1))
    torch.testing.assert_close(density.log_density(x), exact.log_density(x), rtol=0, atol=1e-10)
    levels = torch.distributions.Normal(0.0, 1.0).cdf((x - exact.mean) / exact.covariance.diagonal().sqrt())
    gaps = levels.sort(dim=0).values - (torch.arange(len(x))[:, None] + 0.5) / len(x)
    assert float(gaps.abs().max()) < 1.6 / math.sqrt(len(x))  # Kolmogorov's distance, one in a hundred beyond


# -- the simulation ----------------------------------------------------------------------------------------------------


def march(system, x, increments, step):
    """Brownian increments (count, n, r) of one step each, taken through the scheme."""
    for dw in increments:
        x = heun_milstein(system, x, real(step), dw)
    return x


def strong_errors(system, x, exact, *, finest=2**-9, seed=0):
    """RMS distance at t = 1 from the exact (or finest) path for coarser steps of the same noise."""
    r = system.noise(x[:1]).shape[-1]
    dw = normal(round(1 / finest), len(x), r, seed=seed) * math.sqrt(finest)
    truth = march(system, x, dw, finest) if exact is None else exact(x, dw.sum(0))
    errors = {}
    for k in (8, 16, 32, 64):
        coarse = dw.unflatten(0, (-1, k)).sum(1)
        errors[k * finest] = float((march(system, x, coarse, k * finest) - truth).square().mean().sqrt())
    return list(errors), list(errors.values())


def geometric(mu=0.5, s=0.6):
    """dX = μX dt + sX dB with X = x exp((μ − s²/2)t + sB), coordinate by coordinate."""
    system = SDE(lambda x: mu * x, lambda x: s * x[..., None], Gaussian(real([1.0]), real([[0.0]])))
    return system, lambda x, w: x * ((mu - s * s / 2) + s * w).exp()


def test_paths_converge_with_order_one_for_constant_and_for_commuting_noise():
    assert 0.85 < order(*strong_errors(double_well(), normal(500, 1) / 2, None)) < 1.25
    assert 0.85 < order(*strong_errors(langevin(), normal(500, 2) / 2, None)) < 1.25
    system, exact = geometric()
    x = torch.ones(2000, 1, dtype=torch.float64)
    assert 0.85 < order(*strong_errors(system, x, exact)) < 1.15


def test_without_levy_areas_noise_that_does_not_commute_is_of_order_one_half():
    """dX = dB₁, dY = X dB₂: the increment of Y over a step is a Lévy area, which a step cannot see."""
    noise = lambda x: torch.diag_embed(torch.stack([torch.ones_like(x[:, 0]), x[:, 0]], dim=1))  # noqa: E731
    area = SDE(lambda x: 0 * x, noise, Gaussian(real([0.0, 0.0]), torch.eye(2)))
    assert 0.4 < order(*strong_errors(area, normal(2000, 2), None, finest=2**-12)) < 0.65


def test_noise_without_milsteins_term_is_of_order_one_half_only(monkeypatch):
    def euler(system, x, h, dw):
        return x + h * system.drift(x) + torch.einsum("nir,nr->ni", system.noise(x), dw)

    monkeypatch.setitem(globals(), "heun_milstein", euler)
    system, exact = geometric()
    assert 0.35 < order(*strong_errors(system, torch.ones(2000, 1, dtype=torch.float64), exact)) < 0.65


def gauss_hermite_step(system, x, weights, h):
    """One step of the scheme on a cloud of weighted points, with the noise replaced by Gauss–Hermite nodes: no sampling
    error. Three nodes match five moments of ΔW, which is what weak order two needs."""
    nodes, shares = real([-math.sqrt(3), 0.0, math.sqrt(3)]), real([1, 4, 1]) / 6
    moved = [heun_milstein(system, x, real(h), (node * math.sqrt(h)).expand(len(x), 1)) for node in nodes]
    return torch.cat(moved), torch.cat([weights * share for share in shares])


def weak_errors(system, x0, exact, counts=(2, 4, 8)):
    """|E f(X_1) − exact| for f = x and x², the expectation being exact for the scheme."""
    errors = []
    for count in counts:
        x, weights = real([[x0]]), real([1.0])
        for _ in range(count):
            x, weights = gauss_hermite_step(system, x, weights, 1 / count)
        errors.append(abs(float((weights * x[:, 0] ** 2).sum()) - exact))
    return [1 / count for count in counts], errors


def test_expectations_converge_with_order_two_for_constant_noise_and_one_otherwise():
    linear = SDE(lambda x: -x, real([[0.8]]), Gaussian(real([1.0]), real([[0.0]])))
    second = math.exp(-2) + 0.32 * (1 - math.exp(-2))
    assert 1.8 < order(*weak_errors(linear, 1.0, second)) < 2.6
    system, _ = geometric()
    assert 0.8 < order(*weak_errors(system, 1.0, math.exp(2 * 0.5 + 0.36))) < 1.4


@pytest.mark.parametrize("name", SYSTEMS)
def test_simulated_paths_keep_the_stationary_distribution(name):
    system = stationary(name)
    x = system.simulate(paths=20_000, times=[0.0, 1.0], seed=3, substep=0.01).states[:, -1]
    virial = (x * system.score(x)).sum(1)
    assert abs(float(virial.mean()) + x.shape[1]) < 4 * float(virial.std()) / math.sqrt(len(x))
    moved = system.simulate(paths=20_000, times=[0.0, 1.0], seed=3, substep=0.01).states[:, 0] * 1.1
    virial = (moved * system.score(moved)).sum(1)
    assert abs(float(virial.mean()) + x.shape[1]) > 5 * float(virial.std()) / math.sqrt(len(x))


def test_the_moments_of_the_multiplicative_process_are_those_of_its_equations():
    start = Gaussian(real([1.0, -0.5]), 0.04 * torch.eye(2, dtype=torch.float64))
    data = multiplicative(start=start).simulate(paths=40_000, times=[0.5, 1.5], seed=1, substep=0.01)
    for x, t in zip(data.states.unbind(1), (0.5, 1.5), strict=True):
        turn = real([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]) * math.exp(-t)
        square = (x * x).sum(1)
        first = float((start.mean**2).sum()) + 0.08
        error = 4 * float(square.std()) / 200
        assert bool(((x.mean(0) - turn @ start.mean).abs() < 4 * x.std(0) / 200).all())
        assert abs(float(square.mean()) - (2 + (first - 2) * math.exp(-1.5 * t))) < error
        assert t > 1 or abs(float(square.mean()) - 2) > error  # at first it is far from the stationary value


def test_the_same_seed_gives_the_same_bits_and_own_times_the_same_distribution():
    system = rotating_well()
    times = torch.linspace(0, 1, 6, dtype=torch.float64)
    first, again, other = (system.simulate(paths=2000, times=times, seed=s).states for s in (4, 4, 5))
    assert torch.equal(first, again) and not torch.equal(first, other)
    own = system.simulate(paths=2000, times=times.expand(2000, -1), seed=4)
    torch.testing.assert_close(own.states, first, rtol=0, atol=1e-12)
    late = double_well().simulate(paths=4000, times=[1.0, 1.1], seed=1).states[:, 0]
    whole = double_well().simulate(paths=4000, times=[0.0, 1.0], seed=2).states
    assert sliced_w2(late, whole[:, 1]) < 0.06 < sliced_w2(late, whole[:, 0])  # the start is the marginal at t = 0


def test_a_step_too_long_and_a_time_before_the_start_are_refused():
    with pytest.raises(ValueError, match="diverged with substeps of 1.*smaller `substep`"):
        double_well(start=Gaussian(real([3.0]), real([[1.0]]))).simulate(paths=10, times=[0.0, 20.0], substep=1.0)
    for times in ([-1.0, 1.0], [0.0, 2.0, 1.0]):
        with pytest.raises(ValueError, match="`times` must increase from t = 0 on.*smallest gap of -1"):
            double_well().simulate(paths=10, times=times)
