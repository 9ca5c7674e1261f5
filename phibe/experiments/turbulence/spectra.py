"""Spectra of periodic fields on a square of side 2π: the distribution of enstrophy and energy over wavenumbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Spectrum(NamedTuple):
    """Shells of wavenumbers `k` (s,), the `mean` over the modes of each (…, s), and how many `modes` it has (s,)."""

    k: Tensor
    mean: Tensor
    modes: Tensor

    @property
    def total(self) -> Tensor:
        """The sum over the modes of each shell (…, s); over all shells it is the mean over the square (Parseval)."""
        return self.mean * self.modes


def enstrophy_spectrum(vorticity: Tensor) -> Spectrum:
    """Mean of E(𝐤) = ½|ω̂(𝐤)|² over the shells |𝐤| ≈ k, of fields (…, height, width)   [paper: enstrophy spectrum].

    ω̂ are the coefficients of ω = Σ ω̂ e^{i𝐤·x}, so that the totals add up to ½⟨ω²⟩. A mode belongs to the shell that
    |𝐤| rounds to. For the paper's curve average over the samples: `spectrum.mean.mean(0)`.
    """
    return _shell_means(vorticity, lambda square, radius: square / 2)


def energy_spectrum(vorticity: Tensor) -> Spectrum:
    """Mean of ½|ω̂(𝐤)|²/|𝐤|² over the shells: the kinetic energy ½|û|² of the flow with that vorticity; its totals
    are the usual E(k) and add up to ½⟨|u|²⟩."""
    return _shell_means(vorticity, lambda square, radius: square / 2 / radius.clamp(min=1).square() * (radius > 0))


def log_spectral_error(fields: Tensor, truth: Tensor, *, lowest: int = 1, highest: int | None = None) -> Tensor:
    """log₁₀ of the enstrophy spectrum over the true one, by shell from `lowest` to `highest`: (…, shells).

    Both are (sample, …, height, width), and spectra are averaged over the samples before the logarithm. By default the
    shells are the whole circles inside the grid, 1 … n/2 − 1; if the data holds less (dealiased by the 2/3 rule:
    nothing beyond n/3), say so by `highest`.
    """
    highest = min(truth.shape[-2:]) // 2 - 1 if highest is None else highest
    made, true = (enstrophy_spectrum(x).mean.mean(0)[..., lowest : highest + 1] for x in (fields, truth))
    if not bool((true > 0).all()):
        empty = lowest + int((true <= 0).nonzero()[0, -1])
        raise ValueError(f"The truth has nothing in shell {empty}: the logarithm of a ratio needs a lower `highest`.")
    return torch.log10(made / true)


def spectral_distance(fields: Tensor, truth: Tensor, *, lowest: int = 1, highest: int | None = None) -> Tensor:
    """Root mean square over the shells of the log-spectral error, (…): 1 is a factor of ten in every shell."""
    return log_spectral_error(fields, truth, lowest=lowest, highest=highest).square().mean(-1).sqrt()


def over_shells(values: Tensor, width: int) -> Tensor:
    """Values (…, height, width//2 + 1) at the modes of a real transform, each replaced by the mean over its shell."""
    radius, _ = _modes(values.shape[-2], width)
    return _by_shell(values, width).mean[..., radius.round().long()]


# -- inside --------------------------------------------------------------------------------------------------------


def _shell_means(field: Tensor, density: Callable[[Tensor, Tensor], Tensor]) -> Spectrum:
    radius = _modes(*field.shape[-2:])[0].to(field.device, field.dtype)
    return _by_shell(density(torch.fft.rfft2(field, norm="forward").abs().square(), radius), field.shape[-1])


def _by_shell(values: Tensor, width: int) -> Spectrum:
    """Means of values (…, height, width//2 + 1) at the modes that a real transform keeps."""
    radius, weight = (part.to(values.device, values.dtype) for part in _modes(values.shape[-2], width))
    shell = radius.round().long().flatten()
    count = int(shell.max()) + 1
    modes = weight.new_zeros(count).index_add_(0, shell, weight.flatten())
    flat = (values * weight).flatten(-2)
    total = flat.new_zeros(*flat.shape[:-1], count).index_add_(-1, shell, flat)
    return Spectrum(torch.arange(count, device=values.device), total / modes, modes)


@lru_cache(maxsize=8)
def _modes(height: int, width: int) -> tuple[Tensor, Tensor]:
    """|𝐤| of the modes that a real transform keeps, and for how many modes of the full one each stands: 1 or 2."""
    rows = torch.fft.fftfreq(height, 1 / height, dtype=torch.float64)
    columns = torch.fft.rfftfreq(width, 1 / width, dtype=torch.float64)
    alone = (columns == 0) | (2 * columns == width)
    return torch.hypot(rows[:, None], columns), torch.where(alone, 1.0, 2.0).expand(height, -1).double()
