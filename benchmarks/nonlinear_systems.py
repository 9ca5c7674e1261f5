"""Seconds to simulate the nonlinear systems and to solve their Fokker–Planck equations. Prints JSON.

Aim: a one-dimensional solve with 400 cells and 200 output times in well under a second.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch

from phibe.systems.fokker_planck import solve_fokker_planck
from phibe.systems.sde import double_well, langevin, multiplicative, rotating_well


def seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """Median over repeats, after a first call that is not counted."""
    action()
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        spent.append(time.perf_counter() - start)
    return round(statistics.median(spent), 4)


def main() -> None:
    times = torch.linspace(0, 4, 200, dtype=torch.float64)
    few = torch.linspace(0, 1, 21, dtype=torch.float64)
    simulate = {
        make.__name__: seconds(lambda make=make: make().simulate(paths=2000, times=few, substep=0.005))
        for make in (double_well, rotating_well, multiplicative, langevin)
    }
    line = seconds(lambda: solve_fokker_planck(double_well(), times, low=-3.0, high=3.0, cells=400))
    plane = seconds(
        lambda: solve_fokker_planck(rotating_well(), few, low=(-2.6, -5.5), high=(2.6, 5.5), cells=100, step=0.01), 3
    )
    report = {
        "benchmark": "nonlinear_systems",
        "threads": torch.get_num_threads(),
        "simulate 2000 paths × 200 substeps": simulate,
        "fokker_planck 400 cells × 200 times": line,
        "fokker_planck 100² cells × 100 steps": plane,
    }
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
