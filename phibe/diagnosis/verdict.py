"""Diagnosis: what the data alone says of its step, size, memory and circulation, and which estimator suits it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import torch

from phibe.bases import in_time, lift, polynomials
from phibe.diagnosis.measures import (
    BLOCKS,
    EstimatorError,
    circulation,
    estimator_errors,
    memory,
    moves,
    probes_of,
    size,
    standardised,
)
from phibe.linear.basis_fit import fit_blocks
from phibe.objectives import find_objective
from phibe.trajectories import Trajectories

ESTIMATORS = ("phibe", "symmetric", "symmetric2")
FINE, COARSE = 0.1, 0.25  # share of the drift's size that an error may have to be called small, or large
SURE = 3.0  # standard errors


@dataclass(frozen=True)
class Diagnosis:
    """Measured numbers, a verdict on each question, and the advice that follows; `print` shows a table."""

    paths: int
    step: float
    errors: list[EstimatorError]
    circulation: float
    circulation_error: float
    memory: float
    memory_score: float
    verdicts: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> EstimatorError:
        """The least error; of those within a tenth of it, that which uses all observations and the fewest at a time."""
        known = [error for error in self.errors if math.isfinite(error.bias)] or self.errors
        least = min(error.total for error in known)
        close = [error for error in known if error.total <= 1.1 * least]
        return min(close, key=lambda error: (error.every, find_objective(error.objective).width, error.total))

    def __str__(self) -> str:
        rows = [f"  {name:12} {text}" for name, text in self.verdicts.items()]
        head = f"  {'estimator':12} {'step':>9} {'bias':>8} {'noise':>8}   as shares of the size of the drift"
        lines = [f"  {e.objective:12} {e.step:9.4g} {_percent(e.bias):>8} {e.noise:8.1%}" for e in self.errors]
        return "\n".join(["what the data says", *rows, "", head, *lines])


def diagnose(data: Trajectories, *, degree: int | None = None) -> Diagnosis:
    """What can be told from the data alone; all of it in standard coordinates, and of at most six of them.

    Velocities are fitted at every observation, every second and every fourth, with polynomials of `degree` (default:
    cubic up to two coordinates, else affine), in time too if the law moves. Their differences show the bias of the
    step, blocks of the data the noise. Of larger states the leading principal components are looked at, of more than
    100,000 observations only some of the paths.
    """
    observations = len(data) * data.states.shape[1]
    data = standardised(data[:: max(1, min(len(data) // BLOCKS, observations // 100_000))])
    d, blocks = data.state_shape[0], data.blocks(BLOCKS)
    if (shortest := min(block._shortest() for block in blocks)) < 5:
        raise ValueError(
            f"A diagnosis compares steps, so each of {BLOCKS} blocks of the data needs paths of five observations or "
            f"more; here one has {shortest}. Bring longer paths, or more of them."
        )
    features = polynomials(degree or (3 if d <= 2 else 1))
    knots = torch.linspace(*data.interval, 6, dtype=torch.float64) if moves(data) else None
    features, affine = (part if knots is None else in_time(part, knots) for part in (features, polynomials(1)))
    probes = probes_of(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # too few paths for the class is one of the verdicts
        drift = fit_blocks(blocks, lift(features), "regression", weighted=True)
        unit = size(drift(*probes))
        errors = [
            error for name in ESTIMATORS for error in estimator_errors(name, blocks, lift(features), probes, unit)
        ]
        turning = fit_blocks(blocks, lift(affine), "symmetric", weighted=True)
    turns, past = circulation(turning, data, probes), memory(blocks, features, drift)
    found = Diagnosis(len(data), data.typical_step, errors, *turns, *past)
    found.verdicts.update(_verdicts(found, d))
    return found


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _verdicts(found: Diagnosis, d: int) -> dict[str, str]:
    noise = min(error.noise for error in found.errors)
    bias = min((error.bias for error in found.errors if error.every == 1), default=math.inf)
    memory = found.memory_score > SURE**2 and found.memory > 0.05
    turns = "circulating" if found.circulation > SURE * found.circulation_error else "reversible"
    rate = f"{found.circulation:.3g} ± {found.circulation_error:.2g} rad per time"
    return {
        "step": f"{_graded(bias, 'fine', 'coarse')}: Δt = {found.step:.4g} leaves a bias of {bias:.0%} of the drift"
        if noise < COARSE and math.isfinite(bias)
        else "unknown: the noise hides the bias",
        "sample": f"{_graded(noise, 'enough', 'few paths')}: the noise of v is {noise:.0%} of the drift",
        "memory": f"{'not Markov' if memory else 'Markov'}: the past adds {found.memory:.1%} to what the present "
        f"explains (mean square score {found.memory_score:.1f})",
        "circulation": "reversible: one dimension" if d == 1 else f"{turns}: {rate}",
        "advice": _advice(found.best, bias=bias, noise=noise, memory=memory),
    }


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "?"


def _graded(share: float, good: str, bad: str) -> str:
    return good if share < FINE else f"too {bad}" if share > COARSE else f"rather {bad}"


def _advice(best: EstimatorError, *, bias: float, noise: float, memory: bool) -> str:
    often = {1: "every observation", 2: "every second observation"}.get(best.every, f"every {best.every}th observation")
    advice = f"`{best.objective}` on {often} (Δt = {best.step:.4g}): "
    advice += f"error about {best.total:.0%} of the drift" if math.isfinite(best.total) else "error unknown"
    wishes = [
        (noise > FINE, "bring more paths"),
        (noise < COARSE and bias > FINE, "observe more often"),
        (memory, "add what is missing to the state, e.g. its difference quotient"),
    ]
    return "; ".join([advice, *(wish for needed, wish in wishes if needed)])
