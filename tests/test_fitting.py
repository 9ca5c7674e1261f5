"""One way in: automatic settings follow from the data, and the flow they lead to passes at observations left out."""

import json
import math

import pytest
import torch
from problems import normal, real

from phibe import OBJECTIVES, OU, FitConfig, Trajectories, fit, open_flow, write_report
from phibe.bases import lift, place_knots, polynomials
from phibe.calculus import over
from phibe.cli.data import describe_run
from phibe.experiments import own_data
from phibe.fitting import fit_closed, make_plan, window_length
from phibe.linear.affine import fit_affine
from phibe.linear.basis import Size, Trial, best, fit_basis, sizes
from phibe.networks.basis import Basis
from phibe.networks.mlp import MLP
from phibe.networks.network import Normalised
from phibe.objectives import Stencil, objective
from phibe.training.loop import fit_network
from phibe.training.runs import save_flow
from phibe.trajectories import Labels

TIMES = torch.linspace(0, 1, 21, dtype=torch.float64)
OU2 = OU.reversible()


# -- closed form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("objective", "knots"), [("symmetric", 4), ("phibe", 4), ("regression", 1)])
def test_the_closed_form_is_the_minimiser_over_the_basis(objective, knots):
    """The same fields by `fit_basis`, which solves all coordinates at once and without standard units."""
    data = OU2.simulate(paths=60, times=TIMES, seed=0)
    flow = fit_closed(data, objective, candidates=[Size(2, 0, knots, 0.0)], config=FitConfig(held_out=0))
    network = flow.velocity.network

    def fields(x, t):
        s = (t - network.t_start) / network.t_scale
        hats, phi = network.network.hats(s.double()), network.network.features(network.standardise(x))
        units = torch.eye(2, dtype=x.dtype)
        return torch.einsum("nj,nk,de->njkde", hats, phi, units).reshape(len(x), -1, 2)

    x, t = normal(50, 2) + 2, torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    same = fit_basis(data, fields, objective).velocity(x, t)
    torch.testing.assert_close(flow.velocity(x, t), same, rtol=1e-6, atol=1e-6)
    other = "regression" if objective != "regression" else "phibe"
    assert not torch.allclose(fit_basis(data, fields, other).velocity(x, t), same, rtol=1e-2)


def test_of_sizes_within_a_standard_error_the_smallest_is_taken():
    scores = torch.tensor([-1.0, -1.2, -0.9, -1.1])
    small, middle, large = (Size(degree, 0, 1, 0.0) for degree in (1, 2, 3))
    noise = torch.tensor([0.1, -0.1, 0.1, -0.1])
    trials = [Trial(small, scores + 0.5), Trial(middle, scores + 0.01 + noise), Trial(large, scores)]
    assert best(trials).size is middle
    assert best([trials[0], Trial(middle, scores + 0.2), trials[2]]).size is large


def test_knots_gather_where_the_marginals_move():
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    moving = 5 * torch.exp(-t / 0.05)[None, :, None] + normal(400, 101, 1)
    fast = place_knots(Trajectories(moving, t), 9)
    assert (float(fast[0]), float(fast[-1])) == (0.0, 1.0)
    assert bool((fast.diff() > 0).all())
    assert int((fast < 0.2).sum()) >= 5
    still = place_knots(Trajectories(normal(400, 101, 1, seed=1), t), 9)
    torch.testing.assert_close(still, torch.linspace(0, 1, 9, dtype=torch.float64), atol=0.04, rtol=0)


def test_hats_are_one_in_sum_and_at_their_knots():
    basis = Basis((1,), knots=4).double()
    basis.knots.copy_(real([0.0, 0.1, 0.7, 1.0]))
    torch.testing.assert_close(basis.hats(basis.knots), torch.eye(4, dtype=torch.float64))
    t = torch.linspace(-0.5, 1.5, 41, dtype=torch.float64)
    torch.testing.assert_close(basis.hats(t).sum(1), torch.ones(41, dtype=torch.float64))
    torch.testing.assert_close(basis.hats(t) @ basis.knots, t.clamp(0, 1))


def test_a_run_in_closed_form_opens_like_any_other(tmp_path):
    data = OU2.simulate(paths=40, times=TIMES, seed=0)
    labelled = Trajectories(data.states, data.times, labels=Labels.read(["t [s]", "x [m]", "y [m]"]))
    flow = fit(labelled, out=tmp_path / "run", progress=False)
    again = open_flow(tmp_path / "run")
    x, t = normal(9, 2), torch.linspace(0, 1, 9).double()
    assert torch.equal(again.velocity(x, t), flow.velocity(x, t))
    assert again.labels == labelled.labels and again.interval == flow.interval
    assert again.generate(x, TIMES).labels == labelled.labels
    names = {setting["what"] for setting in json.loads((tmp_path / "run" / "automatic.json").read_text("utf8"))}
    assert names == {"objective", "model", "units", "held out"}
    fit(labelled, out=tmp_path / "run", progress=False)  # the same again is there already
    with pytest.raises(ValueError, match="holds another run"):
        fit(labelled, "affine", "regression", out=tmp_path / "run", progress=False)


