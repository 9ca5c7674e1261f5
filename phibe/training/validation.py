"""Validation: the objective on training and on held-out samples under the same weights; a warning when they part."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from phibe.calculus import along
from phibe.training.config import FitConfig
from phibe.training.runs import Progress
from phibe.training.sampling import Samples

if TYPE_CHECKING:
    from phibe.training.loop import Loss

LEAST, MOST = 256, 16384
"""Held-out samples of an evaluation, always the same: a third of those trained on since the last one."""


class Scores(NamedTuple):
    """Mean objective on training and held-out samples (None: there are none), standard error of the gap, max |J·Δx|."""

    train: float
    held_out: float | None
    error: float
    jacobian_dx: float | None


class Validation:
    """The objective of a module on fixed samples."""

    def __init__(self, module: Loss, train: Samples, check: Samples | None, config: FitConfig, devices: Any):
        self.module, self.config, self.devices = module, config, devices
        self.train, self.check = train, check
        self.count = max(LEAST, min(MOST, config.evaluate_every * config.batch // 3))

    @torch.no_grad()
    def scores(self) -> Scores:
        """All processes evaluate the same samples and agree on the mean."""
        with evaluating(self.module):
            train, slopes = self._evaluate(self.train, self.count // 4, slopes=self.module.jacobian)
            held = self._evaluate(self.check, self.count)[0] if self.check else train
        error = math.hypot(*(float(values.std(correction=0)) / math.sqrt(len(values)) for values in (train, held)))
        seen = torch.stack([train.mean(), held.mean(), slopes.max()]).to(self.devices.device, torch.float32)
        means = self.devices.all_reduce(seen).tolist()
        return Scores(means[0], means[1] if self.check else None, error, means[2] if self.module.jacobian else None)

    def _evaluate(self, samples: Samples, count: int, *, slopes: bool = False) -> tuple[Tensor, Tensor]:
        """The objective at `count` samples, with the same random numbers each time; if asked for, their |J·Δx|."""
        like = next(self.module.parameters())
        generator = torch.Generator(like.device).manual_seed(self.config.seed)
        drawing = torch.Generator().manual_seed(self.config.seed)
        values, norms = [], [torch.zeros(1)]
        for piece in samples.some(count, seed=self.config.seed).split(self.config.batch):
            sample = [part.to(like.dtype).to(like.device) for part in samples.take(piece)]
            drawn = [part.to(like.dtype).to(like.device) for part in self.module.draw(len(piece), drawing)]
            values.append(self.module(*sample, *drawn, generator=generator).cpu().double())
            if slopes:
                norms.append(self._slope(*sample).cpu())
        return torch.cat(values), torch.cat(norms)

    def _slope(self, x: Tensor, t: Tensor, *steps: Tensor) -> Tensor:
        """|J·Δx| of the first transition of each sample."""
        x, t, dx = (x, t, steps[0]) if self.train.width == 2 else (x[:, 0], t[:, 0], x[:, 1] - x[:, 0])
        return along(lambda z: self.module.network(z, t), x, dx)[1].flatten(1).norm(dim=1)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; each part then goes back to its own mode, for some may be frozen on purpose."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def judge(now: Progress, scores: Scores) -> bool:
    """Note in the progress what the scores mean; True if they are the best so far.

    A finite sample does not bound the objective from below: a flexible network can lower it at the training points for
    ever, while the velocity gets worse. The objective of v = 0 is 0, so that |best| is a natural unit: training and
    held-out objective have parted when their gap exceeds it by three standard errors.
    """
    if scores.held_out is None:
        return True
    better = math.isfinite(scores.held_out) and (now.best is None or scores.held_out < now.best)
    if better:
        now.best, now.best_step, now.best_error, now.waited = scores.held_out, now.step, scores.error, 0
    else:
        now.waited += 1
    gap = scores.held_out - scores.train
    if not now.warned and now.best is not None and not gap <= abs(now.best) + 3 * now.best_error:
        now.warned = True
        differentiates = scores.jacobian_dx is not None
        unbounded = "A finite sample does not bound this objective from below ('symmetric' it does). " * differentiates
        warnings.warn(
            f"At step {now.step} the training and the held-out objective have parted: {scores.train:.4g} against "
            f"{scores.held_out:.4g} (best {now.best:.4g} at step {now.best_step}). {unbounded}The network has begun to "
            "fit the noise of its sample; the best weights are kept. Stop early (`patience`), regularise "
            "(`weight_decay`, `ema`, `input_noise`), or take a smaller network or more paths.",
            stacklevel=7,  # the caller of `phibe.fit`
        )
    return better
