"""Fréchet distances between sets of films: of any features, under a stated protocol, beside their floor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal
from typing import Protocol as Interface

import torch
from torch import Tensor

from phibe.experiments.video.i3d import FVD, I3DFeatures
from phibe.metrics import gaussian_w2, moments

Reference = Literal["original", "reconstruction"]


class Features(Interface):
    """A feature network: films (clip, time, 1, height, width) in [0, 1] → (clip, d)."""

    @property
    def title(self) -> str:
        """What a distance between its features is called."""

    @property
    def identity(self) -> str:
        """Which network with which weights it is."""

    def __call__(self, films: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Protocol:
    """What a Fréchet distance depends on besides the films' quality; distances of two protocols cannot be compared.

    Args:
        clips: films on either side; the distance is biased upwards by about a constant over this number.
        frames: frames of each film that the features see, the context among them.
        context: how many of those were given to the method.
        resolution: height and width of the frames.
        features: the feature network and its weights.
        reference: films that count as true: the original (standard), or what the codec makes of it (adjusted).
        data: the set that the clips are from.
    """

    clips: int
    frames: int
    context: int
    resolution: tuple[int, int]
    features: str
    reference: Reference = "original"
    data: str = ""

    def __str__(self) -> str:
        size = "×".join(map(str, self.resolution))
        of = f" of {self.data}" if self.data else ""
        return (
            f"{self.clips} clips{of}, {self.frames} frames ({self.context} given), {size}, against the "
            f"{self.reference}, {self.features}"
        )


@dataclass(frozen=True)
class Distance:
    """A Fréchet distance (squared, as is the custom), the `floor` of true films from true films, and the protocol."""

    name: str
    value: float
    floor: float
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4g} (real against real {self.floor:.3g}; {self.protocol})"

    def __sub__(self, other: Distance) -> float:
        """How much farther this one is; only under one protocol."""
        self._refuse(other)
        return self.value - other.value

    def __lt__(self, other: Distance) -> bool:
        return self - other < 0

    def __gt__(self, other: Distance) -> bool:
        return self - other > 0

    def _refuse(self, other: Distance) -> None:
        here, there = asdict(self.protocol) | {"name": self.name}, asdict(other.protocol) | {"name": other.name}
        apart = [f"{key}: {here[key]} and {there[key]}" for key in here if here[key] != there[key]]
        if apart:
            raise ValueError(
                f"Fréchet distances of two protocols cannot be compared; they differ in {'; '.join(apart)}. Measure "
                "both under one."
            )

    def record(self) -> dict[str, Any]:
        """All of it as JSON, for a report."""
        return asdict(self)

    @staticmethod
    def of(record: dict[str, Any]) -> Distance:
        """The distance that `record` wrote."""
        about = record["protocol"] | {"resolution": tuple(record["protocol"]["resolution"])}
        return Distance(record["name"], record["value"], record["floor"], Protocol(**about))


def frechet(x: Tensor, y: Tensor) -> float:
    """|m − m'|² + tr(C + C' − 2(C^½C'C^½)^½) of two samples (n, d): W₂² of the Gaussians with their moments."""
    if min(len(x), len(y)) < 2 or x.shape[1:] != y.shape[1:]:
        raise ValueError(f"Two samples (n, d) of two or more are needed; got {tuple(x.shape)} and {tuple(y.shape)}.")
    return gaussian_w2(moments(x), moments(y)) ** 2


def frechet_distance(
    made: Tensor,
    truth: Tensor,
    features: Features,
    *,
    context: int,
    reference: Reference = "original",
    data: str = "",
    splits: int = 8,
) -> Distance:
    """The distance of made films from true ones, (clip, time, 1, height, width) with the context frames in front.

    With what a codec makes of the truth as `truth` and `reference="reconstruction"` it is the adjusted distance, which
    does not charge the dynamics with the codec's losses.
    """
    if made.shape != truth.shape or truth.ndim != 5 or not 0 <= context < truth.shape[1] or len(truth) < 4:
        raise ValueError(
            "Made and true films must have one shape (clip, time, 1, height, width), four clips or more, and more "
            f"frames than the context; got {tuple(made.shape)}, {tuple(truth.shape)} and context {context}."
        )
    clips, frames, _, height, width = truth.shape
    protocol = Protocol(clips, frames, context, (height, width), features.identity, reference, data)
    there = features(truth)
    return Distance(_title(features), frechet(features(made), there), floor(there, splits=splits), protocol)


def floor(features: Tensor, *, splits: int = 8, seed: int = 0) -> float:
    """Mean distance between two random halves of true features (n, d): with n/2 clips a side, about twice the bias that
    the distance of all n has, so that what is not well above it means nothing."""
    generator = torch.Generator().manual_seed(seed)
    halves = (torch.randperm(len(features), generator=generator).chunk(2) for _ in range(splits))
    return sum(frechet(features[a], features[b]) for a, b in halves) / splits


def _title(features: Features) -> str:
    if FVD in features.title.upper() and not isinstance(features, I3DFeatures):
        raise ValueError(
            f"FVD is the name of the distance between I3D features; those of {features.identity} need another title."
        )
    return features.title
