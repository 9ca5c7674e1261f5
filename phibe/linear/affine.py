"""Affine fits: the minimiser of an objective among fields affine in x, at each observation time or between knots.

[A | b] (Σ z zᵀ) = Σ u zᵀ + (½ Σ q d dᵀ | 0) with z = (x, 1)   [paper: normal equations of the affine velocity field].
Complete paths on one grid are summed at the speed of memory. Read next: `phibe.training.loop`, for all other fields.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from phibe.bases import InTime, lift
from phibe.calculus import differentiable, place_between
from phibe.flow import Flow
from phibe.linear.basis import pseudo_inverse
from phibe.linear.sums import ADDED, Band, Centred, Sums, merged, sums
from phibe.objectives import find_objective
from phibe.trajectories import Trajectories

FORWARD = ("phibe", "isotropic", "regression")
"""The objectives with u = Δx/Δt at the start of a transition: their sums are those of a band."""


class AffineField(nn.Module):
    """v(x, t) = A(t) x + b(t), linear in t between `times`, constant beyond; `matrices` (L, d, d), `offsets` (L, d)."""

    times: Tensor
    matrices: Tensor
    offsets: Tensor

    def __init__(self, times: Tensor, matrices: Tensor, offsets: Tensor):
        super().__init__()
        for name, tensor in (("times", times.contiguous()), ("matrices", matrices), ("offsets", offsets)):
            self.register_buffer(name, tensor)
        self.state_shape: tuple[int, ...] = (offsets.shape[1],)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        matrix, offset = self.coefficients(t)
        return ((matrix @ x.flatten(1)[..., None])[..., 0] + offset).reshape(x.shape)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """A and b at each of the times asked for: (n,) → (n, d, d), (n, d). One look-up when all times are equal.

        The derivative in t is that of the stretch between two times; at a time itself the one from the left, at the
        first the one from the right.
        """
        if t.numel() > 1 and not differentiable(t) and bool((t == t[0]).all()):
            return tuple(part.expand(len(t), *part.shape[1:]) for part in self.coefficients(t[:1]))  # type: ignore[return-value]
        if len(self.times) == 1:
            return self.matrices.expand(len(t), -1, -1), self.offsets.expand(len(t), -1)
        left, share = place_between(t, self.times)
        share = share.to(self.matrices.dtype)
        matrix = torch.lerp(self.matrices[left], self.matrices[left + 1], share[:, None, None])
        return matrix, torch.lerp(self.offsets[left], self.offsets[left + 1], share[:, None])

    def thin(self, k: int) -> AffineField:
        """The same field on fewer times: means over k neighbouring ones, which also averages their sampling noise."""
        parts = ([block.mean(0) for block in part.split(k)] for part in (self.times, self.matrices, self.offsets))
        return AffineField(*(torch.stack(part) for part in parts))


def fit_affine(
    data: Trajectories | Iterable[Trajectories],
    objective: str = "phibe",
    *,
    noise: float | None = None,
    knots: Any = None,
    executor: Executor | None = None,
) -> Flow:
    """The affine field at each observation time that minimises the objective   [paper: affine velocity field].

    `noise` is σ² for `isotropic` (default: estimated). A time that the objective cannot see, as `symmetric` the first
    and the last, takes the field of the nearest that it can. For paths with times of their own pass `knots`: the field
    is then piecewise linear in time between them, fitted to all samples at once. An iterable of blocks of paths is read
    once, so that data may be simulated or loaded as it is used; an `executor` sums the blocks side by side.

    >>> from phibe.systems.ou import OU
    >>> blocks = (OU.reversible().simulate(paths=1000, times=[0.0, 0.1, 0.2], seed=i) for i in range(5))
    >>> fit_affine(blocks, "symmetric").velocity.times  # central differences see the middle of three observations
    tensor([0.1000], dtype=torch.float64)
    """
    complete = not isinstance(data, Trajectories) or _on_grid(data)
    knots = None if knots is None else torch.as_tensor(knots, dtype=torch.float64)
    if knots is not None and (knots.ndim != 1 or len(knots) < 2 or not (knots.diff() > 0).all()):
        raise ValueError(f"`knots` must be at least two increasing times; got {knots.tolist()}.")
    blocks = [data] if isinstance(data, Trajectories) else data
    each = map if executor is None else executor.map
    whole = merged(each(partial(affine_sums, objective=objective, knots=knots), blocks), objective)
    return solve_affine(whole, objective, noise=noise, knots=knots, complete=complete)


def solve_affine(
    whole: Sums, objective: str, *, noise: float | None = None, knots: Tensor | None = None, complete: bool = True
) -> Flow:
    """The flow of sums that `affine_sums` gave for these knots, merged; `complete` if no path misses a time."""
    whole = _isotropic(whole, noise) if objective == "isotropic" else whole
    if knots is None:
        whole = _seen(whole, objective)
        least, counts = whole.gram.shape[1], whole.counts.sum(1)
        if not (complete and objective in FORWARD) and float(counts.median()) < least:
            few = f"half of the {len(counts)} times have {int(counts.median())} or fewer"
            fix = "Pass `knots`, as `knots=torch.linspace({:g}, {:g}, 20)`.".format(*whole.interval)
            raise ValueError(f"A field at each time needs {least} or more samples there; {few}. {fix}")
    times, *solution = (whole.keys, *_solve_times(whole)) if knots is None else (knots, *_solve_knots(whole))
    field = AffineField(times, *(part.to(whole.dtype) for part in solution))
    return Flow(field, whole.interval, whole.step, method=find_objective(objective).method)


def affine_sums(data: Trajectories, objective: str, knots: Tensor | None = None) -> Sums:
    """What `fit_affine` needs of one block of paths: the sums of each time, or of each stretch between knots.

    Those of `isotropic` are those of `phibe`, whose mean |Δx|²/(d Δt) is the noise.
    """
    on_grid, some = _on_grid(data), data.states[:256] if data.lengths is None else data.states[:256, :2]
    basis = Centred(some.double().flatten(2).mean(dim=(0, 1)))
    name = "phibe" if objective == "isotropic" else objective
    if knots is not None and not on_grid:
        return sums(data, lift(InTime(basis, knots)), name, dtype=torch.float64)
    if on_grid and objective in FORWARD:
        found = Band(data, basis.shift).sums()
        if objective == "regression":
            found = replace(found, spread=torch.zeros_like(found.spread))
    else:
        found = sums(data, lift(basis), name, by_time=True, dtype=torch.float64)
    return found if knots is None else _seen(found, objective).between(knots)


def _on_grid(data: Trajectories) -> bool:
    return data.shared_times and data.lengths is None


def _seen(found: Sums, objective: str) -> Sums:
    """Of the times those that are seen, of an objective that looks from both ends of a transition from both sides."""
    counts = found.counts
    seen = (counts > 0).all(1) if (counts[:, 1] > 0).any() else counts[:, 0] > 0
    if (counts > 0).any() and not seen.any():
        needed = f"`{objective}` needs times that some transitions start from and others end at; there are none."
        raise ValueError(f"{needed} Pass `knots`, for a field piecewise linear in time, or take objective 'phibe'.")
    return replace(found, **{name: getattr(found, name)[seen] for name in ("keys", *ADDED)})


def _isotropic(found: Sums, noise: float | None) -> Sums:
    """½ Σ q d dᵀ replaced by ½ n σ²I, with n weighed by the hats between knots; σ̂² as that of `estimate_noise`."""
    d = found.target.shape[2]
    weight = found.gram.unflatten(1, (-1, d + 1)).unflatten(3, (-1, d + 1))[:, :, d, :, d].sum(2)
    spread = found.spread.unflatten(1, (-1, d + 1))
    if noise is None:
        noise = 2 * float(spread.diagonal(dim1=2, dim2=3).sum() / (d * weight.sum()))
    known = 0.5 * noise * weight[:, :, None, None] * torch.eye(d + 1, d, dtype=torch.float64)
    return replace(found, spread=known.flatten(1, 2))


def _solve_times(found: Sums) -> tuple[Tensor, Tensor]:
    """The slope from the centred moments of each time, then the offset from their means: E[v] = E[u]."""
    n, d = found.counts.sum(1)[:, None, None], found.target.shape[2]
    mean, pull = found.gram[:, :d, d:] / n, found.target[:, d:] / n
    right = (found.target + found.spread)[:, :d] / n - mean @ pull
    gram = found.gram[:, :d, :d] / n
    inverse, rank = pseudo_inverse(gram - mean @ mean.mT, floor=1e-11 * gram.diagonal(dim1=1, dim2=2))
    if (deficient := rank < d).any():
        where = ", ".join(f"t = {float(t):g}" for t in found.keys[deficient][:3]) + " …" * (int(deficient.sum()) > 3)
        smallest = "the affine field there is the one of smallest norm"
        warnings.warn(f"The states span fewer than {d} dimensions at {where}: {smallest}.", stacklevel=4)
    matrix = (inverse @ right).mT
    return matrix, (pull.mT - matrix @ (mean + found.shift[:, None]))[..., 0]


def _solve_knots(found: Sums) -> tuple[Tensor, Tensor]:
    """At each knot, of the field that is linear in time between them: hats h_k(t) weigh the sums of all times.

    Σ_l (Σ h_k h_l z zᵀ) [A | b]_lᵀ = Σ h_k (z uᵀ + (½ Σ q d dᵀ | 0)ᵀ), for every knot k.
    """
    d = found.target.shape[2]
    gram, moment = found.equations()
    inverse, rank = pseudo_inverse(gram)
    if int(rank) < len(gram):
        warnings.warn("Some knots see too few transitions: the field there is the one of smallest norm.", stacklevel=4)
    theta = (inverse @ moment).reshape(-1, d + 1, d)
    matrices, offsets = theta[:, :d].mT.contiguous(), theta[:, d]
    return matrices, offsets - (matrices @ found.shift[:, None])[..., 0]
