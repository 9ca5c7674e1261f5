"""The training loop: a network's velocity fitted to trajectories by stochastic descent on an objective.

The mean of a registered objective over batches of neighbouring observations [paper: empirical PhiBE-Flow objective] is
lowered step by step, its value on held-out paths decides which weights are kept. Everything that a step uses is a
function of the seed and the step, so a killed run goes on to the same bits. `fit_network` is the loop for velocities,
`train` for anything with a loss; `phibe.fit` calls the former. Read next: `phibe.training.runs`, how a run is kept.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Adam, AdamW
from tqdm.auto import tqdm

from phibe.calculus import along
from phibe.flow import Flow
from phibe.networks import build
from phibe.networks.checks import check_network, evaluating, seeded
from phibe.networks.network import Normalised
from phibe.objectives import estimate_noise, find_objective
from phibe.training.config import FitConfig
from phibe.training.devices import PRECISIONS, bfloat16, engine, seed_device
from phibe.training.runs import (
    Fitted,
    Folder,
    Learner,
    Progress,
    about_flow,
    identify,
    load_weights,
    of_data,
    read_weights,
)
from phibe.training.sampling import Batches, Samples, seed_of, split_samples
from phibe.trajectories import Trajectories

Result = TypeVar("Result", covariant=True)
OPTIMISERS = {"adam": Adam, "adamw": AdamW}


def fit_network(
    data: Trajectories,
    network: str | nn.Module = "mlp",
    objective: str = "phibe",
    *,
    arguments: dict[str, Any] | None = None,
    check: bool = True,
    **how: Any,
) -> Flow:
    """The flow of a network trained on the data, `how` as `train` takes it.

    `network` is a name of `NETWORKS`, made with these `arguments`, or any module called as v(x, t), which is copied.
    Without `check` a network that the objective has wrong gradients of, such as one of ReLUs, is trained all the same.
    """
    return train(data, VelocityTask(network, objective, check, arguments or {}), **how)


def train(
    data: Trajectories,
    task: Task[Result],
    *,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> Result:
    """The result of a task after descent on its loss: its best weights by the loss on held-out paths.

    With a folder `out` the run is kept there (config, metrics, checkpoints, weights): the same call goes on where it
    was killed, to the same bits, and returns at once what is finished. `held_out` brings paths of its own for the
    evaluation.
    """
    config = config or FitConfig()
    samples, check = split_samples(data, held_out, task.width, config)
    typical = data[samples.paths[:: max(1, data.states.nbytes // 2**26)]]  # 64 MB or less of the training paths
    loss = task.loss(typical, config)
    network, about = loss.network, task.about(loss.network, data)
    devices = engine(config)
    bfloat16(devices.device, enabled=config.precision == "bf16-mixed")  # one that does not work ends the fit here
    batches = Batches(samples, config, devices, scale=loss.scale, draw=loss.draw)

    identity = identify(data, held_out, about["network"], loss.facts, config) if out else {}
    folder = Folder(out, identity, writes=devices.global_rank == 0)
    if folder.finished:
        load_weights(network, read_weights(str(out)), str(out))
        return task.result(network, data)

    loss.to(devices.device)
    average = copy.deepcopy(loss) if config.ema else loss
    trained = [p for p in network.parameters() if p.requires_grad]
    optimiser = OPTIMISERS[config.optimiser](trained, lr=config.learning_rate, weight_decay=config.weight_decay)
    module, optimiser = devices.setup(loss, optimiser)
    learner = Learner(network, average.network, optimiser)
    validation = Validation(average, samples, check, config, devices)
    quiet = not progress or devices.global_rank > 0

    def best() -> Result:
        kept = copy.deepcopy(learner.average)
        kept.load_state_dict(learner.best_weights())
        return task.result(kept, data)

    with (
        folder.training(learner, about, devices.barrier),
        tqdm(total=config.steps, initial=learner.progress.step, desc=task.name, unit="step", disable=quiet) as bar,
    ):
        try:
            _descend(learner, module, batches, validation=validation, folder=folder, devices=devices, bar=bar)
        except Diverged as error:
            error.flow = best()
            raise
    devices.barrier()
    return best()


def _descend(
    learner: Learner,
    module: nn.Module,
    batches: Batches,
    *,
    validation: Validation,
    folder: Folder,
    devices: Any,
    bar: tqdm,
) -> None:
    """Step after step; all that one leaves to the next is in `learner`."""
    config, now, clock = batches.config, learner.progress, time.perf_counter() - learner.progress.seconds
    with torch.random.fork_rng(devices=[devices.device] if devices.device.type == "cuda" else []):
        while now.step < config.steps and not now.stopped:
            seed_device(devices.device, seed_of(config.seed, now.step, devices.global_rank))  # dropout and the like
            for group in learner.optimiser.param_groups:
                group["lr"] = config.rate(now.step)
            learner.optimiser.zero_grad()
            sample, probes = batches.sample(now.step), batches.probes(now.step)
            values = accumulate(devices, module, sample, parts=config.micro_batches, generator=probes)
            loss = float(devices.all_reduce(values.mean()))
            gradient = float(nn.utils.clip_grad_norm_(learner.network.parameters(), config.clip or math.inf))
            if not math.isfinite(loss + gradient):
                raise _diverged(values, learner, batches, folder)
            learner.optimiser.step()
            if config.ema:
                follow(learner.average, learner.network, decay=config.ema, step=now.step)
            now.step += 1
            bar.update()
            if now.step % config.evaluate_every == 0 or now.step == config.steps:
                now.seconds = round(time.perf_counter() - clock, 3)
                scores = validation.scores()
                if judge(now, scores):
                    learner.keep_best()
                now.stopped = 0 < config.patience <= now.waited
                bar.set_postfix(objective=scores.train, **({"held_out": scores.held_out} if scores.held_out else {}))
                line = {"step": now.step, **scores._asdict(), "batch": loss, "gradient": gradient}
                folder.metrics.append(line | {"rate": config.rate(now.step - 1), "seconds": now.seconds})
            if now.step % config.checkpoint_every == 0:
                folder.save(learner)


def accumulate(
    devices: Any,
    module: nn.Module,
    sample: tuple[Tensor, ...],
    *,
    parts: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Add up the gradient of a batch's mean objective, worked through in `parts`; the objective of each sample."""
    values = []
    for k, piece in enumerate(zip(*(part.chunk(parts) for part in sample), strict=True)):
        with devices.no_backward_sync(module, enabled=k + 1 < parts):
            value = module(*piece, generator=generator)
            devices.backward(value.mean() / parts)
        values.append(value.detach())
    return torch.cat(values)


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, *, decay: float, step: int) -> None:
    """ā ← d ā + (1 − d) a for each weight, with d = min(decay, (1 + step)/(10 + step)): a short memory at first."""
    d = min(decay, (1 + step) / (10 + step))
    for slow, fast in zip(average.parameters(), network.parameters(), strict=True):
        slow.lerp_(fast, 1 - d)
    for kept, present in zip(average.buffers(), network.buffers(), strict=True):
        kept.copy_(present)


