"""Calculus of batched states (n, *state): inner products, directional derivatives and divergences, sample by sample.

The terms of the paper's objectives are made of these: v·u, dᵀ(∇v)d and ∇·v, without ever forming a Jacobian. Read next:
`phibe.objectives`; `phibe.systems.ou` has a velocity and a divergence that are known exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.func import debug_unwrap, jvp, vmap

Velocity = Callable[[Tensor, Tensor], Tensor]
"""A function of states and times, v(x, t): x (n, *state), t (n,) → (n, *state)."""


def divergence(velocity: Velocity, x: Tensor, t: Tensor, *, probes: Tensor | None = None) -> Tensor:
    """∇·v at each sample, (n,): exact with one forward-mode product per coordinate, or by Hutchinson's estimate
    when `probes` (k, n, *state) are given: the mean of εᵀ(∇v)ε."""

    def quadratic(direction: Tensor) -> Tensor:
        return dot(along(lambda z: velocity(z, t), x, direction)[1], direction)

    if probes is not None:
        return vmap(quadratic)(probes).mean(0)
    return vmap(quadratic, chunk_size=64)(units(x)).sum(0)


def units(x: Tensor) -> Tensor:
    """The unit vectors of the state space, each for all samples: (D, n, *state)."""
    size = x[0].numel()
    units = torch.eye(size, dtype=x.dtype, device=x.device).reshape(size, 1, *x.shape[1:])
    return units.expand(size, *x.shape)


def along(f: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and its derivative (∇f)·direction, in one forward-mode pass; the Jacobian is never formed."""
    return jvp(f, (x,), (direction,))  # type: ignore[return-value]


def differentiable(t: Tensor) -> bool:
    """Whether a derivative with respect to `t` may be asked for: then each sample must keep a time of its own, even if
    all are equal. Within a transform of torch.func that reaches `t` the answer is yes."""
    return t.requires_grad or debug_unwrap(t) is not t or unpack_dual(t).tangent is not None


def over(x: Tensor, dt: Tensor) -> Tensor:
    """Each sample divided by its own step: x (n, *state), dt (n,)."""
    return x / dt.reshape(-1, *[1] * (x.ndim - 1))


def times(x: Tensor, weight: Tensor) -> Tensor:
    """Each sample times its own weight: x (n, *state), weight (n,)."""
    return x * weight.reshape(-1, *[1] * (x.ndim - 1))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each sample, over all state dimensions: (n, *state)² → (n,)."""
    return (a * b).flatten(1).sum(1)


def rademacher(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random signs in the shape of `like`."""
    return torch.randint(0, 2, like.shape, generator=generator, device=like.device).to(like.dtype) * 2 - 1


def place_between(t: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """For linear interpolation: the knot left of each t, and how far it is to the next, from 0 to 1; (n,), (n,)."""
    left = torch.searchsorted(knots, t.detach().to(knots.dtype).contiguous()).clamp(1, len(knots) - 1) - 1
    start = knots[left]
    return left, ((t - start) / (knots[left + 1] - start)).clamp(0, 1)
