"""Closed-form fits: the minimiser itself, from regular, irregular, ragged, mapped and badly scaled data."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from problems import PAPER, kinetic, near, normal, properties, real, stable_systems
from torch import nn
from torch.func import jvp

from phibe import OU, Trajectories, theory
from phibe.bases import InTime, lift, polynomials
from phibe.calculus import divergence
from phibe.linear.affine import AffineField, affine_sums, fit_affine
from phibe.linear.basis import fit_basis
from phibe.linear.sums import ADDED, Centred, merged, sums
from phibe.networks import build
from phibe.objectives import OBJECTIVES, estimate_noise, phibe, regression
from phibe.systems.fokker_planck import GridSolution


def _data(paths=400, times=(0.2, 0.25, 0.35, 0.4, 0.6), ou=None, seed=0):
    return (ou or OU.nonreversible()).simulate(paths=paths, times=real(times), seed=seed)


def _exact_divergence(velocity, x, t, dx, dt, noise=0.6):
    return regression(velocity, x, t, dx, dt) - noise * divergence(velocity, x, t)


EXACT = {"phibe": phibe, "regression": regression, "isotropic": _exact_divergence}
OPTIONS = {"phibe": {}, "regression": {}, "isotropic": {"noise": 0.6}}


# -- it is the minimiser -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", EXACT)
def test_the_affine_fit_is_what_brute_force_minimisation_finds(objective):
    data = _data()
    field = fit_affine(data, objective, **OPTIONS[objective]).velocity
    for i, t in enumerate(data.times[:-1]):
        x, dx = data.states[:, i], data.states[:, i + 1] - data.states[:, i]
        matrix, offset = _minimise(objective, x, dx, t, data.times[i + 1] - t)
        torch.testing.assert_close(field.matrices[i], matrix, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(field.offsets[i], offset, rtol=1e-6, atol=1e-6)


def _minimise(objective, x, dx, t, dt):
    matrix = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    offset = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [matrix, offset], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    times, steps = t.expand(len(x)), dt.expand(len(x))

    def loss():
        search.zero_grad()
        value = EXACT[objective](lambda z, s: z @ matrix.mT + offset, x, times, dx, steps).mean()
        value.backward()
        return value

    search.step(loss)
    return matrix.detach(), offset.detach()


@pytest.mark.parametrize("objective", ["phibe", "isotropic"])
def test_at_one_time_an_affine_basis_gives_the_affine_fit(objective):
    data = _data(times=(0.3, 0.4))
    affine = fit_affine(data, objective, **OPTIONS[objective])
    basis = fit_basis(data, lift(polynomials(1)), objective, **OPTIONS[objective])
    x, t = near(OU.nonreversible(), 0.3), torch.full((12,), 0.3, dtype=torch.float64)
    torch.testing.assert_close(basis.velocity(x, t), affine.velocity(x, t), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("objective", ["phibe", "isotropic"])
def test_a_lifted_basis_is_the_basis_of_its_fields(objective):
    data, lifted = _data(), lift(InTime(polynomials(2), real([0.2, 0.4])))
    fields = [fit_basis(data, b, objective, **OPTIONS[objective]) for b in (lifted, lambda x, t: lifted(x, t))]
    for part in ("gram", "moment"):
        a, b = (getattr(flow.velocity, part) for flow in fields)
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_hats_at_the_observation_times_give_the_affine_fit_at_each():
    data = _data()
    at_each = fit_affine(data).velocity
    by_knots = fit_affine(data, knots=data.times[:-1]).velocity
    torch.testing.assert_close(by_knots.matrices, at_each.matrices, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(by_knots.offsets, at_each.offsets, rtol=1e-8, atol=1e-8)


def test_frozen_features_train_the_last_layer_in_closed_form():
    torch.manual_seed(0)
    hidden = nn.Sequential(nn.Linear(3, 7), nn.SiLU(), nn.Linear(7, 6), nn.Tanh()).double().requires_grad_(False)
    last = nn.Linear(6, 2, bias=False).double()

    def features(x, t):
        return hidden(torch.cat([x, t[:, None]], dim=1))

    def mean_objective():
        return phibe(lambda x, t: last(features(x, t)), *data.pairs()).mean()

    data = _data()
    before = torch.autograd.grad(mean_objective(), last.weight)[0]
    flow = fit_basis(data, lift(features))
    last.weight.data = flow.velocity.coefficients.reshape(6, 2).mT.clone()
    after = torch.autograd.grad(mean_objective(), last.weight)[0]
    assert float(after.norm()) < 1e-9 * float(before.norm())
    x, t = data.pairs()[:2]
    torch.testing.assert_close(flow.velocity(x, t), last(features(x, t)).detach(), rtol=1e-12, atol=1e-12)


def test_the_normal_equations_are_those_of_the_theorem():
    """H = mean ΨᵀΨ, c = mean ψ·Δx/Δt + ½Δxᵀ∇ψΔx/Δt, so that the mean objective is θᵀHθ − 2c·θ for any θ."""
    data, basis = _data(), lift(polynomials(2))
    field = fit_basis(data, basis).velocity
    theta = normal(12, seed=3)
    value = phibe(lambda x, t: torch.einsum("npd,p->nd", basis(x, t), theta), *data.pairs()).mean()
    assert float(theta @ field.gram @ theta - 2 * field.moment @ theta) == pytest.approx(float(value), rel=1e-11)
    torch.testing.assert_close(field.gram @ field.coefficients, field.moment, rtol=1e-8, atol=1e-8)


def test_a_ridge_shrinks_the_solution_as_stated():
    data, basis = _data(), lift(polynomials(1))
    plain, ridged = fit_basis(data, basis).velocity, fit_basis(data, basis, ridge=0.5).velocity
    expected = torch.linalg.solve(plain.gram + 0.5 * torch.eye(6, dtype=torch.float64), plain.moment)
    torch.testing.assert_close(ridged.coefficients, expected, rtol=1e-10, atol=1e-12)
    assert float(ridged.coefficients.norm()) < float(plain.coefficients.norm())


def test_states_of_any_shape_are_fitted_as_their_coordinates():
    flat = _data(ou=OU(-torch.eye(4) - 0.3 * torch.ones(4, 4).tril(-1), torch.eye(4)))
    square = Trajectories(flat.states.reshape(*flat.states.shape[:2], 2, 2), flat.times)
    x, t = flat.states[:5, 0], torch.full((5,), 0.31, dtype=torch.float64)
    for fit in (fit_affine, lambda data: fit_basis(data, lift(polynomials(2)))):
        expected = fit(flat).velocity(x, t).reshape(5, 2, 2)
        torch.testing.assert_close(fit(square).velocity(x.reshape(5, 2, 2), t), expected, rtol=1e-10, atol=1e-10)


def test_between_observation_times_the_field_is_linear_in_time():
    field = fit_affine(_data()).velocity
    x = normal(3, 2)
    early, late = (field(x, torch.full((3,), t, dtype=torch.float64)) for t in (0.25, 0.35))
    torch.testing.assert_close(field(x, torch.full((3,), 0.28, dtype=torch.float64)), 0.7 * early + 0.3 * late)
    mixed = field(x, real([0.25, 0.28, 0.35]))  # each sample at its own time
    torch.testing.assert_close(mixed[1], (0.7 * early + 0.3 * late)[1])


KNOTS, VALUES = real([0.0, 0.2, 0.3, 0.7]), real([1.0, 2.0, -1.0, 0.5])  # slopes 5, −30, 3.75


def _affine():
    return AffineField(KNOTS, torch.zeros(4, 1, 1, dtype=torch.float64), VALUES[:, None])


def _basis():
    return lambda x, t: InTime(polynomials(0), KNOTS)(x, t) @ VALUES[:, None]


def _network():
    network = build("basis", (1,), degree=0, waves=0, knots=4).double()
    network.knots.copy_(KNOTS), network.coefficients.data.copy_(VALUES[:, None, None])
    return network


def _grid():
    values = VALUES[:, None, None].expand(4, 2, 1)
    return GridSolution((real([-9.0, 9.0]),), KNOTS, values[..., 0], values).velocity


@pytest.mark.parametrize("field", [_affine, _basis, _network, _grid])
@pytest.mark.parametrize(
    ("times", "slopes"),
    [  # at a knot from the left, at the first from the right
        ([0.1, 0.25, 0.5, 0.9, -0.4, 0.0, 0.2, 0.3, 0.7, 0.2], [5, -30, 3.75, 0, 0, 5, 5, -30, 3.75, 5]),
        ([0.2] * 5, [5] * 5),
    ],
)
def test_between_knots_each_sample_has_the_slope_of_its_own_time(field, times, slopes):
    n = len(times)
    velocity, x, t, weight = field(), normal(n, 1), real(times).requires_grad_(), normal(n, seed=1)
    torch.testing.assert_close(velocity(x, t).flatten(), real(np.interp(times, KNOTS, VALUES)))
    torch.testing.assert_close(torch.autograd.grad(velocity(x, t).sum(), t)[0], real(slopes))
    forward = jvp(lambda s: velocity(x, s).flatten(), (t.detach(),), (weight,))[1]
    torch.testing.assert_close(forward.detach(), weight * real(slopes))


# -- it recovers what it should ----------------------------------------------------------------------------------------


@properties
@given(ou=stable_systems())
def test_the_affine_fit_tends_to_the_population_field(ou):
    t, step, paths = 0.4, 0.2, 20_000
    batches = [fit_affine(ou.simulate(paths=paths // 10, times=[t, t + step], seed=i)).velocity for i in range(10)]
    matrices = torch.cat([field.matrices for field in batches])
    exact, offset = theory.affine_phibe_field(ou, t, step=step)
    error = (matrices.mean(0) - exact).abs() / (matrices.std(0) / math.sqrt(10))
    assert float(error.max()) < 8  # Student's t with 9 degrees of freedom, up to 25 entries
    x = near(ou, t)
    values = torch.stack([field(x, torch.full((12,), t, dtype=torch.float64)) for field in batches])
    error = (values.mean(0) - (x @ exact.mT + offset)).abs() / (values.std(0) / math.sqrt(10))
    assert float(error.max()) < 8


@pytest.mark.slow
def test_ten_million_transitions_give_the_population_field_within_its_standard_error():
    """The cubic v̂ from a cubic fit: H_N and c_N of twenty batches add up to those of all 10⁷ transitions."""
    ou, t, step, batches, n = OU.nonreversible(), 0.5, 0.1, 20, 500_000
    x = near(ou, t, n=8, seed=5)
    times = torch.full((8,), t, dtype=torch.float64)
    basis = lift(polynomials(3))
    fields = [fit_basis(ou.simulate(paths=n, times=[t, t + step], seed=i), basis).velocity for i in range(batches)]
    gram, moment = (sum(getattr(field, part) for field in fields) / batches for part in ("gram", "moment"))
    theta = torch.linalg.solve(gram, moment)
    fitted = torch.einsum("npd,p->nd", basis(x, times), theta)
    spread = torch.stack([field(x, times) for field in fields]).std(0) / math.sqrt(batches)
    assert float(spread.max()) < 0.05
    assert float(((fitted - ou.phibe_velocity(x, t, step=step)) / spread).abs().max()) < 4
    assert float(((fitted - ou.velocity(x, t)) / spread).abs().max()) > 50  # not the true velocity


def test_the_isotropic_fit_uses_a_known_or_an_estimated_noise():
    """Known σ² leaves only the drift's bias; the estimate adds the drift in Δx, which is large far from equilibrium."""
    ou, t, step = OU.reversible(), 0.3, 0.05
    data = ou.simulate(paths=200_000, times=[t, t + step], seed=1)
    known = fit_affine(data, "isotropic", noise=0.5).velocity
    estimated = fit_affine(data, "isotropic").velocity
    same = fit_affine(data, "isotropic", noise=estimate_noise(data)).velocity
    torch.testing.assert_close(estimated.matrices, same.matrices, rtol=1e-10, atol=1e-10)
    spread = Trajectories(data.states, data.times.expand(len(data), 2))
    torch.testing.assert_close(fit_affine(spread, "isotropic").velocity.matrices, same.matrices, rtol=1e-9, atol=1e-9)
    C = torch.linalg.inv(ou.marginal(t).covariance)
    drift = (torch.linalg.matrix_exp(ou.A * step) - torch.eye(2, dtype=torch.float64)) / step
    assert float((known.matrices[0] - (drift + 0.25 * C)).norm()) < 0.1
    excess = 0.5 * (estimate_noise(data) - 0.5) * C
    torch.testing.assert_close(estimated.matrices - known.matrices, excess[None], rtol=0, atol=0.05)
    assert float(excess.norm()) > 1


