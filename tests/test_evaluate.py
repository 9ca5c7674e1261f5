"""`phibe evaluate FOLDER DATA`: a saved flow scored on any data, and one line when that cannot be."""

import json

import pytest
import torch
from problems import PAPER

from phibe import Trajectories, fit, save_flow
from phibe.cli import main
from phibe.io import save_data
from phibe.report import evaluate_run

TIMES = torch.linspace(0, 1, 11, dtype=torch.float64)


def observe(name: str, *, paths: int = 300, seed: int = 0, times=TIMES) -> Trajectories:
    return PAPER[name].simulate(paths=paths, times=times, seed=seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of `phibe fit` on the non-reversible process, which knows its data."""
    place = tmp_path_factory.mktemp("evaluate")
    save_data(observe("nonreversible"), place / "data.npz")
    data = str(place / "data.npz")
    assert main(["fit", data, "--model=affine", "--objective=symmetric", "--out", str(place / "run")]) == 0
    return place


def say(capsys, *arguments):
    capsys.readouterr()
    code = main(["evaluate", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_new_paths_of_the_process_are_matched_and_those_of_another_are_not(folder, tmp_path, capsys):
    save_data(observe("nonreversible", seed=1), tmp_path / "new.csv")
    save_data(observe("reversible", seed=1), tmp_path / "other.npz")
    before = sorted(path.name for path in (folder / "run").iterdir())
    code, out, _ = say(capsys, folder / "run", tmp_path / "new.csv", "--json", tmp_path / "new.json")
    assert code == 0 and "\ngood\n" in out and "new to the fit" in out and "persistence" in out
    assert say(capsys, folder / "run", tmp_path / "other.npz")[1].splitlines()[1] == "not trustworthy"
    found = json.loads((tmp_path / "new.json").read_text("utf8"))
    assert found["verdict"] == "good" and found["data"]["held_out_paths"] == 60 and len(found["marginals"]) > 3
    assert sorted(path.name for path in (folder / "run").iterdir()) == before


def test_on_its_own_data_a_run_is_judged_by_its_held_out_paths(folder, tmp_path, capsys):
    code, out, _ = say(capsys, folder / "run", folder / "data.npz", "--json", tmp_path / "own.json")
    kept = json.loads((folder / "run" / "quality.json").read_text("utf8"))
    found = json.loads((tmp_path / "own.json").read_text("utf8"))
    assert code == 0 and "its held-out paths" in out
    assert found["marginals"] == kept["marginals"] and found["held_out"] == kept["held_out"]


def test_a_flow_that_was_saved_is_scored_too(tmp_path, capsys):
    save_flow(fit(observe("reversible"), "basis", "symmetric", progress=False), tmp_path / "flow")
    save_data(observe("reversible", seed=3), tmp_path / "new.npz")
    code, out, _ = say(capsys, tmp_path / "flow", tmp_path / "new.npz")
    assert code == 0 and "\ngood\n" in out


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Trajectories(torch.randn(20, 11, 3).double(), TIMES), r"states \(2,\); this data has \(3,\)"),
        (observe("nonreversible", paths=20, times=3 * TIMES), "from t = 0 to 1; this data goes from 0 to 3"),
    ],
)
def test_data_that_the_flow_is_not_for_gets_one_line(folder, tmp_path, capsys, data, says):
    save_data(data, tmp_path / "new.npz")
    code, out, err = say(capsys, folder / "run", tmp_path / "new.npz", "--json", tmp_path / "new.json")
    assert code == 2 and out == "" and err.count("\n") == 1 and not (tmp_path / "new.json").exists()
    with pytest.raises(ValueError, match=says):
        evaluate_run(folder / "run", data)


def test_what_is_not_there_or_would_be_overwritten_gets_one_line(folder, tmp_path, capsys):
    data = folder / "data.npz"
    for arguments in ((tmp_path, data), (folder / "run", tmp_path / "none.csv"), (folder / "run",)):
        code, out, err = say(capsys, *arguments)
        assert code == 2 and out == "" and err.startswith("phibe: ") and err.count("\n") == 1
    code, _, err = say(capsys, folder / "run", data, "--json", data)
    assert code == 2 and "the data itself" in err
