"""The family of estimators: what each stencil computes, where it is exact, and how its bias falls with the step."""

import math

import pytest
import torch
from hypothesis import given
from problems import PAPER, normal, order, properties, real, reversible_systems
from torch.func import jacrev, vmap

from phibe import OU, FitConfig, Trajectories, fit, theory
from phibe.bases import InTime, lift, polynomials
from phibe.linear.affine import AffineField, fit_affine
from phibe.linear.basis import fit_basis
from phibe.metrics import global_velocity_error
from phibe.objectives import OBJECTIVES, find_objective, stratonovich, symmetric
from phibe.theory import affine_bias, affine_minimiser

TABLE = {
    ("reversible", "phibe"): (1.327, 0.829, 0.470, 0.251, 0.130),
    ("reversible", "symmetric4"): (0.0224, 0.0013, 0.0001, 0.0000, 0.0000),
    ("nonreversible", "phibe2"): (1.178, 0.466, 0.149, 0.0422, 0.0112),
    ("nonreversible", "symmetric"): (0.177, 0.0535, 0.0207, 0.0096, 0.0047),
    ("nonreversible", "symmetric2"): (0.369, 0.0843, 0.0206, 0.0051, 0.0013),
}
"""Bias of the affine minimisers, worked out by hand for these steps before the package had them."""
STEPS = (0.2, 0.1, 0.05, 0.025, 0.0125)
ORDERS = {
    "phibe": (1, 1),
    "centred": (1, 1),
    "phibe2": (2, 2),
    "symmetric": (2, 1),
    "stratonovich": (2, 1),
    "symmetric2": (2, 2),
    "symmetric4": (4, 1),
}
"""Order in Δt of the bias: of a reversible process, of any other."""


def still(ou):
    """The same process started from its stationary distribution."""
    marginal = ou.stationary()
    return OU(ou.A, ou.S, mu=ou.mu, m0=marginal.mean, C0=marginal.covariance)


def window(path, times):
    """The stencils' sample of one scalar path, given as a function of time."""
    t = real(times)
    return path(t)[None, :, None], t[None], t.diff()[None]


def kinked(t, *, back, ahead, square=0.0, cube=0.0):
    """A path through zero at t = 0 whose slope jumps there, as forward and backward drift do; smooth otherwise."""
    return torch.where(t < 0, back * t, ahead * t) + square * t**2 + cube * t**3


# -- what the stencils compute -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [(-0.1, 0.0, 0.1), (-0.07, 0.0, 0.2)])
def test_the_central_difference_is_the_mean_of_both_slopes_whatever_the_steps(times):
    x, t, dt = window(lambda s: kinked(s, back=3.0, ahead=1.0), times)
    assert float(symmetric.stencil(x, t, dt).u) == pytest.approx(2.0)
    across = float((x[0, 2] - x[0, 0]) / (t[0, 2] - t[0, 0]))
    assert (
        across == pytest.approx(2.0) if times[0] == -times[2] else across < 1.6
    )  # one quotient across is no such mean


@pytest.mark.parametrize("times", [(-0.2, -0.1, 0.0, 0.1, 0.2), (-0.31, -0.1, 0.0, 0.04, 0.2)])
def test_extrapolation_removes_what_it_should_whatever_the_steps(times):
    curved = window(lambda s: kinked(s, back=3.0, ahead=1.0) + torch.where(s < 0, 5 * s**2, -2 * s**2), times)
    assert float(find_objective("symmetric2").stencil(*curved).u) == pytest.approx(2.0)
    assert abs(float(find_objective("symmetric4").stencil(*curved).u) - 2.0) > 0.01  # the curvature jumps too
    smooth = window(lambda s: kinked(s, back=3.0, ahead=1.0, square=4.0, cube=7.0), times)
    assert float(find_objective("symmetric4").stencil(*smooth).u) == pytest.approx(2.0)
    assert abs(float(find_objective("symmetric2").stencil(*smooth).u) - 2.0) > 0.01


