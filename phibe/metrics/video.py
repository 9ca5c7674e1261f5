"""Films against films, frame by frame: MSE, PSNR in its two conventions, SSIM; for one future and for the best of many.

Shapes: films are (clip, time, channel, height, width) with grey from 0 to 1, several futures of each clip (sample,
clip, time, channel, height, width). Measures of frames come back as (…, clip, time).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def mse(film: Tensor, truth: Tensor) -> Tensor:
    """Mean square difference of each frame: (…, clip, time)."""
    return (film - _like(film, truth)).square().flatten(-3).mean(-1)


def psnr(error: Tensor) -> Tensor:
    """10 log₁₀(1/MSE) of each value, in dB."""
    return -10 * torch.log10(error)


def ssim(film: Tensor, truth: Tensor, *, block: int = 512) -> Tensor:
    """Structural similarity of each frame, (…, clip, time)   [Wang et al. 2004].

    (2μμ' + C₁)(2σ_{xx'} + C₂) / ((μ² + μ'² + C₁)(σ² + σ'² + C₂)), moments under an 11 × 11 Gaussian window of σ = 1.5,
    averaged over all places where the whole window lies inside the frame.
    """
    truth = _like(film, truth).expand_as(film)
    if min(film.shape[-2:]) < WINDOW:
        raise ValueError(f"SSIM needs frames of {WINDOW} × {WINDOW} pixels or more; got {tuple(film.shape[-2:])}.")
    pairs = zip(*(x.reshape(-1, *film.shape[-3:]).split(block) for x in (film, truth)), strict=True)
    return torch.cat([_similarity(x, y) for x, y in pairs]).reshape(film.shape[:-3])


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    mx, my = _blur(x), _blur(y)
    vx, vy, cov = _blur(x * x) - mx * mx, _blur(y * y) - my * my, _blur(x * y) - mx * my
    value = (2 * mx * my + C1) * (2 * cov + C2) / ((mx * mx + my * my + C1) * (vx + vy + C2))
    return value.flatten(1).mean(1)


def _blur(x: Tensor) -> Tensor:
    """Means under the window, where it fits: (n, c, h, w) → (n, c, h − 10, w − 10)."""
    place = torch.arange(WINDOW, dtype=x.dtype, device=x.device) - WINDOW // 2
    bell = torch.exp(-((place / SIGMA) ** 2) / 2)
    bell, planes = bell / bell.sum(), x.reshape(-1, 1, *x.shape[-2:])
    smooth = F.conv2d(F.conv2d(planes, bell[None, None, :, None]), bell[None, None, None, :])
    return smooth.reshape(*x.shape[:-2], *smooth.shape[-2:])


def _like(film: Tensor, truth: Tensor) -> Tensor:
    if truth.ndim != 5 or film.ndim not in (5, 6) or film.shape[-5:] != truth.shape:
        raise ValueError(
            "Films must be (clip, time, channel, height, width), or futures (sample, clip, time, …) against such a "
            f"truth; got {tuple(film.shape)} and {tuple(truth.shape)}."
        )
    return truth


# -- one number a method -----------------------------------------------------------------------------------------------


class Scores(NamedTuple):
    """`mse`; `psnr_published`, 10 log₁₀(1/mean MSE), which is what published tables hold; `psnr_frames`, the mean of
    the frames' own PSNR, which is never less (Jensen); `ssim`. Means over clips and frames, of `samples` futures a clip
    the best for each measure."""

    mse: float
    psnr_published: float
    psnr_frames: float
    ssim: float
    samples: int


def score(film: Tensor, truth: Tensor) -> Scores:
    """The measures of one future a clip; of several futures (sample, clip, …) the best of each clip for each measure.

    The best future is told by looking at the truth: it measures whether the truth is among the futures, not which of
    them to trust, and more samples always help. Show it beside `score(film[0], truth)`. With what a codec makes of the
    truth in its place the scores are the adjusted ones, which do not charge the dynamics with the codec's losses.
    """
    futures = film if film.ndim == 6 else film[None]
    error, likeness = mse(futures, truth), ssim(futures, truth)
    least = error.mean(-1).min(0).values.mean()
    return Scores(
        mse=float(least),
        psnr_published=-10 * math.log10(float(least)) if least else math.inf,
        psnr_frames=float(psnr(error).mean(-1).max(0).values.mean()),
        ssim=float(likeness.mean(-1).max(0).values.mean()),
        samples=len(futures),
    )


class SoFar(NamedTuple):
    """What `score` is for the first k frames of one film, for every k: (time,) each; PSNR as published."""

    mse: Tensor
    psnr: Tensor
    ssim: Tensor


def score_so_far(film: Tensor, truth: Tensor) -> SoFar:
    """The measures up to each frame of a film (1, time, channel, height, width), to be shown while it plays."""
    count = torch.arange(1, film.shape[-4] + 1)
    error, likeness = (part[0].double().cumsum(0) / count for part in (mse(film, truth), ssim(film, truth)))
    return SoFar(error, psnr(error), likeness)
