"""What the flow explorer says of the double pendulum: its character, which flow keeps closer, and why."""

from __future__ import annotations

import numpy as np
from flow_setting import EXACT, NONE, TRAINED, Columns, Setting, second
from theme import chapter

from phibe.experiments.report import committed

CHARACTER = (
    "<p>Two links, shaken by noise in their accelerations alone: <b>nonlinear</b> and <b>chaotic</b>. No formula gives"
    " its distribution or its velocity, so the flows are networks that were trained on states seen thirty times a"
    " second, and nothing is fitted here.</p>"
)
LINES = (
    r"\mathrm{d}\theta_i = \dot\theta_i\,\mathrm{d}t, \quad"
    r"\mathrm{d}\dot\theta_i = f_i(\theta, \dot\theta)\,\mathrm{d}t + \sigma\,\mathrm{d}B_i, \quad i = 1, 2",
    r"\dot x = v(x, t) = b(x) - \tfrac12\,\Sigma\,\nabla\log\rho_t(x), \quad x = (\theta, \dot\theta)",
    r"\text{central } \tfrac{i\sin\varphi}{\Delta t}, \text{ by Euler: } |1 + i\sin\varphi| > 1",
    r"\text{forward } \tfrac{e^{i\varphi} - 1}{\Delta t}, \text{ by Euler: } |e^{i\varphi}| = 1",
)
LINKS = f"The experiment, and both reasons at length, in {chapter('07_pendulum_states', 'A pendulum from its states')}."
PATHS = (
    "No flow can follow one path for long: it has no noise, and two draws of the noise from one start part about as"
    " fast. What a flow can keep is the distribution, the cloud of all starts."
)
NEAR = 1.25  # times the distance of two ensembles of the SDE
TABLE = '<table style="border-spacing: .9rem .1rem; margin: 0 0 .5rem -.9rem; text-align: left">'
WHY = (
    "<p>Why Euler pumps energy: let a frame turn a phase by φ. <b>phibe</b> and <b>symmetric</b> find the central"
    " difference, and an Euler step along it lands outside the circle, a little further with each frame; RK4 and the"
    " leapfrog stay on it. <b>regression</b> finds the forward difference, which points inwards: an Euler step undoes"
    " it exactly, RK4 and the leapfrog lose energy with it.</p>"
)


def reading(setting: Setting, columns: Columns) -> str:
    """The numbers at the animation's end, those of the experiment's own run for all pairs, and the reason."""
    flows = [(name, second("") if i else "") for i, name in enumerate(setting.estimators)]
    truth = (
        f"two draws of the SDE are {columns['divergence'][-1]:.2f} apart, two ensembles of it"
        f" {columns['sample_error'][-1]:.2g}, and the noise has fed in an energy of {_signed(columns['sample_gain'])}"
    )
    numbers = "; ".join([*(_numbers(name, setting.integrator, columns, end) for name, end in flows), truth])
    at = f"<p>{PATHS} At t = {columns['t'][-1]:.2g} s: {numbers}.{_closer(setting.estimators, columns)}</p>"
    return _untrained(setting) + at + _pairs(setting) + WHY


def _numbers(name: str, integrator: str, columns: Columns, end: str) -> str:
    path, marginal = (float(columns[f"{error}{end}"][-1]) for error in ("path_error", "marginal_error"))
    gain = _signed(columns[f"gain{end}"])
    gaps = f"{path:.2f} off single paths, {marginal:.2g} off the distribution"
    return f"<b>{name}</b> by {integrator} is {gaps}, energy {gain}"


def _signed(column: np.ndarray) -> str:
    return f"{column[-1]:+.2g}".replace("-", "−")


def _tenths(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _closer(names: tuple[str, ...], columns: Columns) -> str:
    """Which of two flows is nearer to the distribution over the animation, if either is."""
    if len(names) < 2:
        return ""
    errors = [float(columns[name][1:].mean()) for name in ("marginal_error", second("marginal_error"))]
    if max(errors) < 1.05 * min(errors):
        return " Over the animation their distributions are equally close."
    best = names[errors.index(min(errors))]
    factor = max(errors) / min(errors)
    return f" Over the animation the distribution of <b>{best}</b> is closer, by a factor of {factor:.2g}."


def _pairs(setting: Setting) -> str:
    """Every objective with every integrator in the run that comes with the project: distribution, and energy gained."""
    report = committed("pendulum_states")
    at = max(i for i, t in enumerate(report["marginal_times"]) if t <= setting.horizon)
    flows = {key: report["flows"][f"{key[0]}, circles, {key[1]}"] for key in _keys(report.config)}
    distances = {key: flow["sliced_w2"][at] for key, flow in flows.items()}
    heads = "".join(f"<th>{method}</th>" for method in report.config["integrators"])
    integrators, at_time = report.config["integrators"], report["marginal_times"][at]
    rows = "".join(_row(name, integrators, distances, flows, at) for name in report.config["objectives"])
    floor, fed = (report["floor"][name][at] for name in ("sliced_w2", "energy_gain"))
    return (
        f"<p>Each field by each integrator, with {report.config['ensemble']} paths at t = {at_time:g} s:"
        f" sliced W₂ of the distribution (energy gained). Two SDE ensembles: {floor:.3f} ({_tenths(fed)}).</p>"
        f"{TABLE}<tr><th></th>{heads}</tr>{rows}</table>{_verdict(distances, floor)}"
    )


def _verdict(distances: dict[tuple[str, str], float], floor: float) -> str:
    """Which pairs cannot be told from the SDE, and which is furthest from it."""
    near: dict[str, list[str]] = {}
    for (name, method), distance in distances.items():
        if distance < NEAR * floor:
            near.setdefault(name, []).append(method)
    worst = max(distances, key=distances.__getitem__)
    pairs = "; ".join(f"{name} with {' or '.join(methods)}" for name, methods in near.items())
    first = f"As close to the SDE’s distribution as the SDE itself, or nearly: <b>{pairs}</b>. " if near else ""
    return f"<p>{first}Furthest: <b>{' with '.join(worst)}</b>, {distances[worst] / floor:.1f} times as far.</p>"


def _keys(config: dict) -> list[tuple[str, str]]:
    return [(name, method) for name in config["objectives"] for method in config["integrators"]]


def _row(name: str, methods: list[str], distances: dict, flows: dict, at: int) -> str:
    cells = (f"{distances[name, m]:.3f} ({_tenths(flows[name, m]['energy_gain'][at])})" for m in methods)
    return f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _untrained(setting: Setting) -> str:
    """A note on what was asked for and cannot be shown."""
    missing = [name for name in dict.fromkeys((setting.estimator, setting.compare)) if name not in (*TRAINED, NONE)]
    notes = (
        "the <b>exact</b> velocity of the pendulum is not known"
        if name == EXACT
        else f"no network trained with <b>{name}</b> comes with the project"
        for name in missing
    )
    text, shown = "; ".join(notes), "it is not" if len(missing) == 1 else "neither is"
    there = f"There are flows of {', '.join(TRAINED[:-1])} and {TRAINED[-1]}."
    return f'<p class="note">{text[0].upper()}{text[1:]}, so {shown} drawn. {there}</p>' if text else ""
