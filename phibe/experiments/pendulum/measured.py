"""Recordings of a double pendulum: files of marker positions in pixels, read as angles and smoothed velocities.

The form is that of the "Double Pendulum Chaotic" data set of IBM (Asseman, Kornuta, Ozcan 2018): no header, 400 rows a
second, pixel x, y of the pivot, the middle and the end marker; y points down. Read next: `real.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from phibe.experiments.pendulum.rendering import joints
from phibe.files import replacing
from phibe.trajectories import Trajectories

RATE = 400.0
WINDOW, DEGREE = 11, 3
"""Rows and degree of the local polynomial that smooths: 27.5 ms, short against the fastest rotation."""
TOLERANCE = 0.05
"""A link that is longer or shorter than usual by this fraction was measured wrongly."""
BRIDGE = 10
"""Rows that may be missing between two good ones; a longer gap cuts the run in two."""


def read_markers(path: str | Path) -> np.ndarray:
    """The file's six columns, (rows, 6) in pixels, with NaN where a number is missing; `.gz` is read as it is."""
    try:
        rows = np.genfromtxt(Path(path), delimiter=",", dtype=float, encoding="utf8")
    except FileNotFoundError:
        raise ValueError(f"There is no file {path}.") from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a table of six numbers a row: {error}") from error
    if rows.ndim != 2 or rows.shape[1] != 6 or len(rows) < WINDOW or np.isnan(rows).all():
        raise ValueError(
            f"{path} must have six columns (x, y of pivot, middle and end marker) and {WINDOW} rows or more; "
            f"got shape {rows.shape}. Another separator than a comma?"
        )
    return rows


def states_of(markers: np.ndarray) -> list[Tensor]:
    """The run as states (θ₁, θ₂, θ̇₁, θ̇₂), in pieces (rows, 4) between gaps too long to bridge, with their times' rows.

    θ₁ is the first link's angle from the downward vertical, θ₂ the second's from the first; not wrapped. A row with a
    missing number or with a link of the wrong length is left out and bridged by a straight line in the angles; a local
    polynomial then smooths them and gives the velocities. Its noise is about a third of the measured one.
    """
    first, second = markers[:, 2:4] - markers[:, :2], markers[:, 4:] - markers[:, 2:4]
    good = np.flatnonzero(_right_length(first) & _right_length(second))
    cuts = np.flatnonzero(np.diff(good) > BRIDGE + 1) + 1
    pieces = (part for part in np.split(good, cuts) if len(part) and part[-1] - part[0] >= WINDOW)
    return [_smooth(first, second, part) for part in pieces]


def _right_length(link: np.ndarray) -> np.ndarray:
    length = np.hypot(*link.T)
    usual = np.nanmedian(length)
    return np.abs(length - usual) < TOLERANCE * usual  # NaN compares as wrong


def _smooth(first: np.ndarray, second: np.ndarray, rows: np.ndarray) -> Tensor:
    """States on every row from the first to the last of `rows`, (n, 4)."""
    from scipy.signal import savgol_filter  # here, as it takes two seconds to import

    every = np.arange(rows[0], rows[-1] + 1)
    turned = [np.unwrap(np.arctan2(*link[rows].T)) for link in (first, second)]
    one, two = (np.interp(every, rows, angle) for angle in turned)
    angles = np.stack([one, two - one], axis=1)
    smooth = savgol_filter(angles, WINDOW, DEGREE, axis=0)
    speeds = savgol_filter(angles, WINDOW, DEGREE, deriv=1, delta=1 / RATE, axis=0)
    return torch.from_numpy(np.concatenate([smooth, speeds], axis=1))


def open_runs(folder: str | Path, numbers: Sequence[int]) -> Trajectories:
    """The runs 0.csv, 1.csv, … (or .csv.gz) of a folder at 400 states a second, ragged; each piece is a path."""
    return ragged([piece for number in numbers for piece in open_run(file_of(folder, number))])


def open_run(file: str | Path) -> list[Tensor]:
    """The pieces of one run, (rows, 4) each."""
    if pieces := states_of(read_markers(file)):
        return pieces
    raise ValueError(f"{file} has no {WINDOW} good rows on end: the lengths of its links change all the time.")


def ragged(pieces: Sequence[Tensor]) -> Trajectories:
    """Pieces of runs as paths that all begin at time 0."""
    lengths = torch.tensor([len(piece) for piece in pieces])
    states = torch.nn.utils.rnn.pad_sequence([*pieces], batch_first=True)
    return Trajectories(states, torch.arange(states.shape[1], dtype=torch.float64) / RATE, lengths)


def file_of(folder: str | Path, number: int) -> Path:
    """Of that run in a folder; the plain one if there is none."""
    plain = Path(folder) / f"{number}.csv"
    return next((file for file in (plain, plain.with_suffix(".csv.gz")) if file.exists()), plain)


def write_markers(path: str | Path, angles: Tensor, *, arms: tuple[float, float] = (604.0, 462.0)) -> Path:
    """Write angles (rows, ≥ 2) as a file of the same form, whole pixels and all."""
    elbow, end = joints(angles.double())
    middle = 1200 + arms[0] * elbow * torch.tensor([1.0, -1.0])
    tip = middle + arms[1] * (end - elbow) * torch.tensor([1.0, -1.0])
    rows = torch.cat([torch.full_like(middle, 1200.0), middle, tip], dim=1).round().int()
    with replacing(path) as partial:
        np.savetxt(partial, rows.numpy(), fmt="%d", delimiter=",")
    return Path(path)