LEAST, MOST = 256, 16384
"""Held-out samples of an evaluation, always the same: a third of those trained on since the last one."""


class Scores(NamedTuple):
    """Mean objective on training and held-out samples (None: there are none), standard error of the gap, max |J·Δx|."""

    train: float
    held_out: float | None
    error: float
    jacobian_dx: float | None


@dataclass
class Validation:
    """The objective of a module on fixed samples."""

    module: Loss
    train: Samples
    check: Samples | None
    config: FitConfig
    devices: Any

    @torch.no_grad()
    def scores(self) -> Scores:
        """All processes evaluate the same samples and agree on the mean."""
        count = max(LEAST, min(MOST, self.config.evaluate_every * self.config.batch // 3))
        with evaluating(self.module):
            train, slopes = self._evaluate(self.train, count // 4, slopes=self.module.jacobian)
            held = self._evaluate(self.check, count)[0] if self.check else train
        error = math.hypot(*(float(values.std(correction=0)) / math.sqrt(len(values)) for values in (train, held)))
        seen = torch.stack([train.mean(), held.mean(), slopes.max()]).to(self.devices.device, torch.float32)
        means = self.devices.all_reduce(seen).tolist()
        return Scores(means[0], means[1] if self.check else None, error, means[2] if self.module.jacobian else None)

    def _evaluate(self, samples: Samples, count: int, *, slopes: bool = False) -> tuple[Tensor, Tensor]:
        """The objective at `count` samples, with the same random numbers each time; if asked for, their |J·Δx|."""
        like = next(self.module.parameters())
        generator = torch.Generator(like.device).manual_seed(self.config.seed)
        drawing = torch.Generator().manual_seed(self.config.seed)
        values, norms = [], [torch.zeros(1)]
        for piece in samples.some(count, seed=self.config.seed).split(self.config.batch):
            parts = *samples.take(piece), *self.module.draw(len(piece), drawing)
            sample = [part.to(like.dtype).to(like.device) for part in parts]
            values.append(self.module(*sample, generator=generator).cpu().double())
            if slopes:
                norms.append(self._slope(*sample).cpu())
        return torch.cat(values), torch.cat(norms)

    def _slope(self, x: Tensor, t: Tensor, *steps: Tensor) -> Tensor:
        """|J·Δx| of the first transition of each sample."""
        x, t, dx = (x, t, steps[0]) if self.train.width == 2 else (x[:, 0], t[:, 0], x[:, 1] - x[:, 0])
        return along(lambda z: self.module.network(z, t), x, dx)[1].flatten(1).norm(dim=1)


def judge(now: Progress, scores: Scores) -> bool:
    """Note in the progress what the scores mean; True if they are the best so far.

    A flexible network can lower the objective at the training points for ever, while the velocity gets worse. That of
    v = 0 is 0, so |best| is a natural unit: both objectives have parted when their gap exceeds it by three errors.
    """
    if scores.held_out is None:
        return True
    better = math.isfinite(scores.held_out) and (now.best is None or scores.held_out < now.best)
    if better:
        now.best, now.best_step, now.best_error, now.waited = scores.held_out, now.step, scores.error, 0
    else:
        now.waited += 1
    gap = scores.held_out - scores.train
    if not now.warned and now.best is not None and not gap <= abs(now.best) + 3 * now.best_error:
        now.warned = True
        differentiates = scores.jacobian_dx is not None
        unbounded = "A finite sample does not bound this objective from below ('symmetric' it does). " * differentiates
        seen = f"{scores.train:.4g} against {scores.held_out:.4g} (best {now.best:.4g} at step {now.best_step})"
        noise = f"{unbounded}The network has begun to fit the noise of its sample; the best weights are kept."
        fix = "Stop early (`patience`), regularise (`weight_decay`, `ema`, `input_noise`), or bring more paths."
        parted = f"At step {now.step} the training and the held-out objective have parted: {seen}. {noise} {fix}"
        warnings.warn(parted, stacklevel=7)  # the caller of `phibe.fit`
    return better


class Loss(nn.Module):
    """The loss of a network, sample → (n,): what engines wrap, so that all derivatives are inside `forward`.

    `facts` tell two losses apart, in JSON; `jacobian` says whether it differentiates in x, `scale` is that of states.
    """

    network: nn.Module
    facts: dict[str, Any]
    jacobian = False
    scale: Tensor | float = 1.0

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random numbers, n of each on the CPU, that go with n samples: `forward` takes them after the sample."""
        return ()


class ObjectiveModule(Loss):
    """The objective of a velocity network."""

    def __init__(
        self, network: nn.Module, objective: str, *, balance: bool = False, mixed: bool = False, **options: Any
    ):
        super().__init__()
        self.network, self.objective, self.options, self.mixed = network, objective, options, mixed
        self.facts, self.jacobian = {"name": objective, **options}, find_objective(objective).jacobian
        self.balance = balance and isinstance(network, Normalised) and not find_objective(objective).noise
        self.scale = network.scale if isinstance(network, Normalised) else 1.0

    def forward(
        self, *sample: Tensor, generator: torch.Generator | None = None, given: dict[str, Tensor] | None = None
    ) -> Tensor:
        """The objective of each sample, (n,); `given` goes to the network beside x and t."""
        function, options, given = find_objective(self.objective), dict(self.options), given or {}
        if function.noise:
            options["generator"] = generator
        with ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fused attention kernels know no forward derivative
            stack.enter_context(bfloat16(sample[0].device, enabled=self.mixed))
            if self.balance:
                return self.network.balanced(function, *sample, given=given, **options)  # type: ignore[operator]
            return function(lambda x, t: self.network(x, t, **given).to(x.dtype), *sample, **options)


class Task(Protocol[Result]):
    """Something to train by the loop: its `name`, and the `width` of the runs of observations that are its samples."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...

    def loss(self, typical: Trajectories, config: FitConfig) -> Loss:
        """The loss of a new network, made for `typical` paths of the training data."""

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        """What opens the result again besides the weights, as JSON; its entry `network` describes the network."""

    def result(self, network: nn.Module, data: Trajectories) -> Result:
        """What the caller gets of a trained network, where the data is and in its floating type."""


@dataclass(frozen=True)
class VelocityTask:
    """A velocity network, of a name with `arguments` or a module that is copied, to train on an objective to a flow."""

    network: str | nn.Module
    name: str
    check: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return find_objective(self.name).width

    @property
    def place(self) -> int:
        """Which of the observations the network is asked at."""
        return find_objective(self.name).place

    def loss(self, typical: Trajectories, config: FitConfig) -> ObjectiveModule:
        options = {"noise": config.noise or estimate_noise(typical)} if find_objective(self.name).noise else {}
        velocity, mixed = self._prepare(typical, config), config.precision == "bf16-mixed"
        return ObjectiveModule(velocity, self.name, balance=config.balance, mixed=mixed, **options)

    def about(self, network: nn.Module, data: Trajectories) -> dict[str, Any]:
        return about_flow(network, of_data(network, data, self.name), data.states.dtype)

    def result(self, network: nn.Module, data: Trajectories) -> Flow:
        return of_data(Fitted(network.to(data.states.device, data.states.dtype)), data, self.name)

    def _prepare(self, typical: Trajectories, config: FitConfig) -> nn.Module:
        """A new network, or a copy of the given one, in the data's units and known to be right for the objective."""
        dtype = PRECISIONS[config.precision]
        with seeded(config.seed):
            if isinstance(self.network, str):
                made: nn.Module = build(self.network, typical.state_shape, **self.arguments)
            else:
                made = copy.deepcopy(self.network)
        made = made.to(typical.states.device, dtype)
        if config.normalise and not isinstance(made, Normalised):
            made = Normalised.fit(made, typical)
        if self.check:
            self._check(made, typical.states[:8, 0].to(dtype), typical._path_times()[:8, 0].to(dtype))
        return made

    def _check(self, network: nn.Module, x: Tensor, t: Tensor) -> None:
        check_network(network, x, t, objective=self.name)


class Diverged(ArithmeticError):
    """The objective or its gradient is not finite at `step`, in the batch `index`; `flow` is the last good one (of
    another task than a velocity's, its result)."""

    flow: Any

    def __init__(self, message: str, step: int, index: Tensor):
        super().__init__(message)
        self.step, self.index = step, index


def _diverged(values: Tensor, learner: Learner, batches: Batches, folder: Folder) -> Diverged:
    """What to say when a step fails; the best weights so far, or those before the step, are kept."""
    step, index = learner.progress.step, batches.index(learner.progress.step)
    kept = folder.save_weights(learner.best_weights())
    bad = index[batches.mine][(~torch.isfinite(values)).cpu()]
    where = zip(*(part.tolist() for part in batches.samples.where(bad)), strict=True)
    places = [f"(path {path}, time {time})" for path, time in where]
    what = f"objective of {len(bad)} of {len(values)} samples, at {', '.join(places[:3])}," if places else "gradient"
    weights = f"The last good weights are in {kept or 'the `flow` of this error'}."
    fix = "Lower `learning_rate`, set `clip`, or regularise (`weight_decay`, `ema`)."
    return Diverged(f"At step {step} the {what} is not finite. {weights} {fix}", step, index)
