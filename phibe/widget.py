"""Explore: a small live widget for a notebook, as the flow explorer: particles, velocity arrows, time, method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phibe.flow import Flow
from phibe.integrators import METHODS
from phibe.plots import COLORS
from phibe.svg import Picture, around
from phibe.trajectories import Labels, Trajectories

FRAMES, PARTICLES, TRAIL, MOST = 61, 200, 8, 8
"""Pictures of a film, particles in it, pictures that a trail looks back, and coordinates to choose from."""


class Explorer:
    """Widgets and the picture that they steer; `view` is what a notebook shows.

    `time` goes over the interval of the flow, `method` integrates anew, `pair` chooses two coordinates. Grey are
    observed states where data was given, coloured the particles of the flow, with their last steps and velocities.
    """

    def __init__(self, flow: Any, data: Any = None, *, method: str = "rk4", seed: int = 0):
        import ipywidgets as widgets

        self.flow, self.data = flow, data if isinstance(data, Trajectories) else None
        self.starts = _starts(flow, data, seed)
        first, last = flow.interval or (self.data.interval if self.data else (0.0, 1.0))
        self.times = torch.linspace(first, last, FRAMES, dtype=torch.float64)
        labels = (self.data.labels if self.data else flow.labels) or Labels()
        labels = labels if self.starts.ndim == 2 else Labels(labels.time)
        d = min(self.starts[0].numel(), MOST)
        self.clock, self.names = str(labels.time), [str(label) for label in labels.coordinates(d)]
        pairs = [(i, j) for i in range(d) for j in range(i + 1, d)] or [(0, 0)]
        long = {"style": {"description_width": "initial"}}
        self.time = widgets.IntSlider(0, 0, FRAMES - 1, description="time", readout=False, continuous_update=True)
        self.method = widgets.Dropdown(options=METHODS, value=method, description="method")
        self.pair = widgets.Dropdown(
            options=[(f"{self.names[i]}, {self.names[j]}", (i, j)) for i, j in pairs], description="plane", **long
        )
        self.pair.layout.display = "none" if len(pairs) == 1 else None
        self.picture = widgets.HTML()
        self.view = widgets.VBox([widgets.HBox([self.time, self.method, self.pair]), self.picture])
        self.method.observe(self._integrate, "value")
        for widget in (self.time, self.pair):
            widget.observe(self._draw, "value")
        self._integrate()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.view)

    def _integrate(self, _: Any = None) -> None:
        """All frames at once, so that the slider only draws."""
        try:
            self.states, self.trouble = self.flow.generate(self.starts, self.times, method=self.method.value).states, ""
        except ValueError as problem:
            self.states, self.trouble = self.starts[:, None].expand(-1, FRAMES, *self.starts.shape[1:]), str(problem)
        self._draw()

    def _draw(self, _: Any = None) -> None:
        k, (i, j) = self.time.value, self.pair.value
        x = self.states.flatten(2).double()
        t = float(self.times[k])
        ends = [around(x[..., axis], outliers=0.005, margin=0.12) for axis in (i, j)]
        line = i == j  # one coordinate: over time
        names = (self.clock, self.names[0]) if line else (self.names[i], self.names[j])
        ends = [tuple(self.times[[0, -1]].tolist()), ends[0]] if line else ends
        picture = Picture(*ends, size=(520, 430), names=names, title=self.trouble[:80] or f"{self.clock} = {t:.3g}")
        if self.data is not None and not line:
            seen = _nearest(self.data, t).flatten(1)
            picture.dots(seen[:, i], seen[:, j], COLORS["samples"], radius=2)
        past = x[:, max(0, k - TRAIL) : k + 1]
        across = self.times[max(0, k - TRAIL) : k + 1]
        for path in past[:40]:
            picture.line(across if line else path[:, i], path[:, j], COLORS["phibe"], width=1, alpha=0.35)
        h, v = (torch.full((len(x),), t), x[:, k, 0]) if line else (x[:, k, i], x[:, k, j])
        picture.dots(h, v, COLORS["phibe"], radius=2.4, alpha=0.9)
        picture.arrows(h[:60], v[:60], self._tips(k, (i, j), line), COLORS["exact"])
        self.picture.value = f'<div style="max-width: 560px">{picture.svg()}</div>'

    def _tips(self, k: int, pair: tuple[int, int], line: bool) -> tuple[Tensor, Tensor]:
        """Ends of the arrows of some particles: where they would be a fifteenth of the interval later."""
        x = self.states[:60, k]
        t = self.times[k].to(x.dtype).expand(len(x))
        with torch.no_grad():
            v = self.flow.velocity(x, t).flatten(1).double()
        ahead = float(self.times[-1] - self.times[0]) / 15
        flat = x.flatten(1).double() + ahead * v
        return (t.double() + ahead, flat[:, 0]) if line else (flat[:, pair[0]], flat[:, pair[1]])


def explore(flow: Flow, data: Any = None, *, method: str = "rk4") -> Explorer:
    """A live widget for a notebook: particles of the flow with their velocities, a slider of time, the methods.

    `data` gives the particles their starts: trajectories, shown behind them, or states (n, *state). A normalised
    network needs none. It takes ipywidgets.

    >>> import phibe, torch
    >>> explorer = phibe.explore(phibe.Flow(lambda x, t: -x, (0.0, 1.0)), torch.randn(50, 2))
    >>> explorer.method.value
    'rk4'
    """
    return Explorer(flow, data, method=method)


def _starts(flow: Any, data: Any, seed: int) -> Tensor:
    """The first states of the data, the states given, or states drawn from the law that a network is normalised to."""
    if isinstance(data, Trajectories):
        return data.states[:PARTICLES, 0]
    if data is not None:
        return torch.as_tensor(data)[:PARTICLES]
    network: Any = getattr(flow.velocity, "network", None)
    if not (hasattr(network, "mean") and hasattr(network, "scale")):
        raise ValueError(
            "This flow does not know where its data starts: pass it, `explore(flow, data)`, or states (n, *state)."
        )
    shape = (PARTICLES, *network.state_shape)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=network.mean.dtype)
    return network.mean + network.scale * noise


def _nearest(data: Trajectories, t: float) -> Tensor:
    """Of each path the observed state nearest to a time, (path, *state), `PARTICLES` of them at most."""
    some = data[:PARTICLES]
    far = torch.where(some._observed(), (some._path_times() - t).abs(), torch.inf)
    return some.states[torch.arange(len(some)), far.argmin(1)].double()
