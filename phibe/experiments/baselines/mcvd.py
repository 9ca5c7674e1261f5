"""MCVD: masked conditional video diffusion [Voleti, Jolicoeur-Martineau, Pal], for prediction; its sampler: `sample`.

Read next: `forecaster.py`, how it is trained and rolled out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phibe.calculus import times
from phibe.experiments.baselines.forecaster import Forecaster

LEVELS = 1000
"""Noise levels; βₖ grows linearly from 1e-4 to 0.02 over them, ᾱₖ = Π(1 − βⱼ)."""


class MCVD(Forecaster):
    """A denoising diffusion of a block of frames, given the frames before it.

    z_k = √ᾱₖ x + √(1 − ᾱₖ) ε; the network regresses ε from z_k, the level k and the past, which in a fraction `mask` of
    the samples is set to zero (0 in the published network for KTH, ½ in those that also generate from nothing).
    Sampling goes back through `steps` of the 1000 levels, equally spaced, by the ancestral rule: the estimate
    x̂ = (z − √(1 − ᾱ)ε̂)/√ᾱ, kept within the range of the training data, then a draw of q(z_{k−1} | z_k, x̂). A block of
    `frames` costs `steps` evaluations. With `model.centred = True` the mean of x̂ over
    its grid is set to that of the data (vorticity has none): the loss hardly depends on that mean, and errors add up.
    """

    name = "mcvd"
    centred = False

    def __init__(self, network: nn.Module, *, past: int = 2, frames: int = 2, mask: float = 0.0, steps: int = 100):
        super().__init__(network, past=past, frames=frames)
        self.mask, self.steps = mask, steps
        self.settings = {"past": past, "frames": frames, "mask": mask, "steps": steps}
        if not 0 <= mask < 1 or not 1 <= steps <= LEVELS:
            raise ValueError(f"`mask` must be from 0 to below 1 and `steps` from 1 to {LEVELS}; got {mask}, {steps}.")

    @property
    def evaluations(self) -> float:
        return self.steps / self.frames

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """The level k (n,), ε (n, frames·C, *rest), and 1 where the past is seen, 0 where it is masked (n,)."""
        level = torch.randint(LEVELS, (n,), generator=generator)
        noise = torch.randn(n, self.frames * self.state_shape[0], *self.state_shape[1:], generator=generator)
        return level, noise, (torch.rand(n, generator=generator) >= self.mask).float()

    def regress(self, past: Tensor, future: Tensor, *drawn: Tensor) -> Tensor:
        """Mean square of ε̂(z_k, k, past) − ε over the coordinates, (n,)."""
        level, noise, seen = drawn
        kept = signal(past)[level.long()]
        z = times(future, kept.sqrt()) + times(noise, (1 - kept).sqrt())
        predicted = self.network(z, level / LEVELS, condition=times(past, seen))
        return (predicted - noise).square().flatten(1).mean(1)

    def sample(self, past: Tensor, generator: torch.Generator | None) -> Tensor:
        shape = (len(past), self.frames * self.state_shape[0], *self.state_shape[1:])
        z = self._noise(past.new_empty(shape), generator)
        levels = _spaced(self.steps).tolist()
        for k, after in zip(levels, [*levels[1:], -1], strict=True):
            z = self._back(z, past, k, after, generator)
        return z

    def _back(self, z: Tensor, past: Tensor, k: int, after: int, generator: torch.Generator | None) -> Tensor:
        """A draw at the level `after`, −1 being that of the data, from one at level k."""
        table = signal(z)
        here, there = table[k], table[after] if after >= 0 else table.new_ones(())
        level = torch.full((len(z),), k / LEVELS, dtype=z.dtype, device=z.device)
        noise = self.network(z, level, condition=past)
        clean = (z - (1 - here).sqrt() * noise) / here.sqrt()
        if self.centred:
            clean = clean - clean.flatten(2).mean(2).reshape(*clean.shape[:2], *[1] * (clean.ndim - 2))
        clean = clean.clamp(-self.bound, self.bound)
        lost = 1 - here / there  # the β of this longer step
        mean = there.sqrt() * lost / (1 - here) * clean + (1 - lost).sqrt() * (1 - there) / (1 - here) * z
        return mean if after < 0 else mean + (lost * (1 - there) / (1 - here)).sqrt() * self._noise(z, generator)


def signal(like: Tensor) -> Tensor:
    """ᾱₖ of all levels, (1000,), computed in float64."""
    beta = torch.linspace(1e-4, 0.02, LEVELS, dtype=torch.float64)
    return (1 - beta).cumprod(0).to(like)


def _spaced(steps: int) -> Tensor:
    """That many levels, the highest first, equally spaced."""
    return torch.linspace(LEVELS - 1, LEVELS / steps - 1, steps).round().long()
