"""Trajectories: discretely observed paths of one process, validated once; every other part of phibe starts from them.

States are (path, time, *state). Times are data and may be irregular: each transition (x, t) → (x + Δx, t + Δt) of the
paper's empirical objective carries its own t and Δt. Pairs and windows never cross from one path to another.
Read next: `phibe.calculus`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Trajectories:
    """Paths of one process: `states` (path, time, *state), `times` (time,) or (path, time), `lengths` (path,) or None.

    Times may differ between paths. Ragged paths are padded at the end and carry `lengths`; the padding is never read.
    Arrays of numpy (memory maps too), torch and xarray are taken without a copy where possible; an xarray array with
    dimensions `path` and `time` brings its own times. `labels` are the names and units of time and coordinates.

    >>> data = Trajectories([[[0.0], [1.0], [4.0]], [[2.0], [3.0], [0.0]]], [0.0, 0.5, 1.5], [3, 2])
    >>> data
    Trajectories(2 paths × 3 times, ragged 2–3, state (1,), t from 0 to 1.5, torch.float64)
    >>> data.typical_step, data.interval, len(data[1:])
    (0.5, (0.0, 1.5), 1)
    """

    states: Tensor
    times: Tensor
    lengths: Tensor | None
    labels: Labels

    def __init__(self, states: Any, times: Any = None, lengths: Any = None, *, labels: Labels | None = None):
        if times is None and hasattr(states, "dims"):
            states, times = _from_xarray(states)
        if times is None:
            raise ValueError("`times` is missing. Pass the observation times, e.g. `Trajectories(states, times)`.")
        self._set(
            _real_tensor(states, "states"),
            _real_tensor(times, "times").double(),
            None if lengths is None else _whole_numbers(lengths),
            labels or Labels(),
        )
        _validate(self)

    def _set(self, states: Tensor, times: Tensor, lengths: Tensor | None, labels: Labels) -> Trajectories:
        vars(self).update(states=states, times=times, lengths=lengths, labels=labels)
        return self

    def _with(self, states: Tensor, times: Tensor, lengths: Tensor | None) -> Trajectories:
        """The same kind of object around parts of data that is already known to be valid."""
        labels = self.labels if states.shape[2:] == self.states.shape[2:] else Labels()
        return Trajectories.__new__(Trajectories)._set(states, times, lengths, labels)

    def __len__(self) -> int:
        return self.states.shape[0]

    def __repr__(self) -> str:
        ragged = "" if self.lengths is None else f", ragged {int(self.lengths.min())}–{int(self.lengths.max())}"
        own = "" if self.shared_times else "own times, "
        what = f"{len(self)} paths × {self.states.shape[1]} times{ragged}, state {self.state_shape}"
        when = "{}t from {:g} to {:g}".format(own, *self.interval)
        return f"Trajectories({what}, {when}, {self.states.dtype})"

    @property
    def state_shape(self) -> tuple[int, ...]:
        return tuple(self.states.shape[2:])

    @property
    def interval(self) -> tuple[float, float]:
        """First and last observed time over all paths."""
        observed = self.times if self.shared_times and self.lengths is None else self._path_times()[self._observed()]
        return float(observed.min()), float(observed.max())

    @property
    def shared_times(self) -> bool:
        """True when every path is observed on one grid (a ragged path on a beginning of it)."""
        return self.times.ndim == 1

    @property
    def steps(self) -> Tensor:
        """The times between neighbouring observations: of a shared grid once, else of all paths."""
        return self.times.diff() if self.shared_times else self.times.diff(dim=1)[self._observed(2)]

    @property
    def typical_step(self) -> float:
        """The median time between two neighbouring observations."""
        return float(self.steps.median())

    def _path_times(self) -> Tensor:
        return self.times.expand(self.states.shape[:2])

    @property
    def _ends(self) -> Tensor:
        """How many observations each path has, (path,)."""
        if self.lengths is not None:
            return self.lengths
        return torch.full((len(self),), self.states.shape[1], device=self.states.device)

    def _shortest(self) -> int:
        return int(self._ends.min())

    def _observed(self, width: int = 1) -> Tensor:
        """(path, time − width + 1): does a window of that width start here and stay inside the path?"""
        starts = torch.arange(self.states.shape[1] - width + 1, device=self.states.device)
        return starts + width <= self._ends[:, None]

    def __getitem__(self, paths: int | slice | Tensor) -> Trajectories:
        """The chosen paths, as a view where the choice is a slice; `data[7]` is still a `Trajectories`, of one path."""
        if isinstance(paths, int):
            paths = torch.tensor([range(len(self))[paths]], device=self.states.device)
        times = self.times if self.shared_times else self.times[paths]
        return self._with(self.states[paths], times, None if self.lengths is None else self.lengths[paths])

    def chunks(self, *, megabytes: float = 32) -> Iterator[Trajectories]:
        """Blocks of whole paths of about that size, for one streaming pass over a memory map.

        >>> sum(len(chunk) for chunk in Trajectories(torch.zeros(50, 40, 2), torch.arange(40)).chunks(megabytes=0.005))
        50
        """
        per_path = self.states[0].numel() * self.states.element_size()
        block = max(1, int(megabytes * 2**20 / per_path))
        for start in range(0, len(self), block):
            yield self[start : start + block]

    def blocks(self, count: int) -> list[Trajectories]:
        """About `count` parts of equal size that share no transition, for error bars: groups of paths, or of few paths
        stretches of them.

        >>> [len(block) for block in Trajectories(torch.zeros(10, 2, 1), [0.0, 1.0]).blocks(3)]
        [3, 4, 3]
        """
        if len(self) >= count:
            return [self[slice(*ends)] for ends in pairwise(round(i * len(self) / count) for i in range(count + 1))]
        pieces = -(-count // len(self))
        ends = [round(i * (self.states.shape[1] - 1) / pieces) for i in range(pieces + 1)]
        parts = []
        for path, (first, last) in product((self[i] for i in range(len(self))), pairwise(ends)):
            stretch = slice(first, min(last + 1, path._shortest()))
            if stretch.stop - first >= 2:
                parts.append(self._with(path.states[:, stretch], path.times[..., stretch], None))
        return parts

    def windows(self, width: int) -> Windows:
        """Every run of `width` consecutive observations of one path.

        >>> Trajectories(torch.arange(4.0).reshape(1, 4, 1), torch.arange(4)).windows(3).x[..., 0]
        tensor([[0., 1., 2.],
                [1., 2., 3.]])
        """
        if not 2 <= width <= self.states.shape[1]:
            raise ValueError(f"`width` must be from 2 to {self.states.shape[1]} observations; got {width}.")
        inside = self._observed(width)
        x = self.states.unfold(1, width, 1).movedim(-1, 2)[inside]
        t = self._path_times().unfold(1, width, 1)[inside]
        return Windows(x, t.to(x.dtype), t.diff(dim=1).to(x.dtype))

    def pairs(self) -> Pairs:
        """Every transition between neighbouring observations, with its own `t` and `dt`.

        >>> Trajectories([[[0.0], [1.0], [4.0]]], [0.0, 0.5, 1.5]).pairs().dx[:, 0]
        tensor([1., 3.], dtype=torch.float64)
        """
        inside = self._observed(2)
        times = self._path_times()
        x, dx = self.states[:, :-1][inside], self.states.diff(dim=1)[inside]
        t, dt = times[:, :-1][inside], times.diff(dim=1)[inside]
        return Pairs(x, t.to(x.dtype), dx, dt.to(x.dtype))

    def split(self, held_out: float = 0.2, *, seed: int = 0) -> tuple[Trajectories, Trajectories]:
        """Training and held-out paths, drawn by path so that no path is in both.

        >>> [len(part) for part in Trajectories(torch.zeros(10, 2, 1), [0.0, 1.0]).split(0.3)]
        [7, 3]
        """
        train, held = split_paths(len(self), held_out, seed=seed)
        return self[train.to(self.states.device)], self[held.to(self.states.device)]

    def coarsen(self, k: int) -> Trajectories:
        """Every k-th observation: the same paths, seen at a k times larger step.

        >>> Trajectories(torch.zeros(1, 5, 1), torch.arange(5)).coarsen(2).times
        tensor([0., 2., 4.], dtype=torch.float64)
        """
        shortest = self._shortest()
        if k < 1 or shortest <= k:
            raise ValueError(f"`coarsen({k})` must keep two observations of each path; the shortest has {shortest}.")
        lengths = None if self.lengths is None else (self.lengths + k - 1) // k
        return self._with(self.states[:, ::k], self.times[..., ::k], lengths)

    def cut(self, length: int) -> Trajectories:
        """Pieces of `length` consecutive observations as paths of their own, e.g. of one long stationary path.

        A piece begins with the observation that ends the one before, so that every transition is in exactly one. The
        last piece of a path may be shorter.

        >>> Trajectories(torch.arange(5.0).reshape(1, 5, 1), torch.arange(5)).cut(3).states[..., 0]
        tensor([[0., 1., 2.],
                [2., 3., 4.]])
        """
        if length < 2:
            raise ValueError(f"`length` must be two or more observations, to hold a transition; got {length}.")
        steps, ends, device = self.states.shape[1], self._ends, self.states.device
        length = min(length, steps)
        starts = torch.arange(0, steps - 1, length - 1, device=device)
        path, piece = (starts[None, :] < ends[:, None] - 1).nonzero(as_tuple=True)
        index = starts[piece, None] + torch.arange(length, device=device)
        index = index.minimum(ends[path, None] - 1)  # the padding repeats the last observation
        sizes = (ends[path] - starts[piece]).clamp(max=length)
        lengths = None if bool((sizes == length).all()) else sizes
        return self._with(self.states[path[:, None], index], self._path_times()[path[:, None], index], lengths)

    def to(self, *args: Any, **kwargs: Any) -> Trajectories:
        """The same data on another device or in another floating type (times stay float64)."""
        states = self.states.to(*args, **kwargs)
        lengths = None if self.lengths is None else self.lengths.to(states.device)
        return self._with(states, self.times.to(states.device), lengths)


class Pairs(NamedTuple):
    """Transitions x → x + Δx: `x`, `dx` (n, *state); `t`, `dt` (n,)."""

    x: Tensor
    t: Tensor
    dx: Tensor
    dt: Tensor


class Windows(NamedTuple):
    """Runs of consecutive observations: `x` (n, width, *state); `t` (n, width); their steps `dt` (n, width − 1)."""

    x: Tensor
    t: Tensor
    dt: Tensor


class Label(NamedTuple):
    """A name and a unit, written `x [m]`; the unit may be empty."""

    name: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    @staticmethod
    def parse(text: str) -> Label:
        """`x [m]` and `x (m)` are x in metres; anything else, `x[0]` too, is a name without a unit."""
        found = re.fullmatch(r"\s*(.*?)(?!\[\d+\])\s*[\[(]([^\[\]()]*)[\])]\s*", text)
        return Label(found[1], found[2].strip()) if found and found[1] else Label(text.strip())


class Labels(NamedTuple):
    """Of the time, and of each coordinate of a vector (each channel of a larger state), or of none of them."""

    time: Label = Label("t")
    state: tuple[Label, ...] = ()

    @staticmethod
    def read(texts: Iterable[str]) -> Labels:
        """From `["t [s]", "x [m]", …]`, as `texts` writes them; of nothing, the labels of no name."""
        parsed = [Label.parse(str(text)) for text in texts]
        return Labels(parsed[0], tuple(parsed[1:])) if parsed else Labels()

    def texts(self, size: int = 0) -> list[str]:
        """Of the time and of each coordinate: their own, or x[0], x[1], … for `size` of them where there are none."""
        return [str(self.time), *(map(str, self.state) if self.state else (f"x[{i}]" for i in range(size)))]


def _validate(data: Trajectories) -> None:
    states, times, lengths = data.states, data.times, data.lengths
    if states.ndim < 3 or states.numel() == 0:
        one = "One scalar path x(t)? Pass `x[None, :, None]`."
        raise ValueError(f"`states` must be (path, time, *state) and not empty; got shape {tuple(states.shape)}. {one}")
    paths, steps = states.shape[:2]
    if times.shape not in {(steps,), (paths, steps)}:
        wanted = f"({steps},) or ({paths}, {steps}) to match states {tuple(states.shape)}"
        raise ValueError(f"`times` must have shape {wanted}; got {tuple(times.shape)}.")
    if lengths is not None and (lengths.shape != (paths,) or int(lengths.max()) > steps):
        got = f"shape {tuple(lengths.shape)}, up to {int(lengths.max())}"
        raise ValueError(f"`lengths` must have one entry for each of the {paths} paths, up to {steps}; got {got}.")
    if (shortest := data._shortest()) < 2:
        found = f"path {int(data._ends.argmin())} has {shortest}"
        raise ValueError(f"Each path needs at least two observations; {found}. Drop such paths first.")
    if (names := data.labels.texts()[1:]) and len(names) != states.shape[2]:
        got = f"{len(names)}: {', '.join(names)}"
        raise ValueError(f"`labels` must name each of the {states.shape[2]} coordinates; got {got}.")
    _check_times(data)
    _check_finite(data)


def _check_times(data: Trajectories) -> None:
    times = data.times[None] if data.shared_times and data.lengths is None else data._path_times()
    inside = data._observed(2)[: len(times)]
    gaps = times.diff(dim=1)
    bad = inside & ~((gaps > 0) & gaps.isfinite())
    if bad.any():
        path, index = (int(i) for i in bad.nonzero()[0])
        step = f"path {path} goes from {times[path, index]:g} to {times[path, index + 1]:g} at index {index + 1}"
        fix = "Sort the observations and drop repeated times?"
        raise ValueError(f"`times` must be finite and increase along each path; {step}. {fix}")


def _check_finite(data: Trajectories) -> None:
    """One pass of sums: a NaN or Inf anywhere makes its block's sum non-finite; only then is it searched for."""
    start = 0
    for block in data.chunks():
        if not torch.isfinite(block.states.sum()):
            bad = ~torch.isfinite(block.states.flatten(2)) & block._observed()[..., None]
            if bad.any():
                path, index, _ = place = tuple(bad.nonzero()[0].tolist())
                where = f"path {start + path} has {float(block.states.flatten(2)[place])} at time index {index}"
                fix = "Drop the path, cut it there (`lengths`), or fill the value."
                raise ValueError(f"`states` must be finite; {where}. {fix}")
        start += len(block)


