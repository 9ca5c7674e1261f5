"""Measures of videos: frame by frame (MSE, PSNR, SSIM), of the motion, and Fréchet distances under a stated protocol.

Shapes: clips are (clip, time, channel, height, width) with grey from 0 to 1, several futures of each clip (sample,
clip, time, channel, height, width). Measures of frames come back as (…, clip, time).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from phibe.experiments.video.i3d import FVD, I3DFeatures
from phibe.metrics import gaussian_w2, moments

# -- clips against clips, frame by frame -----------------------------------------------------------------------------


WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def mse(clip: Tensor, truth: Tensor) -> Tensor:
    """Mean square difference of each frame: (…, clip, time)."""
    return (clip - _like(clip, truth)).square().flatten(-3).mean(-1)


def psnr(error: Tensor) -> Tensor:
    """10 log₁₀(1/MSE) of each value, in dB."""
    return -10 * torch.log10(error)


def ssim(clip: Tensor, truth: Tensor, *, block: int = 512) -> Tensor:
    """Structural similarity of each frame, (…, clip, time)   [Wang et al. 2004].

    (2μμ' + C₁)(2σ_{xx'} + C₂) / ((μ² + μ'² + C₁)(σ² + σ'² + C₂)), moments under an 11 × 11 Gaussian window of σ = 1.5,
    averaged over all places where the whole window lies inside the frame.
    """
    truth = _like(clip, truth).expand_as(clip)
    if min(clip.shape[-2:]) < WINDOW:
        raise ValueError(f"SSIM needs frames of {WINDOW} × {WINDOW} pixels or more; got {tuple(clip.shape[-2:])}.")
    pairs = zip(*(x.reshape(-1, *clip.shape[-3:]).split(block) for x in (clip, truth)), strict=True)
    return torch.cat([_similarity(x, y) for x, y in pairs]).reshape(clip.shape[:-3])


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    mx, my = _blur(x), _blur(y)
    vx, vy, cov = _blur(x * x) - mx * mx, _blur(y * y) - my * my, _blur(x * y) - mx * my
    value = (2 * mx * my + C1) * (2 * cov + C2) / ((mx * mx + my * my + C1) * (vx + vy + C2))
    return value.flatten(1).mean(1)


def _blur(x: Tensor) -> Tensor:
    """Means under the window, where it fits: (n, c, h, w) → (n, c, h − 10, w − 10)."""
    return gaussian_means(x, SIGMA, reach=WINDOW // 2)


def gaussian_means(x: Tensor, sigma: float, *, reach: int) -> Tensor:
    """Means under a Gaussian window of 2·`reach` + 1 pixels a side, where it fits: (…, h, w) → (…, h − 2r, w − 2r)."""
    place = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    bell = torch.exp(-((place / sigma) ** 2) / 2)
    bell, planes = bell / bell.sum(), x.reshape(-1, 1, *x.shape[-2:])
    smooth = F.conv2d(F.conv2d(planes, bell[None, None, :, None]), bell[None, None, None, :])
    return smooth.reshape(*x.shape[:-2], *smooth.shape[-2:])


def _like(clip: Tensor, truth: Tensor) -> Tensor:
    if truth.ndim != 5 or clip.ndim not in (5, 6) or clip.shape[-5:] != truth.shape:
        raise ValueError(
            "Clips must be (clip, time, channel, height, width), or futures (sample, clip, time, …) against such a "
            f"truth; got {tuple(clip.shape)} and {tuple(truth.shape)}."
        )
    return truth


# -- one number a method -----------------------------------------------------------------------------------------------


class FrameScores(NamedTuple):
    """`mse`; `psnr_published`, 10 log₁₀(1/mean MSE), which is what published tables hold; `psnr_frames`, the mean of
    the frames' own PSNR, which is never less (Jensen); `ssim`. Means over clips and frames, of `samples` futures a clip
    the best for each measure."""

    mse: float
    psnr_published: float
    psnr_frames: float
    ssim: float
    samples: int


def score(clip: Tensor, truth: Tensor) -> FrameScores:
    """The measures of one future a clip; of several futures (sample, clip, …) the best of each clip for each measure.

    The best future is chosen by looking at the truth: the score measures whether the truth is among the futures, not
    which of them to trust, and more samples always help. Show it beside `score(clip[0], truth)`. With what a codec
    makes of the truth in its place the scores are the adjusted ones, which do not charge the dynamics with the codec's
    losses.
    """
    futures = clip if clip.ndim == 6 else clip[None]
    error, likeness = mse(futures, truth), ssim(futures, truth)
    least = error.mean(-1).min(0).values.mean()
    return FrameScores(
        mse=float(least),
        psnr_published=-10 * math.log10(float(least)) if least else math.inf,
        psnr_frames=float(psnr(error).mean(-1).max(0).values.mean()),
        ssim=float(likeness.mean(-1).max(0).values.mean()),
        samples=len(futures),
    )


class SoFar(NamedTuple):
    """What `score` is for the first k frames of one clip, for every k: (time,) each; PSNR as published."""

    mse: Tensor
    psnr: Tensor
    ssim: Tensor


def score_so_far(clip: Tensor, truth: Tensor) -> SoFar:
    """The measures up to each frame of a clip (1, time, channel, height, width), to be shown while it plays."""
    count = torch.arange(1, clip.shape[-4] + 1)
    error, likeness = (part[0].double().cumsum(0) / count for part in (mse(clip, truth), ssim(clip, truth)))
    return SoFar(error, psnr(error), likeness)


# -- what a person sees of a motion ----------------------------------------------------------------------------------


FREQUENCIES, LEAST = 256, 10


def background(clips: Tensor) -> Tensor:
    """The median over time at each pixel, (clip, time, *frame) → (clip, 1, *frame); of a figure that does not move
    away, only what moves differs from it."""
    return clips.median(1, keepdim=True).values


class Silhouette(NamedTuple):
    """Centre (…, 2) as (x, y), `width` (…,), the weight's standard deviation along x, and `mass` (…,), its sum."""

    centre: Tensor
    width: Tensor
    mass: Tensor

    @property
    def visible(self) -> Tensor:
        """Frames in which there is at least 30 % of the most that a clip shows: a runner has left the others."""
        return self.mass > 0.3 * self.mass.amax(-1, keepdim=True)


