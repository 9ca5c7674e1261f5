"""Training finds what it should, does exactly what it is told, and says so when it cannot."""

import copy
import json
import math
import sys
import warnings

import pytest
import torch
from problems import PAPER, normal, real
from torch import nn

from phibe import Trajectories, fit
from phibe.networks.mlp import MLP
from phibe.networks.network import Normalised
from phibe.objectives import estimate_noise, phibe
from phibe.training.config import FitConfig
from phibe.training.devices import Plain, bf16_trouble, engine, pick
from phibe.training.loop import Diverged, ObjectiveModule, accumulate, fit_network, follow
from phibe.training.runs import open_flow, save_flow
from phibe.training.sampling import Batches

OU = PAPER["reversible"]
QUICK = FitConfig(steps=20, batch=32, evaluate_every=10, warmup=0)
CPU = Plain("cpu")


def observe(paths=40, steps=11, *, seed=0, dtype=torch.float64):
    return OU.simulate(paths=paths, times=torch.linspace(0, 1, steps, dtype=torch.float64), seed=seed).to(dtype)


def small(seed=0, **arguments):
    torch.manual_seed(seed)
    return MLP((2,), **({"width": 12, "depth": 2} | arguments))


def train(network=None, objective="regression", *, data=None, out=None, judged_on=None, **changes):
    """A fit of a few steps; regression spares the Jacobian where it does not matter."""
    config = FitConfig(**{**vars(QUICK), **changes})
    data = observe() if data is None else data
    return fit_network(data, network or small(), objective, config=config, out=out, held_out=judged_on, progress=False)


def weights(flow):
    return dict(flow.velocity.state_dict())


def distance(a, b):
    a, b = weights(a), weights(b)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf8").splitlines()]


# -- what is learnt ----------------------------------------------------------------------------------------------------


def relative_error(velocity, times=(0.2, 0.5, 0.8)):
    """Root mean square over the marginal at some times of |v − exact|, relative to that of |exact|."""
    error = size = 0.0
    for t in times:
        x = OU.marginal(t).sample(2000, generator=torch.Generator().manual_seed(1))
        exact = OU.velocity(x, t)
        error += float((velocity(x, real(t).expand(len(x))) - exact).square().sum())
        size += float(exact.square().sum())
    return math.sqrt(error / size)


def test_a_small_network_learns_the_velocity_of_a_known_process():
    config = FitConfig(steps=200, batch=256, learning_rate=1e-2, evaluate_every=50)
    data = observe(1000, 101)
    flow = fit_network(data, small(width=24), config=config, progress=False)
    assert relative_error(flow.velocity) < 0.12
    assert relative_error(OU.drift) > 0.16  # the drift alone is another field
    made = flow.generate(data.states[:, 0], data.times[:51:10])
    assert (made.states[:, -1].mean(0) - OU.marginal(0.5).mean).abs().max() < 0.2


def test_coordinates_in_other_units_are_learnt_as_well():
    units = real([1.0, 1000.0])
    data = observe(200, 21)
    scaled = Trajectories(data.states * units, data.times)
    times = real(0.5).expand(2000)
    x = OU.marginal(0.5).sample(2000, generator=torch.Generator().manual_seed(1))

    def errors(balance):
        flow = train(data=scaled, steps=150, learning_rate=1e-2, batch=64, evaluate_every=50, balance=balance)
        gap = flow.velocity(x * units, times) / units - train_reference(x, times)
        return gap.square().mean(0).sqrt()

    plain = train(data=data, steps=150, learning_rate=1e-2, batch=64, evaluate_every=50)
    train_reference = plain.velocity
    assert errors(True).max() < 0.01
    assert errors(False).max() > 0.1


