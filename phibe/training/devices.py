"""Devices: one device with plain torch, several through Lightning Fabric, behind the same few calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phibe.training.config import FitConfig

PRECISIONS = {"32-true": torch.float32, "64-true": torch.float64, "bf16-mixed": torch.float32}

BF16_TRIAL = """
import torch
torch.set_num_threads(1)
layers = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(2048, 64))
with torch.autocast("cpu", torch.bfloat16):
    loss = layers(torch.ones(32, 16, 8, 8)).float().square().mean()
loss.backward()
"""


class Plain:
    """One device, without an engine: what the training loop uses of Fabric's interface."""

    world_size, global_rank = 1, 0

    def __init__(self, accelerator: str):
        self.device = pick(accelerator)

    def setup(self, module: nn.Module, optimiser: Optimizer) -> tuple[nn.Module, Optimizer]:
        return module, optimiser

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Any:
        return nullcontext()

    def all_reduce(self, value: Tensor, reduce_op: str = "mean") -> Tensor:
        return value

    def barrier(self) -> None:
        pass


def pick(accelerator: str) -> torch.device:
    """The device of that name; `auto` is CUDA, else MPS, else the CPU."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if accelerator == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    gpu = "cuda" if there["cuda"] else "mps"
    name = gpu if accelerator == "gpu" else accelerator
    if not there[name]:
        raise ValueError(f"`accelerator` = {accelerator!r} was asked for, but torch sees no such device. Use 'auto'?")
    return torch.device(name)


def bfloat16(device: torch.device, *, enabled: bool) -> AbstractContextManager[Any]:
    """Where a `bf16-mixed` network computes; on a CPU that fails at bfloat16, a ValueError."""
    if enabled and device.type == "cpu" and (trouble := bf16_trouble()):
        fix = "Use precision '32-true', or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts?"
        raise ValueError(f"`precision` = 'bf16-mixed' does not work on this CPU: a trial {trouble}. {fix}")
    return torch.autocast(device.type, torch.bfloat16) if enabled else nullcontext()


@cache
def bf16_trouble() -> str:
    """How the trial of bfloat16 on this CPU went wrong, '' if it did not: some CPUs advertise instructions that their
    kernel withholds, and to use them kills the process; so a child tries first."""
    command = [sys.executable, "-P", "-c", BF16_TRIAL]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf8", errors="replace", timeout=300)
    except subprocess.TimeoutExpired as late:
        return f"did not end within {late.timeout:g} s"
    if done.returncode < 0:
        return f"was killed by {signal.Signals(-done.returncode).name}"
    return f"failed: {done.stderr.strip().rpartition(chr(10))[2]}" if done.returncode else ""


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of this device alone: `torch.manual_seed` goes through every other one too,
    and remembers the call for those that are not there, which at every step is slow and fills the memory."""
    torch.default_generator.manual_seed(seed)
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).manual_seed(seed)


def engine(config: FitConfig) -> Any:
    """Plain torch for one device; otherwise Fabric, with all its processes running."""
    launched = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    devices = int(os.environ["LOCAL_WORLD_SIZE"]) if launched else config.devices
    nodes = int(os.environ["WORLD_SIZE"]) // devices if launched else config.nodes
    if devices * nodes == 1 and config.strategy == "auto":
        return Plain(config.accelerator)
    try:
        from lightning_fabric import Fabric
    except ImportError:
        many = f"{devices} × {nodes} devices with strategy {config.strategy!r}"
        raise ValueError(f"{many} need Lightning Fabric: `pip install lightning-fabric`.") from None
    fabric = Fabric(accelerator=config.accelerator, devices=devices, num_nodes=nodes, strategy=config.strategy)
    fabric.launch()
    return fabric
