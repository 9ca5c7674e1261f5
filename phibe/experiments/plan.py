"""What an experiment needs, said before anything runs: data, parameters, memory, operations, and hours by machine.

An experiment lists its data, its trainings and its closed forms (`Needs`). One true step of each training, forward,
Jacobian products and backward, is carried out on the `meta` device: shapes, devices and allocations are those of the
run, but nothing is computed. Training alone is counted: simulation, validation and rollouts come on top. Read next:
`report.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from phibe.experiments.baselines.forecaster import ForecastLoss, ForecastTask
from phibe.experiments.conditioned import ConditionedObjective, ConditionedTask
from phibe.experiments.downloads import HASHES, sha256_of
from phibe.experiments.training import InputNoise, NoisyLoss, RandomShift, ShiftedLoss
from phibe.networks import build
from phibe.networks.network import Normalised
from phibe.training.loop import Loss, ObjectiveModule, Task, VelocityTask


@dataclass(frozen=True)
class Data:
    """Some data of an experiment: what it is, its size, where it comes from, and the file or folder if it is one."""

    what: str
    megabytes: float
    source: str = "simulated here"
    path: str = ""

    def __str__(self) -> str:
        size = f"{self.megabytes:,.1f} MB" if self.megabytes else "size not known"
        return "; ".join(filter(None, [f"{self.what}: {size}, {self.source}", self.path, self._hash()]))

    def _hash(self) -> str:
        """SHA-256 of a file; of a folder where `phibe fetch` noted those of its files."""
        place = Path(self.path)
        if place.is_file():
            return f"SHA-256 {sha256_of(place)}"
        if self.path and (place / HASHES).is_file():
            return f"hashes in {place / HASHES}"
        return "which is not there yet" if self.path and not place.exists() else ""


def file(what: str, path: str, *, source: str = "a file of your own") -> Data:
    """Data in a file, with its size if it is there."""
    return Data(what, Path(path).stat().st_size / 2**20 if Path(path).is_file() else 0.0, source, path)


def states(what: str, shape: Sequence[int], *, bits: int = 64, source: str = "simulated here") -> Data:
    """Data of that many numbers."""
    return Data(f"{what} {' × '.join(f'{n:,}' for n in shape)}", torch.Size(shape).numel() * bits / 2**23, source)


@dataclass(frozen=True)
class Training:
    """`count` trainings of `steps` steps. `make()` gives what is trained, as a loss with a call of its own; `inputs(n)`
    the shapes of the tensors that it takes for a batch of n. `per_sample` if a step of one sample, on the CPU, stands
    for the batch: for what the meta device cannot do."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Sequence[Sequence[int]]]
    batch: int
    steps: int
    count: int = 1
    average: bool = False
    per_sample: bool = False

    def operations(self, cost: Cost) -> float:
        return cost.operations * self.steps * self.count


@dataclass(frozen=True)
class Needs:
    """Data, trainings, and what is solved in closed form, in words."""

    data: Sequence[Data]
    trainings: Sequence[Training] = ()
    closed: str = ""


def training(
    name: str, task: Callable[[], Task[Any]], shape: Sequence[int], config: Any, *, steps: int = 0, count: int = 1
) -> Training:
    """The training of a task on states of that shape, with the batch and the average of a `FitConfig`."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        width = task().width
    make, inputs = lambda: loss_of(task(), tuple(shape)), lambda n: samples(n, width, tuple(shape))
    batch, steps = config.batch // config.micro_batches, (steps or config.steps) * config.micro_batches
    return Training(name, make, inputs, batch, steps, count, config.ema > 0)


def velocity(kind: str, shape: Sequence[int], objective: str, **arguments: Any) -> VelocityTask:
    """A velocity network of that name, new, with its objective."""
    return VelocityTask(build(kind, shape, **arguments), objective)


def samples(n: int, width: int, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of a sample: x, t, Δx, Δt of two observations; x, t, Δt of more."""
    two, more = [(n, *shape), (n,), (n, *shape), (n,)], [(n, width, *shape), (n, width), (n, width - 1)]
    return two if width == 2 else more


def loss_of(task: Any, shape: tuple[int, ...]) -> Loss:
    """The loss that the task trains with, in units that are not measured: there is no data yet."""
    if isinstance(task, InputNoise):
        return NoisyLoss(loss_of(task.task, shape), task.task, task.size, shape)
    if isinstance(task, RandomShift):
        return ShiftedLoss(loss_of(task.task, shape), task.width, random_shift=True)
    if isinstance(task, ForecastTask):
        return ForecastLoss(task.model, mixed=False)
    assert isinstance(task, VelocityTask) and not isinstance(task.network, str)
    kind = ConditionedObjective if isinstance(task, ConditionedTask) else ObjectiveModule
    network = task.network if isinstance(task.network, Normalised) else Normalised(task.network, shape)
    return kind(network, task.name, balance=True)


# -- one step ----------------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Parameters, and of one step: operations, those of them in convolutions, torch calls, and megabytes."""

    parameters: int
    operations: float
    convolutions: float
    calls: int
    megabytes: float


