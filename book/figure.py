"""Draws the figure of the README: SDE paths beside the learnt flow with the same marginals.

python book/figure.py          writes book/_static/flow.png; takes half a minute
"""

from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot as plt

from phibe.fitting import fit
from phibe.systems.fokker_planck import solve_fokker_planck
from phibe.systems.sde import double_well

FIGURE = Path(__file__).parent / "_static" / "flow.png"
PATHS = 70


def main() -> None:
    well, times = double_well(), torch.linspace(0, 1.5, 301, dtype=torch.float64)
    data = well.simulate(paths=2000, times=times, seed=0)
    flow = fit(data.coarsen(5), objective="symmetric", progress=False)
    generated = flow.generate(data.states[:, 0], times)
    exact = solve_fokker_planck(well, times, low=-2.2, high=2.2)

    matplotlib.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right, side) = plt.subplots(
        1, 3, figsize=(10, 3.8), sharey=True, width_ratios=[1, 1, 0.32], layout="constrained"
    )
    for axes, states, colour, title in (
        (left, data.states, "#111111", "observed: paths of the SDE"),
        (right, generated.states, "#009e73", "generated: the learnt flow, same starts"),
    ):
        density = exact.densities[1:].T.sqrt()
        axes.pcolormesh(times[1:], exact.axes[0], density, cmap="Greys", vmax=2.2, rasterized=True)
        axes.plot(times, states[:PATHS, :, 0].T, color=colour, linewidth=0.6, alpha=0.75)
        axes.set(title=title, xlabel="time t", xlim=(0, 1.5), ylim=(-2, 2))
    left.set_ylabel("x")
    _marginals(side, data.states[:, -1, 0], generated.states[:, -1, 0], exact)
    figure.savefig(FIGURE, dpi=150, metadata={"Software": None})


def _marginals(axes, observed, generated, exact) -> None:
    """The marginals at the last time, turned to share the axis of x."""
    axes.hist(observed, bins=40, range=(-2, 2), density=True, orientation="horizontal", color="#9aa3b2")
    axes.hist(
        generated,
        bins=40,
        range=(-2, 2),
        density=True,
        orientation="horizontal",
        histtype="step",
        color="#009e73",
        linewidth=1.6,
    )
    axes.plot(exact.densities[-1], exact.axes[0], color="#111111", linewidth=1.2)
    axes.set(title="at t = 1.5", xlabel="density", xlim=(0, None))


if __name__ == "__main__":
    main()