def test_a_degenerate_noise_is_no_obstacle():
    ou = kinetic()
    data = ou.simulate(paths=100_000, times=[0.5, 0.52], seed=2)
    exact, _ = theory.affine_phibe_field(ou, 0.5, step=0.02)
    torch.testing.assert_close(fit_affine(data).velocity.matrices[0], exact, rtol=0, atol=0.15)
    assert fit_affine(data).velocity.matrices[0, 0] == pytest.approx(exact[0].numpy(), abs=1e-3)  # no noise there


# -- the same answer however the data is written -----------------------------------------------------------------------


def _assert_same(a, b, rtol=1e-12):
    """The same sums, whatever they are kept around; each compared with the largest number of its kind."""
    b = b.around(a.shift)
    assert torch.equal(a.keys, b.keys)
    for name in ADDED:
        x, y = getattr(a, name), getattr(b, name)
        torch.testing.assert_close(y, x, rtol=0, atol=rtol * float(x.abs().max()))
    assert (a.interval, a.dtype) == (b.interval, b.dtype)


@pytest.mark.parametrize(
    ("paths", "steps", "d"),
    [(300, 2, 1), (300, 3, 2), (300, 8, 7), (300, 3, 130), (20, 700, 2)],
)
def test_fast_and_general_sums_agree(paths, steps, d):
    times = torch.arange(steps, dtype=torch.float64) ** 1.5 / 50
    data = Trajectories(1 + normal(paths, steps, d).cumsum(1), times)
    general = sums(data, lift(Centred(normal(d, seed=1))), "phibe", by_time=True)
    seen = general.counts[:, 0] > 0
    assert bool(seen.all())
    _assert_same(general, affine_sums(data, "phibe"), rtol=1e-11)


