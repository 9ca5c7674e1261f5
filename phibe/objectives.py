"""Objectives: functions of a velocity whose mean over observations is least at (an estimate of) the true one.

All of them have one form. A few neighbouring observations of a path, a *stencil*, say of the velocity at (x, t)

    J(v) = ‖v‖² − 2 v·u − Σₖ qₖ dₖᵀ(∇v)dₖ,

with a target u and weighted directions dₖ made of the observations. Each objective below is the equation of its
stencil, and a name under which API, command line, reports and apps know it. Called with a velocity v(x, t) it returns
one value per sample, so that callers average, weight, or take standard errors. Samples of two observations are
x, dx (n, *state) and t, dt (n,); of more, x (n, width, *state), t (n, width) and dt (n, width − 1).

`phibe` is the empirical PhiBE-Flow objective of the paper, `isotropic` its form for a constant scalar diffusion. A new
objective is one function under `@objective`, and its name in `phibe.training.config`. Read next: `phibe.integrators`.

>>> [name for name, objective in OBJECTIVES.items() if not objective.jacobian]  # least squares
['regression', 'stratonovich', 'symmetric', 'symmetric2', 'symmetric4']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import update_wrapper
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp

from phibe.calculus import Velocity, dot, over, rademacher, times, units
from phibe.trajectories import Pairs, Trajectories, Windows


class Stencil(NamedTuple):
    """Places x (m, *state), t (m,), targets u (m, *state), pairs of q (m,), d (m, *state); m = n, or 2n: both ends."""

    x: Tensor
    t: Tensor
    u: Tensor
    directions: tuple[tuple[Tensor, Tensor], ...] = ()


@dataclass(eq=False, repr=False)
class Objective:
    """An objective, with what one needs to know to choose it.

    `width` is the number of neighbouring observations in its stencil, `place` the one it takes the velocity at, `order`
    that of its bias in Δt, `variance` that of its target in units of σ²/Δt, `assumes` what must hold for it to find the
    probability velocity. It takes so many `evaluations` of the velocity, and `products` with its Jacobian: if any,
    networks must be smooth, and a finite sample does not bound it from below. `noise` says that it takes the noise σ²
    and random signs. `method` is the integrator that fits it: Euler undoes a forward difference, RK4 follows any other
    field.
    """

    stencil: Callable[..., Stencil]
    _: KW_ONLY
    order: str
    assumes: str
    width: int = 2
    place: int = 0
    variance: float = 1.0
    products: int = 0
    evaluations: int = 1
    noise: bool = False
    method: str = "rk4"

    def __post_init__(self) -> None:
        update_wrapper(self, self.stencil)
        self.name = self.stencil.__name__

    @property
    def jacobian(self) -> bool:
        """Whether it differentiates the velocity."""
        return self.products > 0

    @property
    def cost(self) -> str:
        """What a value of it takes, in words."""
        count = self.products or self.evaluations
        return f"{count} {'Jacobian product' if self.products else 'evaluation'}{'s' * (count > 1)}"

    def __call__(self, velocity: Velocity, *sample: Tensor, **options: object) -> Tensor:
        """The objective of each sample, (n,)."""
        values = evaluate(velocity, self.stencil(*sample, **options))
        return values.reshape(-1, len(sample[0])).mean(0)

    def __repr__(self) -> str:
        return f"<objective {self.name}: {(self.__doc__ or '').splitlines()[0]}>"

    def samples(self, data: Trajectories) -> Pairs | Windows:
        """All the samples of this width in the data."""
        return data.pairs() if self.width == 2 else data.windows(self.width)

    def weights(self, *sample: Tensor) -> Tensor:
        """The weight of each sample: one over the variance that noise of unit σ gives its target; (n,), float64.

        u = Σ c_k Δx_k has the variance σ² Σ c_k² Δt_k (σ²/Δt of a single transition). Without weights a sample of two
        nearly equal times drowns all others; with them a sum over transitions is one over time, Σ Δt (…).
        """
        t, dt = sample[1].double(), sample[-1].double()
        if self.width == 2:
            return dt
        variance = torch.zeros_like(dt[:, 0])
        for k in range(self.width - 1):
            step = (torch.arange(self.width, device=t.device) > k).double()  # a unit increment over the k-th gap
            u = self.stencil(step.expand(len(t), -1)[..., None], t, dt).u
            variance += u[: len(t), 0] ** 2 * dt[:, k]
        return 1 / variance


OBJECTIVES: dict[str, Objective] = {}
"""Every objective by its name: what the command line, the book and the apps offer."""


def objective(**facts: Any) -> Callable[[Callable[..., Stencil]], Objective]:
    """Turns the equation of a stencil into an objective with these facts, under the name of the function."""

    def register(stencil: Callable[..., Stencil]) -> Objective:
        OBJECTIVES[stencil.__name__] = made = Objective(stencil, **facts)
        return made

    return register


def evaluate(velocity: Velocity, stencil: Stencil) -> Tensor:
    """‖v‖² − 2 v·u − Σₖ qₖ dₖᵀ(∇v)dₖ at each place, (m,); the Jacobian is never formed.

    dᵀ(∇v)d = d·∂(v·d)/∂x is one backward pass through the velocity, which torch can differentiate again.
    """
    x, t, u, directions = stencil
    if not directions:
        v = velocity(x, t)
        return dot(v, v) - 2 * dot(v, u)
    v, pull = vjp(lambda z: velocity(z, t), x)  # type: ignore[misc]
    jacobian = sum(q * dot(pull(d)[0], d) for q, d in directions)
    return dot(v, v) - 2 * dot(v, u) - jacobian


# -- two observations --------------------------------------------------------------------------------------------------


@objective(order="1", products=1, assumes="a Markov state and a small step")
def phibe(x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Stencil:
    """Empirical PhiBE-Flow objective, one value per transition   [paper: empirical PhiBE-Flow objective].

    ‖v‖² − 2 v·Δx/Δt − Δxᵀ(∇v)Δx/Δt, with the last term as one product with the Jacobian. O(Δt) bias.

    >>> import phibe, torch
    >>> one = torch.ones(1, 1)
    >>> phibe.phibe(lambda x, t: -x, one, torch.zeros(1), one / 2, torch.tensor([0.5]))  # 1 + 2 + 1/2
    tensor([3.5000])
    """
    return Stencil(x, t, over(dx, dt), ((1 / dt, dx),))


@objective(order="1", products=1, noise=True, assumes="a Markov state, a small step and noise σ²I everywhere")
def isotropic(
    x: Tensor,
    t: Tensor,
    dx: Tensor,
    dt: Tensor,
    *,
    noise: float,
    generator: torch.Generator | None = None,
    exact: bool = False,
) -> Stencil:
    """PhiBE-Flow objective for a constant scalar diffusion Σ = σ²I   [paper: constant isotropic diffusion].

    ‖v‖² − 2 v·Δx/Δt − σ² εᵀ(∇v)ε, ε = ±1 at random: the last term is σ²∇·v on average, at the price of one
    product with the Jacobian; `exact` takes one for each coordinate. `noise` is σ², known or from `estimate_noise`.
    O(Δt) bias from the drift, none from a known Σ.

    >>> import phibe, torch
    >>> one = torch.ones(1, 1)
    >>> phibe.isotropic(lambda x, t: -x, one, torch.zeros(1), one / 2, torch.tensor([0.5]), noise=2.0)  # 1 + 2 + 2
    tensor([5.])
    """
    probes = list(units(x)) if exact else [rademacher(x, generator)]
    return Stencil(x, t, over(dx, dt), tuple((torch.full_like(t, noise), probe) for probe in probes))


@objective(order="–", method="euler", assumes="that the forward drift b is wanted, or that there is no noise")
def regression(x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Stencil:
    """Least squares on the increments, up to a constant: the diffusion term off, so that b̂ minimises it, not v.

    ‖v‖² − 2 v·Δx/Δt.

    >>> import phibe, torch
    >>> one = torch.ones(1, 1)
    >>> phibe.regression(lambda x, t: -x, one, torch.zeros(1), one / 2, torch.tensor([0.5]))  # 1 + 2
    tensor([3.])
    """
    return Stencil(x, t, over(dx, dt))


@objective(
    order="1 (2 if reversible)",
    variance=0.5,
    evaluations=2,
    assumes="a Markov state, and times that some transitions start from and others end at",
)
def stratonovich(x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Stencil:
    """The two-point form of `symmetric`, for data that comes only in pairs.

    ½(‖v(x, t)‖² + ‖v(x′, t′)‖²) − (v(x, t) + v(x′, t′))·Δx/Δt: the paper's objective with its Itô sum v·Δx + ½Δxᵀ(∇v)Δx
    taken as the Stratonovich sum ½(v + v′)·Δx. A place that is only a start (the first observation of all paths) sees
    the forward drift there, one that is only an end the backward drift.
    """
    u = over(dx, dt)
    return Stencil(torch.cat([x, x + dx]), torch.cat([t, t + dt]), torch.cat([u, u]))


# -- three observations and more ---------------------------------------------------------------------------------------


@objective(width=3, place=1, order="1 (2 if reversible)", variance=0.5, assumes="a Markov state")
def symmetric(x: Tensor, t: Tensor, dt: Tensor) -> Stencil:
    """Least squares on central differences: v is the mean of the forward and the backward drift [Nelson].

    ‖v‖² − v·(Δ₊x/Δ₊t + Δ₋x/Δ₋t) at the middle of three observations. Each one-sided difference has the weight ½,
    whatever the two steps are, since the two drifts are different functions. It knows nothing of the first and the last
    observation of a path, where there is no such difference.

    >>> import phibe, torch
    >>> x, times = torch.tensor([[[0.0], [1.0], [4.0]]]), torch.tensor([[0.0, 1.0, 2.0]])
    >>> phibe.symmetric(lambda x, t: 2 * x, x, times, times.diff(dim=1))  # 2² − 2·(1 + 3), at x = 1
    tensor([-4.])
    """
    back, ahead = over(x[:, 1] - x[:, 0], dt[:, 0]), over(x[:, 2] - x[:, 1], dt[:, 1])
    return Stencil(x[:, 1], t[:, 1], (back + ahead) / 2)


@objective(width=5, place=2, order="2", variance=1.25, assumes="a Markov state")
def symmetric2(x: Tensor, t: Tensor, dt: Tensor) -> Stencil:
    """`symmetric` with both one-sided drifts extrapolated to Δt = 0: 2D_h − D_2h for equal steps."""
    back, ahead = (_extrapolated(*side) for side in _sides(x, dt))
    return Stencil(x[:, 2], t[:, 2], (back + ahead) / 2)


@objective(width=5, place=2, order="4 if reversible, else 1", variance=0.694, assumes="a reversible Markov process")
def symmetric4(x: Tensor, t: Tensor, dt: Tensor) -> Stencil:
    """`symmetric` with its Δt² term extrapolated away: (4D_h − D_2h)/3 for equal steps.

    For any steps: weights ½ in all for each side, that cancel the terms in Δt, alike on both sides of a reversible
    process, and in Δt².
    """
    (b1, b2, k, K), (f1, f2, h, H) = _sides(x, dt)
    p, q, P, Q = H - h, K - k, H**2 - h**2, K**2 - k**2
    r, s = (k - h) / 2, -(h**2 + k**2) / 2
    a, c = (r * Q + s * q) / (p * Q + q * P), (p * s - P * r) / (p * Q + q * P)
    u = times(f1, 0.5 - a) + times(f2, a) + times(b1, 0.5 - c) + times(b2, c)
    return Stencil(x[:, 2], t[:, 2], u)


@objective(width=3, order="2", variance=2.5, products=2, assumes="a Markov state")
def phibe2(x: Tensor, t: Tensor, dt: Tensor) -> Stencil:
    """Second-order PhiBE: b̂ and Σ̂ extrapolated to Δt = 0 from the increments over one and over two steps.

    For equal ones b̂ = (2Δ₁ − ½Δ₂)/h and Σ̂ = (2Δ₁Δ₁ᵀ − ½Δ₂Δ₂ᵀ)/h, with Δₖ = X_{t+kh} − X_t.
    """
    d1, d2, h, H = x[:, 1] - x[:, 0], x[:, 2] - x[:, 0], dt[:, 0], dt[:, 0] + dt[:, 1]
    u = _extrapolated(over(d1, h), over(d2, H), h, H)
    return Stencil(x[:, 0], t[:, 0], u, ((H / (H - h) / h, d1), (-h / (H - h) / H, d2)))


@objective(width=3, order="1", products=2, assumes="a Markov state")
def centred(x: Tensor, t: Tensor, dt: Tensor) -> Stencil:
    """`phibe` with a covariance free of the drift: Σ̂ = Δ₁Δ₁ᵀ/h − ½(Δ₁Δ₂ᵀ + Δ₂Δ₁ᵀ)/h, Δ₂ being the next increment.

    The noises of Δ₁ and Δ₂ are independent, so the cross term is what the drift alone puts into Δ₁Δ₁ᵀ, b bᵀh among it:
    for constant noise Σ̂ = Σ + O(h²). Two directions, by polarisation: the bracket is ¼[(2Δ₁ − Δ₂)(…)ᵀ − Δ₂Δ₂ᵀ].
    """
    d1, h = x[:, 1] - x[:, 0], dt[:, 0]
    d2 = times(x[:, 2] - x[:, 1], h / dt[:, 1])
    return Stencil(x[:, 0], t[:, 0], over(d1, h), ((1 / (4 * h), 2 * d1 - d2), (-1 / (4 * h), d2)))


def _sides(x: Tensor, dt: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Difference quotients about the middle of five observations over one and two steps, and these: back, ahead."""
    k, K, h, H = dt[:, 1], dt[:, 1] + dt[:, 0], dt[:, 2], dt[:, 2] + dt[:, 3]
    back = over(x[:, 2] - x[:, 1], k), over(x[:, 2] - x[:, 0], K), k, K
    return back, (over(x[:, 3] - x[:, 2], h), over(x[:, 4] - x[:, 2], H), h, H)


