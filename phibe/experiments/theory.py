"""Every lemma, theorem and corollary of the paper beside what is measured: here the population, on five processes.

The two OU processes of the paper, and three stationary nonlinear systems, of which b̂ and Σ̂ are known too: from e^{h𝓛}x
and e^{h𝓛}xxᵀ by polynomials where the density is a product (`Semigroup`), from closed equations for linear drift and
Σ = (a + c|x|²)I. The formulas are in `phibe/theory.py`. Read next: `theory_samples.py`, finite samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from torch import Tensor
from torch.func import jvp
from tqdm.auto import tqdm

from phibe import theory
from phibe.calculus import Velocity
from phibe.experiments import plan
from phibe.experiments.ou import PROCESSES
from phibe.experiments.report import Experiment, Measured, Protocol, rate
from phibe.experiments.theory_samples import SampleConfig, Statement, below, claims, measure_samples, near
from phibe.flow import Flow
from phibe.systems.ou import OU
from phibe.systems.sde import SDE, Potential, langevin, multiplicative, quartic, rotating_well


@dataclass(frozen=True)
class Config:
    """Suprema on a grid of Ω and of [0, `horizon`] at `steps`; orders over the last three of them. Ω is the box of
    `half_width` around the middle between start and end of an OU process, of `well_width` around 0 of the others, for
    which polynomials up to `degrees` are used."""

    steps: tuple[float, ...] = (0.02, 0.01, 0.005, 0.0025, 0.00125, 0.000625)
    half_width: float = 4.0
    well_width: float = 1.5
    horizon: float = 1.0
    degrees: tuple[int, int] = (40, 20)
    samples: SampleConfig = field(default_factory=SampleConfig)


PRESETS = {
    "smoke": Config(
        steps=(0.005, 0.0025, 0.00125),
        degrees=(24, 12),
        samples=SampleConfig(
            paths=(250, 1000),
            steps=(0.01, 0.0025),
            step_paths=500,
            repeats=3,
            moment_paths=1600,
            gram_draws=20,
            joint_steps=(0.1, 0.05),
        ),
    ),
    "laptop": Config(),
    "paper": Config(
        degrees=(56, 28),
        samples=SampleConfig(
            paths=tuple(250 * 2**k for k in range(9)), repeats=200, moment_paths=320_000, gram_draws=2000
        ),
    ),
}
PROTOCOL = (
    Protocol(
        "Ω and sup", "compact and convex", "boxes, and the largest value on a grid of 21 × 21 points and 11 times"
    ),
    Protocol(
        "population conditions",
        "uniform expansions, positive densities",
        "met by all five systems on their boxes; Langevin's noise is degenerate, which the conditions allow",
    ),
    Protocol("o(Δt)", "asymptotic", "ratios at the shortest step, orders over the three shortest"),
    Protocol(
        "L_b, L_Σ, L_div", "“sufficiently large”", "the suprema of the leading terms, so that the ratio tends to one"
    ),
    Protocol("trajectories", "while both flows remain in Ω", "from a grid of starts, those of which both flows remain"),
    Protocol("OU processes", "corollary for a mean of zero", "", "x − μ for x in its formulas"),
    Protocol(
        "σ̂², isotropic variant", "|σ² − σ̂²| ≤ L_σ²Δt for some estimate", "the mean of tr Σ̂/d over the process on [0, T]"
    ),
    Protocol(
        "c₀, C_𝒱",
        "not named",
        "from the steps of the proof, with Bernstein's constants for K_G and K_R",
        "K_G and K_R are estimates from draws, and their suprema local ones",
    ),
    Protocol("δ", "any", "0.1: the 0.9 quantile over draws, with its interval"),
    Protocol(
        "v̂ in the basis",
        "assumed",
        "two bases with it, two without",
        "for OU with A ≠ 0 it is cubic, and a basis with cubics has x⁶ in H_Ξ, which no K_G bounds: rates alone there",
    ),
    Protocol("rate in p", "none claimed", "", "none measured"),
)


# -- nonlinear systems whose increments are known ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Observed:
    """A stationary system, the moments of its increments, and points and weights of its distribution."""

    system: SDE
    increment_moments: Callable[[Tensor, float], tuple[Tensor, Tensor]]
    nodes: tuple[Tensor, Tensor] | None = None

    def drift(self, x: Tensor, t: Any = 0.0) -> Tensor:
        return self.system.drift(x)

    def diffusion(self, x: Tensor) -> Tensor:
        return self.system.diffusion(x)

    def score(self, x: Tensor, t: Any) -> Tensor:
        return self.system.score(x)

    def velocity(self, x: Tensor, t: Any) -> Tensor:
        return self.system.velocity(x)

    def phibe_velocity(self, x: Tensor, t: Any, *, step: float) -> Tensor:
        return theory.phibe_field(self, x, t, step=step)


class Orthonormal:
    """Polynomials up to a degree, orthonormal under e^{−U}/Z, by their three-term recurrence (Stieltjes); Gauss nodes.

    Inner products are trapezoidal sums on [−width, width], spectrally accurate where e^{−U} vanishes at the ends.
    """

    def __init__(self, potential: Potential, degree: int, *, width: float, spare: int = 4):
        x = torch.linspace(-width, width, 8001, dtype=torch.float64)
        weight = (-potential(x)).exp()
        weight = weight / weight.sum()
        self.degree, count = degree, degree + 1 + spare
        self.middle, self.norm = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
        before, here = torch.zeros_like(x), torch.ones_like(x)
        for k in range(count):
            self.middle[k] = (weight * x * here**2).sum()
            after = (x - self.middle[k]) * here - (self.norm[k - 1] if k else 0.0) * before
            self.norm[k] = (weight * after**2).sum().sqrt()
            before, here = here, after / self.norm[k]
        jacobi = torch.diag(self.middle) + torch.diag(self.norm[:-1], 1) + torch.diag(self.norm[:-1], -1)
        self.nodes, vectors = torch.linalg.eigh(jacobi)
        self.weights = vectors[0] ** 2

    def __call__(self, x: Tensor) -> Tensor:
        """(n,) → (n, degree + 1)."""
        values = [torch.ones_like(x), (x - self.middle[0]) / self.norm[0]]
        for k in range(1, self.degree):
            values.append(((x - self.middle[k]) * values[k] - self.norm[k - 1] * values[k - 1]) / self.norm[k])
        return torch.stack(values, dim=-1)

    def derivatives(self) -> list[Tensor]:
        """Values, first and second derivatives at the nodes, (nodes, degree + 1) each."""
        one = torch.ones_like(self.nodes)
        slope: Callable[[Tensor], Tensor] = lambda x: jvp(self, (x,), (one,))[1]  # noqa: E731
        return [self(self.nodes), slope(self.nodes), jvp(slope, (self.nodes,), (one,))[1]]


class Semigroup:
    """E[f(X_h) | x] = e^{h𝓛}f(x) for f = x and xxᵀ of a system in two dimensions with density ∝ e^{−U₁(x₁) − U₂(x₂)}.

    𝓛 is projected on products of orthonormal polynomials (Galerkin in L²(ρ), where it is dissipative), in which x and
    xxᵀ are exact: the error falls faster than any power of the degree.
    """

    def __init__(self, system: SDE, potentials: tuple[Potential, Potential], degrees: tuple[int, int]):
        self.parts = [Orthonormal(U, n, width=w) for U, n, w in zip(potentials, degrees, (5.0, 14.0), strict=True)]
        (p, dp, ddp), (q, dq, ddq) = (part.derivatives() for part in self.parts)
        self.points = torch.cartesian_prod(*(part.nodes for part in self.parts))
        self.weights = torch.outer(*(part.weights for part in self.parts)).flatten()
        b, S = (part[..., None] for part in (system.drift(self.points), system.diffusion(self.points)))
        values = torch.kron(p, q)
        applied = b[:, 0] * torch.kron(dp, q) + b[:, 1] * torch.kron(p, dq) + S[:, 0, 1] * torch.kron(dp, dq)
        applied = applied + 0.5 * (S[:, 0, 0] * torch.kron(ddp, q) + S[:, 1, 1] * torch.kron(p, ddq))
        self.dual = (values * self.weights[:, None]).mT
        self.generator = self.dual @ applied
        self.known: dict[float, Tensor] = {}

    def coefficients(self, step: float) -> Tensor:
        """Those of e^{h𝓛}f, for f = x₁, x₂, x₁², x₁x₂, x₂²."""
        if step not in self.known:
            x, y = self.points.unbind(1)
            starts = self.dual @ torch.stack([x, y, x * x, x * y, y * y], dim=1)
            self.known[step] = torch.from_numpy(scipy.linalg.expm(step * self.generator.numpy())) @ starts
        return self.known[step]

    def increment_moments(self, x: Tensor, step: float) -> tuple[Tensor, Tensor]:
        p, q = (part(x[:, i]) for i, part in enumerate(self.parts))
        later = (p[:, :, None] * q[:, None, :]).flatten(1) @ self.coefficients(step)
        return _increments(x, later[:, :2], later[:, [2, 3, 3, 4]].reshape(-1, 2, 2))


def _increments(x: Tensor, mean: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """E[ΔX | x] and E[ΔX ΔXᵀ | x] from E[X_h | x] and E[X_h X_hᵀ | x]."""
    crossed = x[:, :, None] * mean[:, None, :]
    return mean - x, second - crossed - crossed.mT + x[:, :, None] * x[:, None, :]


def growing_noise(system: SDE) -> Callable[[Tensor, float], tuple[Tensor, Tensor]]:
    """The moments for b = Bx, Σ = (a + c|x|²)I in two dimensions: dS/dt = BS + SBᵀ + (a + c tr S)I for S = E X Xᵀ."""
    eye = np.eye(2)
    B = system.drift(torch.eye(2, dtype=torch.float64)).numpy().T
    a, c = system.diffusion(torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64))[:, 0, 0].tolist()
    rate = np.zeros((5, 5))
    rate[:4, :4] = np.kron(B, eye) + np.kron(eye, B) + (c - a) * np.outer(eye, eye)
    rate[:4, 4] = a * eye.flatten()

    def moments(x: Tensor, step: float) -> tuple[Tensor, Tensor]:
        first, both = (torch.from_numpy(scipy.linalg.expm(step * part)) for part in (B, rate))
        now = torch.cat([(x[:, :, None] * x[:, None, :]).flatten(1), torch.ones_like(x[:, :1])], dim=1)
        return _increments(x, x @ first.mT, (now @ both.mT)[:, :4].reshape(-1, 2, 2))

    return moments


def nonlinear(config: Config) -> dict[str, Observed]:
    """A rotating double well (not in detailed balance), Langevin dynamics (degenerate noise), multiplicative noise."""
    found: dict[str, Observed] = {}
    for name, make in {"rotating well": rotating_well, "Langevin": langevin}.items():
        known = Semigroup(make(), (quartic, lambda y: y * y / 2), config.degrees)
        found[name] = Observed(make(), known.increment_moments, (known.points, known.weights))
    return found | {"multiplicative": Observed(multiplicative(), growing_noise(multiplicative()))}


# -- population --------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A system, its region Ω as a grid of points, its times, and its constants there."""

    name: str
    system: Any
    x: Tensor
    times: Tensor
    constants: theory.Constants

    @staticmethod
    def of(name: str, system: Any, config: Config) -> Setting:
        if isinstance(system, OU):
            x = region(system, config)
            times = torch.linspace(0, config.horizon, 11, dtype=torch.float64)
        else:
            x = theory.box(torch.zeros(2, dtype=torch.float64), config.well_width)
            times = torch.zeros(1, dtype=torch.float64)
        return Setting(name, system, x, times, theory.constants(system, x, times))

    def error(self, field: Velocity) -> float:
        """sup ‖field − v‖ over Ω and the times."""
        gaps = (field(self.x, t) - self.system.velocity(self.x, t) for t in self.times)
        return max(float(gap.norm(dim=1).max()) for gap in gaps)

    def biased(self, step: float) -> Velocity:
        """v̂ at that step."""
        return lambda x, t: self.system.phibe_velocity(x, t, step=step)