IRREGULAR = (normal(90, 7, seed=5).abs() * 0.05 + 0.01).cumsum(1)
KINDS = {
    "affine": partial(affine_sums, objective="phibe"),
    "affine, both ends": partial(affine_sums, objective="stratonovich"),
    "affine, knots": partial(affine_sums, objective="isotropic", knots=real([0.1, 0.3, 0.6])),
    "basis": partial(sums, basis=lift(polynomials(3)), objective="phibe"),
    "basis in time": partial(sums, basis=lift(InTime(polynomials(2), real([0.1, 0.3, 0.6]))), objective="symmetric"),
    "basis, weighted": partial(sums, basis=lift(polynomials(2)), objective="symmetric2", weighted=True),
}


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*((kind, "ragged") for kind in KINDS), ("affine", "grid"), ("affine, knots", "own times"), ("basis", "own times")],
)
def test_sums_of_any_parts_merge_to_those_of_all_paths_in_any_order(kind, shape):
    states = 3 + _data(paths=90, times=tuple(0.1 * i for i in range(7))).states
    lengths = [7, 5, 6] * 30 if shape == "ragged" else None
    data = Trajectories(states, IRREGULAR if shape == "own times" else IRREGULAR[0], lengths)
    whole = KINDS[kind](data)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    parts = [KINDS[kind](data[order[slice(*ends)]]) for ends in ((0, 1), (1, 40), (40, 55), (55, 90))]
    a, b, c, e = pickle.loads(pickle.dumps(parts))  # as they come from another process
    for merge in (a.merge(b).merge(c).merge(e), a.merge(b.merge(c.merge(e))), e.merge(b).merge(a.merge(c))):
        _assert_same(whole, merge)
        assert merge.step == min(part.step for part in parts)
    without = float((merged([a, b, c], "phibe").around(whole.shift).gram.sum() - whole.gram.sum()).abs())
    assert without > 1e-3 * float(whole.gram.sum().abs())


