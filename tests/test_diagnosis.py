"""The diagnosis: the right verdict on data made to have one thing wrong at a time, and numbers that can be checked."""

import pytest
import torch
from problems import normal

from phibe import OU, Trajectories, diagnose
from phibe.theory import affine_minimiser

SPIRAL = OU([[-1.0, -3.0], [3.0, -1.0]], torch.eye(2))
KINETIC = OU([[0.0, 1.0], [-4.0, -0.5]], [[0.0], [1.0]])


def observed(ou, *, paths, count, step, still=True, seed=0):
    """Paths observed every `step`, of the stationary process or as it starts."""
    marginal = ou.stationary() if still else ou.marginal(0.0)
    process = OU(ou.A, ou.S, mu=ou.mu, m0=marginal.mean, C0=marginal.covariance)
    return process.simulate(paths=paths, times=step * torch.arange(count, dtype=torch.float64), seed=seed)


def hidden(data, coordinate):
    """The same data without one coordinate."""
    kept = [i for i in range(data.state_shape[0]) if i != coordinate]
    return Trajectories(data.states[..., kept], data.times)


SETS = {
    "fine": lambda: observed(OU.reversible(), paths=400, count=101, step=0.01, still=False),
    "coarse": lambda: observed(SPIRAL, paths=500, count=21, step=0.5),
    "hidden": lambda: hidden(observed(KINETIC, paths=400, count=201, step=0.05), 1),
    "reversible": lambda: observed(OU.reversible(), paths=300, count=101, step=0.02),
    "circulating": lambda: observed(SPIRAL, paths=300, count=101, step=0.02),
    "few": lambda: observed(OU.nonreversible(), paths=20, count=21, step=0.05, still=False),
}
VERDICTS = {
    "fine": ("fine", "enough", "Markov", "reversible"),
    "coarse": ("too coarse", "enough", "Markov", "circulating"),
    "hidden": ("fine", "enough", "not Markov", "reversible"),
    "reversible": ("fine", "enough", "Markov", "reversible"),
    "circulating": ("fine", "enough", "Markov", "circulating"),
    "few": ("unknown", "too few paths", "Markov", "reversible"),
}


@pytest.mark.parametrize("name", SETS)
def test_each_data_set_gets_the_verdict_it_was_made_for(name):
    found = diagnose(SETS[name]()).verdicts
    given = tuple(found[question].split(":")[0] for question in ("step", "sample", "memory", "circulation"))
    assert given == VERDICTS[name]


@pytest.mark.parametrize(
    ("name", "wish"),
    [("coarse", "observe more often"), ("hidden", "add what is missing to the state"), ("few", "bring more paths")],
)
def test_the_advice_says_what_is_missing(name, wish):
    advice = diagnose(SETS[name]()).verdicts["advice"]
    assert wish in advice
    assert wish not in diagnose(SETS["circulating"]()).verdicts["advice"]


def test_the_circulation_is_that_of_the_process_within_its_error():
    """The spiral rotates by 3 rad per time; units in which its noise is round do not change that."""
    found = diagnose(SETS["circulating"]())
    assert abs(found.circulation - 3.0) < 4 * found.circulation_error + 0.1
    assert found.circulation_error < 0.1


def test_the_bias_is_the_known_one_of_the_population():
    """Of `symmetric` on the stationary spiral, where it is D_h − v in the affine class; cubic terms only add noise."""
    found = diagnose(SETS["circulating"](), degree=1)
    marginal = SPIRAL.stationary()
    rest = OU(SPIRAL.A, SPIRAL.S, C0=marginal.covariance)
    matrix, _ = affine_minimiser(rest, "symmetric", torch.tensor([5.0]), step=0.02)
    unit = float((SPIRAL.A @ marginal.covariance @ SPIRAL.A.mT).trace().sqrt())
    gap = matrix[0] - SPIRAL.circulation()
    expected = float((gap @ marginal.covariance @ gap.mT).trace().sqrt()) / unit
    (error,) = [e for e in found.errors if e.objective == "symmetric" and e.every == 1]
    assert error.bias == pytest.approx(expected, abs=0.015)
    assert 0.01 < expected < 0.03


def test_one_long_path_is_enough_when_it_is_stationary():
    found = diagnose(observed(SPIRAL, paths=1, count=20_001, step=0.02))
    assert found.verdicts["circulation"].startswith("circulating")
    assert found.verdicts["memory"].startswith("Markov")
    assert found.verdicts["sample"].startswith("enough")


def test_units_do_not_matter():
    data = SETS["circulating"]()
    scaled = Trajectories(data.states * torch.tensor([1e-3, 1e4], dtype=torch.float64) + 7, data.times * 60)
    a, b = diagnose(data), diagnose(scaled)
    assert [e.bias for e in a.errors] == pytest.approx([e.bias for e in b.errors], rel=1e-4, abs=1e-6)
    assert a.circulation == pytest.approx(60 * b.circulation, rel=1e-6)


def test_large_states_are_seen_through_their_principal_components():
    data = SETS["circulating"]()
    axes = torch.linalg.qr(normal(12, 12))[0][:2]
    picture = Trajectories((data.states @ axes).reshape(*data.states.shape[:2], 3, 4), data.times)
    found = diagnose(Trajectories(picture.states + 1e-6 * normal(*picture.states.shape, seed=1), data.times), degree=1)
    assert found.circulation > 3 * found.circulation_error


def test_the_table_has_a_line_for_each_question_and_each_estimator():
    text = str(diagnose(SETS["reversible"]()))
    for word in ("step", "sample", "memory", "circulation", "advice", "phibe", "symmetric", "symmetric2"):
        assert f"\n  {word} " in text


def test_paths_that_are_too_short_are_named():
    with pytest.raises(ValueError, match="paths of five observations or more; here one has 3"):
        diagnose(OU.reversible().simulate(paths=100, times=[0.0, 0.1, 0.2]))
