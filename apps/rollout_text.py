"""What the rollout explorer says: the equations, and how to read the figure."""

from __future__ import annotations

from html import escape

from rollout_frames import Columns, Setting
from theme import chapter, equation

OBJECTIVE = {
    "phibe": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t} - \tfrac{\Delta x^\top(\nabla v)\,\Delta x}{\Delta t}",
    "symmetric": r"\bigl\|v(x_t) - \tfrac{x_{t+\Delta t} - x_{t-\Delta t}}{2\Delta t}\bigr\|^2",
    "regression": r"\|v\|^2 - 2\,v\cdot\tfrac{\Delta x}{\Delta t}",
}
MATCHED = {"phibe": "rk4", "symmetric": "rk4", "regression": "euler"}
ADVICE = {
    "phibe": "This field is that of a central difference: one Euler step a frame pumps energy into it, RK4 does not.",
    "symmetric": "This field is that of a central difference: one Euler step a frame pumps energy into it, RK4 does"
    " not.",
    "regression": "This field is a forward difference, which one Euler step a frame undoes exactly; RK4 follows the"
    " field more faithfully, and loses energy.",
}
STATE = {
    "pictures": r"s = \bigl(T_\phi(\text{picture}),\ \text{its last difference}/\Delta t\bigr)\in\mathbb R^6",
    "states": r"s = (\theta_1, \theta_2, \dot\theta_1, \dot\theta_2)",
}


def reading(setting: Setting, columns: Columns) -> str:
    """How to read the picture, with the error at three times."""
    marks = ", ".join(
        f"{columns['error'][k]:.0f}° after {columns['t'][k]:.1f} s ({columns['still'][k]:.0f}° for persistence)"
        for k in (10, 30, len(columns["t"]) - 1)
    )
    how = (
        "The flow sees two pictures, goes on in the space of the code, and is decoded; its pose is read from what"
        " comes out."
        if setting.source == "pictures"
        else "The flow starts from one state; both are drawn."
    )
    advice = ADVICE[setting.objective] if setting.integrator != MATCHED[setting.objective] else ""
    noise = "The truth is shaken by noise and chaotic: no flow can follow a single path for long."
    return f"<p>{how} This path is off by {marks}. {advice} {noise}</p>"


def equations(setting: Setting) -> str:
    """State, flow and objective, with links to where they are explained."""
    lines = [STATE[setting.source], r"\dot s = v(s, t)", rf"v = \arg\min\ \overline{{{OBJECTIVE[setting.objective]}}}"]
    links = (
        f"From states in {chapter('07_pendulum_states', 'A pendulum from its states')}, from pictures in "
        f"{chapter('08_pendulum_images', 'A pendulum from its images')}."
    )
    return "".join(map(equation, lines)) + f"<p>{links}</p>"


def failure(problem: Exception) -> str:
    """A readable state for a setting that could not be computed."""
    text = escape(str(problem) or type(problem).__name__)
    return f'<p class="note">This rollout could not be computed, so the figure is still the last one. {text}</p>'