def one_step(training: Training) -> Cost:
    """Forward and backward of a batch by torch's counter; memory is that of all tensors alive at once, with weights,
    their two moments in Adam and their average, if there is one."""
    device, batch = ("cpu", 1) if training.per_sample else ("meta", training.batch)
    with torch.random.fork_rng(devices=[]), torch.device(device):
        module = training.make().train()
        inputs = [torch.zeros(*shape) for shape in training.inputs(batch)]
    drawn = module.draw(batch, torch.Generator().manual_seed(0)) if isinstance(module, Loss) else ()
    with torch.random.fork_rng(devices=[]), Memory() as memory, FlopCounterMode(display=False) as counter:
        module(*inputs, *(part.to(device) for part in drawn)).mean().backward()
    times = training.batch // batch
    by_call = counter.get_flop_counts().get("Global", {})
    convolutions = sum(count for call, count in by_call.items() if "convolution" in str(call))
    size = sum(p.numel() for p in module.parameters())
    memory_of_batch = (memory.peak - 4 * size) * times + 4 * size * (4 + training.average)
    return Cost(size, counter.get_total_flops() * times, convolutions * times, memory.calls, memory_of_batch / 2**20)


class Memory(TorchDispatchMode):
    """Bytes of the tensors that are alive, and the most there ever were; `calls` of torch below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        tree_map_only(Tensor, self._see, out)
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) not in self.alive:
            self.alive[id(storage)] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, id(storage))

    def _forget(self, key: int) -> None:
        self.now -= self.alive.pop(key)


# -- machines ----------------------------------------------------------------------------------------------------------


class Machine(NamedTuple):
    """Peak operations a second of matrix products in float32 and of convolutions in TF32, as torch uses them unless it
    is told otherwise, the share of it that is reached, and the seconds of a call, however small its work."""

    name: str
    products: float
    convolutions: float
    utilisation: float
    call: float

    def hours(self, cost: Cost, steps: int) -> float:
        work = (cost.operations - cost.convolutions) / self.products + cost.convolutions / self.convolutions
        return steps * max(work / self.utilisation, cost.calls * self.call) / 3600


GPUS = (
    # NVIDIA Ada GPU Architecture whitepaper v2.02, table 2: FP32 82.6, TF32 tensor, dense 82.6 TFLOP/s
    Machine("RTX 4090", 82.6e12, 82.6e12, 0.3, 1e-5),
    # NVIDIA A100 Tensor Core GPU data sheet: FP32 19.5, TF32 tensor, dense 156 TFLOP/s
    Machine("A100", 19.5e12, 156e12, 0.3, 1e-5),
    # NVIDIA H100 Tensor Core GPU data sheet, SXM: FP32 67, TF32 tensor 989 with sparsity, so dense 494.5 TFLOP/s
    Machine("H100", 67e12, 494.5e12, 0.3, 1e-5),
)


def this_machine(*, side: int = 768) -> Machine:
    """The present CPU: its best of a few matrix products, and the time of a small sum that is recorded for backward."""
    a, b = torch.ones(side, side), torch.ones(8, requires_grad=True)
    rate = 2 * side**3 / min(repeat(lambda: a @ a, number=1, repeat=4))
    return Machine("this CPU (measured)", rate, rate, 0.5, min(repeat(lambda: b + b, number=200, repeat=3)) / 200)


# -- the page ----------------------------------------------------------------------------------------------------------


def plan(name: str, preset: str, needs: Needs) -> str:
    """What the preset needs, as text; nothing of it is run but one step of each training, on the meta device."""
    lines = [f"{name}, preset {preset}: what it needs. Nothing has been run.", ""]
    lines += [*(f"data      {item}" for item in needs.data), *([f"closed    {needs.closed}"] if needs.closed else [])]
    if not needs.trainings:
        return "\n".join([*lines, "trainings none"])
    costs = [(one, one_step(one)) for one in needs.trainings]
    head = ("training", "parameters", "batch", "GFLOP a step", "MB a step", "steps", "trainings", "PFLOP")
    rows = [head, *(_row(one, cost) for one, cost in costs)]
    width = max(len(row[0]) for row in rows)
    lines += ["", *(row[0].ljust(width) + "".join(f"{cell:>15}" for cell in row[1:]) for row in rows)]
    total = sum(one.operations(cost) for one, cost in costs)
    lines += ["", f"total     {total:.3g} floating-point operations in trainings: products and convolutions"]
    return "\n".join([*lines, *(_hours(machine, costs) for machine in (this_machine(), *GPUS))])


def _row(one: Training, cost: Cost) -> tuple[str, ...]:
    step = (f"{cost.parameters:,}", str(one.batch), f"{cost.operations / 1e9:.4g}", f"{cost.megabytes:,.0f}")
    return one.name, *step, f"{one.steps:,}", str(one.count), f"{one.operations(cost) / 1e15:.3g}"


def _hours(machine: Machine, costs: Iterable[tuple[Training, Cost]]) -> str:
    hours = sum(machine.hours(cost, one.steps * one.count) for one, cost in costs)
    peak = f"{machine.products / 1e12:.3g} TFLOP/s in products, {machine.convolutions / 1e12:.3g} in convolutions"
    at = f"at {machine.utilisation:.0%} of {peak}, {machine.call * 1e6:.2g} µs a call"
    return f"{machine.name:19} {hours:,.3g} hours of training, {at}"
