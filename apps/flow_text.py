"""What the flow explorer says: the character of a process, the equations, and how to read the figure."""

from __future__ import annotations

import math
from html import escape

import numpy as np
import pendulum_text
import torch
from flow_setting import EXACT, GROWTH, PENDULUM, WELL, Columns, Setting, second, times_seen
from theme import chapter, equation

from phibe.objectives import OBJECTIVES

OBJECTIVE = {
    "phibe": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t} - \tfrac{\Delta x^\top(\nabla v)\,\Delta x}{\Delta t}",
    "isotropic": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t} - \hat\sigma^2\,\nabla\cdot v",
    "regression": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t}",
    "stratonovich": r"\tfrac12(\|v\|^2 + \|v'\|^2) - (v + v')\cdot\tfrac{\Delta x}{\Delta t}",
    "symmetric": r"\|v\|^2 - 2\,v\cdot D_h, \quad D_h = \tfrac{x_{t+h} - x_{t-h}}{2h}",
    "symmetric2": r"\|v\|^2 - 2\,v\cdot(2D_h - D_{2h}), \quad D_h = \tfrac{x_{t+h} - x_{t-h}}{2h}",
    "symmetric4": r"\|v\|^2 - 2\,v\cdot\tfrac13(4D_h - D_{2h}), \quad D_h = \tfrac{x_{t+h} - x_{t-h}}{2h}",
    "phibe2": r"\|v\|^2 - 2\,v\cdot\hat b - \hat\Sigma:\nabla v, \quad \hat b,\hat\Sigma = 2(\cdot)_h - (\cdot)_{2h}",
    "centred": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta_1}{h} - \hat\Sigma:\nabla v, \quad"
    r"\hat\Sigma = \tfrac{\Delta_1\Delta_1^\top - \Delta_1\Delta_2^\top}{h}\ \text{(symmetric part)}",
}
READING = {
    "phibe": "Each particle moves without noise, yet at every time all of them have the samples’ distribution: the"
    " {shape}.",
    "isotropic": "One number σ̂² stands for the whole noise matrix: right where the noise is the same in all directions"
    " and the drift adds little to it, a cloud of the wrong shape where not.",
    "regression": "Without the diffusion term the best fit is the drift: the cloud follows the mean and collapses"
    " onto it.",
    "stratonovich": "Pairs of observations, looked at from both ends: the mean of where paths go and where they came"
    " from.",
    "symmetric": "Where paths go and where they came from, averaged: central differences see the probability velocity"
    " without any derivative of v.",
    "symmetric2": "Central differences with both sides extrapolated to Δt = 0: less bias, more noise.",
    "symmetric4": "Central differences with their Δt² term extrapolated away: fourth order where the process is"
    " reversible.",
    "phibe2": "The paper’s objective with drift and noise extrapolated to Δt = 0: less bias, more noise.",
    "centred": "The paper’s objective with the drift’s own motion taken out of the noise.",
    EXACT: "This is the true probability velocity; what error is left comes from the integrator alone.",
}
BIASED = (
    " Here Δt is too long: the objective takes E[ΔxΔxᵀ]/Δt for Σ, but that holds the drift’s own motion too, so the"
    " cloud is blown up where the mean moves fast. More observations repair it."
)
LOST = (
    '<p class="note">A polynomial knows nothing where there is no data: particles that come there may diverge. They'
    " are not drawn, but count in W₂.</p>"
)
WELL_CHARACTER = (
    "<p>A ball in the potential (x² − 1)² with noise: <b>nonlinear</b> and <b>reversible</b>. All paths start in the"
    " left well; the distribution splits, crosses the barrier, fills both wells and becomes stationary. It is"
    " not Gaussian on the way, so the exact density is a solution of the Fokker–Planck equation on a grid.</p>"
)


# -- the process -------------------------------------------------------------------------------------------------------