def _extrapolated(one: Tensor, two: Tensor, h: Tensor, H: Tensor) -> Tensor:
    """(H·one − h·two)/(H − h): quotients over steps h and H, their terms in the step cancelled."""
    return times(one, H / (H - h)) - times(two, h / (H - h))


# -- choosing and measuring --------------------------------------------------------------------------------------------


def find_objective(name: str) -> Objective:
    """The objective of that name, or an error that lists them."""
    if name not in OBJECTIVES:
        raise ValueError(f"`objective` must be one of {', '.join(OBJECTIVES)}; got {name!r}.")
    return OBJECTIVES[name]


def describe_objectives() -> str:
    """A table of the objectives: observations in the stencil, order of the bias in Δt, noise, cost, assumptions."""
    row = "{:13} {:<6} {:24} {:<9} {:20} {}".format
    every = (row(n, o.width, o.order, f"{o.variance:g}", o.cost, o.assumes) for n, o in OBJECTIVES.items())
    return "\n".join([row("objective", "width", "order", "variance", "cost", "assumes"), *every])


def estimate_noise(data: Trajectories) -> float:
    """σ̂² = mean of |Δx|²/(d Δt), the scalar diffusion seen in the increments. O(Δt) bias from the drift in Δx."""
    total, count = 0.0, 0
    for chunk in data.chunks():
        _, _, dx, dt = chunk.pairs()
        total += float((dot(dx, dx).double() / dt.double()).sum())
        count += dx.numel()
    return total / count
