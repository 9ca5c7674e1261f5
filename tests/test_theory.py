"""The population quantities of PhiBE-Flow: identities, rates in Δt, and the bounds of the theorem."""

import math

import pytest
import torch
from hypothesis import given
from problems import PAPER, LinearNoise, near, order, properties, quadrature, real, stable_systems

from phibe import Flow, theory
from phibe.bases import lift
from phibe.experiments.theory import PRESETS, nonlinear
from phibe.experiments.theory_samples import cases, contributions, grid, minimiser
from phibe.linear.basis import fit_basis
from phibe.systems.sde import SDE

STEPS = [0.02, 0.01, 0.005, 0.0025]


# -- the field v̂ -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.001, 0.1, 2.0])
@pytest.mark.parametrize("name", PAPER)
def test_the_closed_form_of_the_field_is_what_differentiation_gives(name, step):
    ou = PAPER[name]
    x = near(ou, 0.5)
    closed = ou.phibe_velocity(x, 0.5, step=step)
    torch.testing.assert_close(closed, theory.phibe_field(ou, x, 0.5, step=step), rtol=1e-10, atol=1e-10)
    linear = theory.phibe_drift(ou, x, step) - 0.5 * (ou.S @ ou.S.mT @ ou.score(x, 0.5)[..., None])[..., 0]
    assert float((closed - linear).abs().max()) > 1e-3  # the raw second moment matters


@properties
@given(ou=stable_systems())
def test_the_closed_form_holds_in_any_dimension(ou):
    x = near(ou, 0.4, n=5)
    closed = ou.phibe_velocity(x, 0.4, step=0.3)
    torch.testing.assert_close(closed, theory.phibe_field(ou, x, 0.4, step=0.3), rtol=1e-10, atol=1e-9)


def test_the_field_is_cubic_and_not_quadratic():
    ou = PAPER["nonreversible"]
    line = ou.mu + torch.linspace(-3, 3, 9, dtype=torch.float64)[:, None] * real([1.0, -0.6])
    along_line = ou.phibe_velocity(line, 0.5, step=0.1)
    assert float(along_line.diff(n=4, dim=0).abs().max()) < 1e-9
    assert float(along_line.diff(n=3, dim=0).abs().max()) > 1e-2


@pytest.mark.parametrize("step", [0.01, 0.3])
@pytest.mark.parametrize("name", PAPER)
def test_the_affine_field_is_the_projection_of_the_cubic_one(name, step):
    ou, t = PAPER[name], 0.6
    x, weight = quadrature(ou.marginal(t), 6)
    matrix, offset = theory.affine_phibe_field(ou, t, step=step)
    z = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    v = ou.phibe_velocity(x, t, step=step)
    gap = torch.einsum("n,ni,nj->ij", weight, v - (x @ matrix.mT + offset), z)
    assert float(gap.abs().max()) < 1e-10
    size = torch.einsum("n,ni->", weight, (v - (x @ matrix.mT + offset)) ** 2)
    assert float(size) > 1e-5  # v̂ itself is not affine


