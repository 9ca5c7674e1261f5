"""What the spectrum explorer says: the equation of a method, what it cost, how to read it, and what is missing."""

from __future__ import annotations

from rollout_text import OBJECTIVE
from spectrum_frames import STILL, Rollout, Setting
from theme import chapter, equation

MIXED = r"dx = [\,v + \theta\,(b - v)\,]\,dt"
EQUATION = {
    "ode": MIXED,
    "sde": MIXED + r" + \sqrt\theta\,dW",
    "calibrated": r"x' = \Phi_\theta(x) + n,\ \mathbb E|\hat n|^2 = \mathbb E|\hat x|^2 - \mathbb E|\hat\Phi_\theta|^2",
    "pfi": r"dz_\tau = b(z_\tau, \tau, x_t)\,d\tau + \sigma(1 - \tau)\,dW,\quad z_0 = x_t,"
    r"\ z_1 \sim x_{t+\Delta t}",
    "mcvd": r"z_k = \sqrt{\bar\alpha_k}\,x_{t+\Delta t} + \sqrt{1 - \bar\alpha_k}\,\varepsilon,"
    r"\quad \hat\varepsilon(z_k, k, x_t, \dots)",
    STILL: r"x_{t+\Delta t} = x_t",
}
AGAIN = "another draw has other eddies and is meant to have the same statistics."
NOTE = {
    "symmetric": "It is the velocity of a central difference. RK4 follows it; one Euler step a frame feeds what turns.",
    "regression": "It is the drift alone. One Euler step a frame gives the mean of what may come, which is smooth.",
    "phibe": "The published objective, unbounded below: unless the interval is short its flow may diverge.",
    "ode": "The drift, with weight θ, is a restoring term towards the data; without noise it also smooths.",
    "sde": f"The drift, with weight θ, is a restoring term, and the noise of the SDE restores the variance: {AGAIN}",
    "calibrated": "The drift, with weight θ, is a restoring term. The noise restores the variance that one step"
    f" dissipates in each shell of waves, as measured on the data: {AGAIN}",
    "pfi": f"Each frame is drawn given the one before: {AGAIN}",
    "mcvd": f"Frames are drawn, some at a time, given those before: {AGAIN}",
    STILL: "A true field of another time has a true spectrum, however wrong its eddies are.",
}


def title(setting: Setting, drawn: bool) -> str:
    """What is on the screen."""
    which = f", draw {setting.draw}" if drawn else ""
    return f"<b>{setting.label}</b>, interval {setting.interval:g}, test clip {setting.clip}{which}"


def progress(setting: Setting, done: float, frames: int) -> str:
    """How far a rollout is, beside a bar."""
    bar = f'<progress style="width: 5rem" value="{done:.2f}" max="{frames}"></progress>'
    return f"{bar} computing <i>{setting.label}</i>, frame {min(int(done) + 1, frames)} of {frames}"


def reading(setting: Setting, rollout: Rollout) -> str:
    """What the rollout cost, and how to read it."""
    frames = len(rollout.columns["t"]) - 1
    cost = (
        f"{rollout.evaluations:g} evaluation{'s' * (rollout.evaluations != 1)} of a network for each frame: "
        f"{frames} frames took {rollout.seconds:.1f} s here."
        if rollout.evaluations
        else "No network is asked."
    )
    return f"<p>{cost} {NOTE.get(setting.method.split()[0], '')}</p>"


def equations(setting: Setting) -> str:
    """The equation of the method, with a link to where it is explained."""
    name, *weight = setting.method.split()
    line = EQUATION.get(name) or rf"\dot x = v(x),\quad v = \arg\min\ \overline{{{OBJECTIVE[name]}}}"
    line += rf",\quad \theta = {weight[0]}" if name in ("ode", "sde", "calibrated") else ""
    return (
        equation(line) + f"<p>Here x is the field of vorticity. More in {chapter('09_turbulence', 'Turbulence')}.</p>"
    )


def no_choice(method: str, integrators: list[str]) -> str:
    """Why there is no integrator to choose; nothing if there is."""
    if method == STILL:
        return "The persistence forecast needs no integrator."
    if not integrators:
        return "It draws whole frames: there is nothing to integrate."
    return f"Mixtures were measured with {integrators[0]} alone." if len(integrators) == 1 else ""


def missing() -> str:
    """What is shown where no run has been kept yet."""
    return (
        '<p class="note">There are no rollouts to explore yet: <code>artifacts/navier_stokes</code> is not there.'
        " <code>phibe run navier_stokes</code> trains the methods, which takes hours, and <code>phibe artifacts</code>"
        " keeps what it left. Then open this page again.</p>"
    )