@pytest.mark.parametrize("times", [(0.0, 0.1, 0.2), (0.0, 0.03, 0.2)])
def test_second_order_phibe_is_exact_on_what_its_increments_do_to_second_order(times):
    """E[Δ] = b s + β s² and E[ΔΔᵀ] = Σ s + R s² over a time s: weights that see b and Σ alone."""
    x, t, dt = window(lambda s: 3 * s + 5 * s**2, times)
    _, _, u, directions = find_objective("phibe2").stencil(x, t, dt)
    assert float(u) == pytest.approx(3.0)
    steps = real(times)[1:]
    second = sum(float(q) * (2 * s + 7 * s**2) for (q, _), s in zip(directions, steps, strict=True))
    assert float(second) == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["phibe", "stratonovich", "phibe2"])  # the others through the fits below
def test_an_objective_is_the_quadratic_form_of_its_stencil(name):
    """‖v‖² − 2 v·u − Σ q dᵀ(∇v)d with the full Jacobian, sample by sample and with steps of their own."""
    kind = find_objective(name)
    data = Trajectories(normal(5, 7, 2), (normal(5, 7, seed=3).abs() + 0.1).cumsum(1))
    sample = kind.samples(data)

    def velocity(x, t):
        return torch.stack([x[:, 0] ** 2 * x[:, 1] - t, torch.sin(x[:, 0]) + t * x[:, 1]], dim=1)

    x, t, u, directions = kind.stencil(*sample)
    v, J = velocity(x, t), vmap(jacrev(lambda z, s: velocity(z[None], s[None])[0]))(x, t)
    expected = (v * v - 2 * v * u).sum(1) - sum(q * torch.einsum("ni,nij,nj->n", d, J, d) for q, d in directions)
    expected = expected.reshape(-1, len(sample[0])).mean(0)
    torch.testing.assert_close(kind(velocity, *sample), expected, rtol=1e-10, atol=1e-10)
    assert kind.jacobian == bool(directions)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "stratonovich"])
def test_the_stated_variance_is_that_of_the_target(name):
    """Increments of a Brownian motion over unit steps are independent: Var(Σ gⱼΔⱼ) = Σ gⱼ²."""
    kind = find_objective(name)
    options = {"noise": 1.0} if name == "isotropic" else {}
    shape = Trajectories(torch.eye(kind.width, dtype=torch.float64)[..., None], torch.arange(kind.width))
    weights = kind.stencil(*kind.samples(shape), **options).u[:, 0]  # of each observation
    increments = weights.flip(0).cumsum(0).flip(0)[1:]
    assert float(increments.square().sum()) == pytest.approx(kind.variance, abs=1e-3)


def test_the_two_point_form_sums_to_central_differences_inside_a_path():
    data = Trajectories(normal(1, 9, 2), normal(1, 9, seed=1).abs().cumsum(1) + 1)

    def velocity(x, t):
        return torch.sin(x) + t[:, None]

    pairs = data.pairs()
    ends = velocity(
        torch.cat([data.states[:, 0], data.states[:, -1]]), torch.cat([data.times[:, 0], data.times[:, -1]])
    )
    rest = (
        0.5 * (ends * ends).sum() - (ends * torch.stack([pairs.dx[0] / pairs.dt[0], pairs.dx[-1] / pairs.dt[-1]])).sum()
    )
    inside = symmetric(velocity, *data.windows(3)).sum()
    torch.testing.assert_close(stratonovich(velocity, *pairs).sum(), inside + rest, rtol=1e-12, atol=1e-12)


def test_the_centred_covariance_forgets_the_drift():
    """On a straight path the raw second moment is b bᵀh, the centred one zero, whatever the steps."""
    x, t, dt = window(lambda s: 3 * s, (0.0, 0.1, 0.25))
    for name, expected in (("phibe", 9 * 0.1), ("centred", 0.0)):
        sample = (x[:, 0], t[:, 0], x[:, 1] - x[:, 0], dt[:, 0]) if name == "phibe" else (x, t, dt)
        directions = find_objective(name).stencil(*sample).directions
        assert float(sum(q * d**2 for q, d in directions)) == pytest.approx(expected, abs=1e-12)


