"""The finite-sample theorems on OU processes: constants of their assumption, sample sizes, rates, bounds beside truth.

K_G and K_R are estimated from draws; from them `phibe.theory` has a bound to set beside the truth. Distances from the
population minimiser have no sampling error: they are those of Gauss–Hermite quadrature. Read next: `theory.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import jacrev, vmap
from tqdm.auto import tqdm

from phibe import theory
from phibe.bases import Features, lift, polynomials
from phibe.calculus import along
from phibe.experiments.report import Claim, interval, slope_interval, verdict
from phibe.linear.affine import AffineField, fit_affine
from phibe.linear.basis import BasisField, fit_basis
from phibe.systems.ou import OU, Gaussian
from phibe.trajectories import Trajectories

# -- statements --------------------------------------------------------------------------------------------------------


class Statement(NamedTuple):
    """A statement of the paper on one system: what it bounds, what is true, and their ratio, truth over bound.

    Of an order of convergence `bound` is the claimed one. `low` and `high` are the ends of the 95 % interval of what is
    judged: the ratio, which is claimed to be `below` one, or a number, `near` (or `above`) the one in `bound`. What the
    paper does not say of the system is not `stated`.
    """

    where: str
    statement: str
    system: str
    measure: str
    bound: float
    truth: float
    ratio: float
    low: float
    high: float
    claimed: str
    verdict: str
    stated: bool = True

    @property
    def value(self) -> float:
        """What is judged."""
        return self.ratio if self.claimed == "below" else self.truth

    @property
    def strain(self) -> tuple[int, float]:
        """How far it is from being reproduced."""
        said = ("reproduced", "undecided", "opposite").index(self.verdict)
        return said, self.ratio if self.claimed == "below" else abs(self.ratio - 1)


About = tuple[str, str, str, str]
"""Where in the paper, the statement, the system, the measure."""


def below(about: About, *, bound: float, truth: float | Sequence[float]) -> Statement:
    """That the truth is at most the bound; of draws, that the quantile is."""
    if isinstance(truth, float):
        ratio = low = high = truth / bound
    else:
        draws = np.asarray(truth) / bound
        ratio, (low, high) = float(QUANTILE(draws)), interval(draws, QUANTILE)
    said = verdict((low, high), "below", 1.0)
    return Statement(*about, bound, ratio * bound, ratio, low, high, "below", said)


def near(
    about: About,
    claimed: float,
    value: float,
    ends: tuple[float, float] | None = None,
    *,
    tolerance: float = 0.1,
    side: Literal["near", "above"] = "near",
    stated: bool = True,
) -> Statement:
    """That a number, such as an order, is within the tolerance of the claimed one, or `above` all that is below it."""
    low, high = ends or (value, value)
    if side == "above":
        said = verdict((low, high), "above", claimed - tolerance)
    else:
        said = verdict((low, high), "near", claimed, tolerance=tolerance)
    return Statement(*about, claimed, value, value / claimed, low, high, side, said, stated)


def tightest(about: About, pairs: Sequence[tuple[Sequence[float], float]]) -> Statement:
    """Of draws and bounds the pair of the largest ratio."""
    draws, bound = max(pairs, key=lambda pair: QUANTILE(pair[0]) / pair[1])
    return below(about, bound=bound, truth=draws)


def worst(statements: Sequence[Statement]) -> list[tuple[Statement, int]]:
    """Of each statement and measure that one which is furthest from being reproduced, and of how many."""
    groups: dict[tuple[str, str, str], list[Statement]] = {}
    for one in statements:
        groups.setdefault((one.where, one.statement, one.measure), []).append(one)
    return [(max(group, key=lambda one: one.strain), len(group)) for group in groups.values()]


def claims(statements: Sequence[Statement]) -> list[Claim]:
    """One for each statement and measure that the paper makes: of the system that is worst for it."""
    return [
        Claim(
            one.where,
            one.statement,
            "text",
            one.system if count == 1 else f"{one.system}, the worst of {count}",
            one.measure,
            one.value,
            one.low,
            one.high,
            one.verdict,
        )
        for one, count in worst([one for one in statements if one.stated])
    ]


# -- what is drawn -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampleConfig:
    """Errors of `repeats` fits to N of `paths` at Δt = `path_step`, and to `step_paths` at each of `steps`. Bases see
    `transitions` transitions of a path, or as many as fill `horizon`, affine fits those of all of [0, 1]. K_G and K_R
    come from `moment_paths`, sample sizes from `gram_draws` sets of paths. Errors against v are those on μ ± `radius`,
    at N = `joint_paths` for the first of `joint_steps`, and ∝ Δt⁻³ from there."""

    paths: tuple[int, ...] = (250, 1000, 4000, 16000)
    path_step: float = 0.02
    steps: tuple[float, ...] = (0.04, 0.01, 0.0025, 0.000625)
    step_paths: int = 1000
    transitions: int = 5
    horizon: float = 0.2
    repeats: int = 40
    moment_paths: int = 16_000
    gram_draws: int = 200
    radius: float = 1.0
    joint_steps: tuple[float, ...] = (0.04, 0.02, 0.01)
    joint_paths: int = 1000
    seed: int = 0


MISS = 0.1
"""δ, the probability of a failure."""

QUANTILE: Callable[..., Any] = partial(np.quantile, q=1 - MISS)
"""Of draws, what all but a share δ is below."""


@dataclass(frozen=True, eq=False)
class Case:
    """A process and a linear basis φ_k e_i; whether it holds v̂, and whether the moment conditions hold for it."""

    name: str
    process: OU
    features: Features
    holds: bool
    moments: bool = True

    @property
    def still(self) -> bool:
        return bool((self.process.marginal(1.0).covariance - self.process.C0).abs().max() < 1e-12)


def cases() -> list[Case]:
    """v̂ in the basis, with the moment conditions and without; v̂ outside, with polynomials and with a frozen layer.

    Of OU processes v̂ is cubic, and with cubic features H_Ξ has sixth powers of a Gaussian, which have no ψ₁ norm: only
    without drift do both conditions hold.
    """
    ou = OU.nonreversible()
    rest = ou.stationary()
    stationary = OU(ou.A, ou.S, mu=ou.mu, m0=rest.mean, C0=rest.covariance)
    free = OU(torch.zeros(2, 2), ou.S)
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight, shift = draw(2, 6), draw(6)
    root = torch.linalg.cholesky(torch.linalg.inv(rest.covariance))

    def spreading(x: Tensor, t: Tensor) -> Tensor:
        """x/C_t and 1: v = ½ΣC_t⁻¹x of a diffusion without drift is linear in them."""
        spread = 1 + t[:, None] * (ou.S @ ou.S.mT).diagonal()
        return torch.cat([x / spread, torch.ones_like(x[:, :1])], dim=1)

    def centred(degree: int, x: Tensor, t: Tensor) -> Tensor:
        return polynomials(degree)((x - rest.mean) @ root, t)

    def hidden(x: Tensor, t: Tensor) -> Tensor:
        return torch.cat([torch.tanh((x - rest.mean) @ root @ weight + shift), torch.ones_like(x[:, :1])], dim=1)

    return [
        Case("free diffusion, x/C_t", free, spreading, holds=True),
        Case("stationary OU, cubic", stationary, partial(centred, 3), holds=True, moments=False),
        Case("stationary OU, affine", stationary, partial(centred, 1), holds=False),
        Case("stationary OU, frozen tanh", stationary, hidden, holds=False),
    ]


# -- the population minimiser, without sampling ------------------------------------------------------------------------


class Minimiser(NamedTuple):
    """H (K, K) of the features, θ⋆ (K, d), and the distance of Ψθ⋆ from v̂ in L²(μ_L)."""

    gram: Tensor
    theta: Tensor
    gap: float

    @property
    def whitening(self) -> Tensor:
        """H^{−1/2}, symmetric."""
        values, vectors = torch.linalg.eigh(self.gram)
        return vectors * values.rsqrt() @ vectors.mT

    def distance(self, theta: Tensor) -> float:
        """‖Ψθ − Ψθ⋆‖ in L²(μ_L)."""
        off = theta - self.theta
        return float(torch.einsum("kd,kl,ld->", off, self.gram, off).sqrt())


def minimiser(case: Case, times: Tensor, step: float, *, nodes: int = 40) -> Minimiser:
    """By quadrature over the marginals at the times that transitions start from   [paper: H, c and θ⋆]."""
    starts = times[:1] if case.still else times[:-1]
    laws = [case.process.marginal(t).quadrature(nodes) for t in starts]
    x, w = torch.cat([x for x, _ in laws]), torch.cat([w for _, w in laws]) / len(laws)
    t = starts.repeat_interleave(len(x) // len(laws))
    phi, slope = case.features(x, t), vmap(jacrev(lambda z, s: case.features(z[None], s[None])[0]))(x, t)
    drift, spread = theory.phibe_drift(case.process, x, step), theory.phibe_covariance(case.process, x, step)
    gram = torch.einsum("n,nk,nl->kl", w, phi, phi)
    theta = torch.linalg.solve(
        gram, torch.einsum("n,nkd->kd", w, phi[:, :, None] * drift[:, None] + 0.5 * slope @ spread)
    )
    return Minimiser(gram, theta, _norm(w, phi @ theta - case.process.phibe_velocity(x, t, step=step)))


def contributions(data: Trajectories, features: Features) -> tuple[Tensor, Tensor]:
    """H_Ξ (n, K, K) and c_Ξ (n, K, d) of each path   [paper: fixed linear-basis models]."""
    x, dx = data.states[:, :-1], data.states.diff(dim=1)
    n, count, d = x.shape
    t, dt = (part.expand(n, -1).reshape(-1) for part in (data.times[:-1], data.times.diff()))
    phi, slope = along(lambda z: features(z, t), x.reshape(-1, d), dx.reshape(-1, d))
    pull = (phi + 0.5 * slope)[:, :, None] * (dx.reshape(-1, d) / dt[:, None])[:, None]
    rows = phi.reshape(n, count, -1)
    return rows.mT @ rows / count, pull.reshape(n, count, -1, d).mean(1)


# -- the assumption ----------------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """G_Ξ − I (n, K, K) and √Δt η_Ξ (n, p) of draws, and what the assumption needs of them."""

    gram: Tensor
    residual: Tensor

    @property
    def K_G(self) -> float:
        return theory.largest_psi_1(self.gram)

    @property
    def K_R(self) -> float:
        return float(theory.psi_1(self.residual).max())


def moments(case: Case, times: Tensor, step: float, paths: int, seed: int) -> Moments:
    """Draws of G_Ξ and η_Ξ, K_G = sup ‖aᵀ(G_Ξ − I)a‖_ψ₁ and K_R = √Δt max ‖(η_Ξ)_ℓ‖_ψ₁   [paper: linear-basis sampling
    conditions]. For fields φ_k e_i the supremum over ℝᵖ is that over the features: G_Ξ is the same for all coordinates,
    and a ψ₁ norm is convex."""
    limit = minimiser(case, times, step)
    data, root = case.process.simulate(paths=paths, times=times, seed=seed), limit.whitening
    H, c = contributions(data, case.features)
    eta = (root @ (c - H @ limit.theta)).flatten(1) * math.sqrt(step)
    return Moments(root @ H @ root - torch.eye(len(root), dtype=torch.float64), eta)


def growth(found: Moments, name: str) -> tuple[float, tuple[float, float]]:
    """The constant from all draws over the mean of those from each sixteenth of them, with its 95 % interval: near one
    if it is finite."""
    whole = getattr(found, name)
    parts = [getattr(Moments(*part), name) for part in zip(*(draws.chunk(16) for draws in found), strict=True)]
    low, high = interval(parts)
    return whole / float(np.mean(parts)), (whole / high, whole / low)


def gram_share(gram: Tensor, paths: int, draws: int, seed: int) -> float:
    """How often λ_min(G_N) ≥ ½ over sets of so many paths, drawn from those at hand, of which `gram` is G_Ξ − I."""
    generator = torch.Generator().manual_seed(seed)
    sets = [gram[torch.randint(len(gram), (paths,), generator=generator)].mean(0) for _ in range(draws)]
    return float((torch.linalg.eigvalsh(torch.stack(sets))[:, 0] >= -0.5).double().mean())


# -- fits --------------------------------------------------------------------------------------------------------------


def fitted(case: Case, paths: int, times: Tensor, config: SampleConfig) -> Iterator[Tensor]:
    """θ_N (K, d) of each draw."""
    for repeat in range(config.repeats):
        data = case.process.simulate(paths=paths, times=times, seed=config.seed + 1000 * repeat + paths)
        field = fit_basis(data, lift(case.features)).velocity
        assert isinstance(field, BasisField)
        yield field.coefficients.reshape(-1, case.process.dimension)


def distances(case: Case, paths: int, times: Tensor, config: SampleConfig) -> list[float]:
    """‖v_N − v_p‖ in L²(μ_L) of each draw, v_p the minimiser of infinitely many paths."""
    limit = minimiser(case, times, float(times[1]))
    return [limit.distance(theta) for theta in fitted(case, paths, times, config)]


def grid(step: float, count: int) -> Tensor:
    """The observation times of so many transitions."""
    return torch.arange(count + 1, dtype=torch.float64) * step


def rates(
    where: str, about: str, system: str, errors: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]]
) -> list[Statement]:
    """That errors (size, draw) fall with the order −½. Where longer steps make fewer transitions, more is not claimed
    than that the bound holds: they may fall as slowly as they like."""
    found = []
    for measure, (sizes, draws) in errors.items():
        slope, ends = slope_interval(sizes, draws)
        side: Literal["near", "above"] = "above" if "same horizon" in measure else "near"
        found.append(near((where, about, system, measure), -0.5, slope, ends, side=side))
    return found


THEOREM, COROLLARY, OVERALL = "Theorem, finite samples", "Corollary, affine OU", "Corollary, overall"


def measure_samples(
    config: SampleConfig, processes: dict[str, OU], regions: dict[str, Tensor]
) -> tuple[dict[str, Any], list[Statement]]:
    """All finite-sample statements, and the numbers behind them."""
    results: dict[str, Any] = {"affine": {}, "basis": {}}
    statements: list[Statement] = []
    for name, ou in processes.items():
        results["affine"][name], found = _affine(ou, name, regions[name], config)
        statements += found
    for case in cases():
        results["basis"][case.name], found = _basis(case, config)
        statements += found
    results["overall"], found = _overall(config)
    return results, statements + found


def _basis(case: Case, config: SampleConfig) -> tuple[dict[str, Any], list[Statement]]:
    """The theorem for one basis: conditions, sample size, rates, bound, and the limit where v̂ is not in the basis."""
    h, count, name = config.path_step, config.transitions, case.name
    bar = tqdm(desc=name, total=len(config.paths) + 2 * len(config.steps), unit="size")

    def draws(paths: int, times: Tensor) -> list[float]:
        bar.update()
        return distances(case, paths, times, config)

    errors = {
        "order in N": (config.paths, [draws(n, grid(h, count)) for n in config.paths]),
        "order in Δt, as many transitions": (
            config.steps,
            [draws(config.step_paths, grid(step, count)) for step in config.steps],
        ),
        "order in Δt, the same horizon": (
            config.steps,
            [draws(config.step_paths, grid(step, round(config.horizon / step))) for step in config.steps],
        ),
    }
    bar.close()
    target = "v̂" if case.holds else "v_p"
    bounded = f"‖v_N − {target}‖ ≤ C√(p log(2p/δ)/(NΔt))"
    statements = rates(THEOREM, bounded, name, errors)
    limit = minimiser(case, grid(h, count), h)
    p, kinds = limit.theta.numel(), list(errors)
    results: dict[str, Any] = {
        "p": p,
        "approximation": limit.gap,
        "paths": list(config.paths),
        "steps": list(config.steps),
        **{f"error, {kind}": draws for kind, (_, draws) in errors.items()},
    }
    seen = {s: moments(case, grid(s, count), s, config.moment_paths, config.seed + 7) for s in (h, *config.steps)}
    for constant in ("K_G", "K_R"):
        grown, ends = growth(seen[h], constant)
        about = ("Assumption, sampling", f"{constant} is finite", name, "from 16 times as many draws, over from one")
        statements.append(near(about, 1.0, grown, ends, tolerance=0.25, stated=case.moments))
        results[constant] = [getattr(one, constant) for one in seen.values()]
    results["sizes"] = [len(limit.gram) * 2**k for k in range(9)]
    results["shares"] = [gram_share(seen[h].gram, n, config.gram_draws, config.seed) for n in results["sizes"]]
    if not case.moments:
        return results, statements
    K_G, K_R = max(results["K_G"]), max(results["K_R"])
    needed, bound = theory.least_paths(p, K_G, MISS), partial(theory.noise_bound, p, K_R, miss=MISS)
    good = [share >= 1 - MISS / 2 for share in results["shares"]]
    enough = next((n for k, n in enumerate(results["sizes"]) if all(good[k:])), math.inf)
    results |= {
        "c_0": needed / (p * math.log(2 * p / MISS)),
        "C_V": 6 * math.sqrt(2) * K_R,
        "paths_needed": needed,
        "paths_enough": enough,
        "bound": [bound(paths=n, step=h) for n in config.paths],
    }
    about = (THEOREM, "N ≥ c₀ p log(2p/δ) is enough for λ_min(G_N) ≥ ½", name, "least N that is, over c₀ p log(2p/δ)")
    statements.append(below(about, bound=needed, truth=float(enough)))
    few = [bound(paths=config.step_paths, step=step) for step in config.steps]
    by_size, by_step = errors[kinds[0]][1], errors[kinds[1]][1]
    pairs = list(zip([*by_size, *by_step], [*results["bound"], *few], strict=True))
    statements.append(tightest((THEOREM, bounded, name, "error over bound, largest"), pairs))
    if not case.holds:
        whole = [np.hypot(draws, limit.gap).tolist() for draws in by_size]
        results["total"] = whole
        about = (THEOREM, "v̂ outside: ‖v_N − v̂‖ ≤ inf‖u − v̂‖ + C√(…)", name, "error over bound, most paths")
        statements.append(below(about, bound=limit.gap + results["bound"][-1], truth=whole[-1]))
    return results, statements


def _affine(ou: OU, name: str, region: Tensor, config: SampleConfig) -> tuple[dict[str, Any], list[Statement]]:
    """The affine corollary: the largest distance over all observation times of [0, 1] and over Ω.

    The class is the same in coordinates in which the marginal is N(0, I): there H = I at each time, the L²(ρ) distance
    is the norm of the coefficients, and the corollary is the theorem at each time with δ/L for δ.
    """
    bar = tqdm(desc=f"{name}, affine", total=len(config.paths) + len(config.steps), unit="size")

    def draws(paths: int, step: float) -> list[float]:
        bar.update()
        times = grid(step, round(1 / step))
        A, b = theory.affine_phibe_field(ou, times[:-1], step=step)
        found = []
        for repeat in range(config.repeats):
            field = fit_affine(ou.simulate(paths=paths, times=times, seed=config.seed + 1000 * repeat + paths)).velocity
            assert isinstance(field, AffineField)
            gap = region @ (field.matrices - A).mT + (field.offsets - b)[:, None]
            found.append(float(gap.norm(dim=-1).max()))
        return found

    h = config.path_step
    by_paths = [draws(n, h) for n in config.paths]
    by_step = [draws(config.step_paths, step) for step in config.steps]
    bar.close()
    p, constants = 6, []
    marks = torch.tensor([0.0, 0.1, 0.3, 1.0], dtype=torch.float64)
    for t in marks:
        law = ou.marginal(t)
        case = Case(name, OU(ou.A, ou.S, mu=ou.mu, m0=law.mean, C0=law.covariance), partial(_standard, law), False)
        found = [moments(case, grid(s, 1), s, config.moment_paths, config.seed + 7) for s in (h, config.steps[-1])]
        constants += [(one.K_G, one.K_R) for one in found]
    K_G, K_R = (max(part) for part in zip(*constants, strict=True))
    laws = [ou.marginal(t) for t in grid(h, round(1 / h))]
    reach = max(float(_standard(law, region, torch.zeros(len(region))).norm(dim=1).max()) for law in laws)

    def bound(paths: int, step: float) -> float:
        return reach * theory.noise_bound(p, K_R, paths, step, MISS, times=round(1 / step))

    results = {
        "paths": list(config.paths),
        "errors_by_paths": by_paths,
        "bound": [bound(n, h) for n in config.paths],
        "steps": list(config.steps),
        "errors_by_step": by_step,
        "K_G": K_G,
        "K_R": K_R,
        "C": 6 * math.sqrt(2) * K_R * reach,
        "paths_needed": theory.least_paths(p, K_G, MISS, times=round(1 / h)),
    }
    # ℓ_δ grows with the number of times: what falls with the order ½ is the error over its root (a little faster, as
    # without the δ in ℓ the typical maximum of few times is further below that of many)
    logs = [math.sqrt(math.log(2 * p * round(1 / step) / MISS)) for step in config.steps]
    scaled = [[e / log for e in row] for row, log in zip(by_step, logs, strict=True)]
    about = "max over t_j and Ω of ‖v_N − v̂_aff‖ ≤ C√(pℓ/(NΔt))"
    errors = {"order in N": (config.paths, by_paths), "order in Δt, of error/√ℓ": (config.steps, scaled)}
    statements = rates(COROLLARY, about, name, errors)
    for key, (axis, rows) in zip(("order_in_paths", "order_in_step"), errors.values(), strict=True):
        results[key] = slope_interval(axis, rows)[0]
    pairs = [(e, bound(n, h)) for e, n in zip(by_paths, config.paths, strict=True)]
    pairs += [(e, bound(config.step_paths, s)) for e, s in zip(by_step, config.steps, strict=True)]
    statements.append(tightest((COROLLARY, about, name, "error over bound, largest"), pairs))
    return results, statements


def _standard(law: Gaussian, x: Tensor, t: Tensor) -> Tensor:
    """(C^{−½}(x − m), 1): affine features with H = I."""
    root = torch.linalg.cholesky(torch.linalg.inv(law.covariance))
    return torch.cat([(x - law.mean) @ root, torch.ones_like(x[:, :1])], dim=1)


def _overall(config: SampleConfig) -> tuple[dict[str, Any], list[Statement]]:
    """‖v_N − v‖ on Ω = μ ± `radius`, for the stationary process, with one basis that holds v̂ and two that do not."""
    results: dict[str, Any] = {}
    statements: list[Statement] = []
    decomposed = "‖v_N − v‖_Ω ≤ ‖v_N − v̂‖ + ‖v̂ − v‖_Ω"
    total = "‖v_N − v‖_Ω ≤ L_vΔt + inf‖u − v̂‖ + C√(p log(2p/δ)/(NΔt))"
    for case in cases()[1:]:
        ou, n, h = case.process, config.paths[-1], config.path_step
        x, w = _region(ou, config.radius)
        L_v = theory.constants(ou, theory.box(ou.mu, config.radius), torch.zeros(1, dtype=torch.float64)).L_v
        times = grid(h, config.transitions)
        limit = minimiser(case, times, h)
        phi, v = case.features(x, torch.zeros(len(x), dtype=x.dtype)), ou.velocity(x, 0.0)
        bias = _norm(w, ou.phibe_velocity(x, 0.0, step=h) - v)
        found = [(_norm(w, phi @ theta - v), limit.distance(theta)) for theta in fitted(case, n, times, config)]
        shares = [error / (math.hypot(noise, limit.gap) + bias) for error, noise in found]
        about = (OVERALL, decomposed, case.name, "error over the sum, largest of all draws")
        statements.append(below(about, bound=1.0, truth=max(shares)))
        results[case.name] = {"errors": [error for error, _ in found], "bias": bias, "L_v": L_v}
        if case.moments:
            K_R = moments(case, times, h, config.moment_paths, config.seed + 7).K_R
            bound = L_v * h + limit.gap + theory.noise_bound(limit.theta.numel(), K_R, n, h, MISS)
            about = (OVERALL, total, case.name, "error over bound, most paths")
            statements.append(below(about, bound=bound, truth=[error for error, _ in found]))
        if case.holds:
            rows = []
            for step in config.joint_steps:
                paths = round(config.joint_paths * (config.joint_steps[0] / step) ** 3)
                thetas = fitted(case, paths, grid(step, config.transitions), config)
                rows.append([_norm(w, phi @ theta - v) for theta in thetas])
            slope, ends = slope_interval(config.joint_steps, rows)
            about = (OVERALL, "both terms fall as Δt if N grows as Δt⁻³", case.name, "order in Δt")
            statements.append(near(about, 1.0, slope, ends))
            results["joint"] = {"steps": list(config.joint_steps), "errors": rows}
    return results, statements


def _region(ou: OU, radius: float, per_side: int = 81) -> tuple[Tensor, Tensor]:
    """Points of Ω and weights ρ dx of the trapezoidal rule: of L²(μ_L; Ω) for a stationary process."""
    x = theory.box(ou.mu, radius, per_side=per_side)
    edge = torch.full((per_side,), 2 * radius / (per_side - 1), dtype=torch.float64)
    edge[0] = edge[-1] = edge[0] / 2
    return x, ou.log_density(x, 0.0).exp() * torch.outer(edge, edge).flatten()


def _norm(weights: Tensor, values: Tensor) -> float:
    return float((weights[:, None] * values.square()).sum().sqrt())
