"""Record: all that is measured of a fitted flow, for `quality.json`, and the states that its pictures show."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from textwrap import fill
from typing import Any

import torch
from torch import Tensor

from phibe.ensembles import Marks, carry, observed, place_marks, time_free
from phibe.flow import Flow
from phibe.metrics import Estimate
from phibe.quality.measures import DRAWS, MEGABYTES, Distance, held_out_objective, law_distances, method_for, spread
from phibe.quality.verdict import (
    Finding,
    criteria,
    judge_laws,
    judge_moments,
    judge_objective,
    judge_power,
    motion,
    worst,
)
from phibe.trajectories import Trajectories

MARKS, FRAMES, SHOWN, FEW = 12, 61, 400, 24
"""Times that laws are compared at, pictures of a film, paths in it, and paths of pictures, which take long to carry."""


@dataclass(frozen=True)
class Quality:
    """Measured numbers, findings and a verdict. Distances are in standard deviations of the data."""

    verdict: str
    findings: list[Finding]
    criteria: str
    motion: str
    data: dict[str, Any]
    objective: str
    method: str
    time_free: bool
    held_out: Estimate | None
    laws: list[Distance]
    between: list[Distance]
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """The verdict and its findings, for a terminal."""
        found = (f"{finding.about}: {finding.grade}. {finding.text}" for finding in self.findings)
        return "\n".join(
            [self.verdict, *(fill(line, 88, initial_indent="  ", subsequent_indent="    ") for line in found)]
        )

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; a number that is not finite becomes null."""
        content = asdict(self)
        content["held_out"] = self.held_out and self.held_out._asdict()
        return _finite(content)


@dataclass(frozen=True)
class Views:
    """States for pictures at common marks, (path, mark, *state): `observed` held-out paths, and the flow `carried` from
    their starts."""

    marks: Marks
    observed: Tensor
    carried: Tensor

    @staticmethod
    def of(flow: Flow, data: Trajectories, *, method: str) -> Views:
        """Of the first paths, a few hundred at most (`FEW` of pictures), at up to `FRAMES` marks from the start on."""
        shown = data[: SHOWN if len(data.state_shape) == 1 else FEW]
        marks = place_marks(shown, FRAMES, elapsed=time_free(flow, data), first=0)
        return Views(marks, observed(shown, marks), carry(flow, shown, marks, method=method))


def assess(
    flow: Flow,
    data: Trajectories,
    held: Tensor | None,
    *,
    objective: str,
    noise: float | None = None,
    refitted: Flow | None = None,
    notes: list[str] | None = None,
) -> tuple[Quality, Views]:
    """What the data says of the flow, and the states behind it.

    `held` are the numbers of the paths that the fit did not see; None says that it saw all, and every fifth path is
    then taken for a comparison that is no test. `refitted` is a flow fitted to every other observation of the training
    paths, to be checked at those that were left out.
    """
    notes = list(notes or [])
    findings: list[Finding] = []
    method, unit, free = method_for(objective), spread(data), time_free(flow, data)
    if held is None:
        held = torch.arange(0, len(data), 5)
        text = "No path of this data was held out: every number here is of paths that the fit has seen."
        findings.append(Finding("held-out paths", "usable with care", text))
    parts = Parts.of(data, held)
    unseen = parts.unseen
    value = held_out_objective(flow, unseen, objective, unit=unit, noise=noise)
    laws = parts.distances(flow, unit=unit, method=method, elapsed=free)
    findings += [judge_objective(value, objective=objective), judge_laws("laws", laws, where="At the observed times")]
    findings += [*judge_moments(laws), *judge_power(laws)]
    between: list[Distance] = []
    if refitted is not None:
        between = parts.distances(refitted, unit=unit, method=method, elapsed=free, every=2)
        where = "Fitted to every other observation, at those left out"
        findings.append(judge_laws("intermediate times", between, where=where))
    views = Views.of(flow, unseen, method=method)
    quality = Quality(
        verdict=worst(findings),
        findings=findings,
        criteria=criteria(),
        motion=motion(laws),
        data=summary(data, len(unseen)),
        objective=objective,
        method=method,
        time_free=free,
        held_out=value,
        laws=laws,
        between=between,
        notes=notes,
    )
    return quality, views


@dataclass(frozen=True)
class Parts:
    """Some paths that the fit saw, the first `count`, and all those that it did not see."""

    data: Trajectories
    count: int

    @staticmethod
    def of(data: Trajectories, held: Tensor) -> Parts:
        """As many paths of each kind as a few hundred megabytes hold; those seen in random order."""
        others = torch.ones(len(data), dtype=torch.bool)
        others[held] = False
        most = max(16, int(MEGABYTES * 2**20 / (data.states[0].numel() * data.states.element_size())))
        most = most if len(data.state_shape) == 1 else FEW
        rest = others.nonzero()[:, 0]
        rest = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))[: DRAWS * most]]
        return Parts(data[torch.cat([rest, held[:most]])], len(rest))

    @property
    def unseen(self) -> Trajectories:
        return self.data[self.count :]

    def distances(self, flow: Flow, *, unit: Tensor, method: str, elapsed: bool, every: int = 1) -> list[Distance]:
        """At marks that both kinds share."""
        if not self.count:
            return []
        whole = place_marks(self.data, MARKS, elapsed=elapsed, every=every)
        marks = whole.of(slice(self.count)), whole.of(slice(self.count, None))
        return law_distances(flow, self.data[: self.count], self.unseen, marks, unit=unit, method=method)


def summary(data: Trajectories, held: int) -> dict[str, Any]:
    """What the data is, in numbers."""
    steps = data._path_times().diff(dim=1)[data._observed(2)] if not data.shared_times else data.times.diff()
    lengths = [data.states.shape[1]] * 2 if data.lengths is None else [int(data.lengths.min()), int(data.lengths.max())]
    seen = data[:: max(1, data.states.nbytes // 2**26)]
    x = seen.states[seen._observed()].double().flatten(1)
    ranges = torch.stack([x.amin(0), x.amax(0), x.mean(0), x.std(0)], 1)[:8].tolist()
    return {
        "paths": len(data),
        "held_out_paths": held,
        "observations": lengths,
        "interval": list(data.interval),
        "shared_times": data.shared_times,
        "steps": [float(steps.min()), data.typical_step, float(steps.max())],
        "state_shape": list(data.state_shape),
        "ranges": ranges,
    }


def names_of(data: Trajectories) -> list[str]:
    """What time and the coordinates (the channels of larger states) are called, with their units."""
    return [str(data.labels.time), *map(str, data.labels.coordinates(data.state_shape[0]))]


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