def test_an_affine_fit_can_be_kept_too(tmp_path):
    flow = fit_affine(OU2.simulate(paths=40, times=TIMES, seed=0), "symmetric")
    again = open_flow(save_flow(flow, tmp_path))
    x, t = normal(9, 2), torch.linspace(0, 1, 9).double()
    assert torch.equal(again.velocity(x, t), flow.velocity(x, t))
    with pytest.raises(ValueError, match=r"fitted on states \(2,\); got \(3,\)"):
        again.velocity(normal(9, 3), t)


# -- choices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "network"), [((3,), "basis"), ((20,), "mlp"), ((1, 16, 16), "unet"), ((2, 5, 5), "mlp")]
)
def test_the_class_follows_from_the_shape_of_the_state(shape, network):
    data = Trajectories(normal(6, 4, *shape), torch.arange(4.0))
    plan = make_plan(data, objective="symmetric")
    assert plan.model == network
    assert make_plan(data, "residual", "symmetric").model == "residual"


def test_the_objective_is_the_one_of_least_error():
    """Far from rest and seen coarsely, the paper's objective has a bias that central differences have not."""
    data = OU2.simulate(paths=800, times=TIMES, seed=0)
    plan = make_plan(data)
    assert plan.objective in ("symmetric", "symmetric2")
    assert make_plan(data, objective="phibe").objective == "phibe"
    (setting,) = [setting for setting in plan.automatic if setting.what == "objective"]
    assert "phibe" in setting.reason and "%" in setting.reason
    short = Trajectories(normal(4, 2, 1), real([0.0, 1.0]))
    assert make_plan(short).objective == "stratonovich"


def test_the_budget_grows_with_the_data_and_yields_to_the_user():
    few, many = (Trajectories(normal(20, n, 20), torch.arange(float(n))) for n in (10, 2000))
    steps = [make_plan(data, objective="symmetric").config.steps for data in (few, many)]
    assert steps[0] < steps[1]
    plan = make_plan(many, objective="symmetric", settings={"steps": 7, "held_out": 0.5})
    assert (plan.config.steps, plan.config.held_out) == (7, 0.5)
    assert not [setting for setting in plan.automatic if setting.what == "budget"]
    assert "10 of 20 paths" in " ".join(map(str, plan.automatic))


def test_no_candidate_has_more_coefficients_than_the_samples_bear():
    assert {size.degree for size in sizes(2, 10**6)} == {1, 2, 3}
    assert all(size.count(2) <= 10 for size in sizes(2, 200))
    assert {size.knots for size in sizes(2, 10**6, time=False)} == {1}
    assert {(size.degree, size.waves) for size in sizes(2, 10**6, affine=True)} == {(1, 0)}


def test_one_long_path_gives_a_velocity_that_knows_no_time(tmp_path):
    """A stationary rotation: dX = (−1 + 2J)X dt + dB, v = 2JX at rest."""
    process = OU([[-1.0, -2.0], [2.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]], C0=0.5 * torch.eye(2).double())
    data = process.simulate(paths=1, times=0.05 * torch.arange(4001.0).double(), seed=0)
    assert window_length(data) == 101
    assert window_length(process.simulate(paths=5, times=TIMES, seed=0)) is None
    flow = fit(data, objective="symmetric", progress=False)
    x = normal(200, 2) / 2**0.5
    v = flow.velocity(x, torch.zeros(200).double())
    assert torch.equal(v, flow.velocity(x, torch.ones(200).double()))
    exact = x @ real([[0.0, 2.0], [-2.0, 0.0]])
    assert float((v - exact).square().mean() / exact.square().mean()) < 0.05


# -- one way in --------------------------------------------------------------------------------------------------------


def same(one, two):
    x, t = normal(9, 2), torch.linspace(0, 1, 9).double()
    return torch.equal(one.velocity(x, t), two.velocity(x, t))


def test_every_model_goes_through_fit():
    """A name, a module, knots and a basis of one's own reach the same engines, with the same settings."""
    data, quick = OU2.simulate(paths=40, times=TIMES, seed=0), {"steps": 5, "batch": 16, "progress": False}
    config = FitConfig(steps=5, batch=16, ema=0.99, held_out=0.2, patience=15)
    network = fit(data, "mlp", "symmetric", width=7, depth=2, time=True, **quick)
    torch.manual_seed(0)
    module = MLP((2,), width=7, depth=2)
    assert same(network, fit_network(data, module, "symmetric", config=config, progress=False))
    assert same(network, fit(data, module, "symmetric", config=config, progress=False))
    assert not same(network, fit(data, module, "symmetric", seed=1, **quick))
    knots = [0.0, 0.5, 1.0]
    assert same(fit(data, "affine", "symmetric", knots=knots), fit_affine(data, "symmetric", knots=knots))
    cubic = lift(polynomials(3))
    ours = fit(data, cubic, "regression", ridge=0.1, blocks=4)
    assert same(ours, fit_basis(data, cubic, "regression", ridge=0.1, blocks=4))
    assert ours.velocity.covariance.shape == (20, 20)


