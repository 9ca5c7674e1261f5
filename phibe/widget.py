"""The notebook widget: `explore(flow, data)` shows particles of the flow, their velocities and the data over time.

The states at all times are computed at once; a frame is drawn by `plots` when the slider first comes to it, and kept.
It takes ipywidgets and the extra `report`. Read next: `flow.py`.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from phibe import plots
from phibe.flow import Flow
from phibe.integrators import METHODS
from phibe.trajectories import Labels, Trajectories

FRAMES, PARTICLES, ARROWS, TRAILS, TRAIL, MOST = 61, 200, 60, 40, 8, 8
"""Frames, particles in them, how many have arrows and trails, frames that a trail goes back, coordinates to choose."""

SIZE = (520, 400)


class Explorer:
    """Widgets and the image that they steer; `view` is what a notebook shows.

    `time` goes over the interval of the flow, `method` integrates anew, `pair` chooses two coordinates. Grey are
    observed states where data was given, coloured the particles of the flow, with their last steps and velocities.
    """

    def __init__(self, flow: Any, data: Any = None, *, method: str = "rk4"):
        import ipywidgets as widgets

        plots.use("matplotlib")
        self.flow, self.data = flow, data if isinstance(data, Trajectories) else None
        self.starts = _starts(flow, data)
        first, last = flow.interval or (self.data.interval if self.data else (0.0, 1.0))
        self.times = torch.linspace(first, last, FRAMES, dtype=torch.float64)
        labels = (self.data.labels if self.data else flow.labels) or Labels()
        labels = labels if self.starts.ndim == 2 else Labels(labels.time)
        d = min(self.starts[0].numel(), MOST)
        texts = labels.texts(d)
        self.clock, self.names = texts[0], texts[1:]
        pairs = list(combinations(range(d), 2)) or [(0, 0)]
        wide = {"style": {"description_width": "initial"}}
        self.time = widgets.IntSlider(0, 0, FRAMES - 1, description="time", readout=False, continuous_update=True)
        self.method = widgets.Dropdown(options=METHODS, value=method, description="method")
        choices = [(f"{self.names[i]}, {self.names[j]}", (i, j)) for i, j in pairs]
        self.pair = widgets.Dropdown(options=choices, description="plane", **wide)
        self.pair.layout.display = "none" if len(pairs) == 1 else None
        self.image = widgets.Image(format="png", layout={"max_width": f"{SIZE[0]}px"})
        self.note = widgets.Label()
        self.view = widgets.VBox([widgets.HBox([self.time, self.method, self.pair]), self.note, self.image])
        self.method.observe(self._integrate, "value")
        for widget in (self.time, self.pair):
            widget.observe(self._draw, "value")
        self._integrate()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.view)

    def _integrate(self, _: Any = None) -> None:
        """All times at once, so that the slider only draws."""
        try:
            self.states = self.flow.generate(self.starts, self.times, method=self.method.value).states
            self.note.value = ""
        except ValueError as problem:
            self.states = self.starts[:, None].expand(-1, FRAMES, *self.starts.shape[1:])
            self.note.value = str(problem)
        self.drawn: dict[tuple[int, tuple[int, int]], bytes] = {}
        self._draw()

    def _draw(self, _: Any = None) -> None:
        """Show the frame, drawn if it was not yet."""
        key = self.time.value, self.pair.value
        if key not in self.drawn:
            self.drawn[key] = plots.drawn(self.figure(), size=SIZE, kind="png")
        self.image.value = self.drawn[key]

    def figure(self) -> Any:
        """The frame at the slider's time: observed states, trails, particles and arrows, as layers of `plots`."""
        k, (i, j), t = self.time.value, self.pair.value, float(self.times[self.time.value])
        x, before = self._plane(self.states, self.times), slice(max(0, k - TRAIL), k + 1)
        layers = [] if self.data is None else [plots.samples(self._observed(t), "samples", size=4)]
        layers += [plots.lines(x[:TRAILS, before], "phibe", width=1, alpha=0.35)] if k else []
        layers += [plots.samples(x[:, k], "phibe", size=5)]
        layers += [plots.steps(x[:ARROWS, k], self._tips(k), "exact")]
        across, up = (plots.ends(side, outliers=0.005, margin=0.12) for side in x.unbind(-1))
        name = self.clock if i == j else self.names[i]  # a single coordinate is shown over time
        title = f"{self.clock} = {t:.3g}"
        figure = plots.phase_plane(*layers, title=title, x=name, y=self.names[j], equal=False)
        return figure.opts(xlim=across, ylim=up, backend="matplotlib")

    def _plane(self, states: Tensor, times: Tensor) -> Tensor:
        """The chosen pair of coordinates, (path, time, 2); of a single one, the time and it."""
        flat = states.flatten(2).double()
        i, j = self.pair.value
        first = times.double().expand(flat.shape[:2]) if i == j else flat[..., i]
        return torch.stack([first, flat[..., j]], -1)

    def _observed(self, t: float) -> Tensor:
        """Of each path of the data the state nearest to a time, in the plane."""
        assert self.data is not None
        some = self.data[:PARTICLES]
        far = torch.where(some._observed(), (some._path_times() - t).abs(), torch.inf)
        nearest = some.states[torch.arange(len(some)), far.argmin(1)]
        return self._plane(nearest[:, None], torch.tensor([t]))[:, 0]

    def _tips(self, k: int) -> Tensor:
        """Ends of the arrows of some particles: where they would be a fifteenth of the interval later."""
        x = self.states[:ARROWS, k]
        with torch.no_grad():
            v = self.flow.velocity(x, self.times[k].to(x.dtype).expand(len(x)))
        ahead = float(self.times[-1] - self.times[0]) / 15
        return self._plane((x + ahead * v)[:, None], self.times[k : k + 1] + ahead)[:, 0]


def explore(flow: Flow, data: Any = None, *, method: str = "rk4") -> Explorer:
    """A live widget for a notebook: particles of the flow with their velocities, a slider of time, the methods.

    `data` gives the particles their starts: trajectories, shown behind them, or states (n, *state). A normalised
    network needs none. It takes ipywidgets and the extra `report`.

    >>> import phibe, torch
    >>> explorer = phibe.explore(phibe.Flow(lambda x, t: -x, (0.0, 1.0)), torch.randn(50, 2))
    >>> explorer.method.value
    'rk4'
    """
    return Explorer(flow, data, method=method)


def _starts(flow: Any, data: Any) -> Tensor:
    """The first states of the data, the states given, or draws from the Gaussian that a network is normalised to."""
    if isinstance(data, Trajectories):
        return data.states[:PARTICLES, 0]
    if data is not None:
        return torch.as_tensor(data)[:PARTICLES]
    network: Any = getattr(flow.velocity, "network", None)
    if not (hasattr(network, "mean") and hasattr(network, "scale")):
        raise ValueError("This flow does not know where its data starts: `explore(flow, data)`, or states (n, *state).")
    shape = (PARTICLES, *network.state_shape)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=network.mean.dtype)
    return network.mean + network.scale * noise
