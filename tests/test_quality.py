"""The quality of a flow: an exact one is at the floor, a wrong one is not, and the words follow the numbers."""

import math

import pytest
import torch

from phibe import OU, Flow, Trajectories
from phibe.ensembles import integrate, observed, place_marks, time_free
from phibe.evaluation import (
    Distance,
    evaluate,
    excess,
    held_out_objective,
    judge_marginals,
    judge_moments,
    judge_objective,
    judge_resolution,
    marginal_distances,
    moment_error,
    open_source,
    ratio,
    spread,
    write_source,
)
from phibe.io import save_data
from phibe.linear.affine import fit_affine
from phibe.metrics import Estimate

TIMES = torch.linspace(0, 1, 13, dtype=torch.float64)
PROCESS = OU.nonreversible()
EXACT = Flow(PROCESS.velocity, (0.0, 1.0), 1 / 12)


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return PROCESS.simulate(paths=240, times=TIMES, seed=0)


@pytest.fixture(scope="module")
def own_times() -> Trajectories:
    """Every path at times of its own, some of them shorter than others."""
    generator = torch.Generator().manual_seed(1)
    times = torch.rand(240, 13, generator=generator, dtype=torch.float64).sort(dim=1).values
    times[:, 0] = 0.0
    states = PROCESS.simulate(paths=240, times=times, generator=generator).states
    return Trajectories(states, times, torch.randint(6, 14, (240,), generator=generator))


HELD = torch.arange(0, 240, 4)


# -- marginals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["data", "own_times"])
def test_an_exact_flow_is_at_the_floor_and_the_drift_is_not(kind, request):
    seen = request.getfixturevalue(kind)
    quality = evaluate(EXACT, seen, held_out=HELD, objective="symmetric")
    assert 0.8 < ratio(quality.marginals) < 1.2
    assert excess(quality.marginals) < 0.1
    wrong = evaluate(Flow(PROCESS.drift, (0.0, 1.0), 1 / 12), seen, held_out=HELD, objective="symmetric")
    assert ratio(wrong.marginals) > 1.15 * ratio(quality.marginals)
    assert moment_error(quality.marginals) < 0.1  # two numbers see more than a distance of whole distributions
    assert moment_error(wrong.marginals) > 0.3
    assert quality.verdict == "good" != wrong.verdict
    still = evaluate(Flow(lambda x, t: 0 * x, (0.0, 1.0), 1 / 12), seen, held_out=HELD, objective="symmetric")
    assert still.verdict == "not trustworthy"
    assert [d.flow for d in still.marginals] == pytest.approx([d.persistence for d in still.marginals])


def test_times_in_between_are_judged_by_a_fit_that_has_not_seen_them(data):
    mask = torch.ones(240, dtype=torch.bool)
    mask[HELD] = False
    again = fit_affine(data[mask].coarsen(2), "symmetric")
    quality = evaluate(EXACT, data, held_out=HELD, objective="symmetric", refitted=again)
    assert [d.time for d in quality.left_out_times] == pytest.approx(TIMES[1::2].tolist())
    assert "intermediate times" in {finding.about for finding in quality.findings}
    assert not evaluate(EXACT, data, held_out=HELD, objective="symmetric").left_out_times


def test_a_flow_is_integrated_to_the_very_times_of_each_path(own_times):
    decay = Flow(lambda x, t: -x, None, 0.01)
    marks = place_marks(own_times, 5, elapsed=False)
    states = integrate(decay, own_times, marks)
    there = marks.places >= 0
    t = own_times.times[torch.arange(240)[:, None], marks.places.clamp(min=0)]
    exact = own_times.states[:, :1] * torch.exp(-t)[..., None]
    torch.testing.assert_close(states[there], exact[there], rtol=0, atol=1e-8)
    assert torch.isnan(states[~there]).all()
    assert 0 < int((~there).sum()) < there.numel() / 2  # some paths were lost early


def test_marks_on_a_shared_grid_are_observed_times(data, own_times):
    marks = place_marks(data, 4, elapsed=False)
    assert set(marks.times.tolist()) <= set(TIMES.tolist())
    assert float(marks.times[-1]) == 1.0
    torch.testing.assert_close(observed(data, marks)[:, -1], data.states[:, -1])
    between = place_marks(data, 20, elapsed=False, every=2)
    assert between.places[0].tolist() == [1, 3, 5, 7, 9, 11]
    late = place_marks(own_times, 4, elapsed=False)
    near = own_times.times[torch.arange(240)[:, None], late.places.clamp(min=0)] - late.times
    assert float(near[late.places >= 0].abs().max()) <= 0.5 * float(late.times[1] - late.times[0]) + 1e-12


def test_pieces_of_one_path_are_compared_by_the_time_since_they_began():
    process = OU([[-1.0, 2.0], [-2.0, -1.0]], torch.eye(2), m0=[0.0, 0.0], C0=0.5 * torch.eye(2))
    path = process.simulate(paths=1, times=torch.arange(0, 120, 0.1, dtype=torch.float64), seed=2)
    pieces = path.cut(13)
    turn = Flow(lambda x, t: torch.stack([2 * x[:, 1], -2 * x[:, 0]], 1), pieces.interval, 0.1)
    assert time_free(turn, pieces)
    assert not time_free(EXACT, pieces)
    third = torch.arange(0, len(pieces), 3)
    quality = evaluate(turn, pieces, held_out=third, objective="symmetric")
    assert quality.marginals[-1].time == pytest.approx(1.2)
    assert ratio(quality.marginals) < 1.5
    assert "hardly change" in quality.motion
    assert quality.held_out.value < -3 * quality.held_out.error  # stationary marginals cannot tell, the objective can