def silhouette(clips: Tensor, behind: Tensor, *, threshold: float = 0.1) -> Silhouette:
    """Moments of the figure's weight in each frame: clips (…, clip, time, 1, H, W), background (clip, 1, 1, H, W).

    A frame in which nothing is above the threshold has its figure in the middle, of width and mass zero.
    """
    weight = ((clips - behind).abs() - threshold).clamp(min=0).sum(-3)
    mass = weight.sum((-2, -1))
    share = weight / mass.clamp(min=torch.finfo(weight.dtype).tiny)[..., None, None]
    y, x = (torch.arange(n, dtype=weight.dtype, device=weight.device) for n in weight.shape[-2:])
    along = share.sum(-2)
    cx = torch.where(mass > 0, (along * x).sum(-1), x.mean())
    cy = torch.where(mass > 0, (share.sum(-1) * y).sum(-1), y.mean())
    width = (along * (x - cx[..., None]).square()).sum(-1).sqrt()
    return Silhouette(torch.stack([cx, cy], -1), width, mass)


def position_drift(generated: Silhouette, true: Silhouette) -> Tensor:
    """Distance of the figure's centre from the true one in each frame, in pixels: (…, clip, time); NaN where the true
    figure is out of sight."""
    return (generated.centre - true.centre).norm(dim=-1).where(true.visible, torch.nan)


class Oscillation(NamedTuple):
    """`frequency` (…,) of the strongest oscillation, in cycles per unit of time, and its `amplitude` (…,); NaN where
    too few values count."""

    frequency: Tensor
    amplitude: Tensor


