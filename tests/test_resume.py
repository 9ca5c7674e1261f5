"""A killed run goes on to the same bits, and no folder is ever mistaken for another run's."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from problems import PAPER
from torch import nn

from phibe.networks.mlp import MLP
from phibe.training import loop
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network
from phibe.training.runs import differences
from phibe.training.tensors import load_tensors, save_tensors

ROOT = Path(__file__).resolve().parent.parent
DATA = PAPER["reversible"].simulate(paths=30, times=torch.linspace(0, 1, 9), seed=0)
CONFIG = {"steps": 24, "batch": 16, "evaluate_every": 6, "checkpoint_every": 8, "warmup": 3}


def network(width=8):
    torch.manual_seed(0)
    return MLP((2,), width=width, depth=1)


def train(out, net=None, objective="regression", data=DATA, **changes):
    return fit_network(
        data, net or network(), objective, config=FitConfig(**{**CONFIG, **changes}), out=out, progress=False
    )


def content(out):
    return {path.name: path.read_bytes() for path in Path(out).iterdir()}


@contextmanager
def cut(monkeypatch, before=19):
    """Let training fail as if it were killed just before this step."""

    def fail(*args, **kwargs):
        steps.append(0)
        if len(steps) > before:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    steps, whole = [], loop.accumulate
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(loop, "accumulate", fail)
        yield


# -- the same bits -----------------------------------------------------------------------------------------------------

WORKER = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from phibe import OU
from phibe.networks import MLP
from phibe.training import loop
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network

data = OU.reversible().simulate(paths=30, times=torch.linspace(0, 1, 9), seed=0)
config = FitConfig(steps=160, batch=16, evaluate_every=7, checkpoint_every=3, ema=0.9)
ours, theirs = os.pipe()
random, codes, accumulate = random.Random(0), [], loop.accumulate

def tell(*args, **kwargs):
    os.write(theirs, b"s")
    return accumulate(*args, **kwargs)

def train(out):
    torch.manual_seed(0)
    fit_network(data, MLP((2,), width=8, depth=1), "regression", config=config, out=out, progress=False)

train(sys.argv[2])
loop.accumulate = tell
while len(codes) < 11:  # ten processes are killed at a random moment after a random step, the eleventh may finish
    child = os.fork()
    if child == 0:
        train(sys.argv[3])
        os._exit(0)
    if len(codes) < 10:
        for _ in range(random.randint(1, 8)):
            os.read(ours, 1)
        time.sleep(random.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if len(codes) < 11:
        os.set_blocking(ours, False)
        try:
            os.read(ours, 4096)  # steps of the dead
        except BlockingIOError:
            pass
        os.set_blocking(ours, True)
print(codes)
"""


