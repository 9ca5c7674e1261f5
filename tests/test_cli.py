"""The command line, from a file of trajectories to generated ones, and what it says when it cannot."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from problems import PAPER

from phibe import Trajectories
from phibe.cli import Options, convert, experiments, main
from phibe.experiments.report import Experiment, MissingData
from phibe.io import open_data, parse_times, save_data
from phibe.objectives import OBJECTIVES
from phibe.training.config import FitConfig
from phibe.training.runs import open_flow

ROOT = Path(__file__).resolve().parent.parent
MIXED = {"width": 64, "time": False, "blocks": [1, 2], "activation": "silu"}
QUICK = ["--model", "mlp", "--steps=12", "--batch=16", "--evaluate-every", "6", "--model_arguments", "width=8"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, with data.npz: 20 paths of the reversible process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHIBE_PRESET", raising=False)
    times = torch.linspace(0, 1, 6, dtype=torch.float64)
    save_data(PAPER["reversible"].simulate(paths=20, times=times, seed=0), "data.npz")
    return tmp_path


@pytest.fixture
def say(capsys):
    """Run a command; its exit code, output and errors (the progress bars left out)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, "\n".join(line for line in err.splitlines() if line.startswith("phibe"))

    return run


# -- from data to trajectories -----------------------------------------------------------------------------------------


def test_check_fit_and_generate_belong_together(here, say):
    code, out, err = say("check", "data.npz")
    assert (code, err) == (0, "")
    for fact in (
        "20",
        "6 a path, from 0 to 1, shared by all paths",
        "0.2",
        "shape (2,), float64",
        "|Δx|²/Δt",
        "x[1]",
        "advice",
    ):
        assert fact in out

    code, out, err = say("fit", "data.npz", "--objective", "regression", "--out", "run", *QUICK)
    assert (code, err) == (0, "")
    assert "finished after 12 steps, best held-out objective" in out
    assert "mlp(width=8, depth=5, activation=silu, time=True), normalised" in out
    assert "steps=12, batch=16, ema=0.99, held_out=0.2, evaluate_every=6, patience=15" in out
    assert say("check", "run")[1] in out

    code, out, err = say("generate", "run", "--paths-of", "data.npz", "--out", "made.npz")
    assert (code, err) == (0, "")
    data, made, flow = open_data("data.npz"), open_data("made.npz"), open_flow("run")
    assert torch.equal(made.states, flow.generate(data.states[:, 0], data.times).states)

    np.savez("start.npz", x0=data.states[:3, 0].numpy())
    code, out, _ = say(
        "generate", "run", "--from", "start.npz", "--times", "0:0.5:0.1", "--method", "rk4", "--out", "some.zarr"
    )
    assert code == 0
    assert "some.zarr: Trajectories(3 paths × 6 times, state (2,), t from 0 to 0.5" in out


def test_the_same_call_again_returns_the_finished_run_and_another_is_refused(here, say):
    assert say("fit", "data.npz", "--objective=regression", *QUICK)[0] == 0
    out = here / "runs" / "fit" / "data"
    before = (out / "weights.safetensors").stat().st_mtime_ns
    assert say("fit", "data.npz", "--objective=regression", *QUICK)[0] == 0
    assert (out / "weights.safetensors").stat().st_mtime_ns == before
    code, _, err = say("fit", "data.npz", "--objective=regression", *QUICK, "--seed", "7")
    assert code == 2
    assert "holds another run (config.json): config.seed: 0 then, 7 now" in err


def test_the_options_are_printed_saved_and_read_again(here, say):
    code, out, _ = say("fit", "data.npz", "--learning-rate", "0.02", "--ema=0.5", "--print-config")
    assert code == 0
    printed = json.loads(out)
    assert printed["learning_rate"] == 0.02
    automatic = dict.fromkeys(("steps", "batch", "held_out", "patience"))  # by the data, unless given
    expected = vars(FitConfig(learning_rate=0.02, ema=0.5)) | automatic
    assert {name: printed[name] for name in vars(FitConfig())} == expected
    (here / "fit.json").write_text(out, "utf8")
    assert say("fit", "--config", "fit.json", "--objective", "regression", "--out", "run", *QUICK)[0] == 0
    config = json.loads((here / "run" / "config.json").read_text("utf8"))["config"]
    assert (config["learning_rate"], config["ema"], config["steps"]) == (0.02, 0.5, 12)
    saved = json.loads((here / "run" / "options.json").read_text("utf8"))
    given = {"objective": "regression", "out": "run", "steps": 12, "batch": 16, "evaluate_every": 6, "model": "mlp"}
    assert saved == printed | given | {"model_arguments": {"width": 8}}


