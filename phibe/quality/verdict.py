"""Verdict: what the numbers of a quality record mean in plain words, each finding with its grade and its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phibe.metrics import Estimate
from phibe.quality.measures import LEAST, Distance, excess, moment_error, ratio

GRADES = ("good", "usable with care", "not trustworthy")
NEAR, FAR = 2.0, 4.0
"""Times the floor that the laws may be away: up to the first is good, beyond the second not trustworthy …"""
SMALL, LARGE = 0.05, 0.25
"""… unless the excess over the floor, in standard deviations of the data, is up to the first, or up to the second."""
NARROW, WIDE = 0.2, 0.5
"""Errors of mean and spread, in spreads of the time: up to the first is good, beyond the second not trustworthy."""
COARSE = 0.35
"""A floor above this many standard deviations hides errors that matter."""
SURE = 3.0
"""Standard errors that a difference must have to be believed."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, its grade, and the reason with its numbers."""

    about: str
    grade: str
    text: str


def worst(findings: list[Finding]) -> str:
    return max((finding.grade for finding in findings), key=GRADES.index)


def criteria() -> str:
    return (
        f"Good: laws within {NEAR:g} times the floor (or {SMALL:.0%} of a standard deviation beyond it), means and "
        f"spreads within {NARROW:.0%} of the spread at their time, a floor of at most {COARSE:g} standard deviations, "
        f"and a held-out objective at least {SURE:g} standard errors below that of no motion. Not trustworthy: laws "
        f"beyond {FAR:g} times the floor and {LARGE:.0%} of a standard deviation, means and spreads off by more than "
        f"{WIDE:.0%}, a flow that runs away, or an objective above that of no motion. In between: usable with care. "
        "The worst of the findings decides."
    )


def judge_objective(value: Estimate | None, *, objective: str) -> Finding:
    """Is the velocity better than none on paths that it has not seen?"""
    about = "held-out objective"
    if value is None:
        return Finding(about, GRADES[1], "There are too few observations to evaluate the objective on held-out paths.")
    score = -value.value / value.error if value.error > 0 else 0.0
    text = f"`{objective}` is {value.value:.3g} ± {value.error:.2g}; a velocity of zero has 0."
    if score >= SURE:
        return Finding(about, GRADES[0], f"{text} That is better than no motion by {score:.0f} standard errors.")
    if score <= -SURE:
        return Finding(about, GRADES[2], f"{text} Worse than no motion: the fit follows its noise.")
    return Finding(about, GRADES[1], f"{text} The data does not show that this velocity is better than no motion.")


def judge_laws(about: str, distances: list[Distance], *, where: str) -> Finding:
    """Are the carried laws those of held-out paths?"""
    if not distances:
        text = f"There are fewer than {LEAST} paths to compare at any time, so no law could be checked."
        return Finding(about, GRADES[1], text)
    lost = [d.time for d in distances if d.flow == float("inf")]
    if lost:
        return Finding(about, GRADES[2], f"The flow runs away: some states are lost at t = {lost[0]:.4g}.")
    times, beyond = ratio(distances), excess(distances)
    text = f"{where} the generated law is {times:.2f} times the data-against-data floor away from held-out paths"
    text += f", {beyond:.3f} standard deviations beyond it."
    if times <= NEAR or beyond <= SMALL:
        return Finding(about, GRADES[0], text)
    return Finding(about, GRADES[1] if times <= FAR or beyond <= LARGE else GRADES[2], text)


def judge_moments(distances: list[Distance]) -> list[Finding]:
    """Are the generated means and spreads the true ones? The drift alone, for one, lets the spread shrink."""
    if not distances or any(d.flow == math.inf for d in distances):
        return []
    error = moment_error(distances)
    scale = math.exp(sum(math.log(d.scale) for d in distances) / len(distances))
    text = f"Mean and spread are off by {error:.2f} of the spread at their time; the generated spread is "
    grade = GRADES[0] if error <= NARROW else GRADES[1] if error <= WIDE else GRADES[2]
    return [Finding("mean and spread", grade, f"{text}{scale:.2f} times the observed one.")]


def judge_power(distances: list[Distance]) -> list[Finding]:
    """Could the comparison have shown an error at all?"""
    if not distances:
        return []
    floor = math.sqrt(sum(d.floor**2 for d in distances) / len(distances))
    paths = sorted(d.paths for d in distances)[len(distances) // 2]
    found = []
    if floor > COARSE:
        text = f"With {paths} paths a sample, two samples of one law differ by {floor:.2f} standard deviations: "
        found.append(
            Finding("resolution", GRADES[1], text + "errors smaller than that cannot be seen. Bring more paths.")
        )
    return found


def motion(distances: list[Distance]) -> str:
    """What standing still would give: how much the test of the laws asks of the flow."""
    if not distances:
        return ""
    still = max(d.still / d.floor for d in distances)
    if still < NEAR:
        return (
            f"The law itself hardly moves: standing still is at most {still:.1f} times the floor away. The laws alone "
            "cannot tell a flow from no motion here; the held-out objective can."
        )
    return f"Standing still would be up to {still:.0f} times the floor away."