def region(ou: OU, config: Config, *, per_side: int = 21) -> Tensor:
    return theory.box((ou.m0 + ou.mu) / 2, config.half_width, per_side=per_side)


def measure(config: Config, fits: Path) -> Measured:
    """All statements of the paper, on all systems."""
    processes = {f"OU, {name}": make() for name, make in PROCESSES.items()}
    systems: dict[str, Any] = processes | nonlinear(config)
    statements: list[Statement] = []
    results: dict[str, Any] = {"population": {}}
    for name, system in tqdm(systems.items(), desc="population", unit="system"):
        own = Setting.of(name, system, config)
        results["population"][name], found = _general(own, config)
        statements += found
        if isinstance(system, OU):
            statements += _ou_corollary(own, config)
        if name in ("OU, reversible", "rotating well"):
            statements += _isotropic(own, config)
    corners = {name: region(ou, config, per_side=2) for name, ou in processes.items()}
    samples, found = measure_samples(config.samples, processes, corners)
    statements += found
    rows = [one._asdict() for one in statements]
    return Measured(results | samples | {"statements": rows}, claims=claims(statements))


def _both(
    about: tuple[str, str, str], steps: Sequence[float], errors: Sequence[float], bound: float, *, tight: bool = False
) -> list[Statement]:
    """Of errors by step and the bound at the last: their ratio, and the order of the last three.

    The ratio is below one; if `tight` it tends to one, as the bound is the leading term itself. That vanishes for σ̂² of
    the rotating well, whose order is two: then there is no ratio.
    """
    slope, ratio = (*about, "order in Δt"), (*about, "error over bound, shortest step")
    found = [near(slope, 1.0, rate(steps[-3:], errors[-3:]), side="above" if tight else "near")]
    if not tight:
        found.append(below(ratio, bound=bound, truth=errors[-1]))
    elif bound > 1e-9:
        found.append(near(ratio, 1.0, errors[-1] / bound, tolerance=0.05))
    return found


