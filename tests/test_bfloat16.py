"""bfloat16 on a CPU: a child process tries it first, so that one that dies of it is a message and not the end."""

import pytest
import torch
from problems import normal

from phibe import FitConfig, Trajectories
from phibe.experiments.baselines.forecaster import ForecastTask, conditional_unet
from phibe.experiments.baselines.pfi import PFI
from phibe.experiments.conditioned import ConditionedTask
from phibe.experiments.video.vq import VQCodec, VQTask
from phibe.networks import build
from phibe.training import devices
from phibe.training.devices import bf16_trouble, bfloat16
from phibe.training.loop import VelocityTask, fit_network

CPU = torch.device("cpu")
FRAME = (1, 8, 8)
MIXED = FitConfig(precision="bf16-mixed", accelerator="cpu")
TASKS = {
    "velocity": VelocityTask("unet", "symmetric"),
    "conditioned": ConditionedTask(build("unet", FRAME, condition_channels=1), "symmetric"),
    "codec": VQTask(VQCodec(channels=8, codes=16)),
    "forecaster": ForecastTask(PFI(conditional_unet(FRAME, past=1, frames=1), steps=2)),
}


@pytest.fixture
def trial(monkeypatch):
    """Puts another program in the place of the trial; its answer is forgotten before and after."""
    bf16_trouble.cache_clear()
    yield lambda program: monkeypatch.setattr(devices, "BF16_TRIAL", program)
    bf16_trouble.cache_clear()


def tried(folder, precision):
    config = FitConfig(steps=2, batch=4, precision=precision, accelerator="cpu", held_out=0)
    data = Trajectories(normal(3, 6, 2).float(), torch.arange(6.0))
    return fit_network(data, "mlp", objective="symmetric", config=config, out=folder, progress=False)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGILL)", "was killed by SIGILL"),
        ("raise OSError('no such unit')", "no such unit"),
    ],
)
def test_a_trial_that_dies_is_a_message_and_is_not_repeated(trial, tmp_path, end, told):
    trial(f"import os, signal; open({str(tmp_path / 'tries')!r}, 'a').write('x'); {end}")
    for name in ("first", "second"):
        with pytest.raises(ValueError, match=f"{told}.*32-true.*ONEDNN_MAX_CPU_ISA"):
            tried(tmp_path / name, "bf16-mixed")
        assert not (tmp_path / name / "config.json").exists()  # nothing hinders the same command in another precision
    assert (tmp_path / "tries").read_text("utf8") == "x"
    assert tried(tmp_path / "first", "32-true").generate(normal(2, 2), torch.arange(3.0)).states.isfinite().all()


@pytest.mark.parametrize("name", TASKS)
def test_every_loss_asks_before_it_computes_in_bfloat16(trial, name):
    data, generator = Trajectories(torch.rand(2, 3, *FRAME), torch.arange(3.0)), torch.Generator().manual_seed(0)
    loss = TASKS[name].loss(data, MIXED)
    extra = () if loss.draw is None else loss.draw(2, generator)
    sample = (data.states[:, : TASKS[name].width], data.times.expand(2, 3)[:, : TASKS[name].width], torch.ones(2, 2))
    trial("import os; os.abort()")
    with pytest.raises(ValueError, match="SIGABRT"):
        loss(*sample, *extra, generator=generator)


def test_where_the_trial_passes_bfloat16_computes(trial):
    trial("pass")
    with bfloat16(CPU, enabled=True):
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    trial("import os; os.abort()")
    with bfloat16(CPU, enabled=False):  # nobody asked, nothing is tried
        assert not torch.is_autocast_enabled("cpu")


def test_the_trial_itself_computes_forwards_and_backwards_in_bfloat16():
    if trouble := bf16_trouble():
        pytest.skip(f"bfloat16 on this CPU: a trial {trouble}")
    threads, seen, computed = torch.get_num_threads(), {}, {}
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda layer, given, made: seen.update({type(layer).__name__: made.dtype})
    )
    try:
        exec(devices.BF16_TRIAL, computed)
    finally:
        hook.remove()
        torch.set_num_threads(threads)
    assert seen["Conv2d"] == seen["Linear"] == torch.bfloat16
    assert all(weight.grad.norm() > 0 for weight in computed["layers"].parameters())
