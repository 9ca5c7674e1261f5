"""The objectives: what each one computes, and what minimises its mean."""

import math

import pytest
import torch
from problems import PAPER, normal, quadrature
from torch import nn
from torch.func import jacrev, vmap

from phibe import OU, Trajectories, objectives, theory
from phibe.bases import lift, polynomials
from phibe.calculus import divergence
from phibe.linear.basis import fit_basis
from phibe.objectives import OBJECTIVES, estimate_noise, find_objective, isotropic, phibe, regression
from phibe.systems.ou import Gaussian

SHAPES = [(2,), (1, 4, 4)]


class Dense(nn.Module):
    """A smooth network for states of any shape."""

    def __init__(self, shape):
        super().__init__()
        size = math.prod(shape)
        self.layers = nn.Sequential(
            nn.Linear(size + 1, 12), nn.SiLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, size)
        )

    def forward(self, x, t):
        return self.layers(torch.cat([x.flatten(1), t[:, None]], dim=1)).reshape(x.shape)


class Convolutional(nn.Module):
    """A smooth convolutional network for one-channel pictures."""

    def __init__(self, shape):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
            nn.GroupNorm(2, 4),
            nn.GELU(),
            nn.Conv2d(4, 1, 3, padding=1),
        )

    def forward(self, x, t):
        return self.layers(torch.cat([x, t[:, None, None, None].expand_as(x)], dim=1))


NETWORKS = [(Dense, (2,)), (Dense, (1, 4, 4)), (Convolutional, (1, 4, 4))]


def _network(kind, shape, *, frozen=True):
    torch.manual_seed(0)
    return kind(shape).double().requires_grad_(not frozen)


def _transitions(shape, n=6):
    """States, times, increments and steps, each sample with its own time and step."""
    t, dt = 0.1 * torch.arange(n, dtype=torch.float64), 0.01 + 0.02 * torch.arange(n, dtype=torch.float64)
    return normal(n, *shape), t, normal(n, *shape, seed=1), dt


def _jacobians(velocity, x, t):
    """The full Jacobian of each sample, (n, D, D)."""
    size = x[0].numel()
    one = vmap(jacrev(lambda z, s: velocity(z[None], s[None])[0]))
    return one(x, t).reshape(len(x), size, size)


@pytest.mark.parametrize(("kind", "shape"), NETWORKS)
def test_the_forward_product_is_the_full_jacobian_contraction(kind, shape):
    network, (x, t, dx, dt) = _network(kind, shape), _transitions(shape)
    v, w = network(x, t).flatten(1), dx.flatten(1)
    J = _jacobians(network, x, t)
    contraction = torch.einsum("ni,nij,nj->n", w, J, w)
    expected = (v * v).sum(1) - 2 * (v * w).sum(1) / dt - contraction / dt
    torch.testing.assert_close(phibe(network, x, t, dx, dt), expected, rtol=1e-10, atol=1e-10)
    without = regression(network, x, t, dx, dt) - phibe(network, x, t, dx, dt)
    torch.testing.assert_close(without, contraction / dt, rtol=1e-9, atol=1e-9)
    assert float((contraction / dt).abs().max()) > 1e-2