def test_an_affine_fit_at_knots_is_a_run_like_any_other(tmp_path):
    data, how = OU2.simulate(paths=40, times=TIMES, seed=0), {"knots": [0.0, 0.5, 1.0], "out": tmp_path}
    flow = fit(data, "affine", "symmetric", **how)
    assert same(open_flow(tmp_path), flow)
    assert "solved in closed form" in describe_run(tmp_path)
    assert write_report(tmp_path, data, calibrate=False).held_out is not None
    assert same(fit(data, "affine", "symmetric", **how), flow)
    with pytest.raises(ValueError, match="holds another run"):
        fit(data, "affine", "regression", **how)


def test_a_new_objective_is_one_function_and_one_line():
    """Forward differences of twice the step: it is trained, solved, integrated and kept like those of the package."""

    @objective(width=3, order="1", variance=0.5, method="euler", assumes="a Markov state")
    def twice(x, t, dt):
        return Stencil(x[:, 0], t[:, 0], over(x[:, 2] - x[:, 0], dt.sum(1)))

    try:
        data = Trajectories(torch.exp(-TIMES)[None, :, None] * (normal(50, 1, 1) + 2), TIMES)  # v = −x
        flows = [
            fit(data, model, "twice", steps=300, progress=False) for model in ("affine", lift(polynomials(1)), "mlp")
        ]
        assert [flow.method for flow in flows] == ["euler"] * 3
        x, t = real([[0.8], [2.0]]), real([0.5, 0.5])
        exact = (math.exp(-0.1) - 1) / 0.1 * x
        for flow, tolerance in zip(flows, (1e-6, 1e-6, 0.1), strict=True):
            torch.testing.assert_close(flow.velocity(x, t), exact, rtol=tolerance, atol=tolerance)
    finally:
        del OBJECTIVES["twice"]


def test_a_flow_knows_the_integrator_of_its_objective(tmp_path):
    data = OU2.simulate(paths=40, times=TIMES, seed=0)
    for name, method in (("regression", "euler"), ("symmetric", "rk4")):
        flow = fit(data, "affine", name, out=tmp_path / name, progress=False)
        assert (flow.method, open_flow(tmp_path / name).method) == (method, method)
    config = json.loads((tmp_path / "regression" / "config.json").read_text("utf8"))
    del config["method"]  # as runs of before had it
    (tmp_path / "regression" / "config.json").write_text(json.dumps(config), "utf8")
    assert open_flow(tmp_path / "regression").method == "euler"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mpl",), r"`model` must be one of auto, affine.*transformer \(did you mean mlp\?\); got 'mpl'"),
        ((3,), "a torch module or a basis; got int"),
        (("mlp", {"stepz": 3}), r"no setting `stepz` \(did you mean steps\?\).*'mlp' takes width, depth, activation"),
        (("basis", {"width": 3}), "no setting `width`.*'basis' finds its size itself"),
        (("mlp", {"knots": [0, 1]}), "`knots` are times for model='affine'"),
        (("mlp", {"ridge": 0.1}), "`ridge` and `blocks` are for a basis of your own"),
        ((lift(polynomials(1)), {"out": "run"}), "cannot be kept"),
        (("mlp", {"objective": "fibe"}), "`objective` must be one of phibe"),
    ],
)
def test_what_cannot_be_fitted_is_said(arguments, message):
    model, settings = (*arguments, {})[:2]
    with pytest.raises(ValueError, match=message):
        fit(OU2.simulate(paths=10, times=TIMES, seed=0), model, progress=False, **settings)
    with pytest.raises(ValueError, match="needs `Trajectories.*got Tensor"):
        fit(normal(3, 4, 2), "mlp")


def test_everything_may_be_trained_on_without_a_word_on_patience():
    data = OU2.simulate(paths=10, times=TIMES, seed=0)
    assert make_plan(data, "mlp", "symmetric", settings={"held_out": 0}).config.patience == 0
    assert make_plan(data, "mlp", "symmetric").config.patience == 15


# -- quality -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", own_data.SYSTEMS)
def test_observations_left_out_are_met_within_twice_the_floor(name):
    """Fitted to every other observation, carried to the others, against paths of other seeds: at each of the times."""
    config = own_data.Config(paths=500, times=101, classes=("auto",), repeats=2)
    found = own_data.measure_system(name, config)
    assert found["auto"]["worst"] < 2
    assert min(found["still"]["each"]) > 3  # where standing still would fail


def test_normalised_units_do_not_change_what_is_found():
    data = OU2.simulate(paths=60, times=TIMES, seed=0)
    scaled = Trajectories(1e3 * data.states + 5, 60 * data.times)
    candidates = [Size(1, 0, 4, 1e-9)]
    one, two = (fit_closed(d, "symmetric", candidates=candidates).velocity for d in (data, scaled))
    assert isinstance(one.network, Normalised)
    x, t = normal(20, 2), torch.linspace(0, 1, 20).double()
    torch.testing.assert_close(two(1e3 * x + 5, 60 * t), one(x, t) * 1e3 / 60, rtol=1e-6, atol=1e-6)
