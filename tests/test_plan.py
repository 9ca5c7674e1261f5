"""What an experiment needs, said before it runs: the counter against a count by hand, and every paper preset."""

import pytest
import torch
from torch import nn

from phibe.cli import main
from phibe.experiments import EXPERIMENTS, PRESETS, experiment
from phibe.experiments.plan import GPUS, Cost, Data, Machine, Training, one_step, states, training
from phibe.experiments.report import Experiment
from phibe.networks import build
from phibe.training.config import FitConfig
from phibe.training.loop import VelocityTask


def mlp_step(objective: str, batch: int = 512) -> Cost:
    task = lambda: VelocityTask(build("mlp", (2,), width=64, depth=3), objective)  # noqa: E731
    return one_step(training("MLP", task, (2,), FitConfig(batch=batch)))


def test_a_regression_step_has_the_operations_counted_by_hand():
    layers = [(3, 64), (64, 64), (64, 64), (64, 2)]
    forward = sum(2 * 512 * a * b for a, b in layers)
    backward = 2 * forward - 2 * 512 * 3 * 64  # the first layer's input needs no gradient
    assert mlp_step("regression").operations == pytest.approx(forward + backward, rel=0.03)
    assert mlp_step("regression").parameters == sum(a * b + b for a, b in layers)


def test_a_product_with_the_jacobian_costs_about_as_much_again():
    regression, phibe = (mlp_step(name).operations for name in ("regression", "phibe"))
    assert 1.8 < phibe / regression < 2.2


def test_a_convolution_is_counted_apart():
    one = Training("c", lambda: nn.Conv2d(3, 5, 3, padding=1), lambda n: [(n, 3, 8, 8)], batch=4, steps=1)
    forward = 2 * 4 * 5 * 8 * 8 * 3 * 9
    cost = one_step(one)
    assert cost.convolutions == cost.operations == 2 * forward  # output, and gradient of the weights


def test_memory_is_that_of_the_tensors_alive_at_once():
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x):
            for _ in range(10):
                x = torch.sin(self.weight * x)  # each of both is needed backward
            return x

    cost = one_step(Training("chain", Chain, lambda n: [(n, 1024, 256)], batch=1, steps=1))
    assert 20 <= cost.megabytes <= 24  # 20 of one MB, and a few on the way back


def test_hours_are_of_the_work_or_of_the_calls():
    machine = Machine("m", 1e12, 2e12, 0.5, 1e-5)
    assert machine.hours(Cost(0, 3e12, 2e12, 1, 0.0), 3600) == pytest.approx(4.0)  # (1 + 1)/0.5 s a step
    assert machine.hours(Cost(0, 1e3, 0, 1000, 0.0), 3600) == pytest.approx(0.01)


def test_data_has_its_size_and_its_hash(tmp_path):
    assert states("paths", (10, 2**17), bits=64).megabytes == 10
    (tmp_path / "a.csv").write_bytes(b"abc")
    assert "ba7816bf" in str(Data("a file", 1.0, "my own", str(tmp_path / "a.csv")))
    assert "not there yet" in str(Data("a file", 1.0, "my own", str(tmp_path / "b.csv")))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_one_step_of_every_training_of_the_paper_preset_runs_on_the_meta_device(name):
    chosen = experiment(name)
    needs = chosen.plan(chosen.presets["paper"])
    assert needs.trainings or needs.closed
    for one in needs.trainings:
        cost = one_step(one)
        assert cost.operations > 2 * cost.parameters
        assert cost.megabytes > 12 * cost.parameters / 2**20


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["ou_theory", "ou", "pendulum_real", "video"])
def test_a_plan_is_printed_and_nothing_is_run(name, preset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Experiment, "run", lambda *a, **k: pytest.fail("the experiment ran"))
    before = torch.random.get_rng_state()
    assert main(["run", name, "--plan", "--preset", preset]) == 0
    said = capsys.readouterr().out
    assert f"{name}, preset {preset}" in said and "data " in said
    assert ("trainings none" in said) == (name == "ou_theory")
    assert name == "ou_theory" or all(machine.name in said for machine in GPUS)
    assert not list(tmp_path.iterdir())
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_changed_field_changes_the_plan(capsys):
    assert main(["run", "ou", "--preset=smoke", "--plan", "--training.steps=1234"]) == 0
    assert "1,234" in capsys.readouterr().out


def test_an_experiment_without_a_plan_says_so(monkeypatch, capsys):
    bare = Experiment("ou", experiment("ou").presets, experiment("ou").measure)
    monkeypatch.setattr("phibe.cli.experiments.experiment", lambda name: bare)
    assert main(["run", "ou", "--plan"]) == 2
    assert "no plan" in capsys.readouterr().err
