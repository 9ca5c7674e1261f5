"""Integrators: one step of the probability flow dx/dt = v(x, t), each with its order and its cost.

The paper rolls its learnt flows out by Euler, one step a frame [paper: learned flow]; higher orders and leapfrog are
for flows that are followed further. A new integrator is a function (or, with a memory, a class) and one line of
`INTEGRATORS`. Read next: `phibe.flow`, which takes these steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from phibe.calculus import Velocity

ALPHA, FILTER = 0.53, 0.2
"""Williams' α, and the strength ν of the method `filtered`."""

Step = Callable[[Velocity, Tensor, Tensor, Tensor], Tensor]


def euler(v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    """x + h v(x, t)."""
    return x + h * v(x, t)


def heun(v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    """x + h/2 (k₁ + k₂), k₂ at the end of an Euler step."""
    k1 = v(x, t)
    return x + h / 2 * (k1 + v(x + h * k1, t + h))


def rk4(v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    """x + h/6 (k₁ + 2k₂ + 2k₃ + k₄)."""
    k1 = v(x, t)
    k2 = v(x + h / 2 * k1, t + h / 2)
    k3 = v(x + h / 2 * k2, t + h / 2)
    k4 = v(x + h * k3, t + h)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class Leapfrog:
    """x_{n+1} = x_{n−1} + 2h v(x_n, t_n), order 2, one evaluation a step: the inverse of a central difference.

    It remembers the last state; the first step, and any step of a new length, is one of RK4. On a rotation it is
    neutral, where Euler grows; on a decay its second, alternating solution grows, and wants a `filter` ν > 0 [Robert,
    Asselin and Williams]: with d = ν/2 (x_{n−1} − 2x_n + x_{n+1}), the remembered x_n moves by α d and x_{n+1} by
    (α − 1) d. α just above ½ keeps the mean of the three, so that motion over many steps is hardly damped.
    """

    def __init__(self, filter: float = 0.0) -> None:
        self.filter = filter
        self.last: tuple[Tensor, Tensor] | None = None

    def __call__(self, v: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        if self.last is None or not torch.isclose(h, self.last[1], rtol=1e-6, atol=0.0):
            self.last = x, h
            return rk4(v, x, t, h)
        before, _ = self.last
        after = before + 2 * h * v(x, t)
        bend = self.filter / 2 * (before - 2 * x + after)
        self.last = x + ALPHA * bend, h
        return after + (ALPHA - 1) * bend


class Integrator(NamedTuple):
    """`start` makes a fresh one-step rule, without a memory; its order, and the evaluations of v that a step costs."""

    start: Callable[[], Step]
    order: int
    evaluations: int


INTEGRATORS = {
    "euler": Integrator(lambda: euler, 1, 1),
    "heun": Integrator(lambda: heun, 2, 2),
    "rk4": Integrator(lambda: rk4, 4, 4),
    "leapfrog": Integrator(Leapfrog, 2, 1),
    "filtered": Integrator(partial(Leapfrog, FILTER), 1, 1),
}
METHODS = (*INTEGRATORS, "adaptive")
"""What `Flow.generate` takes: these, and the adaptive solver of torchdiffeq."""