@pytest.mark.parametrize(("kind", "shape"), NETWORKS)
def test_parameter_gradients_are_those_of_finite_differences(kind, shape):
    network, (x, t, dx, dt) = _network(kind, shape, frozen=False), _transitions(shape)
    parameters = list(network.parameters())
    gradient = torch.autograd.grad(phibe(network, x, t, dx, dt).mean(), parameters)
    direction = [normal(*p.shape, seed=i) for i, p in enumerate(parameters)]
    slope = sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True))

    def moved(size):
        shifted = {name: p + size * d for (name, p), d in zip(network.named_parameters(), direction, strict=True)}
        return float(
            phibe(lambda z, s: torch.func.functional_call(network, shifted, (z, s)), x, t, dx, dt).mean().detach()
        )

    h = 1e-5
    assert slope == pytest.approx((moved(h) - moved(-h)) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("name", ["phibe", "regression"])
def test_each_transition_has_its_own_value(name):
    network, transitions = _network(Dense, (2,)), _transitions((2,))
    together = objectives.OBJECTIVES[name](network, *transitions)
    alone = [objectives.OBJECTIVES[name](network, *(part[i : i + 1] for part in transitions)) for i in range(6)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)


# -- constant scalar diffusion -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_random_probes_average_to_the_divergence(shape):
    network, (x, t, dx, dt) = _network(Dense, shape), _transitions(shape)
    trace = _jacobians(network, x, t).diagonal(dim1=1, dim2=2).sum(1)
    torch.testing.assert_close(divergence(network, x, t), trace, rtol=1e-10, atol=1e-10)

    many, noise = 4000, 0.7
    repeated = [part.repeat_interleave(many, dim=0) for part in (x, t, dx, dt)]
    values = isotropic(network, *repeated, noise=noise, generator=torch.Generator().manual_seed(0)).reshape(6, many)
    exact = regression(network, x, t, dx, dt) - noise * trace
    error = (values.mean(1) - exact) / (values.std(1) / math.sqrt(many))
    assert float(error.abs().max()) < 4
    assert float((noise * trace / (values.std(1) / math.sqrt(many))).abs().max()) > 8  # the term would be missed


def test_in_one_dimension_a_single_probe_is_exact():
    network, (x, t, dx, dt) = _network(Dense, (1,)), _transitions((1,))
    expected = regression(network, x, t, dx, dt) - 0.4 * divergence(network, x, t)
    torch.testing.assert_close(isotropic(network, x, t, dx, dt, noise=0.4), expected, rtol=1e-12, atol=1e-12)


def test_hutchinson_probes_give_the_divergence_on_average():
    network, (x, t, _, _) = _network(Convolutional, (1, 4, 4)), _transitions((1, 4, 4))
    many = 800
    copies, times = x.repeat(many, 1, 1, 1), t.repeat(many)
    probe = objectives.rademacher(copies, torch.Generator().manual_seed(0))
    single = divergence(network, copies, times, probes=probe[None]).reshape(many, 6)
    error = (single.mean(0) - divergence(network, x, t)) / (single.std(0) / math.sqrt(many))
    assert float(error.abs().max()) < 4
    together = divergence(network, x, t, probes=probe[:18].reshape(3, *x.shape))
    torch.testing.assert_close(together, single[:3].mean(0), rtol=1e-10, atol=1e-10)


def test_the_estimated_noise_of_brownian_motion_is_its_diffusion_at_any_steps():
    brownian = OU(torch.zeros(3, 3), 0.8 * torch.eye(3, dtype=torch.float64))
    data = brownian.simulate(paths=20_000, times=[0.0, 0.01, 0.5, 0.6, 3.0])
    squares = (data.states.diff(dim=1) ** 2).mean(2) / data.times.diff()
    error = float(squares.std() / math.sqrt(squares.numel()))
    assert abs(estimate_noise(data) - 0.64) < 4 * error
    assert error < 0.005


def test_the_drift_enters_the_estimated_noise_at_first_order():
    """E|Δx|²/(d h) = σ² + O(h), and at a finite step exactly (tr Q_h + E|M_h(x − μ)|²)/(d h)."""
    ou = OU.reversible()
    for step in (0.2, 0.02):
        data = ou.simulate(paths=50_000, times=[0.3, 0.3 + step], seed=2)
        marginal = ou.marginal(0.3)
        _, second = ou.increment_moments(quadrature(marginal, 4)[0], step)
        exact = float((quadrature(marginal, 4)[1] * second.diagonal(dim1=1, dim2=2).sum(1)).sum()) / (2 * step)
        squares = data.states.diff(dim=1).square().sum(2) / (2 * step)
        assert abs(estimate_noise(data) - exact) < 4 * float(squares.std()) / math.sqrt(len(data))
        assert exact - 0.5 > 5 * step  # far from equilibrium the drift is seen


# -- what minimises them -----------------------------------------------------------------------------------------------


def _joint(ou, t, step):
    """The Gaussian distribution of (X_t, X_{t+h})."""
    marginal, (P, Q) = ou.marginal(t), ou.transition(step)
    C, cross = marginal.covariance, marginal.covariance @ P.mT
    covariance = torch.cat([torch.cat([C, cross], 1), torch.cat([cross.mT, P @ C @ P.mT + Q], 1)])
    return Gaussian(torch.cat([marginal.mean, ou.mu + P @ (marginal.mean - ou.mu)]), covariance)


def _cubic(x, t):
    """A field that is neither a gradient nor near any minimiser."""
    a, b = x[:, 0], x[:, -1]
    columns = [0.3 * a**2 * b - 0.5 * t * b + 0.2, 0.1 * b**3 + a * b - 0.7 * a]
    return torch.stack(columns[: x.shape[1]], dim=1)


@pytest.mark.parametrize(
    ("name", "ou", "step"),
    [
        ("phibe", PAPER["nonreversible"], 0.5),
        ("phibe", PAPER["reversible"], 0.05),
        ("isotropic", OU([[-0.7]], [[0.9]], mu=[2.0], m0=[-1.0]), 0.5),
        ("regression", PAPER["nonreversible"], 0.05),
    ],
)
def test_the_mean_objective_is_a_completed_square(name, ou, step):
    """J(u) = ‖u − m‖² − ‖m‖² in L²(ρ_t), with m = v̂ (phibe), b̂ − ½σ²∇log ρ (isotropic), b̂ (regression).

    Both sides by Gauss–Hermite quadrature over (X_t, X_{t+h}), which is exact for polynomials.
    """
    t, noise, d = 0.4, float((ou.S @ ou.S.mT)[0, 0]), ou.dimension
    pairs, weight = quadrature(_joint(ou, t, step), 6)
    x, dx = pairs[:, :d], pairs[:, d:] - pairs[:, :d]
    times, steps = torch.full_like(weight, t), torch.full_like(weight, step)
    options = {"noise": noise} if name == "isotropic" else {}
    value = float((weight * find_objective(name)(_cubic, x, times, dx, steps, **options)).sum())

    minimiser = {
        "phibe": ou.phibe_velocity(x, t, step=step),
        "isotropic": theory.phibe_drift(ou, x, step) - 0.5 * noise * ou.score(x, t),
        "regression": theory.phibe_drift(ou, x, step),
    }
    u = _cubic(x, times)

    def square(m):
        return float((weight * ((u - m).square().sum(1) - m.square().sum(1))).sum())

    assert value == pytest.approx(square(minimiser[name]), rel=1e-10)
    assert value != pytest.approx(square(ou.velocity(x, t)), rel=1e-2)  # the true velocity does not complete it


@pytest.mark.parametrize("name", PAPER)
def test_integration_by_parts_takes_the_score_away(name):
    """E[‖u‖² − 2u·b − Σ:∇u] = ‖u − v‖² − ‖v‖²   [paper: score-free objective]."""
    ou, t = PAPER[name], 0.4
    x, weight = quadrature(ou.marginal(t), 8)
    times = torch.full_like(weight, t)
    u, v, J = _cubic(x, times), ou.velocity(x, t), _jacobians(_cubic, x, times)
    free = u.square().sum(1) - 2 * (u * ou.drift(x)).sum(1) - torch.einsum("nij,nij->n", ou.diffusion(x), J)
    scored = (u - v).square().sum(1) - v.square().sum(1)
    assert float((weight * free).sum()) == pytest.approx(float((weight * scored).sum()), rel=1e-11)
    assert float((free - scored).abs().max()) > 1  # equal on average only


def test_an_unknown_objective_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="one of phibe, isotropic, regression.*got 'phibee'"):
        find_objective("phibee")