@pytest.mark.slow
def test_killed_at_ten_random_moments_it_ends_with_the_same_bits(tmp_path):
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", WORKER, str(ROOT), str(plain), str(killed)]
    done = subprocess.run(arguments, capture_output=True, encoding="utf8", env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [-9] * 10 + [0]
    assert content(plain)["weights.safetensors"] == content(killed)["weights.safetensors"]
    assert content(plain).keys() == content(killed).keys()  # nothing half written stays behind
    steps = [
        [json.loads(line)["step"] for line in (out / "metrics.jsonl").open(encoding="utf8")] for out in (plain, killed)
    ]
    assert steps[0] == steps[1] == [*range(7, 160, 7), 160]


class Dropping(nn.Module):
    """Draws random numbers of its own in every step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))

    def forward(self, x, t):
        return self.layers(x)


@pytest.mark.parametrize(
    ("make", "objective", "changes"),
    [
        (network, "isotropic", {"ema": 0.8, "input_noise": 0.1}),
        (network, "phibe", {"micro_batches": 2, "optimiser": "adam"}),
        (Dropping, "regression", {"precision": "64-true", "patience": 50}),
        (network, "regression", {"held_out": 0.0}),
    ],
)
def test_every_kind_of_run_resumes_exactly(tmp_path, monkeypatch, make, objective, changes):
    whole = train(tmp_path / "whole", make(), objective, **changes)
    with cut(monkeypatch):
        train(tmp_path / "cut", make(), objective, **changes)
    assert load_tensors(tmp_path / "cut" / "checkpoint.safetensors")[1]["progress"]["step"] == 16
    resumed = train(tmp_path / "cut", make(), objective, **changes)
    assert content(tmp_path / "whole")["weights.safetensors"] == content(tmp_path / "cut")["weights.safetensors"]
    for a, b in zip(whole.velocity.state_dict().values(), resumed.velocity.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_without_the_optimisers_memory_the_bits_would_differ(tmp_path, monkeypatch):
    """The control: what is compared above depends on everything that a checkpoint holds."""
    train(tmp_path / "whole")
    with cut(monkeypatch):
        train(tmp_path / "cut")
    path = tmp_path / "cut" / "checkpoint.safetensors"
    tensors, facts = load_tensors(path)
    save_tensors(path, {k: t * 0.5 if k.endswith("exp_avg") else t for k, t in tensors.items()}, facts)
    train(tmp_path / "cut")
    assert content(tmp_path / "whole")["weights.safetensors"] != content(tmp_path / "cut")["weights.safetensors"]


def test_a_finished_run_returns_at_once(tmp_path, monkeypatch):
    first = train(tmp_path)
    before = content(tmp_path)
    assert "checkpoint.safetensors" not in before
    monkeypatch.setattr(loop, "accumulate", None)  # no step can be made
    again = train(tmp_path, devices=1, checkpoint_every=3)  # where it runs may change
    assert content(tmp_path) == before
    for a, b in zip(first.velocity.state_dict().values(), again.velocity.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_line_of_metrics_cut_short_is_written_again(tmp_path, monkeypatch):
    with cut(monkeypatch):
        train(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf8") as file:
        file.write('{"step": 24, "tra')
    train(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open(encoding="utf8")]
    assert [line["step"] for line in lines] == [6, 12, 18, 24]


# -- another run -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["finished", "interrupted"])
def folder(request, tmp_path, monkeypatch):
    """The folder of a run, whole or cut short."""
    if request.param == "finished":
        train(tmp_path)
        return tmp_path
    with cut(monkeypatch):
        train(tmp_path)
    return tmp_path


def test_another_run_is_refused_with_the_difference_named(folder):
    before = content(folder)
    other = PAPER["reversible"].simulate(paths=30, times=torch.linspace(0, 1, 9), seed=1)
    cases = [
        ({"learning_rate": 0.5}, "config.learning_rate: 0.001 then, 0.5 now"),
        ({"steps": 25, "seed": 3}, "config.steps: 24 then, 25 now; config.seed: 0 then, 3 now"),
        ({"objective": "phibe"}, 'objective.name: "regression" then, "phibe" now'),
        ({"net": network(9)}, "network.arguments.width: 8 then, 9 now"),
        ({"net": Dropping()}, 'network.name: "mlp" then'),
        ({"data": other}, "data.sha256: "),
        ({"data": DATA[:29]}, "data.shape: [30, 9, 2] then, [29, 9, 2] now"),
    ]
    for changes, message in cases:
        with pytest.raises(ValueError, match="holds another run .*Choose another `out`, or delete it") as caught:
            train(folder, **changes)
        assert message in str(caught.value)
    assert content(folder) == before


def test_differences_are_found_at_any_depth():
    assert differences({"a": {"b": 1, "c": [1]}}, {"a": {"b": 1, "c": [1]}}) == []
    assert differences({"a": {"b": 1}, "x": 1}, {"a": {"b": 2, "d": 0}}) == [
        "a.b: 1 then, 2 now",
        "a.d: null then, 0 now",
        "x: 1 then, null now",
    ]


# -- checkpoints that cannot be trusted --------------------------------------------------------------------------------


def damaged(path, change):
    original = path.read_bytes()
    path.write_bytes(change(original))
    return original


def flip(place):
    def change(original):
        content = bytearray(original)
        content[place if place >= 0 else len(content) + place] ^= 1
        return bytes(content)

    return change


def test_damaged_cut_and_foreign_checkpoints_each_give_their_error(tmp_path, monkeypatch):
    from safetensors.torch import save

    with cut(monkeypatch):
        train(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    header = path.read_bytes().index(b"sha256") + 12
    cases = [
        (flip(-3), "is damaged: its content does not match its checksum. Delete it"),
        (flip(header), "is damaged: its content does not match its checksum"),
        (lambda content: content[:-7], "is cut short or no safetensors file"),
        (lambda content: content[:30], "is cut short or no safetensors file"),
        (lambda content: b"", "is cut short or no safetensors file"),
        (lambda content: b"PK\x03\x04 a pickle, perhaps", "is cut short or no safetensors file"),
        (lambda content: save({"w": torch.zeros(2)}), "not ones that this package saved"),
        (lambda content: save({"w": torch.zeros(2)}, {"phibe": "{"}), "is damaged: its header cannot be read"),
    ]
    for change, message in cases:
        original = damaged(path, change)
        with pytest.raises(ValueError, match=f"checkpoint.safetensors .*{message}"):
            train(tmp_path)
        path.write_bytes(original)
    original = path.read_bytes()
    save_tensors(path, {"w": torch.zeros(2)})
    with pytest.raises(ValueError, match="holds weights, but no state of a training run"):
        train(tmp_path)
    path.write_bytes(original)
    train(tmp_path)  # with the right bytes it goes on


def test_weights_of_a_finished_run_are_checked_too(tmp_path):
    train(tmp_path)
    damaged(tmp_path / "weights.safetensors", flip(-1))
    with pytest.raises(ValueError, match=r"weights.safetensors is damaged"):
        train(tmp_path)


def test_tensors_come_back_as_they_were_and_equal_ones_give_equal_bytes(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {"a": shared, "b": shared.T, "c": torch.tensor(3), "d": torch.zeros(0, 2), "e": shared.bfloat16()}
    tensors["f"] = torch.tensor(2.0).expand(1, 1, 1).clone()  # as the scale of a field of one channel
    for name in ("one", "two"):
        save_tensors(tmp_path / name, dict(sorted(tensors.items(), reverse=name == "two")), {"σ": [1, 0.1, None]})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    found, facts = load_tensors(tmp_path / "one")
    assert facts == {"σ": [1, 0.1, None]}
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