def oscillation(signal: Tensor, times: Tensor, *, counts: Tensor | None = None, cycles: float = 1.5) -> Oscillation:
    """The sinusoid that beside a parabola fits a signal (…, time) best, over the values that count (…, time).

    Least squares a + bt + ct² + p cos 2πft + q sin 2πft at each of 256 frequencies between `cycles` in the whole time
    and half the sampling rate; the best is refined by a parabola. Exact for a sinusoid up to that grid, whatever the
    length and the times. Ten values are needed.
    """
    if signal.shape[-1] < LEAST or signal.shape[-1:] != times.shape:
        raise ValueError(
            f"A signal (…, time) of {LEAST} values or more and its times are needed; got {tuple(signal.shape)}, "
            f"{tuple(times.shape)}."
        )
    y, t = signal.double(), times.double()
    weight = torch.ones_like(y) if counts is None else counts.to(y.dtype).expand_as(y)
    span = float(t[-1] - t[0])
    grid = torch.linspace(cycles / span, 0.475 * (len(t) - 1) / span, FREQUENCIES, dtype=y.dtype, device=y.device)
    frequency = _peak(_fit(_design(grid, t), y[..., None, :], weight[..., None, :])[1], grid)
    amplitude = _fit(_design(frequency, t), y, weight)[0][..., 3:].norm(dim=-1)
    enough = weight.sum(-1) >= LEAST
    return Oscillation(frequency.where(enough, torch.nan), amplitude.where(enough, torch.nan))


def _design(frequency: Tensor, t: Tensor) -> Tensor:
    """Columns 1, s, s², cos 2πft, sin 2πft, with s the time scaled to [−1, 1]: (…, time, 5)."""
    angle = 2 * torch.pi * frequency[..., None] * t
    s = 2 * (t - t[0]) / (t[-1] - t[0]) - 1
    line = torch.stack([torch.ones_like(s), s, s * s], -1).expand(*angle.shape, 3)
    return torch.cat([line, angle.cos()[..., None], angle.sin()[..., None]], -1)


