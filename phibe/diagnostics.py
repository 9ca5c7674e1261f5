"""Diagnosis of observed trajectories, of no known process: step, sample size, memory, circulation, and advice.

`diagnose` fits one class of velocities at several steps and on blocks of the data: the differences between the steps
show the bias, those between the blocks the noise. Read next: `evaluation.py`, on a fitted flow.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from phibe.bases import Basis, Features, InTime, lift, polynomials
from phibe.linear.basis import BasisField, fit_basis, pseudo_inverse
from phibe.metrics import matrix_root
from phibe.objectives import find_objective
from phibe.trajectories import Trajectories

ESTIMATORS = ("phibe", "symmetric", "symmetric2")
COORDINATES, BLOCKS = 6, 20
FINE, COARSE = 0.1, 0.25  # errors below and above these fractions of the drift are called small and large
SURE = 3.0  # standard errors


@dataclass(frozen=True)
class EstimatorError:
    """Bias and noise of v fitted to every so many-th observation, as fractions of the RMS drift."""

    objective: str
    every: int
    step: float
    bias: float
    noise: float

    @property
    def total(self) -> float:
        return math.hypot(self.bias, self.noise)


@dataclass(frozen=True)
class Diagnosis:
    """Measured numbers, a verdict on each question, and the advice that follows; `print` shows a table."""

    paths: int
    step: float
    errors: list[EstimatorError]
    circulation: float
    circulation_error: float
    memory: float
    memory_score: float

    @property
    def best(self) -> EstimatorError:
        """The least error; of those within a tenth of it, that which uses all observations and the fewest at a time."""
        known = [error for error in self.errors if math.isfinite(error.bias)] or self.errors
        least = min(error.total for error in known)
        close = [error for error in known if error.total <= 1.1 * least]
        return min(close, key=lambda error: (error.every, find_objective(error.objective).width, error.total))

    @property
    def verdicts(self) -> dict[str, str]:
        """An answer to each question."""
        noise = min(error.noise for error in self.errors)
        bias = min((error.bias for error in self.errors if error.every == 1), default=math.inf)
        memory = self.memory_score > SURE**2 and self.memory > 0.05
        kind = "circulating" if self.circulation > SURE * self.circulation_error else "reversible"
        rate = f"{self.circulation:.3g} ± {self.circulation_error:.2g} rad per time"
        return {
            "step": f"{_graded(bias, 'fine', 'coarse')}: Δt = {self.step:.4g} leaves a bias of {bias:.0%} of the drift"
            if noise < COARSE and math.isfinite(bias)
            else "unknown: the noise hides the bias",
            "sample": f"{_graded(noise, 'enough', 'few paths')}: the noise of v is {noise:.0%} of the drift",
            "memory": f"{'not Markov' if memory else 'Markov'}: the past adds {self.memory:.1%} to what the present "
            f"explains (mean square score {self.memory_score:.1f})",
            "circulation": "reversible: one dimension" if not self.circulation_error else f"{kind}: {rate}",
            "advice": _advice(self.best, bias=bias, noise=noise, memory=memory),
        }

    def __str__(self) -> str:
        rows = [f"  {name:12} {text}" for name, text in self.verdicts.items()]
        head = f"  {'estimator':12} {'step':>9} {'bias':>8} {'noise':>8}   as fractions of the RMS drift"
        bias = (f"{e.bias:.1%}" if math.isfinite(e.bias) else "?" for e in self.errors)
        table = zip(self.errors, bias, strict=True)
        lines = [f"  {e.objective:12} {e.step:9.4g} {share:>8} {e.noise:8.1%}" for e, share in table]
        return "\n".join(["what the data says", *rows, "", head, *lines])


def diagnose(data: Trajectories, *, degree: int | None = None) -> Diagnosis:
    """What can be told from the data alone, in standard coordinates.

    Velocities are fitted at every observation, every second and every fourth, with polynomials of `degree` (default:
    cubic up to two coordinates, else affine), in time too if the marginals change. Of states of more than six
    coordinates the leading principal components are used, of more than 100,000 observations some of the paths.

    >>> import phibe, torch
    >>> data = phibe.OU.reversible().simulate(paths=80, times=torch.linspace(0, 1, 11), seed=0)
    >>> sorted({error.objective for error in phibe.diagnose(data).errors})
    ['phibe', 'symmetric', 'symmetric2']
    """
    data = _standardise(data[:: max(1, min(len(data) // BLOCKS, len(data) * data.states.shape[1] // 100_000))])
    d, blocks = data.state_shape[0], data.blocks(BLOCKS)
    if (shortest := min(block._shortest() for block in blocks)) < 5:
        needed = (
            f"each of {BLOCKS} blocks of the data needs paths of five observations or more; here one has {shortest}"
        )
        raise ValueError(f"A diagnosis compares steps: {needed}. Bring longer paths, or more of them.")
    features = polynomials(degree or (3 if d <= 2 else 1))
    knots = torch.linspace(*data.interval, 6, dtype=torch.float64) if changes_with_time(data) else None
    features, affine = (part if knots is None else InTime(part, knots) for part in (features, polynomials(1)))
    inside = data._observed()
    x, t = data.states[inside], data._path_times()[inside]
    chosen = torch.linspace(0, len(x) - 1, min(2000, len(x))).long()
    probes = x[chosen], t[chosen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # too few paths for the class is one of the verdicts
        drift = _fitted(blocks, lift(features), "regression")
        unit = _rms(drift(*probes))
        errors = [e for name in ESTIMATORS for e in estimator_errors(name, blocks, lift(features), probes, unit)]
        turning = _fitted(blocks, lift(affine), "symmetric")
    rotation, past = circulation(turning, data, probes), memory(blocks, features, drift)
    return Diagnosis(len(data), data.typical_step, errors, *rotation, *past)


# -- what is looked at -------------------------------------------------------------------------------------------------


def _standardise(data: Trajectories) -> Trajectories:
    """The same paths in coordinates of mean zero and spread one; of many, the leading principal components."""
    states = data.states.double().flatten(2)
    seen = states[data._observed()]
    centre = seen.mean(0)
    if states.shape[2] > COORDINATES:
        _, _, axes = torch.pca_lowrank(seen - centre, q=COORDINATES)
    else:
        axes = torch.eye(states.shape[2], dtype=torch.float64)
    spread = ((seen - centre) @ axes).std(0)
    states = (states - centre) @ axes / torch.where(spread > 0, spread, 1.0)
    return data._with(states.nan_to_num(0.0), data.times, data.lengths)


def changes_with_time(data: Trajectories) -> bool:
    """Do the marginals change? Means and variances of the first and of the last third, where there are paths
    enough to tell."""
    if len(data) < BLOCKS:
        return False
    length = data._shortest()
    third = max(1, length // 3)
    first, last = data.states[:, :third].mean(1), data.states[:, length - third : length].mean(1)
    squares = ((part - part.mean(0)) ** 2 for part in (first, last))
    for a, b in ((first, last), tuple(squares)):
        error = ((a.var(0) + b.var(0)) / len(data)).sqrt()
        if bool(((a.mean(0) - b.mean(0)).abs() > 5 * error).any()):
            return True
    return False


def _rms(v: Tensor) -> float:
    """Root mean square length of vectors (n, d)."""
    return float(v.square().sum(1).mean().sqrt())


# -- bias and noise ----------------------------------------------------------------------------------------------------


def estimator_errors(
    name: str, blocks: list[Trajectories], basis: Basis, probes: tuple[Tensor, Tensor], unit: float
) -> list[EstimatorError]:
    """Errors at one, two and four steps, as far as the paths are long enough.

    Of an estimator of order m, v_h − v_2h is (2^m − 1) times the bias of v_h, apart from the noise of the difference.
    At a larger step the bias is taken to be no smaller: fits at steps beyond all memory agree on nothing but zero.
    Where too few observations are left for the basis it is infinite, or that of the step before, grown.
    """
    kind, steps = find_objective(name), blocks[0].typical_step
    longest = min(block._shortest() for block in blocks)
    lags = [k for k in (1, 2, 4, 8) if longest > (kind.width - 1) * k]
    fits = {k: _fitted([block.coarsen(k) for block in blocks], basis, name) for k in lags}
    whole = {k: field for k, field in fits.items() if field.rank == len(field.coefficients)}
    power = 2 ** int(kind.order[0]) - 1
    errors, bias = [], math.inf
    for k in (k for k in lags if k <= 4):
        if k in whole and 2 * k in whole:
            gap, noise = _difference(fits[k], fits[2 * k], basis, probes)
            here = math.sqrt(max(0.0, gap**2 - noise**2)) / power
            bias = here if math.isinf(bias) else max(here, bias)
        elif k > 1:
            bias *= power + 1
        spread = _rms(fits[k].standard_error(*probes))
        errors.append(EstimatorError(name, k, k * steps, bias / unit, spread / unit))
    return errors


def _fitted(blocks: list[Trajectories], basis: Basis, objective: str) -> BasisField:
    field = fit_basis(blocks, basis, objective, weighted=True).velocity
    assert isinstance(field, BasisField)
    return field


def _block_variance(influence: Tensor) -> Tensor:
    """Variance of an estimate from what each of B blocks adds to it, (B, ...) → (...)   [jackknife]."""
    count = len(influence)
    return count / (count - 1) * influence.square().sum(0)


def _difference(a: BasisField, b: BasisField, basis: Basis, probes: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """RMS of the difference of two fields of one basis fitted to the same blocks, and its standard error."""
    influence, psi = a.influence - b.influence, basis(*probes)
    shifts = torch.einsum("bp,npd->bnd", influence, psi)
    noise = float(_block_variance(shifts).sum(1).mean().sqrt())
    return _rms(torch.einsum("p,npd->nd", a.coefficients - b.coefficients, psi)), noise


# -- circulation and memory --------------------------------------------------------------------------------------------


def circulation(turning: BasisField, data: Trajectories, probes: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """How fast the flow rotates, in radians per time, and the standard error.

    The mean gradient of an affine v, in coordinates in which the noise is isotropic, is symmetric for a reversible
    process; its antisymmetric part is a rotation. Where some coordinates have no noise, the covariance of the states
    takes its place.
    """
    d = data.state_shape[0]
    if d == 1:
        return 0.0, 0.0
    root, units = matrix_root(_noise(data), floor=1e-12), torch.eye(d, dtype=torch.float64)
    psi = torch.stack([turning.basis(probes[0] + unit, probes[1]) - turning.basis(*probes) for unit in units], dim=-1)
    slopes = psi.mean(0)  # (p, d, d): the gradient of each basis field

    def rotation(theta: Tensor) -> Tensor:
        whitened = torch.linalg.inv(root) @ torch.einsum("p,pij->ij", theta, slopes) @ root
        return (whitened - whitened.mT) / 2

    shifts = torch.stack([rotation(row) for row in turning.influence])
    error = _block_variance(shifts).sum().sqrt()
    return float(rotation(turning.coefficients).norm()) / math.sqrt(2), float(error) / math.sqrt(2)


def _noise(data: Trajectories) -> Tensor:
    """Σ without the drift, as in the objective `centred`, or the covariance of the states where Σ is degenerate."""
    x, _, dt = data.windows(3)
    one, two = x[:, 1] - x[:, 0], (x[:, 2] - x[:, 1]) * (dt[:, :1] / dt[:, 1:])
    cross = torch.einsum("ni,nj,n->ij", one, one - two, 1 / dt[:, 0]) / len(x)
    sigma = (cross + cross.mT) / 2
    values = torch.linalg.eigvalsh(sigma)
    return sigma if float(values[0]) > 1e-3 * float(values[-1]) else torch.cov(x[:, 1].mT)


def memory(blocks: list[Trajectories], features: Features, drift: BasisField) -> tuple[float, float]:
    """Does the past help to predict the next increment, once the present is known?

    The residues of the drift are regressed on the last increment and on the displacement over a longer past. Returned:
    the variance explained by the past over that explained by the present, and the mean square of the standard scores.
    """
    lag = max(1, min(8, min(block._shortest() for block in blocks) // 4))
    grams, sums, present = [], [], 0.0
    for block in blocks:
        x, t, dt = block.windows(lag + 2)
        place, end = x[:, lag], x[:, lag + 1]
        known = drift(place, t[:, lag]) * dt[:, lag:]
        state = features(place, t[:, lag])
        past = torch.cat([place - x[:, lag - 1], place - x[:, 0]], 1)[:, : place.shape[1] * (1 + (lag > 1))]
        weight = dt[:, lag:].rsqrt()
        design = torch.cat([past, state], 1) * weight
        grams.append(design.mT @ design)
        sums.append(design.mT @ ((end - place - known) * weight))
        present += float((known * weight).square().sum())
    p = past.shape[1]
    gram, moments = torch.stack(grams), torch.stack(sums)
    inverse, _ = pseudo_inverse(gram.sum(0))
    theta = inverse @ moments.sum(0)
    error = _block_variance(inverse @ (moments - gram @ theta)).sqrt()[:p]
    gain = float((theta * moments.sum(0))[:p].sum())
    return max(0.0, gain) / present, float((theta[:p] / error).square().mean())


def _graded(part: float, good: str, bad: str) -> str:
    return good if part < FINE else f"too {bad}" if part > COARSE else f"rather {bad}"


def _advice(best: EstimatorError, *, bias: float, noise: float, memory: bool) -> str:
    often = {1: "every observation", 2: "every second observation"}.get(best.every, f"every {best.every}th observation")
    advice = f"`{best.objective}` on {often} (Δt = {best.step:.4g}): "
    advice += f"error about {best.total:.0%} of the drift" if math.isfinite(best.total) else "error unknown"
    wishes = [
        (noise > FINE, "bring more paths"),
        (noise < COARSE and bias > FINE, "observe more often"),
        (memory, "add what is missing to the state, e.g. its difference quotient"),
    ]
    return "; ".join([advice, *(wish for needed, wish in wishes if needed)])