def _general(own: Setting, config: Config) -> tuple[dict[str, Any], list[Statement]]:
    """The lemma, and the theorem with L_v and K."""
    system, x, steps, limits = own.system, own.x, config.steps, own.constants
    lemma: dict[str, tuple[str, float, Callable[[float], Tensor]]] = {
        "b": ("‖b − b̂‖ ≤ L_b Δt", limits.L_b, lambda h: theory.phibe_drift(system, x, h) - system.drift(x)),
        "Sigma": (
            "‖Σ − Σ̂‖ ≤ L_Σ Δt + o(Δt)",
            limits.L_Sigma,
            lambda h: theory.phibe_covariance(system, x, h) - system.diffusion(x),
        ),
        "div": (
            "‖∇·(Σ − Σ̂)‖ ≤ L_div Δt + o(Δt)",
            limits.L_div,
            lambda h: theory.phibe_divergence(system, x, h) - theory.matrix_divergence(system.diffusion, x),
        ),
    }
    errors, statements = {}, []
    for key, (about, limit, gap) in lemma.items():
        errors[key] = [theory.largest(gap(h)) for h in steps]
        place = ("Lemma, coefficients", about, own.name)
        statements += _both(place, steps, errors[key], limit * steps[-1], tight=True)
    where = "Theorem, population"
    errors["v"] = [own.error(own.biased(h)) for h in steps]
    place = (where, "‖v − v̂‖ ≤ L_v Δt + o(Δt)", own.name)
    statements += _both(place, steps, errors["v"], limits.velocity_bound(steps[-1]))
    lipschitz = (where, "v is K-Lipschitz on Ω", own.name, "sup‖∇v‖ over K")
    statements.append(below(lipschitz, bound=limits.K, truth=limits.lipschitz))
    trajectory, found = _trajectories(where, own, own.biased, limits.L_v, limits.K, config)
    results = {
        "steps": list(steps),
        "errors": errors,
        "velocity_bound": [limits.velocity_bound(h) for h in steps],
        "constants": asdict(limits) | {"L_v": limits.L_v},
        "trajectory": trajectory,
    }
    return results, statements + found