def _fit(design: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients (…, 5) of weighted least squares, and the weighted square that they explain (…,)."""
    weighted = design * weight[..., None]
    gram = weighted.mT @ design + 1e-9 * torch.eye(design.shape[-1], dtype=y.dtype, device=y.device)
    moment = (weighted * y[..., None]).sum(-2)
    solution = torch.linalg.solve(gram, moment)
    return solution, (solution * moment).sum(-1)


def _peak(power: Tensor, grid: Tensor) -> Tensor:
    """Where a parabola through the largest value and its neighbours is largest."""
    k = power.argmax(-1, keepdim=True).clamp(1, len(grid) - 2)
    left, middle, right = (power.gather(-1, k + i) for i in (-1, 0, 1))
    curvature = left - 2 * middle + right
    shift = torch.where(curvature < 0, (left - right) / (2 * curvature), torch.zeros_like(curvature)).clamp(-1, 1)
    return (grid[k] + shift * (grid[1] - grid[0]))[..., 0]


class Gait(NamedTuple):
    """Of each clip, against truth: |f − f*|/f* of the step frequency, and the ratio of the amplitudes (1 is right, 0 a
    figure that moves without gait); NaN where the true figure is visible too briefly."""

    frequency_error: Tensor
    amplitude_ratio: Tensor


def gait(generated: Silhouette, true: Silhouette, times: Tensor) -> Gait:
    """How a figure steps, from the oscillation of its width while the true one is in sight: (…, clip, time) → (…,
    clip). Two steps make a stride: a walker's width oscillates twice in its cycle."""
    a, b = (oscillation(one.width, times, counts=true.visible) for one in (generated, true))
    return Gait((a.frequency / b.frequency - 1).abs(), a.amplitude / b.amplitude)


def diversity(futures: Tensor) -> Tensor:
    """Root mean square distance between two futures of a clip, at each time: (sample, clip, time, …) → (clip, time).

    √(2 × the mean over the pixels of the samples' variance): zero for a deterministic method, and for futures as
    different as truth is from another truth, that distance.
    """
    if futures.ndim < 4 or len(futures) < 2:
        raise ValueError(f"Two futures or more, (sample, clip, time, …), are needed; got {tuple(futures.shape)}.")
    return (2 * futures.var(0).flatten(2).mean(-1)).sqrt()


# -- fréchet distances -------------------------------------------------------------------------------------------------


Reference = Literal["original", "reconstruction"]


class Features(Protocol):
    """A feature network: clips (clip, time, 1, height, width) in [0, 1] → (clip, d)."""

    @property
    def title(self) -> str:
        """What a distance between its features is called."""

    @property
    def identity(self) -> str:
        """Which network with which weights it is."""

    def __call__(self, clips: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class FrechetProtocol:
    """What a Fréchet distance depends on besides the clips' quality; distances of two protocols cannot be compared.

    Args:
        clips: clips on either side; the distance is biased upwards by about a constant over this number.
        frames: frames of each clip that the features see, the context among them.
        context: how many of those were given to the method.
        resolution: height and width of the frames.
        features: the feature network and its weights.
        reference: clips that count as true: the original (standard), or what the codec makes of it (adjusted).
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
class FrechetDistance:
    """A Fréchet distance (squared, as is the custom), the `floor` of true clips from true clips, and the protocol."""

    name: str
    value: float
    floor: float
    protocol: FrechetProtocol

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4g} (real against real {self.floor:.3g}; {self.protocol})"

    def __sub__(self, other: FrechetDistance) -> float:
        """How much farther this one is; only under one protocol."""
        self._refuse(other)
        return self.value - other.value

    def __lt__(self, other: FrechetDistance) -> bool:
        return self - other < 0

    def __gt__(self, other: FrechetDistance) -> bool:
        return self - other > 0

    def _refuse(self, other: FrechetDistance) -> None:
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
    def of(record: dict[str, Any]) -> FrechetDistance:
        """The distance that `record` wrote."""
        about = record["protocol"] | {"resolution": tuple(record["protocol"]["resolution"])}
        return FrechetDistance(record["name"], record["value"], record["floor"], FrechetProtocol(**about))


def frechet(x: Tensor, y: Tensor) -> float:
    """|m − m'|² + tr(C + C' − 2(C^½C'C^½)^½) of two samples (n, d): W₂² of the Gaussians with their moments."""
    if min(len(x), len(y)) < 2 or x.shape[1:] != y.shape[1:]:
        raise ValueError(f"Two samples (n, d) of two or more are needed; got {tuple(x.shape)} and {tuple(y.shape)}.")
    return gaussian_w2(moments(x), moments(y)) ** 2


def frechet_distance(
    generated: Tensor,
    truth: Tensor,
    features: Features,
    *,
    context: int,
    reference: Reference = "original",
    data: str = "",
    splits: int = 8,
) -> FrechetDistance:
    """The distance of generated clips from true ones, (clip, time, 1, height, width) with the context frames in front.

    With what a codec makes of the truth as `truth` and `reference="reconstruction"` it is the adjusted distance, which
    does not charge the dynamics with the codec's losses.
    """
    if generated.shape != truth.shape or truth.ndim != 5 or not 0 <= context < truth.shape[1] or len(truth) < 4:
        raise ValueError(
            "Generated and true clips must have one shape (clip, time, 1, height, width), four clips or more, and more "
            f"frames than the context; got {tuple(generated.shape)}, {tuple(truth.shape)} and context {context}."
        )
    clips, frames, _, height, width = truth.shape
    protocol = FrechetProtocol(clips, frames, context, (height, width), features.identity, reference, data)
    there = features(truth)
    return FrechetDistance(_title(features), frechet(features(generated), there), floor(there, splits=splits), protocol)


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