# -- unequal steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["phibe", "symmetric", "symmetric2", "symmetric4", "phibe2"])
def test_a_sample_is_worth_one_over_the_variance_of_its_target(name):
    """Brownian paths over five fixed unequal steps, and over equal ones, where all samples are worth the same."""
    kind = OBJECTIVES[name]
    dt = torch.tensor([0.3, 0.1, 0.7, 0.2], dtype=torch.float64)[: kind.width - 1]
    paths = normal(40_000, kind.width, 1) * torch.cat([torch.zeros(1), dt]).sqrt()[:, None]
    x, t = paths.cumsum(1), torch.cat([torch.zeros(1), dt.cumsum(0)]).expand(40_000, -1).double()
    steps = dt.expand(40_000, -1)
    sample = (x[:, 0], t[:, 0], x[:, 1] - x[:, 0], steps[:, 0]) if kind.width == 2 else (x, t, steps)
    assert float(kind.stencil(*sample).u.var()) == pytest.approx(1 / float(kind.weights(*sample)[0]), rel=0.03)
    even = torch.full_like(steps, 0.1)
    sample = (*sample[:3], even[:, 0]) if kind.width == 2 else (x, t, even)
    assert float(kind.weights(*sample).std()) < 1e-9


def test_two_nearly_equal_times_do_not_drown_the_others():
    """A drift of one seen at random times, by 20 sets of 50 paths: the root mean square error with and without."""
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(1000, 50, dtype=torch.float64, generator=generator).sort(1).values
    steps = times.diff(dim=1, prepend=torch.zeros(1000, 1))[..., None]
    noise = torch.randn(1000, 50, 1, dtype=torch.float64, generator=generator)
    data = Trajectories((steps + steps.sqrt() * noise).cumsum(1), times)

    def error(weighted):
        fits = [fit_basis(part, lift(polynomials(0)), "regression", weighted=weighted) for part in data.blocks(20)]
        return float(torch.stack([fit.velocity.coefficients[0] - 1 for fit in fits]).square().mean().sqrt())

    assert error(True) < 1.5 / 50**0.5  # as good as 50 paths of length one can say
    assert error(False) > 2 * error(True)
