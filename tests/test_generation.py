"""Generation: log-densities along the flow, ensembles, and files of every kind, forwards and backwards in time."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import normal, real

from phibe import OU, Flow, Trajectories, open_data, open_flow
from phibe.cli import main
from phibe.ensembles import draw_states, fit_density, generate_with_density, states_at
from phibe.io import save_data
from phibe.trajectories import Labels

OU2 = OU.nonreversible()
TIMES = torch.linspace(0, 1, 21, dtype=torch.float64)


def test_the_log_density_along_the_exact_flow_is_that_of_the_marginals():
    flow, start = Flow(OU2.velocity), OU2.marginal(0.0)
    x0 = start.sample(30, generator=torch.Generator().manual_seed(0))
    how = {"method": "rk4", "substeps": 4, "extrapolate": False}
    made, log_density = generate_with_density(flow, x0, TIMES, start=start.log_density, **how)
    exact = torch.stack([OU2.marginal(t).log_density(made.states[:, i]) for i, t in enumerate(TIMES)], dim=1)
    torch.testing.assert_close(log_density, exact, rtol=0, atol=1e-6)
    assert float((log_density[:, -1] - log_density[:, 0]).abs().min()) > 0.1  # it is not carried unchanged


def test_backwards_the_log_density_comes_out_in_the_order_of_time():
    flow, end = Flow(OU2.velocity), OU2.marginal(1.0)
    x1 = end.sample(5, generator=torch.Generator().manual_seed(0))
    how = {"method": "rk4", "substeps": 4, "extrapolate": False}
    made, log_density = generate_with_density(flow, x1, TIMES[5:].flip(0), start=end.log_density, **how)
    assert torch.equal(made.times, TIMES[5:]) and torch.equal(made.states[:, -1], x1)
    exact = OU2.marginal(TIMES[5]).log_density(made.states[:, 0])
    torch.testing.assert_close(log_density[:, 0], exact, rtol=0, atol=1e-6)


def test_the_density_of_a_start_is_a_gaussian_or_not():
    gaussian = fit_density(normal(400, 2))
    assert gaussian.description.startswith("a Gaussian of 400 states")
    value = gaussian.log_density(torch.zeros(1, 2, dtype=torch.float64))
    assert float(value) == pytest.approx(-math.log(2 * math.pi), abs=0.2)
    two = torch.cat([normal(200, 1) - 8, normal(200, 1, seed=1) + 8])[torch.randperm(400)]
    kernel = fit_density(two)
    assert kernel.description.startswith("a kernel estimate of 400 states")
    grid = torch.linspace(-20, 20, 2001, dtype=torch.float64)
    assert float(torch.trapezoid(kernel.log_density(grid[:, None]).exp(), grid)) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match="A density of 2 coordinates needs 8 samples or more; got 7"):
        fit_density(normal(7, 2))


def test_an_ensemble_repeats_no_state_until_it_must():
    x = normal(50, 2)
    some = draw_states(x, 30, seed=1)
    assert len(some.unique(dim=0)) == 30 and bool((some[:, None] == x).all(-1).any(1).all())
    assert not torch.equal(some, draw_states(x, 30, seed=2))
    many = draw_states(x, 4000)
    assert len(many.unique(dim=0)) == 4000
    torch.testing.assert_close(many.mean(0), x.mean(0), atol=0.1, rtol=0)


def test_states_near_a_time_are_those_within_half_a_step():
    data = Trajectories(torch.arange(8.0).reshape(2, 4, 1), real([[0.0, 1.0, 2.0, 3.0], [5.0, 6.0, 7.0, 8.0]]))
    assert states_at(data, 2.4).tolist() == [[2.0]]
    assert states_at(data, 4.2).tolist() == []
    assert states_at(data, 5.0).tolist() == [[4.0]]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with data.csv and the run `mine` of it."""
    folder = tmp_path_factory.mktemp("run")
    data = OU2.simulate(paths=60, times=TIMES, seed=0)
    save_data(Trajectories(data.states, TIMES, labels=Labels.read(["t [s]", "x [m]", "y"])), folder / "data.csv")
    arguments = [
        "fit",
        folder / "data.csv",
        "--model",
        "affine",
        "--objective",
        "symmetric",
        "--out",
        folder / "mine",
    ]
    assert main(list(map(str, arguments))) == 0
    return folder


@pytest.fixture
def say(run, monkeypatch, capsys):
    monkeypatch.chdir(run)

    def command(text):
        code = main(["generate", "mine", *text.split()])
        out, err = capsys.readouterr()
        return code, out, [line for line in err.splitlines() if line.startswith("phibe")]

    return command


@pytest.mark.parametrize("kind", ["csv", "npz", "nc", "zarr"])
def test_files_of_every_kind_hold_the_same_trajectories(say, kind):
    code, out, err = say(f"--paths-of data.csv --times 0:1:0.1 --log-density true --out made.{kind}")
    assert (code, err) == (0, [])
    assert "log-density at t = 0: a Gaussian" in out
    made = open_data(f"made.{kind}", **({"columns": ["x", "y"]} if kind == "csv" else {}))
    data = open_data("data.csv")
    expected = open_flow("mine").generate(data.states[:, 0], torch.linspace(0, 1, 11).double(), method="rk4")
    torch.testing.assert_close(made.states, expected.states)
    assert made.labels == data.labels


def test_an_array_alone_is_states(say):
    assert say("--paths-of data.csv --times 0:1:0.5 --out made.npy")[0] == 0
    assert np.load("made.npy").shape == (60, 3, 2)
    assert "A .npy holds the states alone" in say("--paths-of data.csv --log-density true --out made.npy")[2][0]


def test_backwards_starts_at_the_end(say):
    assert say("--paths-of data.csv --times 1:0:-0.25 --out back.npz")[0] == 0
    back, data = open_data("back.npz"), open_data("data.csv")
    assert torch.equal(back.states[:, -1], data.states[:, -1])
    torch.testing.assert_close(back.times, torch.linspace(0, 1, 5).double())


def test_beyond_the_observations_only_when_asked(say):
    text = "--ensemble 10 --times 0:2:0.5 --out more.csv"
    code, _, err = say(text)
    assert code == 2 and "fitted on [0, 1]; `times` goes from 0 to 2" in err[0]
    assert say(f"{text} --extrapolate true")[0] == 0
    assert open_data("more.csv").interval == (0.0, 2.0)


def test_an_ensemble_comes_from_the_data_of_the_run(say):
    assert say("--ensemble 200 --times 0.5:1:0.25 --out many.npz")[0] == 0
    many, data = open_data("many.npz"), open_data("data.csv")
    assert len(many) == 200
    torch.testing.assert_close(many.states[:, 0].mean(0), data.states[:, 10].mean(0), atol=0.3, rtol=0)


def test_states_of_a_table_are_starts(say):
    Path("starts.csv").write_text("path,x [m],y\n0,1,2\n1,3,4\n", encoding="utf8")
    assert say("--from starts.csv --times 0,1 --out two.npz")[0] == 0
    assert open_data("two.npz").states[:, 0].tolist() == [[1, 2], [3, 4]]
    assert "No path was observed near t = 7" in say("--ensemble 5 --times 7,8 --out two.npz")[2][0]