def test_an_objective_without_a_floor_warns_once_with_what_to_change(tmp_path):
    few = OU.simulate(paths=80, times=[0.0, 0.05], seed=0)
    hungry = {"steps": 80, "learning_rate": 5e-3, "floor": 1.0, "batch": 64, "evaluate_every": 20, "held_out": 0.25}
    network, config = small(width=128, depth=3), FitConfig(**{**vars(QUICK), **hungry})
    with pytest.warns(UserWarning, match="have parted.*`patience`.*`weight_decay`.*`ema`.*`input_noise`") as caught:
        flow = fit(few, network, "phibe", config=config, out=tmp_path, progress=False)
    (warning,) = [entry for entry in caught if entry.category is UserWarning]
    history = lines(tmp_path)
    best = min(history, key=lambda line: line["held_out"])
    assert history[-1]["train"] < 3 * history[0]["train"]
    assert history[-1]["held_out"] > best["held_out"] + 0.5
    assert history[-1]["jacobian_dx"] > 10 * history[0]["jacobian_dx"]
    assert json.loads((tmp_path / "result.json").read_text("utf8"))["best_step"] == best["step"] < 80
    assert warning.filename.endswith("test_training.py")
    assert flow.generate(few.states[:, 0], few.times).states.isfinite().all()


