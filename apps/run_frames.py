"""The frames of a run: observed and generated states at each observed time, with their histograms, for the browser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from flow_setting import sendable
from run_list import Run
from torch import Tensor

from phibe.evaluation import open_source
from phibe.flow import Flow
from phibe.report import Views
from phibe.training.runs import open_flow

BINS, ARROWS = 32, 60
LOCK = Lock()

Columns = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What an animation depends on: the run, its integrator, the coordinates (or the path and the channel) shown."""

    run: Run
    method: str = "rk4"
    first: int = 0
    second: int = 1


@lru_cache(maxsize=4)
def opened(run: Run, method: str, stamp: float) -> tuple[Views, Flow, list[str]]:
    """The states of a run; ValueError, for the page to show, if its data is not there or not the same."""
    with LOCK:
        data = open_source(run.folder)
        flow = open_flow(run.folder)
        return Views.of(flow, data, method=method), flow, data.labels.texts(data.state_shape[0])


def views(setting: Setting) -> tuple[Views, Flow, list[str]]:
    stamp = (setting.run.folder / "weights.safetensors").stat().st_mtime
    return opened(setting.run, setting.method, stamp)


def frames(setting: Setting) -> Columns:
    """The columns of an animation, a row for each frame, and the names of the axes."""
    seen, flow, names = views(setting)
    make = _pictures if setting.run.kind == "pictures" else _vectors
    return make(setting, seen, flow) | {"names": names}


# -- vectors -----------------------------------------------------------------------------------------------------------


def _vectors(setting: Setting, seen: Views, flow: Flow) -> Columns:
    size = seen.observed.shape[2]
    pair = setting.first % size, setting.second % size
    columns: dict[str, Tensor | np.ndarray] = {"t": seen.marks.times}
    for axis, i in zip("xy", pair, strict=True):
        observed, generated = seen.observed[..., i].double(), seen.generated[..., i].double()
        columns |= {f"samples_{axis}": observed.mT, f"particles_{axis}": generated.mT}
        columns |= _bars(observed.mT, generated.mT, f"{axis}bars")
    return sendable(columns | _arrows(seen, flow, pair)) | _ends(seen, pair)


def _arrows(seen: Views, flow: Flow, pair: tuple[int, int]) -> dict[str, Tensor]:
    """Arrows from some particles to where they would be a twentieth of the animation later."""
    x = seen.generated[:ARROWS].movedim(1, 0)
    count = x.shape[1]
    t = seen.marks.times.to(x.dtype)
    with torch.no_grad():
        v = flow.velocity(x.reshape(-1, x.shape[2]).nan_to_num(0.0), t.repeat_interleave(count)).reshape(x.shape)
    ahead = x + v * float(t[-1] - t[0]) / 20
    ends = {"x": x[..., pair[0]], "y": x[..., pair[1]], "x1": ahead[..., pair[0]], "y1": ahead[..., pair[1]]}
    angle = torch.atan2(ends["y1"] - ends["y"], ends["x1"] - ends["x"]) - torch.pi / 2
    return {f"arrows_{name}": part.double() for name, part in (ends | {"angle": angle}).items()}


def _bars(observed: Tensor, generated: Tensor, name: str) -> dict[str, np.ndarray]:
    """Densities of both in common bins, a row for each frame: bars of observed states, steps of generated ones."""
    known = observed[torch.isfinite(observed)].numpy()
    low, high = np.quantile(known, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    bars, steps = (np.stack([_density(row, edges) for row in part.numpy()]) for part in (observed, generated))
    every = np.tile(edges, (len(observed), 1))
    columns = {f"{name}_x": every[:, :-1], f"{name}_x1": every[:, 1:], f"{name}_y": bars}
    return columns | {f"{name}2_x": every, f"{name}2_y": np.concatenate([steps, steps[:, -1:]], 1)}


def _density(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    known = values[np.isfinite(values)]
    return np.histogram(known, edges)[0] / max(1, len(known)) / (edges[1] - edges[0])


def _ends(seen: Views, pair: tuple[int, int]) -> Columns:
    """Ends of the axes: all that is observed but the most extreme, with a margin."""
    ends = {}
    for axis, i in zip("xy", pair, strict=True):
        known = seen.observed[..., i].double()
        low, high = np.quantile(known[torch.isfinite(known)].numpy(), [0.002, 0.998])
        margin = 0.12 * (high - low) or 1.0
        ends[f"{axis}_range"] = (float(low - margin), float(high + margin))
    return ends


# -- pictures ----------------------------------------------------------------------------------------------------------


def _pictures(setting: Setting, seen: Views, flow: Flow) -> Columns:
    path, channel = setting.first % len(seen.observed), setting.second % seen.observed.shape[2]
    observed, generated = seen.observed[:, :, channel].double(), seen.generated[:, :, channel].double()
    known = observed[torch.isfinite(observed)]
    low, high = float(known.min()), float(known.max())
    shown = {name: _bytes(part[path], low, high) for name, part in (("truth", observed), ("guess", generated))}
    some = max(1, len(observed) // 40)
    rows = [part[::some].movedim(1, 0).flatten(1) for part in (observed, generated)]
    return sendable({"t": seen.marks.times} | _bars(rows[0], rows[1], "xbars")) | shown


def _bytes(pictures: Tensor, low: float, high: float) -> list[np.ndarray]:
    """Pictures as the browser draws them: the first row at the bottom, a byte a pixel, black where there is nothing."""
    bright = ((pictures.nan_to_num(low) - low) / (high - low or 1.0)).clamp(0, 1) * 255
    return [np.ascontiguousarray(picture) for picture in bright.round().to(torch.uint8).flip(1).numpy()]