# -- bias --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("process", "name"), TABLE)
def test_the_bias_is_the_known_one(process, name):
    found = [affine_bias(PAPER[process], name, step=h) for h in STEPS]
    assert found == pytest.approx(list(TABLE[process, name]), rel=4e-3, abs=6e-5)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("process", PAPER)
def test_the_bias_has_the_stated_order(process, name):
    steps = (0.004, 0.002, 0.001)
    errors = [affine_bias(PAPER[process], name, step=h) for h in steps]
    expected = ORDERS[name][process == "nonreversible"]
    assert order(steps, errors) == pytest.approx(expected, abs=0.1)
    assert str(expected) in find_objective(name).order


def closed_form(ou, t, step):
    """The affine minimiser of `phibe`: [A | b] E[z zᵀ] = E[w zᵀ]/h + (½ E[w wᵀ]/h | 0), z = (x, 1) and w = Δx."""
    marginal, (propagator, noise) = ou.marginal(t), ou.transition(step)
    M = propagator - torch.eye(ou.dimension, dtype=torch.float64)
    drift = (marginal.mean - ou.mu) @ M.mT
    second = M @ marginal.covariance @ M.mT + drift[..., :, None] * drift[..., None, :] + noise
    matrix = (M + 0.5 * second @ torch.linalg.inv(marginal.covariance)) / step
    return matrix, drift / step - (matrix @ marginal.mean[..., None])[..., 0]