@pytest.mark.parametrize("step", [0.001, 0.1, 1.0, 5.0])
def test_at_equilibrium_the_affine_field_is_the_time_symmetric_one(step):
    """[F C − C Fᵀ]C⁻¹/(2h) with F = e^{Ah} − I, at every step: the two directions of time are averaged."""
    ou = PAPER["nonreversible"]
    C = ou.stationary().covariance
    F = torch.linalg.matrix_exp(ou.A * step) - torch.eye(2, dtype=torch.float64)
    symmetric = (F @ C - C @ F.mT) @ torch.linalg.inv(C) / (2 * step)
    matrix, offset = theory.affine_phibe_field(ou, 100.0, step=step)
    torch.testing.assert_close(matrix, symmetric, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(offset, -symmetric @ ou.mu, rtol=1e-10, atol=1e-10)
    early, _ = theory.affine_phibe_field(ou, 0.2, step=step)
    assert float((early - symmetric).norm()) > 1e-2  # only at equilibrium


def test_the_length_of_an_affine_field_is_that_of_its_quadrature():
    law = PAPER["nonreversible"].marginal(0.3)
    matrix, offset = real([[1.0, 2.0], [-0.5, 0.3]]), real([0.2, -1.0])
    x, weight = quadrature(law, 3)
    squared = (weight * (x @ matrix.mT + offset).square().sum(1)).sum()
    assert theory.affine_gap(law, matrix, offset) == pytest.approx(math.sqrt(float(squared)), rel=1e-12)


# -- rates and leading terms -------------------------------------------------------------------------------------------


def _affine_bias(ou, t, step):
    """‖v̂ − v‖ in L²(ρ_t), with v̂ the affine one."""
    law = ou.marginal(t)
    slope = ou.A - 0.5 * ou.S @ ou.S.mT @ -torch.linalg.inv(law.covariance)
    start = ou.velocity(torch.zeros(1, ou.dimension, dtype=torch.float64), t)[0]
    matrix, offset = theory.affine_phibe_field(ou, t, step=step)
    return theory.affine_gap(law, matrix - slope, offset - start)


TABLE = {
    "reversible": ["1.327", "0.829", "0.470", "0.251", "0.130"],
    "nonreversible": ["1.627", "1.039", "0.592", "0.317", "0.164"],
}


@pytest.mark.parametrize("name", PAPER)
def test_the_affine_bias_has_the_known_size(name):
    """Root mean square over ρ_t and over 25 times from 0.4 to 1, at steps 0.2, 0.1, …, 0.0125."""
    times = torch.linspace(0.4, 1.0, 25, dtype=torch.float64)
    steps = [0.2, 0.1, 0.05, 0.025, 0.0125]
    rows = [[_affine_bias(PAPER[name], float(t), h) for t in times] for h in steps]
    size = real(rows).square().mean(1).sqrt()
    assert [f"{float(value):.3f}" for value in size] == TABLE[name]


def _biases(system, x, t):
    """The gap to the coefficient that each estimate is meant to be, as a function of the step."""
    sigma = system.diffusion(x)
    spread = theory.matrix_divergence(system.diffusion, x)
    velocity = system.drift(x) - 0.5 * torch.einsum("nij,nj->ni", sigma, system.score(x, t)) - 0.5 * spread
    return {
        "drift": lambda h: theory.phibe_drift(system, x, h) - system.drift(x),
        "covariance": lambda h: theory.phibe_covariance(system, x, h) - sigma,
        "divergence": lambda h: theory.phibe_divergence(system, x, h) - spread,
        "velocity": lambda h: theory.phibe_field(system, x, t, step=h) - velocity,
    }


def _systems():
    return {**PAPER, "linear noise": LinearNoise.example()}


def _points(system):
    if isinstance(system, LinearNoise):
        return system.marginal.sample(20, generator=torch.Generator().manual_seed(0))
    return near(system, 0.5, n=20)


@pytest.mark.parametrize("quantity", ["drift", "covariance", "divergence", "velocity"])
@pytest.mark.parametrize("name", _systems())
def test_the_bias_is_of_first_order(name, quantity):
    system = _systems()[name]
    gap = _biases(system, _points(system), 0.5)[quantity]
    assert order(STEPS, [float(gap(h).norm()) for h in STEPS]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", PAPER)
def test_the_affine_bias_is_of_first_order(name):
    errors = [_affine_bias(PAPER[name], 0.6, h) for h in STEPS]
    assert order(STEPS, errors) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", _systems())
def test_what_the_leading_terms_leave_is_of_second_order(name):
    system = _systems()[name]
    x = _points(system)
    spread = theory.matrix_divergence(lambda z: theory.covariance_bias(system, z), x)
    leading = {
        "drift": theory.drift_bias(system, x),
        "covariance": theory.covariance_bias(system, x),
        "divergence": spread,
        "velocity": theory.velocity_bias(system, x, 0.5),
    }
    for quantity, gap in _biases(system, x, 0.5).items():
        rest = [float((gap(h) - h * leading[quantity]).norm()) for h in STEPS]
        assert order(STEPS, rest) == pytest.approx(2.0, abs=0.1), quantity


@properties
@given(ou=stable_systems())
def test_the_leading_term_is_that_of_the_corollary(ou):
    """v − v̂ = h/2 [−A²y + ∇·H − H C⁻¹(x − m)] + O(h²) with y = x − μ and H = ½(AΣ + ΣAᵀ) + A y yᵀAᵀ."""
    t = 0.4
    x, law, A, noise = near(ou, t, n=5), ou.marginal(t), ou.A, ou.S @ ou.S.mT
    y = x - ou.mu
    H = 0.5 * (A @ noise + noise @ A.mT) + (y @ A.mT)[:, :, None] * (y @ A.mT)[:, None, :]
    spread = y @ (A @ A + A.trace() * A).mT
    pushed = (H @ torch.linalg.inv(law.covariance) @ (x - law.mean)[:, :, None])[..., 0]
    corollary = 0.5 * (-y @ (A @ A).mT + spread - pushed)
    torch.testing.assert_close(-theory.velocity_bias(ou, x, t), corollary, rtol=1e-10, atol=1e-10)
    h = 1e-4
    slope = (ou.phibe_velocity(x, t, step=h) - ou.velocity(x, t)) / h
    torch.testing.assert_close(slope, -corollary, rtol=0, atol=0.02 * float(1 + corollary.norm() * ou.A.norm()))


# -- bounds ------------------------------------------------------------------------------------------------------------

OMEGA = theory.box(real([2.5, 2.5]), 3.0)
HORIZON = torch.linspace(0, 1, 11, dtype=torch.float64)


@pytest.mark.parametrize("name", PAPER)
def test_the_velocity_stays_within_the_bound_on_a_compact_set(name):
    ou = PAPER[name]
    constants = theory.constants(ou, OMEGA, HORIZON)
    for step in (0.01, 0.001):
        gaps = [(ou.phibe_velocity(OMEGA, float(t), step=step) - ou.velocity(OMEGA, float(t))) for t in HORIZON]
        worst = max(float(gap.norm(dim=1).max()) for gap in gaps)
        assert worst <= constants.velocity_bound(step)
        assert worst > 0.2 * constants.velocity_bound(step)  # and the bound is of the right size


@pytest.mark.parametrize("name", PAPER)
def test_the_constants_are_those_of_the_corollary(name):
    ou = PAPER[name]
    constants = theory.constants(ou, OMEGA, HORIZON)
    noise = ou.S @ ou.S.mT
    inverses = [torch.linalg.inv(ou.marginal(float(t)).covariance) for t in HORIZON]
    sharp = max(float(torch.linalg.matrix_norm(ou.A + 0.5 * noise @ C, 2)) for C in inverses)
    S_2 = max(float(torch.linalg.matrix_norm(C, 2)) for C in inverses)
    A, sigma = (float(torch.linalg.matrix_norm(m, 2)) for m in (ou.A, noise))
    assert constants.lipschitz == pytest.approx(sharp, rel=1e-12)
    assert pytest.approx(S_2, rel=1e-12) == constants.S_2
    assert pytest.approx(A + 0.5 * sigma * S_2, rel=1e-12) == constants.K
    assert constants.L_b == pytest.approx(float(((OMEGA - ou.mu) @ (ou.A @ ou.A).mT).norm(dim=1).max()) / 2, rel=1e-12)
    assert constants.lipschitz < constants.K


@pytest.mark.parametrize("name", PAPER)
def test_the_trajectories_stay_within_the_groenwall_bound(name):
    ou, step = PAPER[name], 0.002
    exact, biased = _flow_pair(ou, step)
    for path in (exact, biased):  # the bound speaks of trajectories that stay in Ω
        assert bool(((path - 2.5).abs() <= 3.0).all())
    gap, t = (exact - biased).norm(dim=2).max(dim=0).values[1:], HORIZON[1:]
    constants = theory.constants(ou, OMEGA, HORIZON)
    sharp = constants.trajectory_bound(t, step, sharp=True)
    assert bool((gap <= sharp).all())
    assert bool((sharp <= constants.trajectory_bound(t, step)).all())
    elsewhere = theory.constants(ou, theory.box(ou.mu, 0.3), HORIZON)  # where these trajectories are not
    assert not bool((gap <= elsewhere.trajectory_bound(t, step, sharp=True)).all())


@pytest.mark.parametrize("name", PAPER)
def test_the_trajectory_error_is_of_first_order(name):
    steps = [0.008, 0.004, 0.002]
    errors = [float((exact - biased).norm()) for exact, biased in (_flow_pair(PAPER[name], h) for h in steps)]
    assert order(steps, errors) == pytest.approx(1.0, abs=0.1)


def _flow_pair(ou, step):
    """Trajectories of v and of v̂ from the same points, (n, time, 2) each."""
    x0 = theory.box(real([0.5, 0.5]), 0.8, per_side=4)
    fields = (ou.velocity, lambda x, t: ou.phibe_velocity(x, t, step=step))
    return [Flow(field).generate(x0, HORIZON, method="rk4", substeps=5).states for field in fields]


# -- nonlinear systems -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known():
    return nonlinear(PRESETS["smoke"])


NONLINEAR = ["rotating well", "Langevin", "multiplicative"]


@pytest.mark.parametrize("name", NONLINEAR)
def test_what_the_leading_terms_leave_is_of_second_order_in_nonlinear_systems_too(known, name):
    system, x, steps = known[name], theory.box(real([0.0, 0.0]), 1.2, per_side=5), [0.001, 0.0005, 0.00025]
    leading = theory.velocity_bias(system, x, 0.0)
    gaps = {h: theory.phibe_field(system, x, 0.0, step=h) - system.velocity(x, 0.0) for h in steps}
    assert order(steps, [float(gap.norm()) for gap in gaps.values()]) == pytest.approx(1.0, abs=0.05)
    rests = [float((gap - h * leading).norm()) for h, gap in gaps.items()]
    assert order(steps, rests) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("name", NONLINEAR)
def test_the_moments_of_increments_are_those_of_simulated_ones(known, name):
    system, h, n = known[name], 0.05, 40_000
    point = real([[0.8, -0.5]])

    class Here:
        def sample(self, n, *, generator):
            return point.expand(n, -1)

    moved = (
        SDE(system.system.b, system.system.sigma, Here()).simulate(paths=n, times=[0.0, h], substep=0.005).states[:, 1]
    )
    dx = moved - point
    mean, second = system.increment_moments(point, h)
    for draws, exact in ((dx, mean[0]), ((dx[:, :, None] * dx[:, None, :]), second[0])):
        error = draws.std(0) / math.sqrt(n)
        assert bool(((draws.mean(0) - exact).abs() < 4 * error + 2e-4).all())
    frozen = system.diffusion(point)[0] * h
    assert float(((draws.mean(0) - frozen).abs() / error).max()) > 5  # one Euler step is far off


@pytest.mark.parametrize("name", NONLINEAR)
def test_the_bounds_hold_for_nonlinear_systems_too(known, name):
    system, x, h = known[name], theory.box(real([0.0, 0.0]), 1.5), 0.0005
    constants = theory.constants(system, x, real([0.0]))
    gap = theory.largest(theory.phibe_field(system, x, 0.0, step=h) - system.velocity(x, 0.0))
    assert gap <= constants.velocity_bound(h)
    assert gap > 0.01 * constants.velocity_bound(h)
    assert constants.lipschitz <= constants.K


# -- finite samples ----------------------------------------------------------------------------------------------------


def test_the_norm_of_an_exponential_variable_is_two():
    """E e^{U/a} = 1/(1 − 1/a) = 2 at a = 2; twice the variable has twice the norm."""
    levels = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    draws = -torch.log1p(-levels)
    norms = theory.psi_1(torch.stack([draws, -2 * draws], dim=1))
    torch.testing.assert_close(norms, real([2.0, 4.0]), rtol=0.01, atol=0)


def test_the_largest_norm_of_a_quadratic_form_is_found_in_any_basis():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(5000, 3, dtype=torch.float64, generator=generator) * real([1.0, 4.0, 2.0])
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator))[0]
    found = theory.largest_psi_1(turn @ torch.diag_embed(sizes) @ turn.mT)
    assert found == pytest.approx(float(theory.psi_1(sizes)[1]), rel=1e-6)


