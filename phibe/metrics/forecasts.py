"""What a forecast is worth: errors against lead time, the law of the values, ensembles, and whether it runs away.

Shapes: a forecast is (path, time, *state), an ensemble of them (member, path, time, *state), the truth (path, time,
*state). Measures by lead time come back as (time,).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phibe.metrics.distances import quantiles


def relative_mse(made: Tensor, truth: Tensor) -> Tensor:
    """⟨|x̂ − x|²⟩/⟨|x|²⟩ at each time, (time,), means over paths and states: 0 is perfect; for a centred process 1 is
    the forecast of its mean, 2 that of an unrelated draw."""
    _same(made, truth)
    return _over_time((made - truth).square()) / _over_time(truth.square())


def histogram_distance(made: Tensor, truth: Tensor, *, levels: int = 10_000) -> float:
    """Wasserstein-1 distance between the laws of single values (all paths, times and places together), in their
    units: ∫|F̂⁻¹ − F⁻¹|, at that many quantiles."""
    at = (torch.arange(levels, dtype=torch.float64, device=truth.device) + 0.5) / levels
    a, b = (quantiles(x.double().reshape(-1, 1), at) for x in (made, truth))
    return float((a - b).abs().mean())


def spread_skill(ensemble: Tensor, truth: Tensor) -> Tensor:
    """√((1 + 1/M)⟨s²⟩)/√⟨(x̄ − x)²⟩ at each time, (time,): 1 when the truth could be another of the M members, less
    when they agree more than they know. s² is the members' variance at a place, x̄ their mean."""
    members = _members(ensemble, truth)
    spread = _over_time(ensemble.var(0)) * (1 + 1 / members)
    return (spread / _over_time((ensemble.mean(0) - truth).square())).sqrt()


def crps(ensemble: Tensor, truth: Tensor) -> Tensor:
    """Continuous ranked probability score of single values, E|X − x| − ½E|X − X′|, mean at each time, (time,).

    Its least expected value is that of the true law. The second mean is over pairs of different members (the fair
    estimate), so that the score does not depend on how many they are.
    """
    members = _members(ensemble, truth)
    miss = (ensemble - truth).abs().mean(0)
    rank = torch.arange(members, dtype=ensemble.dtype, device=ensemble.device)
    weight = (2 * rank - members + 1).reshape(-1, *[1] * truth.ndim)
    apart = (weight * ensemble.sort(0).values).sum(0) / (members * (members - 1))  # ½ of the mean over pairs
    return _over_time(miss - apart)


class Stability(NamedTuple):
    """Share of the paths that are `finite` to the end, `ratio` (time,) of their RMS to the truth's, and whether all are
    finite and every ratio is within the stated factor."""

    finite: float
    ratio: Tensor
    stable: bool


def stability(made: Tensor, truth: Tensor, *, factor: float = 2.0) -> Stability:
    """Does a rollout stay as large as the truth: root mean square between 1/`factor` and `factor` times the truth's?

    The truth may be shorter or longer: its size is taken over all its paths and times.
    """
    finite = torch.isfinite(made).flatten(1).all(1)
    ratio = (_over_time(made[finite].square()) / truth.square().mean()).sqrt()
    inside = bool(finite.all()) and bool(((ratio >= 1 / factor) & (ratio <= factor)).all())
    return Stability(float(finite.double().mean()), ratio, inside)


def _over_time(values: Tensor) -> Tensor:
    """Means over paths and places: (path, time, *state) → (time,)."""
    return values.transpose(0, 1).flatten(1).mean(1)


def _same(made: Tensor, truth: Tensor) -> None:
    if made.shape != truth.shape or truth.ndim < 3:
        raise ValueError(
            f"Forecast and truth must both be (path, time, *state); got {tuple(made.shape)} and {tuple(truth.shape)}."
        )


def _members(ensemble: Tensor, truth: Tensor) -> int:
    if ensemble.shape[1:] != truth.shape or truth.ndim < 3 or len(ensemble) < 2:
        raise ValueError(
            "An ensemble (member, path, time, *state) of two members or more and a truth (path, time, *state) are "
            f"needed; got {tuple(ensemble.shape)} and {tuple(truth.shape)}."
        )
    return len(ensemble)
