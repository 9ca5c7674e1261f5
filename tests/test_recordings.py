"""The measured pendulum: its files read back as a known motion, its runs left out, its flow on runs new to it."""

import gzip
import json
import re
from itertools import combinations

import numpy as np
import pytest
import torch

from phibe.cli import main
from phibe.experiments.pendulum import real as pendulum_real
from phibe.experiments.pendulum.acrobot import Acrobot
from phibe.experiments.pendulum.measured import RATE, open_runs, read_markers, states_of, write_markers
from phibe.experiments.pendulum.stretches import TRIVIAL, Stretches, mean_of, measured, score


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


def test_every_run_is_left_out_once_and_is_in_one_part_only():
    config = pendulum_real.PRESETS["laptop"]
    fits = [pendulum_real.Fit("symmetric", fold=fold) for fold in range(config.folds)]
    assert sorted(run for fit in fits for run in fit.split(config)[2]) == sorted(config.runs)
    for fit in [*fits, pendulum_real.Fit("symmetric")]:
        parts = [set(part) for part in fit.split(config)]
        assert set().union(*parts) == set(config.runs)
        assert not any(one & other for one, other in combinations(parts, 2))


def test_an_interval_grouped_by_run_knows_that_the_stretches_of_a_run_are_alike():
    """Of twelve runs that differ as much as their stretches do; taken one by one, the stretches promise too much."""
    generator = torch.Generator().manual_seed(0)
    found = {"by run": 0, "one by one": 0}
    for k in range(100):
        values = torch.randn(12, 1, generator=generator) + torch.randn(12, 20, generator=generator)
        ways = {"by run": list(values), "one by one": [values.flatten()]}
        means = {how: mean_of(some, seed=k, resamples=400) for how, some in ways.items()}
        found = {how: count + (means[how].low < 0 < means[how].high) for how, count in found.items()}
    assert found["by run"] >= 85 and found["one by one"] < 70


def test_stretches_follow_one_another_inside_a_piece_and_a_steady_rotation_has_no_error():
    turning = torch.tensor([3.0, -8.0], dtype=torch.float64) * torch.arange(900, dtype=torch.float64)[:, None] / RATE
    states = torch.cat([turning, torch.tensor([3.0, -8.0], dtype=torch.float64).expand(900, 2)], dim=1)
    run = Stretches([states, states[:300]], stride=4, horizon=0.5, decay=2.0)
    assert run.short.shape == (4 + 1, 51, 4) and run.long.shape == (1, 201, 4)
    assert torch.equal(run.short[0, -1], run.short[1, 0]) and torch.equal(run.short[0, 1], states[4])
    error = {name: score(forecast, [run]).after(0.5)[0] for name, forecast in TRIVIAL.items()}
    assert error["constant velocity"].max() < 1e-9
    rms = np.sqrt((1.5**2 + 2.5**2) / 2)  # how far the links have turned, 3 and 3 − 8 rad/s
    assert error["persistence"].numpy() == pytest.approx(np.rad2deg(rms))
    assert measured([run]).late()[0].min() > 0


# -- `phibe evaluate pendulum` -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """What the committed flow itself does in twelve seconds, and what a simulated pendulum does, as recorded files."""
    folder = tmp_path_factory.mktemp("recordings")
    times = torch.arange(4100, dtype=torch.float64) / RATE
    start = torch.tensor([[-0.6, 2.3, 16.0, 8.0], [-0.9, 2.0, 12.0, 10.0]], dtype=torch.float64)
    own = pendulum_real.committed_flow().generate(start, times, method="heun").states
    write_markers(folder / "own.csv", own[0])
    with gzip.open(folder / "own too.csv.gz", "wb") as file:
        file.write(write_markers(folder / "too.csv", own[1]).read_bytes())
    write_markers(
        folder / "other.csv", Acrobot(0, 0).simulate(start=start[:1], times=times[:900], substeps=1).states[0]
    )
    (folder / "short.csv").write_bytes(b"\n".join((folder / "own.csv").read_bytes().splitlines()[:700]))
    (folder / "cut.csv.gz").write_bytes((folder / "own too.csv.gz").read_bytes()[:5000])
    (folder / "table.csv").write_text("path,time,x\n" + "0,0.1,1\n" * 900, "utf8")
    (folder / "still.csv").write_text("5,5,5,5,5,5\n" * 900, "utf8")
    return folder


def evaluate(capsys, *arguments):
    capsys.readouterr()
    code = main(["evaluate", "pendulum", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_committed_flow_forecasts_a_recording_of_its_own_motion_and_not_of_another_pendulum(
    recordings, tmp_path, capsys
):
    found = {}
    for name, files in {"own": ["own.csv", "own too.csv.gz"], "other": ["other.csv"]}.items():
        out = tmp_path / f"{name}.json"
        code, said, _ = evaluate(capsys, *(recordings / file for file in files), "--json", out)
        found[name] = json.loads(out.read_text("utf8"))
        assert code == 0 and found[name]["flow"] in said and ("last second" in said) == (name == "own")
    own, other = (found[name]["degrees"][found[name]["flow"]]["0.1"] for name in ("own", "other"))
    still = found["own"]["degrees"]["persistence"]["0.1"]
    assert own[2] < 3 and other[1] > 10 * own[2] and still[1] > 10 * own[2]
    assert found["own"]["stretches"] == 10 * found["other"]["stretches"] == 20 and found["other"]["speed"] is None
    first, last, by_flow = (found["own"]["speed"][name][0] for name in ("first", "last", "last_by_flow"))
    assert last < 0.95 * first and by_flow < 0.95 * first  # friction, in both


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("none.csv", "no file"),
        ("table.csv", "six columns"),
        ("cut.csv.gz", "not a table"),
        ("short.csv", "too short.*two stretches of 1 s.*has 1"),
        ("still.csv", "no 11 good rows"),
    ],
)
def test_a_recording_that_cannot_be_evaluated_gets_one_line(recordings, tmp_path, capsys, file, says):
    out = tmp_path / "found.json"
    code, said, error = evaluate(capsys, recordings / "own.csv", recordings / file, "--json", out)
    assert (code, said, error.count("\n"), out.exists()) == (2, "", 1, False)
    assert re.search(says, error) and file in error


def test_no_recording_at_all_and_one_that_would_be_overwritten_get_one_line(recordings, capsys):
    assert "required: runs" in evaluate(capsys)[2]
    own = recordings / "own.csv"
    code, _, error = evaluate(capsys, own, "--json", own)
    assert code == 2 and "one of the runs" in error and len(own.read_text("utf8").splitlines()) == 4100