def test_data_of_other_kinds_is_described(here, say):
    own = torch.tensor([[0.0, 0.1, 0.5], [0.0, 0.2, 0.3]], dtype=torch.float64)
    save_data(Trajectories(torch.randn(2, 3, 9, 2, 2), own, lengths=[3, 2]), "ragged.zarr")
    code, out, _ = say("check", "ragged.zarr")
    assert code == 0
    for fact in ("2 to 3 a path", "each path its own", "(median; from 0.1 to 0.4)", "(9, 2, 2)", "1 more"):
        assert fact in out


def test_an_unfinished_run_says_where_it_goes_on(here, say, monkeypatch):
    from phibe.training import loop

    def accumulate(*args, **kwargs):
        steps.append(0)
        if len(steps) > 9:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    steps, whole = [], loop.accumulate
    monkeypatch.setattr(loop, "accumulate", accumulate)
    arguments = ("fit", "data.npz", "--objective=regression", "--out", "run", "--checkpoint_every", "4", *QUICK)
    code, _, err = say(*arguments)
    assert (code, err) == (130, "phibe: interrupted")
    assert "not finished: it goes on at step 8 of 12" in say("check", "run")[1]
    code, _, err = say("generate", "run", "--paths-of", "data.npz", "--out", "made.npz")
    assert (code, "has not finished" in err) == (2, True)
    monkeypatch.undo()
    os.chdir(here)
    assert "finished after 12 steps" in say(*arguments)[1]


def test_times_are_read_and_those_that_cannot_be_are_refused():
    for text, values in (
        ("0:1:0.25", [0, 0.25, 0.5, 0.75, 1]),
        ("1:0:-0.5", [1, 0.5, 0]),
        ("0:0.3:0.1", [0, 0.1, 0.2, 0.3]),
        ("0, 0.5,2", [0, 0.5, 2]),
    ):
        torch.testing.assert_close(parse_times(text), torch.tensor(values, dtype=torch.float64))
    for text in ("0:1", "0:1:0.3", "0:1:0", "a,b", "1:0:0.1", ""):
        with pytest.raises(ValueError, match="--times must be first:last:step"):
            parse_times(text)


# -- experiments -------------------------------------------------------------------------------------------------------


def test_every_objective_is_listed_with_what_it_needs(say):
    code, out, _ = say("objectives")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(OBJECTIVES)
    assert "reversible" in out and "Markov" in out