def character(setting: Setting) -> str:
    """What kind of process it is; for a linear one the eigenvalues of the drift and what follows from them."""
    if setting.process == WELL:
        return WELL_CHARACTER
    if setting.process == PENDULUM:
        return pendulum_text.CHARACTER
    system = setting.system()
    values = torch.linalg.eigvals(system.A)
    rate = float(values.real.max())
    head = f"<b>A</b> has the eigenvalues {_eigenvalues(values)}: "
    if rate > 1e-9:
        return f'<p class="note">{head}{_unstable(setting, rate)}</p>'
    if rate > -1e-9:
        return f'<p class="note">{head}<b>neutral</b>. Nothing pulls every path back; they spread for ever.</p>'
    if system.is_reversible:
        return f"<p>{head}<b>stable</b> and <b>reversible</b>. The distribution settles and the flow stops.</p>"
    return (
        f"<p>{head}<b>stable</b>, <b>not reversible</b>. The distribution settles, but probability circulates for "
        f"ever, one turn in {system.period():.3g}.</p>"
    )


def _unstable(setting: Setting, rate: float) -> str:
    cut = f" It is shown until t = {setting.end:.2f}, when it has grown {GROWTH:g}-fold." * (
        setting.end < setting.horizon
    )
    return (
        f"<b>unstable</b>. A positive real part drives paths away like e<sup>{rate:.2g} t</sup>, so no "
        f"stationary distribution exists to settle in. At each time there is still a "
        f"distribution, and a flow that carries it.{cut}"
    )


def _eigenvalues(values: torch.Tensor) -> str:
    first, second = sorted(values.tolist(), key=lambda z: (z.real, z.imag))
    if abs(first.imag) > 1e-12:
        return f"{_number(first.real)} ± {abs(first.imag):.3g} i"
    return f"{_number(first.real)} and {_number(second.real)}"


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _short(value: float) -> str:
    return f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


# -- the picture -------------------------------------------------------------------------------------------------------


def reading(setting: Setting, columns: Columns) -> str:
    """How to read the picture, with the numbers at its end, and which of two flows is closer."""
    if setting.process == PENDULUM:
        return pendulum_text.reading(setting, columns)
    flows = [(name, "" if i == 0 else second("")) for i, name in enumerate(setting.estimators)]
    shape = "steps on the dashed curve" if setting.process == WELL else "solid ellipse on the dashed one"
    if len(flows) == 1:
        text = READING[setting.estimator].format(shape=shape) + _bias(setting, columns)
    else:
        text = _comparison(setting.estimators, columns)
    start = f"At t = {setting.end:g}, from {setting.paths} paths with Δt = {setting.step:.3g}: "
    numbers = "; ".join(_numbers(name if len(flows) > 1 else "", columns, end) for name, end in flows)
    own = f" (‖v‖ = {columns['speed'][-1]:.2g}; W₂ of the samples themselves"
    notes = "".join(_blind(name, setting) for name, _ in flows)
    if any(columns[f"lost{end}"][-1] > 0 for _, end in flows if f"lost{end}" in columns):
        notes += LOST
    return f"<p>{text}</p><p>{start}{numbers}{own} {columns['sample_error'][-1]:.2g}).</p>{notes}"


def _bias(setting: Setting, columns: Columns) -> str:
    if setting.process == WELL or setting.estimator != "phibe":
        return ""
    spread = math.sqrt(float((columns["marginal"][-1, 2:] ** 2).sum())) / 2
    return "" if float(columns["marginal_error"][-1]) < 0.3 * spread else BIASED


def _numbers(name: str, columns: Columns, end: str) -> str:
    error, lost = float(columns[f"marginal_error{end}"][-1]), float(columns.get(f"lost{end}", [0.0])[-1])
    distance = f"W₂ of the distribution {_short(error)}" if math.isfinite(error) else "the flow has diverged"
    if lost > 0:
        distance += f", {100 * lost:.2g} % of the particles have diverged out of the figure"
    head = f"<b>{name}</b>: velocity error" if name else "velocity error"
    return f"{head} {_short(float(columns[f'velocity_error{end}'][-1]))}, {distance}"


