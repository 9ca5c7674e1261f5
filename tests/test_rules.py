"""The rules of a comparison: intervals cover what they should, and a verdict follows from an interval alone."""

import math

import numpy as np
import pytest

from phibe.experiments.report import (
    COLUMNS,
    Choice,
    Claim,
    Report,
    findings,
    findings_html,
    findings_text,
    interval,
    judged,
    slope_interval,
    verdict,
)


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
        ((0.8, 1.2), "near", 1.0, "reproduced"),  # within a tolerance of 0.2
        ((0.7, 1.1), "near", 1.0, "undecided"),
        ((0.7, 1.3), "near", 1.0, "undecided"),
        ((1.15, 1.3), "near", 1.0, "undecided"),
        ((0.1, 0.7), "near", 1.0, "opposite"),
    ],
)
def test_a_verdict_follows_from_the_side_of_the_whole_interval(ends, claimed, reference, found):
    assert verdict(ends, claimed, reference, tolerance=0.2 + 1e-9) == found


@pytest.mark.parametrize("values", [[1.0], [[1.0, 2.0]], [1.0, math.nan], []])
def test_what_has_no_interval_is_refused(values):
    with pytest.raises(ValueError, match="two finite values or more"):
        interval(values)


def test_a_wrong_side_or_interval_is_refused():
    with pytest.raises(ValueError, match="'below', 'above' or 'near'"):
        verdict((0.0, 1.0), "better")
    with pytest.raises(ValueError, match="lower end"):
        verdict((math.nan, 1.0))


def test_the_columns_are_those_of_every_comparison():
    assert list(COLUMNS) == ["text", "code", "best flow", "controls"]


def test_the_interval_of_a_slope_holds_the_true_order_and_widens_with_the_noise():
    sizes, generator = np.array([10, 20, 40, 80]), np.random.default_rng(5)
    for noise in (0.02, 0.2):
        errors = 3.0 * sizes[:, None] ** -0.5 * np.exp(noise * generator.standard_normal((4, 5)))
        slope, (low, high) = slope_interval(sizes, errors)
        assert low < slope < high
        assert slope == pytest.approx(-0.5, abs=noise)
        assert high - low == pytest.approx(2 * 1.96 * noise / math.sqrt(5 * 5 * math.log(2) ** 2), rel=0.5)


def test_a_choice_is_the_candidate_with_the_least_score():
    assert Choice("integrator", "error", {"euler": 2.0, "rk4": 1.0}).chosen == "rk4"


def claim(column: str, value: float, said: str = "", **more) -> Claim:
    base = Claim("Figure 1", "it holds", column, f"method of {column}", "error", value, value - 1, value + 1, said)
    return base._replace(**more)


def test_findings_put_the_columns_of_a_claim_side_by_side_and_never_mix_them():
    facts = {"preset": "laptop", "config": {}, "results": {}, "seconds": 1.0, "device": "cpu", "versions": {}}
    claims = [claim("text", 1, "opposite"), claim("best flow", 2, "reproduced"), claim("controls", 3)]
    other = claim("text", 4, "undecided", claim="another")
    rows = findings([Report("toy", claims=[*claims, other], **facts), Report("bare", **facts)])
    assert [(row.experiment, row.claim) for row in rows] == [("toy", "it holds"), ("toy", "another")]
    assert {column: [c.value for c in cells] for column, cells in rows[0].cells.items()} == {
        "text": [1],
        "code": [],
        "best flow": [2],
        "controls": [3],
    }
    assert "text       method of text               1 [0, 2]  opposite" in findings_text(rows)


def test_a_control_has_no_verdict_and_a_method_the_one_of_its_interval():
    about, values = ("Figure 1", "errors are small", "error"), [0.1, 0.2, 0.3]
    assert judged(about, "text", "m", values, "below", 0.5).verdict == "reproduced"
    assert judged(about, "text", "m", values, "below", 0.05).verdict == "opposite"
    control = judged(about, "controls", "m", values, "below", 0.5)
    assert (control.verdict, control.low, control.high) == ("", *interval(values))
    assert control.value == pytest.approx(0.2)


def test_the_table_of_the_page_has_a_cell_for_each_column_and_escapes_names():
    facts = {"preset": "laptop", "config": {}, "results": {}, "seconds": 1.0, "device": "cpu", "versions": {}}
    page = findings_html(findings([Report("toy", claims=[claim("text", 1, "opposite", claim="a < b")], **facts)]))
    assert page.count("<td>") == 1 + len(COLUMNS)
    assert "a &lt; b" in page and "a < b" not in page
    assert '<span class="opposite">opposite</span>' in page