def test_every_experiment_is_listed_and_explains_its_fields(say):
    code, out, _ = say("list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(experiments.EXPERIMENTS)
    for name in experiments.EXPERIMENTS:
        code, out, _ = say("run", name, "--help")
        assert code == 0
        fields = vars(experiments.experiment(name).presets["smoke"])
        assert all(f"--{field.replace('_', '-')}" in out for field in fields)
    assert say("run", "--help")[0] == 0


@pytest.fixture
def recorded(monkeypatch):
    """Experiments that only remember how they were run."""

    def run(self, preset, *, out=None, config=None):
        calls.append((self.name, preset, out, config))
        return SimpleNamespace(seconds=0.1)

    calls = []
    monkeypatch.setattr(Experiment, "run", run)
    return calls


def test_presets_and_fields_reach_the_experiment(here, say, recorded, monkeypatch):
    module = experiments.experiment("ou")
    assert say("run", "ou")[0] == 0
    assert say("run", "ou", "--preset=smoke", "--training.steps", "5", "--seeds", "[4,5]", "--out", "x")[0] == 0
    assert say("run", "ou", "--preset", "paper")[0] == 0
    monkeypatch.setenv("PHIBE_PRESET", "smoke")
    assert say("run", "ou")[0] == 0
    laptop, smoke, paper, from_environment = recorded
    assert laptop == ("ou", "laptop", Path("runs/ou/laptop"), module.presets["laptop"])
    assert smoke[1:3] == ("smoke", Path("x"))
    assert (smoke[3].training.steps, smoke[3].seeds) == (5, (4, 5))
    assert smoke[3].paths == module.presets["smoke"].paths
    assert paper == ("ou", "paper", Path("runs/ou/paper"), module.presets["paper"])
    assert from_environment[1] == "smoke"


def test_a_run_is_repeated_from_the_options_that_it_prints(here, say, recorded):
    fields = ("--seeds=4,5", "--training.learning_rate", "0.5", "--training.noise=none")
    code, out, _ = say("run", "ou", "--preset", "smoke", *fields, "--print-config")
    assert (code, recorded) == (0, [])
    (here / "run.json").write_text(out, "utf8")
    assert say("run", "ou", "--config", "run.json")[0] == 0
    smoke = experiments.experiment("ou").presets["smoke"]
    expected = replace(smoke, seeds=(4, 5), training=replace(smoke.training, learning_rate=0.5))
    assert recorded == [("ou", "smoke", Path("runs/ou/smoke"), expected)]
    (here / "preset.json").write_text(
        '{"preset": "smoke", "training": {"steps": 3}}', "utf8"
    )  # the rest is that of the preset
    assert say("run", "ou", "--config", "preset.json", "--out", "x")[0] == 0
    assert recorded[1][3] == replace(smoke, training=replace(smoke.training, steps=3))


def test_artifacts_are_run_at_laptop_scale(here, say, recorded, monkeypatch):
    kept = []
    monkeypatch.setattr("phibe.experiments.report.keep", lambda out, name: kept.append((str(out), name)))
    monkeypatch.setenv("PHIBE_PRESET", "paper")  # which must not matter here
    assert say("artifacts")[0] == 0
    assert [call[1] for call in recorded] == ["laptop"] * len(experiments.EXPERIMENTS)
    assert kept == [(f"runs/{name}/laptop", name) for name in experiments.EXPERIMENTS]


def test_an_experiment_without_its_data_keeps_its_report(here, say, recorded, monkeypatch):
    def missing(self, preset, *, out=None, config=None):
        if self.name == "pendulum_real":
            raise MissingData("Fetch the runs first.")

    kept = []
    monkeypatch.setattr(Experiment, "run", missing)
    monkeypatch.setattr("phibe.experiments.report.keep", lambda out, name: kept.append(name))
    code, out, _ = say("artifacts")
    assert code == 0
    assert "pendulum_real stays as it is. Fetch the runs first." in out
    assert set(kept) == set(experiments.EXPERIMENTS) - {"pendulum_real"}


def test_values_of_every_kind_are_read():
    for text, kind, value in (
        ("1e-3", float, 1e-3),
        ("2", int | None, 2),
        ("none", float | None, None),
        ("False", bool, False),
        ("x, y", tuple[str, ...], ("x", "y")),
        ('["a,b","c"]', tuple[str, ...], ("a,b", "c")),
        ("(4,5)", tuple[int, ...], (4, 5)),
        ("[]", tuple[int, ...], ()),
        ('[["euler",1],["rk4",2]]', tuple[tuple[str, int], ...], (("euler", 1), ("rk4", 2))),
        (["width=64", "time=false", "blocks=[1,2]", "activation=silu"], dict[str, Any], MIXED),
        (['{"width": 64, "time": false, "blocks": [1, 2], "activation": "silu"}'], dict[str, Any], MIXED),
        (["rk4=2"], dict[str, int], {"rk4": 2}),
    ):
        assert convert(text, kind) == value


def test_values_of_another_kind_are_refused():
    for text, kind in (
        ("1.5", int),
        (True, int),
        ("", float),
        ("1", bool),
        ("1", tuple[int, int]),
        ("a,1", tuple[int, ...]),
        (["=1"], dict[str, Any]),
        (None, dict[str, Any]),
        ("a=1", dict[str, Any]),
        (3, str),
    ):
        with pytest.raises(ValueError):
            convert(text, kind)


def test_an_argument_may_stand_anywhere():
    options = Options("any", "", "")
    options.add("data", str)
    options.add("--steps", int, 1)
    options.add("--extrapolate", bool, False)
    expected = {"data": "a.csv", "steps": 2, "extrapolate": True}
    for line in ("a.csv --steps 2 --extrapolate", "--steps 2 a.csv --extrapolate", "--extrapolate --steps=2 a.csv"):
        assert options.parse(line.split()) == expected


def test_a_value_may_begin_with_a_minus():
    options = Options("any", "", "")
    options.add("--times", str)
    options.add("--shift", float)
    assert options.parse(["--times", "-1:0:0.5", "--shift", "-1e-3"]) == {"times": "-1:0:0.5", "shift": -1e-3}


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fitt", "there is no command 'fitt' (did you mean fit?). See `phibe --help`."),
        ("fit", "fit: the following arguments are required: data"),
        ("fit data.npz --stepz 3", "there is no option --stepz (did you mean --steps?)."),
        ("fit data.npz --steps many", "--steps needs int; got 'many'."),
        ("fit data.npz --objective fibe", "--objective needs one of auto, phibe, "),
        (
            "fit data.npz --model cnn",
            "--model needs one of auto, affine, basis, mlp, residual, unet, transformer; got 'cnn'.",
        ),
        ("fit data.npz --model_arguments width", "--model-arguments needs pairs as name=value; got 'width'."),
        ("fit data.npz --balance maybe", "--balance needs true or false; got 'maybe'."),
        ("fit data.npz --steps", "--steps needs a value."),
        ("fit data.npz --config none.json", "there is no file none.json."),
        ("fit data.npz --config text.npz", "text.npz is not JSON"),
        ("fit data.npz --config wrong.json", "wrong.json: there is no option stepz (did you mean steps?)."),
        ("fit data.npz --config kind.json", "--steps needs int; got 1.5."),
        ("fit data.npz --model unet", "This U-Net takes states (channels, height, width)"),
        ("check none.npz", "There is no file none.npz."),
        ("generate none --paths-of data.npz --out a.npz", "There is no run in none"),
        ("generate run --out a.npz", "needs one of --from START, --paths-of DATA and --ensemble N."),
        (
            "generate run --paths-of data.npz --out b.txt",
            "needs --out, a file that ends in .csv, .npz, .npy, .nc, .zarr",
        ),
        ("run", "needs one of ou_theory, affine_ou"),
        ("run ou_theroy", "(did you mean ou_theory?)"),
        ("run ou --preset huge", "the preset must be one of smoke, laptop, paper; got 'huge'."),
        ("run ou --preset smoke --stepz 3", "there is no option --stepz (did you mean --training.steps?)."),
        ("run ou --preset smoke --seeds 4,few", "--seeds needs values between commas, each int; got '4,few'."),
        ("list everything", "there is no option everything"),
    ],
)
def test_errors_are_one_line_with_exit_code_2(here, say, arguments, message):
    (here / "text.npz").write_text("hello", encoding="utf8")
    (here / "wrong.json").write_text('{"stepz": 3}', "utf8")
    (here / "kind.json").write_text('{"steps": 1.5}', "utf8")
    code, out, err = say(*arguments.split())
    assert code == 2
    assert out == "" or out.startswith("automatic settings")
    assert message in err
    assert "\n" not in err
    assert err.startswith("phibe: ")
    assert not (here / "runs").exists()


def test_errors_of_generation_are_one_line_too(here, say):
    say("fit", "data.npz", "--objective", "regression", "--out", "run", *QUICK)
    np.savez("wide.npz", x0=np.zeros((2, 3)))
    np.savez("two.npz", a=np.zeros((2, 2)), b=np.zeros((2, 2)))
    cases = [
        ("--paths-of data.npz --times 0,3", "This flow was fitted on [0, 1]; `times` goes from 0 to 3."),
        ("--from wide.npz --times 0,1", "This flow was fitted on states (2,); got (3,)."),
        ("--from data.npz --times 0,1", "Trajectories? Use --paths-of."),
        ("--from two.npz --times 0,1", "must hold one array x0 of states; it holds ['a', 'b']"),
        ("--from two.npz", "must hold one array x0"),
    ]
    for arguments, message in cases:
        code, _, err = say("generate", "run", "--out", "made.npz", *arguments.split())
        assert code == 2
        assert message in err
    assert not (here / "made.npz").exists()


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "phibe", "run", "nothing"], capture_output=True, encoding="utf8", cwd=ROOT
    )
    assert done.returncode == 2
    assert done.stderr.startswith("phibe: run: needs one of")
    assert "Traceback" not in done.stderr
