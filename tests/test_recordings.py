"""The measured pendulum's files: angles and velocities of a known motion, gaps, wrong rows, and bad files."""

import numpy as np
import pytest
import torch

from phibe.experiments.pendulum import real as pendulum_real
from phibe.experiments.pendulum.acrobot import Acrobot
from phibe.experiments.pendulum.measured import RATE, open_runs, read_markers, states_of, write_markers


@pytest.fixture(scope="module")
def motion() -> torch.Tensor:
    times = torch.arange(800, dtype=torch.float64) / RATE
    start = torch.tensor([[2.5, 1.0, 3.0, -8.0]], dtype=torch.float64)
    return Acrobot(0, 0).simulate(start=start, times=times, substeps=1).states[0]


@pytest.fixture
def run(motion, tmp_path) -> np.ndarray:
    return read_markers(write_markers(tmp_path / "0.csv", motion))


def without_turns(gap: torch.Tensor) -> torch.Tensor:
    """A measured angle may start whole turns away from the true one; then it stays as many away."""
    turns = torch.cat([gap[:1, :2] / (2 * np.pi), torch.zeros(1, 2, dtype=gap.dtype)], dim=1).round()
    return gap - 2 * np.pi * turns


def test_angles_and_velocities_come_back(run, motion):
    """To what whole pixels allow: half a pixel of 462 is a milliradian, and smoothing takes two thirds off."""
    (states,) = states_of(run)
    error = without_turns(states - motion).square().mean(0).sqrt()
    assert error[:2].max() < 1.5e-3
    assert error[2] < 0.07 and error[3] < 0.15 and motion[:, 2:].abs().max() > 5
    rough = np.gradient(np.unwrap(np.arctan2(*(run[:, 2:4] - run[:, :2]).T)), 1 / RATE)
    assert (rough - motion[:, 2].numpy()).std() > 2 * error[2]  # plain differences are far noisier


def test_wrong_and_missing_rows_are_bridged(run, motion):
    run[100:104, 2:4] += 200  # a marker found elsewhere
    run[300:308] = np.nan
    (states,) = states_of(run)
    assert states.shape == motion.shape
    assert without_turns(states - motion)[:, :2].abs().max() < 0.03


def test_a_long_gap_cuts_the_run(run, motion):
    run[400:440] = np.nan
    pieces = states_of(run)
    assert [len(piece) for piece in pieces] == [400, 360]
    assert without_turns(pieces[1] - motion[440:])[:, :2].abs().max() < 0.03


def test_runs_of_different_lengths_are_ragged(motion, tmp_path):
    write_markers(tmp_path / "0.csv", motion)
    write_markers(tmp_path / "1.csv", motion[:500])
    data = open_runs(tmp_path, (0, 1))
    assert data.lengths.tolist() == [800, 500]
    assert data.states.shape == (2, 800, 4)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="no file"):
        open_runs(tmp_path, (7,))
    (tmp_path / "1.csv").write_text("1;2;3\n" * 20, encoding="utf8")
    with pytest.raises(ValueError, match="six columns"):
        read_markers(tmp_path / "1.csv")
    (tmp_path / "2.csv").write_text("1,2,3,4,5,6\n1,2\n" * 10, encoding="utf8")
    with pytest.raises(ValueError, match="six numbers"):
        read_markers(tmp_path / "2.csv")


def test_without_the_data_the_experiment_says_what_it_needs(tmp_path):
    config = pendulum_real.Config(folder=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="Double Pendulum Chaotic.*--folder"):
        pendulum_real.PENDULUM_REAL.run("laptop", out=tmp_path, config=config)