def _from_xarray(array: Any) -> tuple[Any, Any]:
    if not isinstance(array.dims, tuple):
        raise ValueError("`states` is an xarray Dataset; pass one of its arrays, e.g. `Trajectories(dataset['x'])`.")
    if array.dims[:2] != ("path", "time") or "time" not in array.coords:
        needed = "dimensions ('path', 'time', …) and a `time` coordinate"
        raise ValueError(f"An xarray array needs {needed}; got {array.dims}. Rename and transpose, or pass `times`.")
    return array.data, np.asarray(array.coords["time"])


def _real_tensor(array: Any, name: str) -> Tensor:
    """A floating tensor around the array, sharing its memory when it is one of floats."""
    array = array.detach() if isinstance(array, Tensor) else torch.from_numpy(_writable(array, name))
    if array.is_complex():
        raise ValueError(f"`{name}` must hold real numbers; got {array.dtype}. Pass `torch.view_as_real(x)`?")
    return array if array.is_floating_point() else array.double()


def _whole_numbers(lengths: Any) -> Tensor:
    lengths = torch.as_tensor(_writable(lengths, "lengths"))
    if not torch.equal(lengths, lengths.long()):
        raise ValueError(f"`lengths` must be whole numbers of observations; got {lengths.tolist()[:8]}.")
    return lengths.long()