def _comparison(names: tuple[str, ...], columns: Columns) -> str:
    """Which of two velocities is closer to the true one, by the root of the mean square over the animation."""
    errors = [_over_time(columns["velocity_error"]), _over_time(columns[second("velocity_error")])]
    both = " and ".join(f"{_short(error)} for <b>{name}</b>" for name, error in zip(names, errors, strict=True))
    head = f"Over the whole animation the velocity error is {both}"
    best, worst = int(errors[1] < errors[0]), max(errors)
    if not worst > 1.02 * min(errors):
        return f"{head}: nothing between them."
    times = f", by a factor of {_short(worst / min(errors))}" if min(errors) > 1e-6 else ""
    return f"{head}: <b>{names[best]}</b> is closer{times}."


def _over_time(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(error, dtype=float))))


def _blind(estimator: str, setting: Setting) -> str:
    """A note where an estimator that looks at windows has few observations to look at."""
    if estimator == EXACT or OBJECTIVES[estimator].width == 2:
        return ""
    times = torch.linspace(0, setting.end, setting.observations + 1, dtype=torch.float64)
    seen = times_seen(times, estimator)
    if len(times) - len(seen) < 0.05 * len(times):
        return ""
    return (
        f'<p class="note"><b>{estimator}</b> looks at {OBJECTIVES[estimator].width} neighbouring observations, so of'
        f" the {len(times)} of a path it knows the velocity at {len(seen)}, from t = {float(seen[0]):.2g} to"
        f" {float(seen[-1]):.2g}; before and after, its field is held fixed. More observations shorten these ends.</p>"
    )


# -- the equations -----------------------------------------------------------------------------------------------------


def equations(setting: Setting) -> str:
    """The process, its flow and the objectives, with links to where they are derived."""
    if setting.process == WELL:
        lines = [
            r"\mathrm{d}X = -U'(X)\,\mathrm{d}t + \mathrm{d}B, \quad U = (x^2 - 1)^2",
            r"\dot x = v(x, t) = -U'(x) - \tfrac12\,\partial_x\log\rho_t(x)",
            r"\partial_t\rho_t = -\partial_x(v\rho_t)",
        ]
    elif setting.process == PENDULUM:
        lines = list(pendulum_text.LINES)
    else:
        lines = [
            r"\mathrm{d}X = A(X - \mu)\,\mathrm{d}t + S\,\mathrm{d}B",
            r"\dot x = v(x, t) = A(x - \mu) + \tfrac12 SS^\top C_t^{-1}(x - m_t)",
        ]
    lines += [_estimate(name, named=len(setting.estimators) > 1) for name in setting.estimators]
    links = (
        f"Derived in {chapter('01_objective', 'The objective')} and "
        f"{chapter('02_ou_closed_form', 'OU in closed form')}, fitted in "
        f"{chapter('03_affine_flow', 'Fitting an affine flow')}, compared in "
        f"{chapter('06_estimators', 'Which velocity, which estimator')}."
    )
    links = pendulum_text.LINKS if setting.process == PENDULUM else links
    return "".join(map(equation, lines)) + f"<p>{links}</p>"


def _estimate(estimator: str, *, named: bool) -> str:
    symbol = rf"\hat v_{{\text{{{estimator}}}}}" if named else r"\hat v"
    if estimator == EXACT:
        return f"{symbol} = v"
    value, _, where = OBJECTIVE[estimator].partition(r", \quad")
    return rf"{symbol} = \arg\min\ \overline{{{value}}}" + (rf", \quad {where}" if where else "")


def failure(problem: Exception) -> str:
    """A readable state for a setting that could not be computed."""
    text = escape(str(problem) or type(problem).__name__)
    return f'<p class="note">This setting could not be computed, so the figure is still the last one. {text}</p>'