def _trajectories(
    where: str, own: Setting, biased: Callable[[float], Velocity], L: float, K: float, config: Config
) -> tuple[dict[str, Any], list[Statement]]:
    """The flow bound, at the time where it is tightest, and the order of the largest distance.

    From a grid of starts, of which those count whose flows all remain in Ω. Outside, a velocity is that at the nearest
    point of Ω.
    """
    low, high, steps = own.x.amin(0), own.x.amax(0), config.steps[-3:]

    def states(v: Velocity) -> Tensor:
        inside: Velocity = lambda x, t: v(x.clamp(low, high), t)  # noqa: E731
        return Flow(inside).generate(start, times, method="rk4", substeps=2).states

    start = theory.box((low + high) / 2, (high - low) / 4, per_side=5)
    times = torch.linspace(0, config.horizon, 41, dtype=torch.float64)
    exact, *others = (states(v) for v in (own.system.velocity, *map(biased, steps)))
    kept = torch.stack([((x >= low) & (x <= high)).all(2).all(1) for x in (exact, *others)]).all(0)
    gaps = torch.stack([(other - exact)[kept].norm(dim=2).amax(0) for other in others])
    bounds = torch.expm1(K * times) / K * L * steps[-1]
    worst = 1 + int((gaps[-1, 1:] / bounds[1:]).argmax())
    about = (where, "‖x_t − x̂_t‖ ≤ (e^{Kt} − 1)/K · LΔt + o(Δt)", own.name)
    found = [
        near((*about, "order in Δt"), 1.0, rate(steps, gaps.amax(1).tolist())),
        below(
            (*about, "distance over bound, largest in time"), bound=float(bounds[worst]), truth=float(gaps[-1, worst])
        ),
    ]
    results = {
        "times": times.tolist(),
        "distance": gaps[-1].tolist(),
        "bound": bounds.tolist(),
        "kept": float(kept.double().mean()),
    }
    return results, found


