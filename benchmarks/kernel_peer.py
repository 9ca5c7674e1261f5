"""Seconds and accuracy of the kernel route (`kramersmoyal` and a kernel-density score) beside PhiBE in a cubic basis.

Stationary data of the circulating Ornstein–Uhlenbeck process and of the rotating well, both in two dimensions. The
error is ‖v̂ − v‖ over the stationary law, beside ‖v‖, the error of a field that is zero. Both exact velocities lie in
the cubic basis, which the kernels cannot know: this is the price of knowing nothing. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

from phibe import OU, Flow
from phibe.bases import lift, polynomials
from phibe.experiments.baselines.kernel import fit_kernel
from phibe.linear.basis import fit_basis
from phibe.metrics import velocity_error
from phibe.systems.sde import rotating_well

METHODS: dict[str, Callable[..., Flow]] = {
    "kernel": fit_kernel,
    "kernel, bandwidth 0.2": lambda data: fit_kernel(data, bandwidth=0.2),
    "phibe, cubic": lambda data: fit_basis(data, lift(polynomials(3)), "phibe"),
}


def circulating() -> OU:
    ou = OU.nonreversible()
    law = ou.stationary()
    return OU(ou.A, ou.S, mu=ou.mu, m0=law.mean, C0=law.covariance)


def measure(system, law, *, transitions: int, step: float, paths: int = 20) -> dict[str, object]:
    times = torch.arange(transitions // paths + 1, dtype=torch.float64) * step
    data = system.simulate(paths=paths, times=times, seed=1)
    x = law.sample(5000, generator=torch.Generator().manual_seed(2))
    rows = {}
    for name, fit in METHODS.items():
        start = time.perf_counter()
        flow = fit(data)
        seconds = time.perf_counter() - start
        error = velocity_error(flow.velocity, lambda z, t: system.velocity(z, 0.0), x, 0.0)
        rows[name] = {"error": round(error.value, 4), "seconds": round(seconds, 3)}
    return {"transitions": transitions, "step": step, **rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, nargs="+", default=[20_000, 200_000])
    sizes = parser.parse_args().transitions
    ou, well = circulating(), rotating_well()
    fit_kernel(ou.simulate(paths=2, times=torch.arange(500) * 0.1))  # imports and first calls are not counted
    fit_basis(ou.simulate(paths=2, times=torch.arange(500) * 0.1), lift(polynomials(3)))
    report: dict[str, object] = {"benchmark": "kernel_peer", "threads": torch.get_num_threads()}
    for name, system, law, steps in (
        ("circulating OU", ou, ou.stationary(), (0.02,)),
        ("rotating well", well, well.stationary, (0.005, 0.02)),
    ):
        x = law.sample(5000, generator=torch.Generator().manual_seed(2))
        size = float(system.velocity(x, 0.0).square().sum(1).mean().sqrt())
        rows = [measure(system, law, transitions=n, step=h) for h in steps for n in sizes]
        report[name] = {"size of v": round(size, 4), "fits": rows}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
