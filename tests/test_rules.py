"""The rules of a comparison: intervals cover what they should, and a verdict follows from an interval alone."""

import math

import numpy as np
import pytest

from phibe.experiments.report import COLUMNS, interval, verdict


def coverage(level: float, statistic=np.mean, size: int = 80, trials: int = 400) -> float:
    """How often the interval of a Gaussian sample holds the true value, 0."""
    draws = np.random.default_rng(7).standard_normal((trials, size))
    found = [interval(x, statistic, level=level, seed=k, resamples=500) for k, x in enumerate(draws)]
    return float(np.mean([low <= 0 <= high for low, high in found]))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_an_interval_covers_the_mean_as_often_as_it_says(level):
    assert coverage(level) == pytest.approx(level, abs=3 * math.sqrt(level * (1 - level) / 400) + 0.01)


def test_an_interval_of_another_statistic_covers_it_too():
    assert coverage(0.9, np.median) == pytest.approx(0.9, abs=3 * math.sqrt(0.9 * 0.1 / 400) + 0.02)


def test_an_interval_has_the_width_of_the_standard_error():
    x = np.random.default_rng(1).normal(3.0, 2.0, 5000)
    low, high = interval(x)
    assert (high - low) == pytest.approx(2 * 1.96 * x.std() / math.sqrt(len(x)), rel=0.06)
    assert low < x.mean() < high


def test_pairing_shows_what_two_separate_intervals_hide():
    generator = np.random.default_rng(2)
    path = generator.normal(10.0, 3.0, 200)  # how hard a path is, for both methods
    one, two = path + generator.normal(0.0, 0.1, 200), path + 0.2 + generator.normal(0.0, 0.1, 200)
    assert verdict(interval(one - two), "below") == "reproduced"
    assert interval(one).high > interval(two).low


def test_the_same_seed_gives_the_same_interval():
    x = np.random.default_rng(3).standard_normal(300)
    assert interval(x, seed=1) == interval(x, seed=1) != interval(x, seed=2)
    assert interval(np.ones(10)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("ends", "claimed", "reference", "found"),
    [
        ((-2.0, -1.0), "below", 0.0, "reproduced"),
        ((-2.0, -1.0), "above", 0.0, "opposite"),
        ((1.0, 2.0), "below", 0.0, "opposite"),
        ((1.0, 2.0), "above", 0.0, "reproduced"),
        ((-1.0, 1.0), "below", 0.0, "undecided"),
        ((-1.0, 1.0), "above", 0.0, "undecided"),
        ((0.0, 1.0), "above", 0.0, "undecided"),  # to touch is not to differ
        ((1.0, 2.0), "below", 3.0, "reproduced"),
    ],
)
def test_a_verdict_follows_from_the_side_of_the_whole_interval(ends, claimed, reference, found):
    assert verdict(ends, claimed, reference) == found


@pytest.mark.parametrize("values", [[1.0], [[1.0, 2.0]], [1.0, math.nan], []])
def test_what_has_no_interval_is_refused(values):
    with pytest.raises(ValueError, match="two finite values or more"):
        interval(values)


def test_a_wrong_side_or_interval_is_refused():
    with pytest.raises(ValueError, match="'below' or 'above'"):
        verdict((0.0, 1.0), "better")
    with pytest.raises(ValueError, match="lower end"):
        verdict((math.nan, 1.0))


def test_the_columns_are_those_of_every_comparison():
    assert list(COLUMNS) == ["text", "code", "best flow", "controls"]