def _isotropic(own: Setting, config: Config) -> list[Statement]:
    """Σ = σ²I with σ known, and with a constant estimate: the bound on the velocity, K, and the flow."""
    where, system, limits, steps = "Appendix, isotropic diffusion", own.system, own.constants, config.steps
    if isinstance(system, OU):
        laws = [system.marginal(t).quadrature(6) for t in own.times]
        x, w = torch.cat([x for x, _ in laws]), torch.cat([w for _, w in laws]) / len(laws)
    else:
        x, w = system.nodes

    def mean(matrix: Tensor) -> float:
        """Of the trace over d, over the process."""
        return float(w @ matrix.diagonal(dim1=1, dim2=2).mean(1))

    noise, slope = mean(system.diffusion(x)), abs(mean(theory.covariance_bias(system, x)))
    estimates = {h: mean(theory.phibe_covariance(system, x, h)) for h in steps}
    gradient = torch.func.vmap(torch.func.jacrev(lambda z: system.drift(z[None])[0]))(own.x)
    K = theory.largest(gradient) + 0.5 * noise * limits.S_2
    about = (where, "v is K-Lipschitz, K = ‖∇b‖ + ½σ²S₂", own.name, "sup‖∇v‖ over K")
    found = [below(about, bound=K, truth=limits.lipschitz)]
    gaps = [abs(estimate - noise) for estimate in estimates.values()]
    found += _both((where, "|σ² − σ̂²| ≤ L_σ²Δt + o(Δt)", own.name), steps, gaps, slope * steps[-1], tight=True)
    for kind, used, own_slope in (("σ known", {}, 0.0), ("σ̂² estimated", estimates, slope)):

        def biased(h: float, used: dict[float, float] = used) -> Velocity:
            """ṽ = b̂ − ½σ̂²∇log ρ_t."""
            return lambda x, t: theory.phibe_drift(system, x, h) - 0.5 * used.get(h, noise) * system.score(x, t)

        L = limits.L_b + 0.5 * own_slope * limits.S_1
        place = (f"{where}, {kind}", "‖v − ṽ‖ ≤ (L_b + ½L_σ²S₁)Δt + o(Δt)", own.name)
        found += _both(place, steps, [own.error(biased(h)) for h in steps], L * steps[-1])
        found += _trajectories(place[0], own, biased, L, K, config)[1]
    return found