def test_a_healthy_run_does_not_warn(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(objective="phibe", data=observe(150, 17), steps=40, learning_rate=1e-2, evaluate_every=10, out=tmp_path)
    history = lines(tmp_path)
    assert [line["step"] for line in history] == [10, 20, 30, 40]
    assert history[-1]["held_out"] < history[0]["held_out"] < 0
    assert history[-1]["jacobian_dx"] < 10


def test_early_stopping_returns_the_best_weights(tmp_path):
    few = observe(16, 17)
    hungry = {"steps": 400, "learning_rate": 2e-2, "batch": 64, "evaluate_every": 5, "held_out": 0.25, "patience": 3}
    flow = train(small(width=64), data=few, out=tmp_path, **hungry)
    history, result = lines(tmp_path), json.loads((tmp_path / "result.json").read_text("utf8"))
    best = min(history, key=lambda line: line["held_out"])
    assert result == {
        "steps": best["step"] + 15,
        "stopped_early": True,
        "best_step": best["step"],
        "held_out": best["held_out"],
    }
    held = few.split(0.25, seed=0)[1]
    module = ObjectiveModule(flow.velocity.network, "regression", balance=True)
    assert float(module(*held.pairs()).mean()) == pytest.approx(best["held_out"], rel=1e-5)
    assert history[-1]["held_out"] > best["held_out"]


def test_a_given_held_out_set_is_used(tmp_path):
    held = observe(10, seed=5)
    flow = train(out=tmp_path, judged_on=held)
    module = ObjectiveModule(flow.velocity.network, "regression", balance=True)
    assert float(module(*held.pairs()).mean()) == pytest.approx(lines(tmp_path)[-1]["held_out"], rel=1e-5)
    assert json.loads((tmp_path / "config.json").read_text("utf8"))["held_out"]["shape"] == [10, 11, 2]


# -- exactly as told ---------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_whatever_was_drawn_before():
    first = train("mlp", seed=3)
    torch.rand(17)
    assert distance(train("mlp", seed=3), first) == 0
    assert distance(train("mlp", seed=4), first) > 0


def test_training_leaves_the_random_numbers_and_the_module_of_the_caller_alone():
    network = small()
    before = copy.deepcopy(network.state_dict())
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    flow = train(network)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert not any(p.requires_grad for p in flow.velocity.parameters())
    assert all(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize("objective", ["phibe", "isotropic"])
def test_micro_batches_add_up_to_the_whole_batch(objective):
    data = observe()
    options = {"noise": 0.5} if objective == "isotropic" else {}
    module = ObjectiveModule(Normalised.fit(small().double(), data), objective, balance=True, **options)

    def gradient(parts, first=0):
        module.zero_grad()
        sample = tuple(part[first : first + 32] for part in data.pairs())
        values = accumulate(CPU, module, sample, parts=parts, generator=torch.Generator().manual_seed(0))
        return values, torch.cat([p.grad.flatten() for p in module.parameters()])

    (values, whole), (parted_values, parted) = gradient(1), gradient(4)
    assert torch.equal(values, parted_values)
    assert (whole - parted).abs().max() < 1e-13 * whole.abs().max()
    assert (whole - gradient(1, first=32)[1]).abs().max() > 1e-2 * whole.abs().max()


def test_micro_batches_change_a_run_by_rounding_only():
    whole, parted = (train(precision="64-true", micro_batches=k) for k in (1, 4))
    assert 0 < distance(whole, parted) < 1e-12


def test_the_moving_average_is_the_recursion():
    constant = {"held_out": 0.0, "floor": 1.0, "precision": "64-true", "normalise": False}
    trail = [train(small().double(), steps=k, **constant) for k in (1, 2, 3, 4)]
    average = {name: tensor.double() for name, tensor in small().state_dict().items()}
    for step, flow in enumerate(trail):
        d = min(0.3, (1 + step) / (10 + step))
        average = {name: d * slow + (1 - d) * weights(flow)[f"network.{name}"] for name, slow in average.items()}
    found = weights(train(small().double(), steps=4, ema=0.3, **constant))
    for name, tensor in average.items():
        torch.testing.assert_close(found[f"network.{name}"], tensor, rtol=1e-13, atol=1e-15)
    assert distance(train(small().double(), steps=4, ema=0.3, **constant), trail[-1]) > 1e-4


def test_the_rate_warms_up_and_follows_a_cosine_to_its_floor():
    config = FitConfig(steps=110, warmup=10, learning_rate=0.4, floor=0.1)
    assert [config.rate(step) for step in (0, 4, 9)] == pytest.approx([0.04, 0.2, 0.4])
    assert [config.rate(step) for step in (10, 35, 60, 85, 110)] == pytest.approx(
        [0.4, 0.04 + 0.36 * (1 + math.sqrt(0.5)) / 2, 0.22, 0.04 + 0.36 * (1 - math.sqrt(0.5)) / 2, 0.04]
    )
    assert {FitConfig(steps=50, warmup=0, floor=1.0).rate(step) for step in range(50)} == {1e-3}


def test_the_optimiser_gets_the_rate_and_the_decay():
    """With rate η and decay λ alone (no gradient), AdamW multiplies a weight by 1 − ηλ at each step."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x, t):
            return x * self.used + 0 * self.idle

    flow = train(Idle(), steps=3, weight_decay=0.5, learning_rate=0.1, warmup=2, normalise=False, held_out=0.0)
    rates = [FitConfig(steps=3, learning_rate=0.1, warmup=2).rate(step) for step in range(3)]
    expected = math.prod(1 - 0.5 * rate for rate in rates)
    assert float(flow.velocity.network.idle) == pytest.approx(expected, rel=1e-6)


def test_input_noise_moves_states_by_so_many_standard_deviations():
    data = observe(200, 11)
    network = Normalised.fit(small(), data)

    def shift(level, step=0):
        config = FitConfig(batch=1024, input_noise=level)
        plain = Batches(samples_of(data), FitConfig(batch=1024), CPU, scale=network.scale).sample(step)
        noisy = Batches(samples_of(data), config, CPU, scale=network.scale).sample(step)
        assert all(torch.equal(a, b) for a, b in zip(plain[1:], noisy[1:], strict=True))
        return noisy[0] - plain[0]

    spread = data.states.reshape(-1, 2).std(0).float()
    torch.testing.assert_close(shift(0.1).std(0), 0.1 * spread, rtol=0.06, atol=0)
    assert torch.equal(shift(0.1), shift(0.1))
    assert not torch.equal(shift(0.1), shift(0.1, step=1))
    assert shift(0.0).abs().max() == 0
    assert distance(train(input_noise=0.0), train()) == 0
    assert distance(train(input_noise=0.1), train()) > 0


def samples_of(data):
    from phibe.training.sampling import Samples

    return Samples(data)


def test_the_noise_of_the_isotropic_objective_is_estimated_and_recorded(tmp_path):
    data = observe()
    train(objective="isotropic", data=data, out=tmp_path / "own", steps=4)
    train(objective="isotropic", data=data, out=tmp_path / "given", steps=4, noise=0.25)
    own, given = (
        json.loads((tmp_path / name / "config.json").read_text("utf8"))["objective"] for name in ("own", "given")
    )
    assert own == {"name": "isotropic", "noise": pytest.approx(estimate_noise(data.split(0.1, seed=0)[0]), rel=1e-12)}
    assert given == {"name": "isotropic", "noise": 0.25}


def test_mixed_precision_computes_almost_the_same():
    if trouble := bf16_trouble():
        pytest.skip(f"bfloat16 on this CPU: a trial {trouble}")
    full, mixed = (train(objective="phibe", precision=p, steps=8) for p in ("32-true", "bf16-mixed"))
    assert 0 < distance(full, mixed) < 0.05


# -- devices -----------------------------------------------------------------------------------------------------------


def test_one_step_runs_on_the_meta_device_and_mixing_devices_fails():
    sample = tuple(part.float() for part in observe().pairs())
    network = Normalised(small(), (2,)).to("meta")
    module, average = ObjectiveModule(network, "phibe", balance=True), copy.deepcopy(network)
    optimiser = torch.optim.AdamW(network.parameters())
    values = accumulate(CPU, module, tuple(part.to("meta") for part in sample), parts=2)
    norm = nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    follow(average, network, decay=0.9, step=0)
    assert values.is_meta
    assert norm.is_meta
    assert values.shape == sample[1].shape
    with pytest.raises(RuntimeError, match="device"):
        accumulate(CPU, module, sample)
    with pytest.raises(RuntimeError, match="device"):
        accumulate(CPU, ObjectiveModule(small(), "phibe"), tuple(part.to("meta") for part in sample))


def test_a_device_that_is_not_there_is_named(monkeypatch):
    assert pick("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`accelerator` = 'cuda' was asked for, but torch sees no such device"):
        pick("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick("auto") == pick("gpu") == torch.device("cuda")


def test_one_device_needs_no_fabric_and_several_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    assert isinstance(engine(FitConfig(accelerator="cpu")), Plain)
    with pytest.raises(ValueError, match="2 × 1 devices .*`pip install lightning-fabric`"):
        engine(FitConfig(accelerator="cpu", devices=2))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_weights(tmp_path):
    wild = {"learning_rate": 1e25, "clip": 0.0, "steps": 10, "evaluate_every": 1}
    with pytest.raises(Diverged, match=r"At step \d the objective of .* at \(path \d+, time \d+\)") as caught:
        train(out=tmp_path, **wild)
    error = caught.value
    assert str(tmp_path / "weights.safetensors") in str(error)
    assert 0 < error.step < 10
    assert len(error.index) == 32
    kept = open_flow(tmp_path)
    assert all(tensor.isfinite().all() for tensor in weights(kept).values())
    assert distance(kept, error.flow) == 0
    assert len(lines(tmp_path)) == error.step
    with pytest.raises(Diverged, match="in the `flow` of this error"):
        train(**wild)


def test_a_network_that_the_objective_cannot_take_is_refused():
    kinked = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = kinked

        def forward(self, x, t):
            return self.layers(x)

    with pytest.raises(ValueError, match="ReLU"):
        train(Own(), "phibe")
    assert train(Own(), "regression").velocity(normal(3, 2), torch.zeros(3)).shape == (3, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "`steps` must be a whole number from 1; got 0"),
        ({"ema": 1.0}, "`ema` must be from 0 to below 1; got 1.0"),
        ({"learning_rate": -1.0}, "`learning_rate` must be above 0"),
        ({"optimiser": "sgd"}, "`optimiser` must be adam or adamw; got 'sgd'"),
        ({"precision": "16"}, "`precision` must be one of 32-true, 64-true, bf16-mixed"),
        ({"accelerator": "tpu"}, "`accelerator` must be one of auto, cpu"),
        ({"batch": 30, "micro_batches": 4}, "multiple of processes × micro-batches, here 1 × 4; got 30. Try 32"),
        ({"held_out": 0.0, "patience": 2}, "`patience` waits for the held-out objective"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        train(**changes)


def test_data_that_cannot_be_split_says_so():
    one = observe(1)
    with pytest.raises(ValueError, match="leaves 0 of 1 paths to train on.*`held_out=0`"):
        train(data=one)
    assert train(data=one, held_out=0.0).interval == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"`held_out` has states \(3,\); the training data has \(2,\)"):
        train(judged_on=Trajectories(normal(2, 4, 3), torch.arange(4.0)))
    with pytest.raises(ValueError, match=r"`held_out` takes trajectories; a share .* `FitConfig\(held_out=0.2\)`"):
        train(judged_on=0.2)
    with pytest.raises(ValueError, match="`objective` must be one of phibe"):
        train(objective="fibe")
    with pytest.raises(ValueError, match="`network` must be one of mlp"):
        train("mpl")


# -- flows in folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_flow_comes_back_from_its_folder_and_takes_states_of_any_type(tmp_path, dtype):
    data = observe(dtype=dtype)
    flow = train("mlp", data=data, out=tmp_path / "run")
    again, copied = open_flow(tmp_path / "run"), open_flow(save_flow(flow, tmp_path / "copy", note="mine"))
    assert (again.interval, again.step) == (flow.interval, flow.step) == ((0.0, 1.0), pytest.approx(0.1))
    assert distance(again, flow) == distance(copied, flow) == 0
    assert json.loads((tmp_path / "copy" / "config.json").read_text("utf8"))["note"] == "mine"
    for kind in (torch.float32, torch.float64):
        x = data.states[:5, 0].to(kind)
        v = again.velocity(x, torch.zeros(5))
        assert v.dtype == kind
        torch.testing.assert_close(v, flow.velocity(x, torch.zeros(5, dtype=kind)), rtol=0, atol=0)


class Own(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.a, self.b = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x, t):
        return self.b(torch.tanh(self.a(torch.cat([x, t[:, None]], 1))))


def test_a_module_of_ones_own_comes_back_with_its_help(tmp_path):
    flow = train(Own(), out=tmp_path)
    assert distance(open_flow(tmp_path, network=Own()), flow) == 0
    with pytest.raises(ValueError, match=r"is of a .*Own, a network of your own: pass one as `network=`"):
        open_flow(tmp_path)
    with pytest.raises(ValueError, match=r"another network: `network.a.weight` is \(4, 3\) there, \(5, 3\) here"):
        open_flow(tmp_path, network=Own(5))


def test_folders_that_hold_no_flow_say_so(tmp_path):
    with pytest.raises(ValueError, match="There is no run in .*no config.json"):
        open_flow(tmp_path / "nothing")
    (tmp_path / "config.json").write_text('{"seed": 0}', encoding="utf8")
    with pytest.raises(ValueError, match="not the description of a fitted flow: it lacks dtype, interval, network"):
        open_flow(tmp_path)
    with pytest.raises(ValueError, match="Only the flow of a network can be saved"):
        save_flow(type(train(steps=1))(OU.velocity), tmp_path)


def test_the_progress_bar_shows_both_objectives(capsys):
    fit_network(observe(), small(), "regression", config=QUICK)
    shown = capsys.readouterr().err
    assert "regression: 100%" in shown
    assert "step/s" in shown
    assert "objective=" in shown
    assert "held_out=" in shown
    train()
    assert capsys.readouterr().err == ""


def test_the_objective_module_is_the_objective():
    data = observe()
    network = small().double()
    assert torch.equal(ObjectiveModule(network, "phibe")(*data.pairs()), phibe(network, *data.pairs()))


def test_a_network_with_wrong_gradients_is_trained_only_without_the_check():
    data = OU.reversible().simulate(paths=20, times=torch.linspace(0, 1, 11), seed=0).to(torch.float32)
    network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

    class Kinked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network

        def forward(self, x, t):
            return self.layers(x)

    config = FitConfig(steps=2, batch=8, held_out=0.0)
    with pytest.raises(ValueError, match="ReLU"):
        fit_network(data, Kinked(), "phibe", config=config, progress=False)
    assert fit_network(data, Kinked(), "phibe", config=config, progress=False, check=False).method