def _writable(array: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(array)
    except ValueError as error:
        ragged = "Paths of different lengths? Pad them and pass `lengths`."
        raise ValueError(f"`{name}` must be one array of numbers. {ragged} ({error})") from error
    if array.dtype.kind not in "fiub":
        raise ValueError(f"`{name}` must hold numbers; got dtype {array.dtype}. Convert times to seconds or days?")
    if array.dtype.byteorder == ">" or array.dtype == np.float16 or array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if any(stride < 0 for stride in array.strides):
        return np.array(array)
    return array if array.flags.writeable else _private(array)


def _private(array: np.ndarray) -> np.ndarray:
    """The same numbers in memory that torch may call writable: a copy, or of (a view of) a map a copy-on-write one."""
    root: Any = array
    while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None:
        return np.array(array)
    twin = np.memmap(str(root.filename), np.uint8, "c", root.offset, (root.nbytes,))
    start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return np.ndarray(array.shape, array.dtype, twin, start, array.strides)


def split_paths(count: int, held_out: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the training and the held-out paths, drawn at random; at least one path is held out."""
    held = max(1, round(count * held_out))
    if held >= count or held_out <= 0:
        left = f"leaves {count - held} of {count} paths to train on; both sides need one"
        raise ValueError(f"`held_out` = {held_out:g} {left}. Cut long paths, or train without a check: `held_out=0`.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[held:].sort().values, order[:held].sort().values