def _ou_corollary(own: Setting, config: Config) -> list[Statement]:
    """The corollary with its own L_OU and K_OU, and its leading term; x − μ is its x."""
    where, ou, steps = "Corollary, OU population", own.system, config.steps
    square, noise = ou.A @ ou.A, ou.S @ ou.S.mT

    def H(y: Tensor) -> Tensor:
        return 0.5 * (ou.A @ noise + noise @ ou.A.mT) + torch.einsum("ni,nj->nij", y @ ou.A.mT, y @ ou.A.mT)

    def divergence(y: Tensor) -> Tensor:
        return y @ (square + ou.A.trace() * ou.A).mT

    def corrected(h: float) -> Velocity:
        """v̂ with the corollary's leading term, ½h[−A²x + ∇·H − HC_t⁻¹(x − m_t)]."""

        def field(x: Tensor, t: Tensor) -> Tensor:
            y = x - ou.mu
            pulled = torch.einsum("nij,nj->ni", H(y), ou.score(x, t))
            return own.biased(h)(x, t) + 0.5 * h * (-y @ square.mT + divergence(y) + pulled)

        return field

    y = own.x - ou.mu
    L = theory.largest(y) * theory.largest(square[None]) + theory.largest(divergence(y))
    L = 0.5 * (L + theory.largest(H(y)) * own.constants.S_1)
    K = theory.largest(theory.affine_velocity(ou, own.times)[0])
    errors, rests = ([own.error(field(h)) for h in steps] for field in (own.biased, corrected))
    found = _both((where, "‖v − v̂‖ ≤ L_OU Δt + O(Δt²)", own.name), steps, errors, L * steps[-1])
    about = (where, "v − v̂ = ½Δt[−A²x + ∇·H − HC_t⁻¹(x − m_t)] + O(Δt²)", own.name, "order of what is left")
    found.append(near(about, 2.0, rate(steps[-3:], rests[-3:])))
    return found + _trajectories(where, own, own.biased, L, K, config)[1]


def plan_theory(config: Config) -> plan.Needs:
    """No training: fits in closed form to fresh draws."""
    own = config.samples
    fits = own.repeats * (2 * (len(own.paths) + len(own.steps)) + 4 * (len(own.paths) + 2 * len(own.steps)) + 3)
    largest = max(own.paths[-1] * round(1 / own.path_step), own.step_paths * round(1 / own.steps[-1]))
    data = [plan.states("a draw: transitions × 2, at most", (largest, 2))]
    return plan.Needs(data, closed=f"{fits:,} fits, each one pass over its draw")


OU_THEORY = Experiment("ou_theory", PRESETS, measure, plan_theory, PROTOCOL)
