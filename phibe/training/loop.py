"""The training loop: a network's velocity fitted to trajectories by stochastic descent on an objective."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from tqdm.auto import tqdm

from phibe.flow import Flow
from phibe.training.batches import Batches
from phibe.training.checkpoints import fingerprint
from phibe.training.config import WHERE, FitConfig
from phibe.training.devices import engine, seed_device
from phibe.training.objective import accumulate, follow
from phibe.training.resume import Folder, Learner
from phibe.training.runs import load_weights, read_weights
from phibe.training.sampling import Samples, seed_of, split_paths
from phibe.training.tasks import Result, Task, VelocityTask
from phibe.training.watch import Watch, judge
from phibe.trajectories import Trajectories


def fit(
    data: Trajectories,
    network: str | nn.Module = "mlp",
    objective: str = "phibe",
    *,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> Flow:
    """The flow of a network trained on the data: its best weights by the objective on held-out paths.

    `network` is a name (`mlp`, `residual`, `unet`) or any module called as v(x, t), which is copied. With a folder
    `out` the run is kept there (config, metrics, checkpoints, weights): the same call goes on where it was killed, to
    the same bits, and returns at once what is finished. `held_out` brings paths of its own for the evaluation.
    """
    task = VelocityTask(network, objective)
    return train(data, task, config=config, out=out, held_out=held_out, progress=progress)


def train(
    data: Trajectories,
    task: Task[Result],
    *,
    config: FitConfig | None = None,
    out: str | Path | None = None,
    held_out: Trajectories | None = None,
    progress: bool = True,
) -> Result:
    """The result of a task after descent on its loss: what `fit` does for a velocity, for anything with a loss."""
    config = config or FitConfig()
    samples, check = _split(data, held_out, task.width, config)
    typical = data[samples.paths[:: max(1, data.states.nbytes // 2**26)]]  # 64 MB or less of the training paths
    loss = task.loss(typical, config)
    network, about = loss.network, task.about(loss.network, data)
    devices = engine(config)
    batches = Batches(samples, config, devices, scale=loss.scale, draw=loss.draw)

    identity = _identity(data, held_out, about["network"], loss.facts, config) if out else {}
    folder = Folder(out, identity, writes=devices.global_rank == 0)
    if folder.finished:
        load_weights(network, read_weights(str(out)), str(out))
        return task.result(network, data)

    loss.to(devices.device)
    average = copy.deepcopy(loss) if config.ema else loss
    learner = Learner(network, average.network, _optimiser(network, config))
    module, learner.optimiser = devices.setup(loss, learner.optimiser)
    watch = Watch(average, samples, check, config, devices)
    folder.begin(learner)
    devices.barrier()  # every process has read the folder before one of them writes to it
    folder.clean(learner, about)

    quiet = not progress or devices.global_rank > 0
    with tqdm(total=config.steps, initial=learner.progress.step, desc=task.name, unit="step", disable=quiet) as bar:
        try:
            _descend(learner, module, batches, watch=watch, folder=folder, config=config, devices=devices, bar=bar)
        except Diverged as error:
            error.flow = task.result(_best(learner), data)
            raise
    folder.finish(learner)
    devices.barrier()
    return task.result(_best(learner), data)


def _descend(
    learner: Learner,
    module: nn.Module,
    batches: Batches,
    *,
    watch: Watch,
    folder: Folder,
    config: FitConfig,
    devices: Any,
    bar: tqdm,
) -> None:
    """Step after step; all that one leaves to the next is in `learner`."""
    now, clock = learner.progress, time.perf_counter() - learner.progress.seconds
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
                scores = watch.scores()
                if judge(now, scores):
                    learner.keep_best()
                now.stopped = 0 < config.patience <= now.waited
                bar.set_postfix(objective=scores.train, **({"held_out": scores.held_out} if scores.held_out else {}))
                line = {"step": now.step, **scores._asdict(), "batch": loss, "gradient": gradient}
                folder.metrics.append(line | {"rate": config.rate(now.step - 1), "seconds": now.seconds})
            if now.step % config.checkpoint_every == 0:
                folder.save(learner)


# -- before --------------------------------------------------------------------------------------------------------


def _split(
    data: Trajectories, held_out: Trajectories | None, width: int, config: FitConfig
) -> tuple[Samples, Samples | None]:
    """Training and held-out samples, of the width that the task asks for (2 observations: a transition)."""
    if held_out is not None:
        if not isinstance(held_out, Trajectories):
            raise ValueError(
                f"`held_out` takes trajectories; a share of the paths is `FitConfig(held_out={held_out})`."
            )
        if held_out.state_shape != data.state_shape:
            raise ValueError(f"`held_out` has states {held_out.state_shape}; the training data has {data.state_shape}.")
        return Samples(data, width=width), Samples(held_out, width=width)
    if config.held_out == 0:
        if config.patience:
            raise ValueError("`patience` waits for the held-out objective, but `held_out` is 0. Hold some paths out.")
        return Samples(data, width=width), None
    train, held = split_paths(len(data), config.held_out, seed=config.seed)
    return Samples(data, width=width, paths=train), Samples(data, width=width, paths=held)


def _optimiser(network: nn.Module, config: FitConfig) -> Optimizer:
    kind = {"adam": Adam, "adamw": AdamW}[config.optimiser]
    trained = [p for p in network.parameters() if p.requires_grad]
    return kind(trained, lr=config.learning_rate, weight_decay=config.weight_decay)


def _identity(
    data: Trajectories,
    held_out: Trajectories | None,
    network: dict[str, Any],
    objective: dict[str, Any],
    config: FitConfig,
) -> dict[str, Any]:
    """What makes two runs the same run."""
    return {
        "objective": objective,
        "network": network,
        "data": {"sha256": fingerprint(data), "shape": list(data.states.shape)},
        "held_out": held_out and {"sha256": fingerprint(held_out), "shape": list(held_out.states.shape)},
        "config": {name: value for name, value in asdict(config).items() if name not in WHERE},
    }


# -- after ---------------------------------------------------------------------------------------------------------


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
    if not learner.best:
        learner.keep_best()
    kept = folder.save_weights(learner.best)
    bad = index[batches.mine][(~torch.isfinite(values)).cpu()]
    places = [
        f"(path {p}, time {t})" for p, t in zip(*(part.tolist() for part in batches.samples.where(bad)), strict=True)
    ]
    what = f"objective of {len(bad)} of {len(values)} samples, at {', '.join(places[:3])}," if places else "gradient"
    message = (
        f"At step {step} the {what} is not finite (batch: samples {', '.join(map(str, index[:5].tolist()))} …). The "
        f"last good weights are in {kept or 'the `flow` of this error'}. Lower `learning_rate`, set `clip`, or "
        "regularise (`weight_decay`, `ema`)."
    )
    return Diverged(message, step, index)


def _best(learner: Learner) -> nn.Module:
    """A network with the best weights."""
    network = copy.deepcopy(learner.average)
    network.load_state_dict(learner.best)
    return network