def test_distances_do_not_depend_on_units(data):
    units = torch.tensor([1e3, 1e-2], dtype=torch.float64)
    scaled = Trajectories(data.states * units, data.times)
    flow = Flow(lambda x, t: PROCESS.velocity(x / units, t) * units, (0.0, 1.0), 1 / 12)
    values = []
    for one, exact in ((data, EXACT), (scaled, flow)):
        found = marginal_distances(exact, one, 200, place_marks(one, 4, elapsed=False), unit=spread(one), method="rk4")
        loss = held_out_objective(exact, one, "phibe", unit=spread(one))
        values.append([found[-1].flow, found[-1].floor, loss.value])
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_a_flow_that_diverges_is_not_trustworthy(data):
    quality = evaluate(Flow(lambda x, t: 50 * x**3, (0.0, 1.0), 1 / 12), data, held_out=HELD, objective="symmetric")
    assert quality.verdict == "not trustworthy"
    assert any("diverges" in finding.text for finding in quality.findings)
    assert any(row["flow"] is None for row in quality.as_json()["marginals"])  # no infinity in JSON


# -- the objective -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["symmetric", "isotropic"])
def test_the_objective_of_no_motion_is_zero_and_that_of_the_truth_below(data, objective):
    still = held_out_objective(Flow(lambda x, t: 0 * x), data, objective, unit=spread(data))
    assert still == Estimate(0.0, 0.0)
    value = held_out_objective(EXACT, data, objective, unit=spread(data))
    assert value.value < -3 * value.error < 0


def test_paths_that_were_all_seen_are_no_test(data):
    quality = evaluate(EXACT, data, held_out=None, objective="symmetric")
    assert quality.verdict == "usable with care"
    assert any("every number here is of paths that the fit has seen" in finding.text for finding in quality.findings)


def test_few_paths_show_little_and_the_words_say_so():
    few = PROCESS.simulate(paths=10, times=TIMES, seed=0)
    quality = evaluate(EXACT, few, held_out=torch.arange(2), objective="symmetric")
    assert quality.marginals == []
    assert quality.verdict == "usable with care"
    assert any("fewer than 8 paths" in finding.text for finding in quality.findings)
    assert quality.summary().startswith("usable with care\n  held-out objective: ")


# -- the verdict -------------------------------------------------------------------------------------------------------


def row(flow: float, floor: float = 0.1) -> list[Distance]:
    return [Distance(1.0, flow, floor, 1.0, 100, 0.0, 1.0)]


def test_marginals_are_graded_by_their_distance_in_floors_and_in_spreads():
    for flow, floor, grade in (
        (0.19, 0.1, "good"),
        (0.03, 0.001, "good"),  # thirty times a tiny floor, but hardly anything
        (0.3, 0.1, "usable with care"),
        (0.2, 0.01, "usable with care"),
        (0.5, 0.1, "not trustworthy"),
        (math.inf, 0.1, "not trustworthy"),
    ):
        assert judge_marginals("marginals", row(flow, floor), where="Here").grade == grade


CARE, NOT = "usable with care", "not trustworthy"


def test_an_objective_must_be_below_that_of_no_motion_by_three_errors():
    for value, grade in ((-1.0, "good"), (-0.2, CARE), (0.2, CARE), (1.0, NOT)):
        assert judge_objective(Estimate(value, 0.1), objective="phibe").grade == grade


def test_means_and_spreads_are_graded_in_spreads_of_their_time():
    for error, grade in ((0.1, "good"), (0.3, CARE), (0.6, NOT)):
        (finding,) = judge_moments([Distance(1.0, 0.1, 0.1, 1.0, 100, error**2, 0.5)])
        assert finding.grade == grade
        assert "0.50 times the observed" in finding.text


def test_a_coarse_floor_is_a_finding():
    assert judge_resolution(row(0.5, 0.5))[0].grade == "usable with care"
    assert judge_resolution(row(0.5, 0.1)) == []


# -- where the data is -------------------------------------------------------------------------------------------------


def test_a_run_finds_its_data_again_and_says_why_when_it_does_not(data, tmp_path):
    with pytest.raises(ValueError, match="does not say where its data is.*--data"):
        open_source(tmp_path)
    save_data(data, tmp_path / "data.npz")
    write_source(tmp_path, data, tmp_path / "data.npz")
    assert torch.equal(open_source(tmp_path).states, data.states)
    save_data(Trajectories(data.states + 1, data.times), tmp_path / "data.npz")
    with pytest.raises(ValueError, match="has changed since"):
        open_source(tmp_path)
    (tmp_path / "data.npz").unlink()
    with pytest.raises(ValueError, match="no longer there. Moved"):
        open_source(tmp_path)
    (tmp_path / "data.json").write_text("{", encoding="utf8")
    with pytest.raises(ValueError, match="cannot be read"):
        open_source(tmp_path)
