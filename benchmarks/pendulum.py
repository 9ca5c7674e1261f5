"""Simulated seconds of path a second against a loop over paths with gymnasium's right-hand side and SciPy; pictures a
second against matplotlib, where that is installed (the project does not need it)."""

import json
import time

import numpy as np
import torch
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from scipy.integrate import solve_ivp

from phibe.experiments.pendulum.acrobot import Acrobot, frame_times
from phibe.experiments.pendulum.rendering import joints, render

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None


def seconds(work, *, least: float = 1.0) -> float:
    """Processor time of one call, the best of several within about the given time; all here runs on one thread."""
    times, end = [], time.process_time() + least
    while not times or time.process_time() < end:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def one_path_by_scipy() -> None:
    """Without noise, to the accuracy of four substeps a frame; SciPy has no scheme for SDEs."""
    env = AcrobotEnv()
    start = np.array([2.0, -1.0, 0.0, 0.0])
    ticks = frame_times(240).numpy()
    solve_ivp(lambda _, x: env._dsdt(np.append(x, 0.0))[:4], (0, ticks[-1]), start, t_eval=ticks, rtol=1e-6, atol=1e-6)


def one_path_by_gymnasium() -> None:
    """Its own RK4 with as many steps, and noise added to the velocities between them (strong order one at best)."""
    from gymnasium.envs.classic_control.acrobot import rk4

    env, generator = AcrobotEnv(), np.random.default_rng(0)
    x, h = np.array([2.0, -1.0, 0.0, 0.0]), 1 / 120
    for _ in range(4 * 239):
        x = rk4(env._dsdt, np.append(x, 0.0), [0, h])[:4]
        x[2:] += 0.2 * np.sqrt(h) * generator.standard_normal(2)


def pictures_by_matplotlib(angles: torch.Tensor) -> None:
    figure = plt.figure(figsize=(1, 1), dpi=32)
    axes = figure.add_axes((0, 0, 1, 1), facecolor="black", xlim=(-2, 2), ylim=(-2, 2))
    (line,) = axes.plot([], [], "-o", color="white", linewidth=1.5, markersize=2.5)
    elbow, end = (part.numpy() for part in joints(angles))
    for (x1, y1), (x2, y2) in zip(elbow, end, strict=True):
        line.set_data([0, x1, x2], [0, y1, y2])
        figure.canvas.draw()
        np.asarray(figure.canvas.buffer_rgba())
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)
    acrobot, duration = Acrobot(), 239 / 30
    angles = acrobot.simulate(paths=20, seed=0).states[:, ::2].flatten(0, 1)
    ours = {n: n * duration / seconds(lambda n=n: acrobot.simulate(paths=n, seed=0)) for n in (1, 1000, 10_000)}
    scipy, gymnasium = (duration / seconds(work) for work in (one_path_by_scipy, one_path_by_gymnasium))
    drawn = len(angles) / seconds(lambda: render(angles))
    plotted = 200 / seconds(lambda: pictures_by_matplotlib(angles[:200])) if plt else None
    print(
        json.dumps(
            {
                "path_seconds_per_second": {f"{n} paths": round(rate) for n, rate in ours.items()}
                | {"scipy, path by path": round(scipy), "gymnasium, path by path": round(gymnasium)},
                "pictures_per_second": {"render": round(drawn), "matplotlib": plotted and round(plotted)},
                "ratio_simulate_1000": round(ours[1000] / max(scipy, gymnasium), 1),
                "ratio_render": plotted and round(drawn / plotted, 1),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