class Elsewhere(ThreadPoolExecutor):
    """Tasks and results are pickled, as they are on their way to other processes and machines."""

    def submit(self, task, *args):
        task, args = pickle.loads(pickle.dumps((task, args)))
        return super().submit(lambda: pickle.loads(pickle.dumps(task(*args))))


@pytest.mark.parametrize("objective", ["isotropic", "stratonovich"])
def test_any_executor_sums_the_blocks(objective):
    data, basis = _data(), lift(InTime(polynomials(2), real([0.2, 0.4])))
    with Elsewhere(2) as executor:
        affine = fit_affine(data.blocks(7), objective, executor=executor).velocity
        field = fit_basis(data, basis, objective, blocks=7, executor=executor).velocity
    alone, apart = fit_affine(data, objective).velocity, fit_basis(data, basis, objective, blocks=7).velocity
    torch.testing.assert_close(affine.matrices, alone.matrices, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(affine.offsets, alone.offsets, rtol=1e-10, atol=1e-10)
    assert torch.equal(field.coefficients, apart.coefficients)
    assert torch.equal(field.influence, apart.influence)


def test_blocks_on_grids_of_their_own_are_as_one_set_of_paths_with_their_times():
    fine = _data(paths=60, times=(0.0, 0.1, 0.2, 0.3, 0.4))
    coarse = fine.coarsen(2)
    padded = torch.cat([coarse.states, torch.full((60, 2, 2), math.nan, dtype=torch.float64)], 1)
    times = torch.cat([fine.times.expand(60, 5), torch.cat([coarse.times, real([0.5, 0.6])]).expand(60, 5)])
    both = Trajectories(torch.cat([fine.states, padded]), times, [5] * 60 + [3] * 60)
    expected, found = fit_affine(both), fit_affine([fine, coarse])
    torch.testing.assert_close(found.velocity.matrices, expected.velocity.matrices, rtol=1e-9, atol=1e-9)
    assert found.interval == expected.interval


def _written_differently(data):
    """The same transitions, encoded as ragged and irregular data."""
    paths, steps = data.states.shape[:2]
    own = data.times.expand(paths, steps)
    padded = torch.full((paths, steps + 3, 2), float("nan"), dtype=torch.float64)
    padded[:, :steps] = data.states
    long_times = torch.cat([data.times, data.times[-1] + 1 + torch.arange(3)])
    lengths = torch.full((paths,), steps)
    # every path cut in two at its middle observation, which belongs to both pieces
    middle = steps // 2
    first, second = data.states[:, : middle + 1], data.states[:, middle:]
    width = max(first.shape[1], second.shape[1])
    pieces = torch.full((2 * paths, width, 2), float("nan"), dtype=torch.float64)
    piece_times = torch.full((2 * paths, width), float("nan"), dtype=torch.float64)
    pieces[:paths, : first.shape[1]], piece_times[:paths, : first.shape[1]] = first, data.times[: middle + 1]
    pieces[paths:, : second.shape[1]], piece_times[paths:, : second.shape[1]] = second, data.times[middle:]
    piece_lengths = [first.shape[1]] * paths + [second.shape[1]] * paths
    return {
        "own times": Trajectories(data.states, own),
        "padded": Trajectories(padded, long_times, lengths),
        "cut in pieces": Trajectories(pieces, piece_times, piece_lengths),
        "paths in another order": data[torch.randperm(paths, generator=torch.Generator().manual_seed(0))],
    }


@pytest.mark.parametrize(
    ("encoding", "objective"),
    [
        *((encoding, "phibe") for encoding in ("own times", "padded", "cut in pieces", "paths in another order")),
        *(("cut in pieces", objective) for objective in ("regression", "isotropic")),
    ],
)
def test_ragged_and_irregular_data_give_the_answer_of_the_regular_data_they_encode(encoding, objective):
    data = _data()
    other = _written_differently(data)[encoding]
    expected, found = (fit_affine(d, objective, **OPTIONS[objective]).velocity for d in (data, other))
    torch.testing.assert_close(found.times, expected.times)
    torch.testing.assert_close(found.matrices, expected.matrices, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.offsets, expected.offsets, rtol=1e-8, atol=1e-8)
    knotted = [fit_affine(d, objective, knots=[0.2, 0.3, 0.4], **OPTIONS[objective]).velocity for d in (data, other)]
    torch.testing.assert_close(knotted[1].matrices, knotted[0].matrices, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(knotted[1].offsets, knotted[0].offsets, rtol=1e-7, atol=1e-7)
    basis = lift(InTime(polynomials(2), real([0.2, 0.4])))
    expected, found = (fit_basis(d, basis, objective, **OPTIONS[objective]).velocity for d in (data, other))
    torch.testing.assert_close(found.gram, expected.gram, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.moment, expected.moment, rtol=1e-10, atol=1e-10)
    assert estimate_noise(other) == pytest.approx(estimate_noise(data), rel=1e-12)


def test_ragged_paths_count_only_while_they_last():
    """Half of the paths stop early: the early times use all of them, the late times the rest."""
    data = _data(paths=600, times=(0.1, 0.2, 0.3, 0.4))
    states = data.states.clone()
    states[300:, 2:] = float("nan")
    ragged = fit_affine(Trajectories(states, data.times, [4] * 300 + [2] * 300)).velocity
    everything, rest = fit_affine(data).velocity, fit_affine(data[:300]).velocity
    torch.testing.assert_close(ragged.matrices[0], everything.matrices[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ragged.matrices[1:], rest.matrices[1:], rtol=1e-9, atol=1e-9)


def test_coarser_data_is_the_same_process_at_a_larger_step():
    data = _data(paths=300, times=tuple(0.05 * i for i in range(9)))
    picked = Trajectories(data.states[:, [0, 4, 8]].clone(), data.times[[0, 4, 8]])
    torch.testing.assert_close(fit_affine(data.coarsen(4)).velocity.matrices, fit_affine(picked).velocity.matrices)
    fine = fit_affine(data).velocity.matrices[0]
    assert float((fit_affine(picked).velocity.matrices[0] - fine).norm()) > 0.1


def test_one_long_path_cut_into_windows_gives_a_time_independent_field():
    """A single stationary path: a basis without time uses all of its transitions, whatever their steps."""
    ou = OU([[-1.0, 2.0], [-2.0, -1.0]], torch.eye(2))
    start = OU(ou.A, ou.S, C0=ou.stationary().covariance)
    steps = 0.01 + 0.01 * (torch.arange(30_000) % 2)
    data = start.simulate(paths=1, times=torch.cat([real([0.0]), steps.double().cumsum(0)]))
    field = fit_basis(data, lift(polynomials(1))).velocity
    found = field.coefficients.reshape(3, 2)[1:].mT
    torch.testing.assert_close(found, ou.circulation(), rtol=0, atol=0.25)
    assert float(ou.circulation().norm()) > 2


def test_a_memory_map_gives_the_bits_of_memory(tmp_path):
    data = _data(paths=700, times=tuple(0.01 * i for i in range(50))).to(torch.float32)
    np.save(tmp_path / "states.npy", data.states.numpy())
    mapped = Trajectories(np.load(tmp_path / "states.npy", mmap_mode="r"), data.times)
    for objective in OBJECTIVES:
        a, b = fit_affine(data, objective).velocity, fit_affine(mapped, objective).velocity
        assert torch.equal(a.matrices, b.matrices)
        assert torch.equal(a.offsets, b.offsets)
    a, b = (fit_basis(d, lift(polynomials(2))).velocity for d in (data, mapped))
    assert torch.equal(a.coefficients, b.coefficients)


# -- hard numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["grid", "own times"])
def test_float32_states_far_from_zero_lose_no_more_than_their_rounding(encoding):
    """Multiples of 1/64 stay exact in float32 at 10⁵, so the matrix must be that of the same data around zero."""
    data = _data(paths=2000, times=(0.0, 0.1, 0.2), ou=OU([[-1.0, 2.0], [-2.0, -1.0]], torch.eye(2)))
    near_zero = (data.states * 64).round() / 64
    far = (near_zero + 100_000).float()
    assert torch.equal(far.double() - 100_000, near_zero)
    times = data.times if encoding == "grid" else data.times.expand(2000, 3)
    expected = fit_affine(Trajectories(near_zero, data.times)).velocity.matrices
    found = fit_affine(Trajectories(far, times)).velocity.matrices
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    x, dx = far[:, 0], far[:, 1] - far[:, 0]  # the textbook formula in the type of the data
    z = torch.cat([x, torch.ones(2000, 1)], 1)
    naive = (dx.mT @ z / 0.1 + torch.cat([0.5 * dx.mT @ dx / 0.1, torch.zeros(2, 1)], 1)) @ torch.linalg.pinv(z.mT @ z)
    assert float((naive[:, :2].double() - expected[0]).norm()) > 0.1


@pytest.mark.parametrize("scales", [(1e-9, 1e-9), (1e-6, 1e6)])
def test_the_units_of_the_data_do_not_matter(scales):
    data, D = _data(), torch.diag(real(scales))
    scaled = Trajectories(data.states @ D, data.times)
    plain, field = fit_affine(data).velocity, fit_affine(scaled).velocity
    torch.testing.assert_close(torch.linalg.inv(D) @ field.matrices @ D, plain.matrices, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_the_units_of_the_data_do_not_matter_to_a_basis(scale):
    """A cubic field: its Gram matrix spans thirty orders of magnitude, and no direction may be taken for zero."""
    data = _data()
    scaled = Trajectories(data.states * scale, data.times)
    plain, field = (fit_basis(d, lift(polynomials(3))).velocity for d in (data, scaled))
    x, t = data.states[:5, 0], torch.full((5,), 0.2, dtype=torch.float64)
    torch.testing.assert_close(field(x * scale, t) / scale, plain(x, t), rtol=1e-6, atol=1e-6)


def test_states_on_a_line_are_fitted_with_the_smallest_field_and_a_warning_that_names_the_time():
    ou = OU([[-1.0]], [[1.0]])
    line = ou.simulate(paths=500, times=[0.0, 0.5, 1.0]).states @ real([[1.0, 2.0]])
    line[:, 1] += normal(500, 2)  # at t = 0.5 the states fill the plane
    data = Trajectories(line, [0.0, 0.5, 1.0])
    with pytest.warns(UserWarning, match=r"span fewer than 2 dimensions at t = 0: .*smallest norm") as caught:
        field = fit_affine(data, "regression").velocity
    assert caught[0].filename == __file__
    x, dx = line[:, 0], line[:, 1] - line[:, 0]
    z = torch.cat([x[:, :1], torch.ones(500, 1, dtype=torch.float64)], 1)
    best = z @ torch.linalg.lstsq(z, dx / 0.5).solution  # along the line it is still least squares
    torch.testing.assert_close(x @ field.matrices[0].mT + field.offsets[0], best, rtol=1e-8, atol=1e-8)


def test_a_start_from_one_point_has_a_velocity_and_no_slope():
    ou = OU([[-1.0, 0.5], [0.0, -2.0]], torch.eye(2), mu=[1.0, 2.0], C0=torch.zeros(2, 2))
    data = ou.simulate(paths=50_000, times=[0.0, 0.01, 0.02])
    with pytest.warns(UserWarning, match="at t = 0:"):
        field = fit_affine(data).velocity
    assert float(field.matrices[0].norm()) == 0.0
    torch.testing.assert_close(field.offsets[0], ou.drift(torch.zeros(1, 2).double())[0], rtol=0, atol=0.2)


def test_equal_basis_fields_are_noticed():
    def twice(x, t):
        return torch.cat([polynomials(1)(x, t), polynomials(1)(x, t)], dim=1)

    data = _data()
    with pytest.warns(UserWarning, match="12 basis fields are only 6 different ones"):
        doubled = fit_basis(data, lift(twice)).velocity
    single = fit_basis(data, lift(polynomials(1))).velocity
    x, t = data.pairs()[:2]
    torch.testing.assert_close(doubled(x, t), single(x, t), rtol=1e-7, atol=1e-7)


def test_the_same_data_gives_the_same_bits():
    for fit in (fit_affine, lambda data: fit_basis(data, lift(polynomials(3)))):
        first, second = (dict(fit(_data()).velocity.state_dict()) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_requests_that_cannot_be_met_say_what_can():
    data = _data(paths=20)
    for fit in (fit_affine, lambda data, objective: fit_basis(data, lift(polynomials(1)), objective)):
        with pytest.raises(ValueError, match="`objective` must be one of phibe, isotropic, regression.*got 'ridge'"):
            fit(data, "ridge")
    own = Trajectories(data.states, data.times + torch.arange(20)[:, None] / 7)
    with pytest.raises(ValueError, match=r"needs 3 or more samples there.*Pass `knots`, as `knots="):
        fit_affine(own)
    with pytest.raises(ValueError, match="`knots` must be at least two increasing times; got"):
        fit_affine(own, knots=[0.5, 0.1])
    with pytest.raises(ValueError, match=r"basis must return \(n, p, \*state\).*got \(1, 6\) .*lift\(features\)"):
        fit_basis(data, polynomials(2))
    with pytest.raises(ValueError, match="iterable was empty"):
        fit_affine(iter([]))
    with pytest.raises(ValueError, match="No path has the 5 observations that `symmetric2` looks at"):
        fit_affine(data.coarsen(2), "symmetric2")


@pytest.mark.parametrize("name", PAPER)
def test_own_times_and_knots_recover_the_affine_field(name):
    ou, n = PAPER[name], 40_000
    start = torch.rand(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.5
    step = 0.02
    states = ou.simulate(paths=n, times=[0.6, 0.6 + step]).states  # one marginal, whatever the time each path was given
    times = torch.cat([start, start + step], 1)
    field = fit_affine(Trajectories(states, times), knots=[0.5, 0.7]).velocity
    exact, _ = theory.affine_phibe_field(ou, 0.6, step=step)
    torch.testing.assert_close(field.matrices, exact.expand(2, 2, 2), rtol=0, atol=0.6)
