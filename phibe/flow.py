"""Flow: a velocity that can be integrated into trajectories, a dense solution, and log-densities.

dx/dt = v(x, t) from x(t₀) ~ ρ_{t₀} has the marginals ρ_t of the process when v is its probability velocity [paper:
probability flow]; along a path d log ρ_t(x(t))/dt = −∇·v. Read next: `phibe.bases` and `phibe.linear`, which fit a
velocity in closed form, or `phibe.training.loop`, which trains a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from phibe.calculus import Velocity, divergence, rademacher
from phibe.integrators import INTEGRATORS, METHODS
from phibe.trajectories import Labels, Trajectories


@dataclass(frozen=True)
class Flow:
    """dx/dt = v(x, t), on the `interval` of time where v was fitted (None: everywhere), from data seen every `step`.

    `labels` are the names and units of that data; generated trajectories keep them. `method` is the integrator of
    `generate`, by default the one that fits the objective: rk4, but euler for a field of forward differences.

    >>> import phibe, torch
    >>> flow = phibe.Flow(lambda x, t: -x)
    >>> flow.generate(torch.ones(1, 1), [0.0, 0.5, 1.0]).states.flatten()
    tensor([1.0000, 0.6068, 0.3682])
    >>> flow.solution(torch.ones(1, 1), t0=0.0, t1=1.0)(0.5)
    tensor([[0.6065]])
    """

    velocity: Velocity
    interval: tuple[float, float] | None = None
    step: float | None = None
    labels: Labels | None = None
    method: str = "rk4"

    @torch.no_grad()
    def generate(
        self,
        x0: Tensor,
        times: Any,
        *,
        method: str | None = None,
        substeps: int | None = None,
        extrapolate: bool = False,
        tolerance: float = 1e-6,
        progress: bool = False,
    ) -> Trajectories:
        """Trajectories through `x0` (n, *state), the state at `times[0]`, at each of `times`   [paper: learned flow].

        `method` is euler, heun, rk4, leapfrog, filtered (leapfrog) or adaptive (Dormand–Prince to `tolerance`), by
        default the flow's own. Between two times the fixed-step methods take `substeps` equal steps; by default as many
        as keep a step at or below the data's own. Decreasing times integrate backwards; the result is always sorted by
        time.
        """
        method, x0 = method or self.method, torch.as_tensor(x0)
        times = torch.as_tensor(times, dtype=torch.float64).cpu()  # wherever the states are
        self._check(x0, times, method, extrapolate)
        if method == "adaptive":
            states = self._dense(x0, float(times[0]), float(times[-1]), tolerance)(times)
        else:
            if substeps is not None and substeps < 1:
                raise ValueError(f"`substeps` must be at least 1; got {substeps}.")
            least = (math.ceil(abs(float(gap)) / (self.step or math.inf) - 1e-6) for gap in times.diff())
            states = self._march(x0, times, [substeps or max(1, count) for count in least], method, progress)
        if (lost := ~torch.isfinite(states).flatten(2).all(dim=2)).any():
            index, sample = lost.mT.nonzero()[0].tolist()
            where = f"sample {sample} is no longer finite at t = {times[index]:g}"
            raise ValueError(f"The flow diverges: {where}. Take more `substeps`, or method 'adaptive'?")
        if times[-1] < times[0]:
            states, times = states.flip(1), times.flip(0)
        return Trajectories(states, times.to(states.device), labels=self.labels)

    @torch.no_grad()
    def solution(
        self, x0: Tensor, *, t0: float | None = None, t1: float | None = None, tolerance: float = 1e-7
    ) -> Callable[[Any], Tensor]:
        """The flow through `x0` at `t0` as a function of time, by default on its interval: `flow.solution(x0)(t)` is
        the state (n, *state) at a time, or (n, time, *state) at a vector of times, without another call of v."""
        if self.interval is None and (t0 is None or t1 is None):
            raise ValueError("This flow has no interval of its own: pass `t0` and `t1`, e.g. t0=0.0, t1=1.0.")
        t0, t1 = (self.interval[i] if t is None and self.interval else float(t or 0.0) for i, t in enumerate((t0, t1)))
        x0 = torch.as_tensor(x0)
        self._check(x0, torch.tensor([t0, t1], dtype=torch.float64), "adaptive", extrapolate=False)
        dense, (low, high) = self._dense(x0, t0, t1, tolerance), sorted((t0, t1))

        def state(t: Any) -> Tensor:
            t = torch.as_tensor(t, dtype=torch.float64)
            first, last = float(t.min()), float(t.max())
            if first < low - 1e-9 or last > high + 1e-9:
                raise ValueError(f"This solution covers [{low:g}, {high:g}]; asked for t from {first:g} to {last:g}.")
            return dense(t.clamp(low, high))

        return state

    @torch.no_grad()
    def log_density(
        self,
        x: Tensor,
        t: float,
        *,
        start: Callable[[Tensor], Tensor],
        t0: float | None = None,
        steps: int = 100,
        probes: int | None = None,
        seed: int = 0,
    ) -> Tensor:
        """log ρ_t(x) = log ρ_{t₀}(x_{t₀}) − ∫ ∇·v along the flow through x, `start` = log ρ_{t₀}; (n, *state) → (n,).

        Carried back by RK4. The divergence is exact up to 64 coordinates; beyond, Hutchinson's estimate with `probes`
        (default 8) random directions, the same along the whole path.
        """
        t0 = self.interval[0] if t0 is None and self.interval else float(t0 or 0.0)
        if probes is None and x[0].numel() > 64:
            probes = 8
        generator = torch.Generator(device=x.device).manual_seed(seed)
        directions = None if probes is None else torch.stack([rademacher(x, generator) for _ in range(probes)])
        z = torch.cat([x.new_zeros(len(x), 1), x.flatten(1)], dim=1)
        if t != t0:
            ends = self.with_density(x.shape, directions).generate(z, [t, t0], method="rk4", substeps=steps)
            z = ends.states[:, -1 if t < t0 else 0]
        return start(z[:, 1:].reshape(x.shape)) - z[:, 0]

    def with_density(self, shape: Sequence[int], probes: Tensor | None = None) -> Flow:
        """The flow of (log ρ, x), flattened, for states x of the shape (n, *state): d log ρ/dt = −∇·v."""

        def velocity(z: Tensor, t: Tensor) -> Tensor:
            y = z[:, 1:].reshape(shape)
            change = -divergence(self.velocity, y, t, probes=probes)
            return torch.cat([change[:, None], self.velocity(y, t).flatten(1)], dim=1)

        return replace(self, velocity=velocity, labels=None)

    def _check(self, x0: Tensor, times: Tensor, method: str, extrapolate: bool) -> None:
        if method not in METHODS:
            raise ValueError(f"`method` must be one of {', '.join(METHODS)}; got {method!r}.")
        if x0.ndim < 2 or not x0.is_floating_point():
            got = f"{x0.dtype} of shape {tuple(x0.shape)}"
            raise ValueError(f"`x0` must be floats of shape (n, *state); got {got}. One state? Pass `x0[None]`.")
        if (lost := ~torch.isfinite(x0).flatten(1).all(1)).any():
            raise ValueError(f"`x0` must be finite; sample {int(lost.nonzero()[0])} is not.")
        direction = times.diff().sign()
        if times.ndim != 1 or len(times) < 2 or not ((direction == 1).all() or (direction == -1).all()):
            raise ValueError("`times` must be two or more values that all increase or all decrease, from that of `x0`.")
        if self.interval is None or extrapolate:
            return
        (first, last), (low, high) = self.interval, (float(times.min()), float(times.max()))
        slack = 1e-9 * (1 + abs(last - first)) + (self.step or 0.0) / 10  # times at random never reach the end
        if low < first - slack or high > last + slack:
            fitted = f"This flow was fitted on [{first:g}, {last:g}]; `times` goes from {low:g} to {high:g}."
            raise ValueError(f"{fitted} Stay inside, or pass `extrapolate=True` to hold the field fixed beyond.")

    def _march(self, x: Tensor, times: Tensor, counts: list[int], method: str, progress: bool) -> Tensor:
        """States (n, time, *state) by fixed steps, `counts[i]` of them in the i-th gap."""
        v = _batched(self.velocity)
        advance = INTEGRATORS[method].start()
        states = [x]
        for i, count in enumerate(tqdm(counts, desc=method, unit="frame", disable=not progress)):
            h = (times[i + 1] - times[i]) / count
            for k in range(count):
                x = advance(v, x, times[i] + k * h, h.to(x.dtype))
            states.append(x)
        return torch.stack(states, dim=1)

    def _dense(self, x0: Tensor, t0: float, t1: float, tolerance: float) -> Callable[[Tensor], Tensor]:
        """x(t) at any t between both times, by one adaptive solve."""
        from torchdiffeq import odeint_dense

        v, sign = _batched(self.velocity), math.copysign(1.0, t1 - t0)  # backwards in time is forwards along −v
        ends = (torch.tensor(sign * t, dtype=torch.float64, device=x0.device) for t in (t0, t1))
        precision: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "method": "dopri5"}
        solved = odeint_dense(lambda s, x: sign * v(x, sign * s), x0, *ends, **precision)

        def state(t: Tensor) -> Tensor:
            states = [solved(sign * s).to(x0.dtype) for s in t.to(x0.device).reshape(-1)]
            return torch.stack(states, dim=1) if t.ndim else states[0]

        return state


def _batched(velocity: Velocity) -> Velocity:
    """The velocity as a function of a scalar time, in the state's type, for all samples at once."""
    return lambda x, t: velocity(x, t.to(x.device, x.dtype).expand(len(x)))
