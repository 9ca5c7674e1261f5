"""A codebook: vectors that stand for all others near them, moved by averages of what they stand for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch import distributed as dist

BLOCK = 8192
"""Vectors compared with all codes at once: a table of 32 MB for 1,024 codes."""


class Codebook(nn.Module):
    """`size` codes e in ℝ^`dimension`; each vector is replaced by its nearest code   [van den Oord et al. 2017].

    In training every batch moves the codes to the mean of what they stood for, with the memory γ = `decay`:
    N ← γN + (1 − γ)n, m ← γm + (1 − γ)Σz, e = m/N, for the n vectors z nearest to the code. A code that stands for less
    than the share `dead` of what it would under equal use begins anew at a vector of the batch; so do all at the first.
    """

    codes: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, size: int, dimension: int, *, decay: float = 0.99, dead: float = 0.03):
        super().__init__()
        self.decay, self.dead = decay, dead
        self.register_buffer("codes", torch.zeros(size, dimension))
        self.register_buffer("counts", torch.zeros(size))
        self.register_buffer("sums", torch.zeros(size, dimension))

    def nearest(self, z: Tensor) -> Tensor:
        """Numbers of the codes next to the vectors, by |e|² − 2 z·e: (n, d) → (n,)."""
        norms, codes = self.codes.square().sum(1), self.codes.mT
        with torch.autocast(z.device.type, enabled=False):  # neighbouring codes differ by less than bfloat16 tells
            return torch.cat([torch.addmm(norms, part, codes, alpha=-2).argmin(1) for part in z.detach().split(BLOCK)])

    def forward(self, z: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The codes of the vectors along dimension 1, (n, d, *grid); in training the codes then move."""
        flat = z.detach().movedim(1, -1).reshape(-1, z.shape[1])
        if self.training and not self.counts.any():
            self._revive(torch.ones_like(self.counts, dtype=torch.bool), flat, generator)
        index = self.nearest(flat)
        codes = self.codes[index].reshape(*z.shape[:1], *z.shape[2:], -1).movedim(-1, 1)
        if self.training:
            self.update(flat, index, generator=generator)
        return codes

    @torch.no_grad()
    def update(self, z: Tensor, index: Tensor, *, generator: torch.Generator | None = None) -> None:
        """Move the codes towards the vectors z (n, d) that they stand for, by number; all processes move them alike."""
        counts = torch.bincount(index, minlength=len(self.codes)).to(z.dtype)
        sums = torch.zeros_like(self.sums).index_add_(0, index, z)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts)
            dist.all_reduce(sums)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        alive = self.counts >= self.dead * counts.sum() / len(counts)
        self.codes[alive] = self.sums[alive] / self.counts[alive, None]
        self._revive(~alive, z, generator)

    @torch.no_grad()
    def _revive(self, dead: Tensor, z: Tensor, generator: torch.Generator | None) -> None:
        """Put the dead codes on vectors drawn from z, with the memory of a code under equal use."""
        drawn = torch.randint(len(z), (len(dead),), generator=generator, device=z.device)
        fair = len(z) / len(dead)
        self.codes[dead], self.counts[dead] = z[drawn][dead], fair
        self.sums[dead] = fair * self.codes[dead]

    def usage(self) -> float:
        """The perplexity exp(−Σ p log p) of the codes' use, as a share of their number: 1 if all are used alike."""
        p = self.counts / self.counts.sum()
        return float(torch.special.entr(p).sum().exp()) / len(p)


def straight_through(z: Tensor, codes: Tensor) -> Tensor:
    """The codes, with the gradient of z: what follows is as if nothing had been rounded."""
    return z + (codes - z).detach()
