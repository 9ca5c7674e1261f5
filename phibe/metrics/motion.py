"""What a person sees of a motion: where the figure is, how it steps, and how much its futures differ.

The figure is what differs from the background, which the median over time of a true clip gives; its weight at a pixel
is |frame − background|, less a threshold that keeps the sensor's noise out. Positions and widths are in pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FREQUENCIES, LEAST = 256, 10


def background(films: Tensor) -> Tensor:
    """The median over time at each pixel, (clip, time, *frame) → (clip, 1, *frame); of a figure that stays where it is,
    only what moves differs from it."""
    return films.median(1, keepdim=True).values


class Silhouette(NamedTuple):
    """Centre (…, 2) as (x, y), `width` (…,), the weight's standard deviation along x, and `mass` (…,), its sum."""

    centre: Tensor
    width: Tensor
    mass: Tensor

    @property
    def visible(self) -> Tensor:
        """Frames in which there is at least 30 % of the most that a clip shows: a runner has left the others."""
        return self.mass > 0.3 * self.mass.amax(-1, keepdim=True)


def silhouette(films: Tensor, behind: Tensor, *, threshold: float = 0.1) -> Silhouette:
    """Moments of the figure's weight in each frame: films (…, clip, time, 1, H, W), background (clip, 1, 1, H, W).

    A frame in which nothing is above the threshold has its figure in the middle, of width and mass zero.
    """
    weight = ((films - behind).abs() - threshold).clamp(min=0).sum(-3)
    mass = weight.sum((-2, -1))
    share = weight / mass.clamp(min=torch.finfo(weight.dtype).tiny)[..., None, None]
    y, x = (torch.arange(n, dtype=weight.dtype, device=weight.device) for n in weight.shape[-2:])
    along = share.sum(-2)
    cx = torch.where(mass > 0, (along * x).sum(-1), x.mean())
    cy = torch.where(mass > 0, (share.sum(-1) * y).sum(-1), y.mean())
    width = (along * (x - cx[..., None]).square()).sum(-1).sqrt()
    return Silhouette(torch.stack([cx, cy], -1), width, mass)


def position_drift(made: Silhouette, true: Silhouette) -> Tensor:
    """Distance of the figure's centre from the true one in each frame, in pixels: (…, clip, time); NaN where the true
    figure is out of sight."""
    return (made.centre - true.centre).norm(dim=-1).where(true.visible, torch.nan)


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
    figure that glides); NaN where the true figure is seen too briefly."""

    frequency_error: Tensor
    amplitude_ratio: Tensor


def gait(made: Silhouette, true: Silhouette, times: Tensor) -> Gait:
    """How a figure steps, from the oscillation of its width while the true one is in sight: (…, clip, time) → (…,
    clip). Two steps make a stride: a walker's width swings twice in its cycle."""
    a, b = (oscillation(one.width, times, counts=true.visible) for one in (made, true))
    return Gait((a.frequency / b.frequency - 1).abs(), a.amplitude / b.amplitude)


def diversity(futures: Tensor) -> Tensor:
    """Root mean square distance between two futures of a clip, at each time: (sample, clip, time, …) → (clip, time).

    √(2 × the mean over the pixels of the samples' variance): zero for a deterministic method, and for futures as
    different as truth is from another truth, that distance.
    """
    if futures.ndim < 4 or len(futures) < 2:
        raise ValueError(f"Two futures or more, (sample, clip, time, …), are needed; got {tuple(futures.shape)}.")
    return (2 * futures.var(0).flatten(2).mean(-1)).sqrt()