def test_the_phibe_minimiser_is_its_closed_form():
    ou, times = OU.nonreversible(), real([[0.0, 0.3, 2.0], [0.1, 0.3, 5.0]])
    for found, exact in zip(theory.affine_phibe_field(ou, times, step=0.1), closed_form(ou, times, 0.1), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    rates = [  # of each time for itself, t = 0 and equal ones too
        jacrev(lambda t, f=f: f(ou, t, step=0.1)[0])(real([0.0, 0.3, 0.3]))
        for f in (theory.affine_phibe_field, closed_form)
    ]
    torch.testing.assert_close(*rates, rtol=1e-8, atol=1e-8)
    assert float(rates[0].diagonal(dim1=0, dim2=3).norm(dim=(0, 1)).min()) > 0.1


def test_a_known_isotropic_noise_enters_the_minimiser():
    ou = OU([[-0.7]], [[0.9]], mu=[2.0], m0=[-1.0])
    small, large = (affine_minimiser(ou, "isotropic", real([0.4]), step=1e-4, noise=s)[0] for s in (0.81, 1.62))
    torch.testing.assert_close(small, theory.affine_velocity(ou, real([0.4]))[0], rtol=1e-3, atol=1e-3)
    assert float((large - small).abs()) > 0.1


@properties
@given(reversible_systems())
def test_of_a_stationary_reversible_process_the_symmetric_fit_is_exact_at_any_step(ou):
    """There v = 0, and E[X_{t+h} − X_{t−h} | X_t] = 0 by detailed balance."""
    ou, times = still(ou), real([5.0])
    for h in (0.1, 2.0):
        for name in ("symmetric", "symmetric4", "phibe"):
            matrix, offset = affine_minimiser(ou, name, times, step=h)
            assert float(matrix.abs().max()) < 1e-7 * float(ou.A.abs().max())
            assert float(offset.abs().max()) < 1e-6 * (1 + float(ou.mu.abs().max())) * float(ou.A.abs().max())


def test_and_so_it_is_from_samples_within_its_error_bars():
    ou = still(OU.reversible())
    data = ou.simulate(paths=4000, times=torch.arange(12, dtype=torch.float64) * 0.3)
    basis = lift(polynomials(1))
    field = fit_basis(data, basis, "symmetric", blocks=40).velocity
    score = field.coefficients / field.covariance.diagonal().sqrt()
    assert float(score.abs().max()) < 4
    drift = fit_basis(data, basis, "regression", blocks=40).velocity
    assert float((drift.coefficients / drift.covariance.diagonal().sqrt()).abs().max()) > 40


# -- fits --------------------------------------------------------------------------------------------------------------


def _ragged_irregular():
    ou, times = OU.nonreversible(), (normal(60, 9, seed=5).abs() * 0.05 + 0.01).cumsum(1)
    return Trajectories(ou.simulate(paths=60, times=times).states, times, lengths=[9, 7, 5, 8, 6, 9] * 10)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_basis_fit_makes_the_gradient_of_the_mean_objective_vanish(name):
    data, kind = _ragged_irregular(), find_objective(name)
    options = {"noise": 0.8, "exact": True} if name == "isotropic" else {}
    flow = fit_basis(data, lift(polynomials(2)), name, noise=0.8 if name == "isotropic" else None)
    theta = flow.velocity.coefficients.clone().requires_grad_()

    def mean(theta):
        def velocity(x, t):
            return torch.einsum("npd,p->nd", flow.velocity.basis(x, t), theta)

        return kind(velocity, *kind.samples(data), **options).mean()

    (gradient,) = torch.autograd.grad(mean(theta), theta)
    zero = torch.zeros_like(theta).requires_grad_()
    (at_zero,) = torch.autograd.grad(mean(zero), zero)
    assert float(gradient.abs().max()) < 1e-8 * float(at_zero.abs().max())


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "isotropic"])
def test_an_affine_fit_at_each_time_is_the_basis_fit_of_the_windows_there(name):
    """Complete paths on an irregular grid: the field at one time is that of the samples whose place is there."""
    kind, times = find_objective(name), real([0.0, 0.03, 0.1, 0.12, 0.2, 0.3])
    data = OU.nonreversible().simulate(paths=50, times=times)
    flow = fit_affine(data, name)
    field = flow.velocity
    assert isinstance(field, AffineField)
    middle = 2 if kind.width == 5 else 1
    part = data._with(
        *((data.states[:, :3], data.times[:3]) if kind.width < 5 else (data.states[:, :5], data.times[:5])), None
    )
    alone = fit_basis(part, lift(polynomials(1)), "symmetric" if name == "stratonovich" else name).velocity
    if kind.width == 2 and name != "stratonovich":
        alone = fit_basis(data._with(data.states[:, 1:3], data.times[1:3], None), lift(polynomials(1)), name).velocity
    if name in ("phibe2", "centred"):
        middle = 0
    x = normal(5, 2)
    t = torch.full((5,), float(times[middle]), dtype=torch.float64)
    torch.testing.assert_close(field(x, t), alone(x, t), rtol=1e-7, atol=1e-7)
    assert flow.interval == data.interval


def test_unequal_steps_leave_the_symmetric_fit_right_and_a_plain_quotient_wrong():
    """At t = 0.5 with 0.005 behind and 0.02 ahead: v is the mean of both drifts, a quotient across is not."""
    ou = OU.reversible()
    data = ou.simulate(paths=200_000, times=[0.495, 0.5, 0.52], seed=1)
    field = fit_affine(data, "symmetric").velocity
    exact, _ = theory.affine_velocity(ou, real([0.5]))
    x = data.states[:, 1] - data.states[:, 1].mean(0)
    across = (data.states[:, 2] - data.states[:, 0]) / 0.025
    wrong = torch.linalg.lstsq(x, across).solution.mT
    assert float((field.matrices[0] - exact[0]).abs().max()) < 0.25
    assert float((wrong - exact[0]).abs().max()) > 0.5