def test_the_mean_of_so_many_paths_is_within_the_bound_as_often_as_it_says():
    """Bernstein's inequality with its constants, on G_N of p = 1 and K_G = 2: ‖G_N − I‖ ≤ ½ but for δ/2."""
    miss, K = 0.1, 2.0
    paths = math.ceil(theory.least_paths(1, K, miss))
    r = (math.log(9) + math.log(4 / miss)) / theory.least_paths(1, K, miss)
    assert 2 * K * (2 * math.sqrt(r) + r) == pytest.approx(0.5)
    draws = torch.empty(2000, paths, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(1)) - 1
    assert float((draws.mean(1).abs() > 0.5).double().mean()) <= miss / 2
    assert float((draws[:, : paths // 400].mean(1).abs() > 0.5).double().mean()) > miss / 2  # far fewer are too few


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_minimiser_in_a_basis_is_the_projection_of_the_field(case):
    times = grid(0.05, 3)
    found = minimiser(case, times, 0.05)
    starts = times[:1] if case.still else times[:-1]
    gaps = 0.0
    for t in starts:
        x, w = case.process.marginal(t).quadrature(40)
        phi = case.features(x, t.expand(len(x)))
        off = case.process.phibe_velocity(x, t, step=0.05) - phi @ found.theta
        gaps = gaps + torch.einsum("n,nk,nd->kd", w, phi, off) / len(starts)
    assert float(gaps.abs().max()) < 1e-6
    assert (found.gap < 1e-8) == case.holds


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_contributions_of_paths_are_those_of_the_fit(case):
    data = case.process.simulate(paths=300, times=grid(0.02, 4), seed=3)
    H, c = contributions(data, case.features)
    theta = torch.linalg.solve(H.mean(0), c.mean(0))
    fitted = fit_basis(data, lift(case.features)).velocity.coefficients.reshape(theta.shape)
    torch.testing.assert_close(theta, fitted, rtol=1e-7, atol=1e-8)


# -- the objective of infinitely many data -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.2, 0.01])
@pytest.mark.parametrize("name", PAPER)
def test_the_population_objective_is_a_completed_square(name, step):
    ou, t = PAPER[name], 0.4
    x, weight = ou.marginal(t).quadrature(30)

    def bent(z):
        return torch.stack([torch.sin(z[:, 0]) * z[:, 1], z[:, 0] ** 2], dim=1)

    target = theory.phibe_field(ou, x, t, step=step)
    for field in (bent, lambda z: ou.velocity(z, t)):
        value = float((weight * theory.population_objective(ou, field, x, step=step)).sum())
        square = float((weight * ((field(x) - target).square() - target.square()).sum(1)).sum())
        assert value == pytest.approx(square, rel=1e-10)
    wrong = float((weight * theory.population_objective(ou, bent, x, step=2 * step)).sum())
    assert wrong != pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("name", PAPER)
def test_the_residual_is_zero_for_the_velocity_and_a_circulation_more_but_not_for_the_drift(name):
    ou, x = PAPER[name], near(PAPER[name], 0.3)
    turned = real([[0.0, 1.0], [-1.0, 0.0]])
    for field in (ou.velocity, lambda z, t: ou.velocity(z, t) + ou.score(z, t) @ turned):
        assert float(theory.continuity_residual(ou.log_density, field, x, 0.3).abs().max()) < 1e-11
    assert float(theory.continuity_residual(ou.log_density, ou.drift, x, 0.3).abs().max()) > 1e-2


def test_quadrature_integrates_polynomials_of_a_correlated_gaussian():
    law = PAPER["nonreversible"].marginal(0.5)
    x, weight = law.quadrature(3)
    y = x - law.mean
    assert torch.allclose(torch.einsum("n,ni,nj->ij", weight, y, y), law.covariance, atol=1e-14)
    fourth = float((weight * y[:, 0] ** 2 * y[:, 1] ** 2).sum())
    C = law.covariance
    assert fourth == pytest.approx(float(C[0, 0] * C[1, 1] + 2 * C[0, 1] ** 2), rel=1e-12)
