"""A step of an objective, forward and backward, against one of plain regression: time, memory and error. Prints JSON.

The PhiBE-Flow term Δxᵀ(∇v)Δx can be had in three ways, timed here on an MLP of 3 × 256 (two coordinates, batch 1024)
and on a small U-Net (1 × 32 × 32, batch 16), in turn, so that whatever else the machine does falls on all alike:

double_backward   Δx · ∂(v·Δx)/∂x, differentiated again. The default in `phibe.objectives`: exact, nothing to set, a
                  quarter to a third faster a step than jvp (twice and more on the small networks of the OU chapters),
                  on the U-Net leaner by a third, and right for every norm. Its price: a gradient is taken inside the
                  objective. DDP and FSDP around the whole loss give the right answer; FSDP layer by layer fails, since
                  its backward hooks have then freed the weights.
jvp               (∇v)Δx by one forward-mode product. As exact, and it works under layer-wise FSDP too. But torch gives
                  LayerNorm, InstanceNorm and BatchNorm wrong parameter gradients this way, without an error.
difference        v at x ± δΔx in one batch of twice the size: their mean for v, their difference over 2δ for (∇v)Δx.
                  The cheapest. Its error is of order δ² from the curvature of v, and 1/δ from rounding: in float32 at
                  least ten times that of the others, with δ to be chosen for each problem.

`time` and `peak_memory` are over those of a regression step, `value_time` is that of the objective without a parameter
gradient, and `gradient_error` is relative, in float32 against the default in float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from phibe.calculus import Velocity, along, dot
from phibe.networks.mlp import MLP
from phibe.networks.unet import UNet
from phibe.objectives import isotropic, phibe, regression

DELTA = 0.03


def forward_product(velocity: Velocity, x: Tensor, t: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
    """The `phibe` objective with (∇v)Δx by forward-mode differentiation."""
    v, slope = along(lambda z: velocity(z, t), x, dx)
    return dot(v, v) - (2 * dot(v, dx) + dot(slope, dx)) / dt


def difference(velocity: Velocity, x: Tensor, t: Tensor, dx: Tensor, dt: Tensor, *, delta: float = DELTA) -> Tensor:
    """The `phibe` objective with v and (∇v)Δx from v(x ± δΔx)."""
    ahead, behind = velocity(torch.cat([x + delta * dx, x - delta * dx]), torch.cat([t, t])).chunk(2)
    v, slope = (ahead + behind) / 2, (ahead - behind) / (2 * delta)
    return dot(v, v) - (2 * dot(v, dx) + dot(slope, dx)) / dt


WAYS: dict[str, Callable[..., Tensor]] = {
    "regression": regression,
    "double_backward": phibe,
    "jvp": forward_product,
    "difference": difference,
    "isotropic": lambda *arguments: isotropic(*arguments, noise=0.5),
}


def problems() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Networks, and transitions with σ = 1 over a step of 0.01."""
    torch.manual_seed(0)
    networks = {"mlp": (MLP((2,), width=256, depth=3), 1024), "unet": (UNet((1, 32, 32), channels=16), 16)}
    made: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {}
    for name, (network, n) in networks.items():
        x, dx = torch.randn(n, *network.state_shape), 0.1 * torch.randn(n, *network.state_shape)
        made[name] = (network, (x, torch.rand(n), dx, torch.full((n,), 0.01)))
    return made


def gradient(way: Callable[..., Tensor], network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    step(way, network, batch)
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def step(way: Callable[..., Tensor], network: nn.Module, batch: tuple[Tensor, ...]) -> None:
    network.zero_grad()
    way(network, *batch).mean().backward()


def value(way: Callable[..., Tensor], network: nn.Module, batch: tuple[Tensor, ...]) -> None:
    """The objective alone: no parameter asks for a gradient, and no graph is kept but what the way itself needs."""
    network.requires_grad_(False)
    with torch.no_grad():
        way(network, *batch)
    network.requires_grad_(True)


def seconds(act: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - start


def peak_bytes(way: Callable[..., Tensor], network: nn.Module, batch: tuple[Tensor, ...]) -> int:
    """The highest sum of allocations less releases during one step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step(way, network, batch)
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def errors(network: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, float]:
    """Relative errors of the float32 gradient of each way, and of the difference at other δ and without rounding."""
    double = copy.deepcopy(network).double()
    exact_batch = tuple(part.double() for part in batch)
    exact = gradient(phibe, double, exact_batch)

    def error(found: Tensor) -> float:
        return float(f"{float((found.double() - exact).norm() / exact.norm()):.1e}")

    found = {name: error(gradient(WAYS[name], network, batch)) for name in ("jvp", "double_backward", "difference")}
    for delta in (0.3, 0.1, 0.01, 0.001):
        way = lambda *arguments, delta=delta: difference(*arguments, delta=delta)  # noqa: E731
        found[f"difference, δ = {delta}"] = error(gradient(way, network, batch))
        found[f"difference, δ = {delta}, float64"] = error(gradient(way, double, exact_batch))
    return found


def measure(network: nn.Module, batch: tuple[Tensor, ...], rounds: int) -> dict[str, Any]:
    median = {}
    for act in (step, value):
        for way in WAYS.values():  # the first calls compile and allocate
            act(way, network, batch)
        times = [{name: seconds(act, way, network, batch) for name, way in WAYS.items()} for _ in range(rounds)]
        median[act] = {name: statistics.median(r[name] for r in times) for name in WAYS}
    base = median[step]["regression"]
    peaks = {name: peak_bytes(way, network, batch) for name, way in WAYS.items()}
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "milliseconds": {name: round(1000 * part, 2) for name, part in median[step].items()},
        "time": {name: round(part / base, 2) for name, part in median[step].items()},
        "value_time": {name: round(part / base, 2) for name, part in median[value].items()},
        "peak_memory": {name: round(part / peaks["regression"], 2) for name, part in peaks.items()},
        "peak_megabytes": {name: round(part / 2**20, 1) for name, part in peaks.items()},
        "gradient_error": errors(network, batch),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = {name: measure(*problem, options.rounds) for name, problem in problems().items()}
    head = {"benchmark": "objective_step", "default": "double_backward", "delta": DELTA, "threads": options.threads}
    ratio = {name: part["time"]["double_backward"] for name, part in result.items()}
    print(json.dumps(head | {"ratio": ratio} | result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