def test_ragged_and_own_times_give_the_answer_of_the_grid_they_encode():
    data = OU.nonreversible().simulate(paths=300, times=torch.linspace(0, 0.5, 7, dtype=torch.float64))
    own = Trajectories(data.states, data.times.expand(300, 7))
    padded = torch.cat([data.states, torch.full((300, 2, 2), math.nan, dtype=torch.float64)], dim=1)
    ragged = Trajectories(padded, torch.cat([data.times, real([0.9, 1.0])]), lengths=[7] * 300)
    for name in ("symmetric", "stratonovich", "symmetric2", "symmetric4", "phibe2", "centred"):
        expected = fit_affine(data, name).velocity
        for same in (own, ragged):
            found = fit_affine(same, name).velocity
            torch.testing.assert_close(found.times, expected.times)
            torch.testing.assert_close(found.matrices, expected.matrices, rtol=1e-9, atol=1e-9)


def test_one_path_on_a_grid_is_fitted_between_knots():
    """A single sample at each time is enough when the field has knots: the affine field of the basis fit."""
    data, knots = still(OU.nonreversible()).simulate(paths=1, times=torch.linspace(0, 9, 901)), real([0.0, 4.0, 9.0])
    field = fit_affine(data, "symmetric", knots=knots).velocity
    same = fit_basis(data, lift(InTime(polynomials(1), knots)), "symmetric").velocity
    x, t = normal(9, 2), torch.linspace(0, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(field(x, t), same(x, t), rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match=r"needs 3 or more samples there.*Pass `knots`"):
        fit_affine(data, "symmetric")


def test_pairs_alone_cannot_be_seen_from_both_sides_without_knots():
    pairs = OU.reversible().simulate(paths=50, times=[0.0, 0.1])
    with pytest.raises(ValueError, match="start from and others end at; there are none. Pass `knots`"):
        fit_affine(pairs, "stratonovich")
    with pytest.raises(ValueError, match="No path has the 3 observations that `symmetric` looks at"):
        fit_affine(pairs, "symmetric")


def test_blocks_of_one_path_or_of_many_give_honest_error_bars():
    """The standard errors of one long path in blocks, and of many short ones, are the spread of repeated fits."""
    ou, basis = still(OU([[-1.0, 2.0], [-2.0, -1.0]], torch.eye(2))), lift(polynomials(1))
    for paths, times in ((1, 4000), (200, 20)):
        grid = torch.arange(times, dtype=torch.float64) * 0.05
        fits = [
            fit_basis(ou.simulate(paths=paths, times=grid, seed=s), basis, "symmetric", blocks=20) for s in range(40)
        ]
        spread = torch.stack([flow.velocity.coefficients for flow in fits]).std(0)
        claimed = torch.stack([flow.velocity.covariance.diagonal() for flow in fits]).mean(0).sqrt()
        ratio = claimed / spread
        assert float(ratio.min()) > 0.7
        assert float(ratio.max()) < 1.45
        x, t = normal(3, 2), torch.zeros(3, dtype=torch.float64)
        at_points = torch.stack([flow.velocity(x, t) for flow in fits]).std(0)
        torch.testing.assert_close(fits[0].velocity.standard_error(x, t), at_points, rtol=0.6, atol=0)


@pytest.mark.slow
def test_a_network_learns_from_central_differences_what_phibe_misses_at_the_same_step():
    ou = OU.reversible()
    data = ou.simulate(paths=400, times=torch.linspace(0, 1, 21, dtype=torch.float64)).to(torch.float32)
    config = FitConfig(steps=400, batch=256, learning_rate=4e-3, evaluate_every=200)
    generator = torch.Generator().manual_seed(0)
    times = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    errors = {
        name: global_velocity_error(
            fit(data, "mlp", name, config=config, progress=False).velocity,
            ou.velocity,
            lambda t: ou.marginal(t).sample(500, generator=generator),
            times,
        ).value
        for name in ("symmetric", "phibe")
    }
    assert errors["symmetric"] < 0.6
    assert errors["phibe"] > 2 * errors["symmetric"]
