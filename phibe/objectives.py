"""Objectives: functions of a velocity whose mean over transitions is least at (an estimate of) the true one.

Each returns one value per transition, so that callers average, weight, or take standard errors. Shapes everywhere:
x, dx (n, *state); t, dt (n,) → (n,). The velocity is called as v(x, t) and must be smooth in x where its
Jacobian appears.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vmap

from phibe.trajectories import Trajectories

Velocity = Callable[[Tensor, Tensor], Tensor]


def phibe(velocity: Velocity, x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
    """Empirical PhiBE-Flow objective, one value per transition   [paper: empirical PhiBE-Flow objective].

    ‖v‖² − 2 v·Δx/Δt − Δxᵀ(∇v)Δx/Δt, with the last term as one forward-mode product. O(Δt) bias.
    """
    v, jacobian_dx = along(lambda z: velocity(z, t), x, dx)
    return dot(v, v) - (2 * dot(v, dx) + dot(jacobian_dx, dx)) / dt


def isotropic(
    velocity: Velocity,
    x: Tensor,
    t: Tensor,
    dx: Tensor,
    dt: Tensor,
    *,
    noise: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """PhiBE-Flow objective for a constant scalar diffusion Σ = σ²I   [paper: constant isotropic diffusion].

    ‖v‖² − 2 v·Δx/Δt − σ² εᵀ(∇v)ε, ε = ±1 at random: the last term is σ²∇·v on average, at the price of one
    forward-mode product. `noise` is σ², known or from `estimate_noise`. O(Δt) bias from the drift, none from a known Σ.
    """
    probe = rademacher(x, generator)
    v, jacobian_probe = along(lambda z: velocity(z, t), x, probe)
    return dot(v, v) - 2 * dot(v, dx) / dt - noise * dot(jacobian_probe, probe)


def regression(velocity: Velocity, x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
    """Least squares on the increments, up to a constant: the diffusion term off, so that b̂ minimises it, not v.

    ‖v‖² − 2 v·Δx/Δt.
    """
    v = velocity(x, t)
    return dot(v, v) - 2 * dot(v, dx) / dt


OBJECTIVES: dict[str, Callable[..., Tensor]] = {
    "phibe": phibe,
    "isotropic": isotropic,
    "regression": regression,
}


def find_objective(name: str) -> Callable[..., Tensor]:
    """The objective of that name, or an error that lists them."""
    if name not in OBJECTIVES:
        raise ValueError(f"`objective` must be one of {', '.join(OBJECTIVES)}; got {name!r}.")
    return OBJECTIVES[name]


def estimate_noise(data: Trajectories) -> float:
    """σ̂² = mean of |Δx|²/(d Δt), the scalar diffusion seen in the increments. O(Δt) bias from the drift in Δx."""
    total, count = 0.0, 0
    for chunk in data.chunks():
        _, _, dx, dt = chunk.pairs()
        total += float((dot(dx, dx).double() / dt.double()).sum())
        count += dx.numel()
    return total / count


def divergence(velocity: Velocity, x: Tensor, t: Tensor, *, probes: Tensor | None = None) -> Tensor:
    """∇·v at each sample, (n,): exact with one forward-mode product per coordinate, or by Hutchinson's estimate
    when `probes` (k, n, *state) are given: the mean of εᵀ(∇v)ε."""

    def quadratic(direction: Tensor) -> Tensor:
        return dot(along(lambda z: velocity(z, t), x, direction)[1], direction)

    if probes is not None:
        return vmap(quadratic)(probes).mean(0)
    size = x[0].numel()
    units = torch.eye(size, dtype=x.dtype, device=x.device).reshape(size, 1, *x.shape[1:]).expand(size, *x.shape)
    return vmap(quadratic, chunk_size=64)(units).sum(0)


def along(f: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and its derivative (∇f)·direction, in one forward-mode pass; the Jacobian is never formed."""
    return jvp(f, (x,), (direction,))  # type: ignore[return-value]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each sample, over all state dimensions: (n, *state)² → (n,)."""
    return (a * b).flatten(1).sum(1)


def rademacher(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random signs in the shape of `like`."""
    return torch.randint(0, 2, like.shape, generator=generator, device=like.device).to(like.dtype) * 2 - 1
