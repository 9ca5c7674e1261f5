"""What the flow explorer says: the stability of a process, the equations, and how to read the picture."""

from __future__ import annotations

import math
from html import escape

import torch
from flow_frames import GROWTH, Columns, Setting
from theme import chapter, equation

OBJECTIVE = {
    "phibe": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t} - \tfrac{\Delta x^\top(\nabla v)\,\Delta x}{\Delta t}",
    "isotropic": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t} - \hat\sigma^2\,\nabla\cdot v",
    "regression": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t}",
}
READING = {
    "phibe": "Each particle moves without noise, yet at every time all of them should have the law of the samples: the"
    " solid ellipse on the dashed one.",
    "isotropic": "One number σ̂² stands for the whole noise matrix: right where the noise is the same in all directions,"
    " a cloud of the wrong shape where it is not.",
    "regression": "Without the diffusion term the best fit is the drift: the cloud follows the mean and collapses"
    " onto it.",
    "exact": "This is the true probability velocity; what error is left comes from the integrator alone.",
}
BIASED = (
    " Here Δt is too long: the objective takes E[ΔxΔxᵀ]/Δt for Σ, but that holds the drift’s own motion too, so the"
    " cloud is blown up where the mean moves fast. More observations repair it."
)


def stability(setting: Setting) -> str:
    """The eigenvalues of the drift and what follows from them."""
    system = setting.system()
    values = torch.linalg.eigvals(system.A)
    rate = float(values.real.max())
    head = f"<b>A</b> has the eigenvalues {_eigenvalues(values)}: "
    if rate > 1e-9:
        return f'<p class="note">{head}{_unstable(setting, rate)}</p>'
    if rate > -1e-9:
        return f'<p class="note">{head}<b>neutral</b>. Nothing pulls every path back, so the law spreads for ever.</p>'
    if system.is_reversible:
        return f"<p>{head}<b>stable</b> and <b>reversible</b>. The law settles and the flow comes to rest.</p>"
    return (
        f"<p>{head}<b>stable</b>, <b>not reversible</b>. The law settles, but probability circulates for ever, "
        f"one turn in {system.period():.3g}.</p>"
    )


def _unstable(setting: Setting, rate: float) -> str:
    cut = f" It is shown until t = {setting.end:.2f}, when it has grown {GROWTH:g}-fold." * (
        setting.end < setting.horizon
    )
    return (
        f"<b>unstable</b>. A positive real part drives paths away like e<sup>{rate:.2g} t</sup>, so no stationary "
        f"law exists to settle in. At each time there is still a law, and a flow that carries it.{cut}"
    )


def reading(setting: Setting, columns: Columns) -> str:
    """How to read the picture, with the numbers at its end."""
    error, own = float(columns["law_error"][-1]), float(columns["sample_error"][-1])
    spread = math.sqrt(float((columns["law"][-1, 2:] ** 2).sum())) / 2
    bias = BIASED if setting.estimator == "phibe" and not error < 0.3 * spread else ""
    law = (
        f"law W₂ {error:.2g} ({own:.2g} for the samples themselves)"
        if math.isfinite(error)
        else "the flow has run away"
    )
    numbers = (
        f"At t = {setting.end:g}, from {setting.paths} paths with Δt = {setting.step:.3g}: velocity error "
        f"{float(columns['velocity_error'][-1]):.2g} where ‖v‖ = {float(columns['speed'][-1]):.2g}; {law}."
    )
    return f"<p>{READING.get(setting.estimator, '')}{bias} {numbers}</p>"


def equations(setting: Setting) -> str:
    """The process, its flow and the objective, with links to where they are derived."""
    found = OBJECTIVE.get(setting.estimator)
    lines = [
        r"\mathrm{d}X = A(X - \mu)\,\mathrm{d}t + S\,\mathrm{d}B",
        r"\dot x = v(x, t) = A(x - \mu) + \tfrac12 SS^\top C_t^{-1}(x - m_t)",
        rf"\hat v = \arg\min\ \overline{{{found}}}" if found else r"\hat v = v",
    ]
    links = (
        f"Derived in {chapter('01_objective', 'The objective')} and "
        f"{chapter('02_ou_closed_form', 'OU in closed form')}, fitted in "
        f"{chapter('03_affine_flow', 'Fitting an affine flow')}."
    )
    return "".join(map(equation, lines)) + f"<p>{links}</p>"


def failure(problem: Exception) -> str:
    """A readable state for a setting that could not be computed."""
    text = escape(str(problem) or type(problem).__name__)
    return f'<p class="note">This setting could not be computed, so the picture is still the last one. {text}</p>'


def _eigenvalues(values: torch.Tensor) -> str:
    first, second = sorted(values.tolist(), key=lambda z: (z.real, z.imag))
    if abs(first.imag) > 1e-12:
        return f"{_number(first.real)} ± {abs(first.imag):.3g} i"
    return f"{_number(first.real)} and {_number(second.real)}"


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")
