"""Two processes on the CPU train what one does; torchrun starts them, Fabric and gloo join them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import PAPER
from safetensors.torch import load_file

from phibe.networks.mlp import MLP
from phibe.training.config import FitConfig
from phibe.training.loop import fit_network

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
RUNS = {
    "phibe": {"objective": "phibe", "micro_batches": 2, "input_noise": 0.1},
    "isotropic": {"objective": "isotropic", "ema": 0.8},
    "patient": {"objective": "regression", "learning_rate": 0.05, "evaluate_every": 2, "patience": 2, "steps": 60},
}


def train(name, out, **changes):
    torch.manual_seed(0)
    options = RUNS[name] | changes
    settings = {"steps": 12, "batch": 16, "evaluate_every": 4, "checkpoint_every": 4, "precision": "64-true"}
    config = FitConfig(**settings | {k: v for k, v in options.items() if k != "objective"})
    data = PAPER["reversible"].simulate(paths=20, times=torch.linspace(0, 1, 7), seed=0)
    return fit_network(data, MLP((2,), width=6, depth=1), options["objective"], config=config, out=out, progress=False)


WORKER = """
import os, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests"]
import torch
torch.set_num_threads(1)
from phibe.training import loop
from test_distributed import RUNS, train

out, rank = sys.argv[2], os.environ["RANK"]
for name in RUNS:
    flow = train(name, f"{out}/{name}")
    total = sum(float(p.double().sum()) for p in flow.velocity.parameters())
    with open(f"{out}/sum-{name}-{rank}", "w", encoding="utf8") as file:
        file.write(repr(total))

steps, whole = [], loop.accumulate

def fail(*args, **kwargs):
    steps.append(0)
    if len(steps) > 10:
        raise KeyboardInterrupt
    return whole(*args, **kwargs)

loop.accumulate = fail
try:
    train("phibe", f"{out}/cut")
except KeyboardInterrupt:
    loop.accumulate = whole
assert os.path.exists(f"{out}/cut/checkpoint.safetensors")
torch.distributed.barrier()
train("phibe", f"{out}/cut")
try:
    train("phibe", None, batch=18, micro_batches=2)
except ValueError as error:
    with open(f"{out}/message-{rank}", "w", encoding="utf8") as file:
        file.write(str(error))
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder in which two processes made every run, one of them cut short and resumed."""
    out = tmp_path_factory.mktemp("together")
    (out / "worker.py").write_text(WORKER, encoding="utf8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(out / "worker.py"), str(ROOT), str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        encoding="utf8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_end_with_the_weights_of_one(together, tmp_path, name):
    train(name, tmp_path / name)
    alone, both = (load_file(folder / name / "weights.safetensors") for folder in (tmp_path, together))
    assert alone.keys() == both.keys()
    gap = max(float((alone[key] - both[key]).abs().max()) for key in alone)
    assert gap < 1e-12
    train(name, tmp_path / "other", seed=1)
    other = load_file(tmp_path / "other" / "weights.safetensors")
    assert max(float((alone[key] - other[key]).abs().max()) for key in alone) > 1e-4
    results = [json.loads((folder / name / "result.json").read_text("utf8")) for folder in (tmp_path, together)]
    assert results[0] == pytest.approx(results[1])
    assert results[0]["stopped_early"] is (name == "patient")


@pytest.mark.parametrize("name", RUNS)
def test_every_process_returns_the_same_flow(together, name):
    first, second = (float((together / f"sum-{name}-{rank}").read_text("utf8")) for rank in (0, 1))
    assert first == second


def test_a_resumed_run_of_two_processes_ends_with_the_same_bits(together):
    whole, resumed = ((together / name / "weights.safetensors").read_bytes() for name in ("phibe", "cut"))
    assert whole == resumed
    lines = [json.loads(line)["step"] for line in (together / "cut" / "metrics.jsonl").open(encoding="utf8")]
    assert lines == [4, 8, 12]


def test_a_batch_that_cannot_be_shared_is_refused(together):
    for rank in (0, 1):
        message = (together / f"message-{rank}").read_text("utf8")
        assert "multiple of processes × micro-batches, here 2 × 2; got 18. Try 20." in message
