"""Runs: a fitted flow in a folder, `config.json` and `weights.safetensors`, from which it is opened again.

While a network is trained, `Folder` keeps a checkpoint and `metrics.jsonl` there, so that a run that was killed goes on
to the same bits; no other process can write to it, and no other run is mistaken for it. `save_flow` and `open_flow` do
the same for a flow without its training. Next: `phibe.training.loop`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phibe.files import check_folder, replacing, write_json, writing
from phibe.flow import Flow
from phibe.linear.affine import AffineField
from phibe.networks import NETWORKS, build
from phibe.networks.network import Normalised
from phibe.objectives import OBJECTIVES, find_objective
from phibe.training.config import WHERE, FitConfig
from phibe.training.tensors import (
    fingerprint,
    join,
    load_tensors,
    optimiser_tensors,
    part,
    restore_optimiser,
    save_tensors,
)
from phibe.trajectories import Labels, Trajectories


class Metrics:
    """`metrics.jsonl`: a line for each evaluation, appended as training goes; without a folder it only forgets."""

    def __init__(self, path: Path | None):
        self.path = path

    def append(self, line: dict[str, float | None]) -> None:
        """A number that is not finite is written as null, which every reader of JSON takes."""
        if self.path:
            line = {key: value if value is not None and math.isfinite(value) else None for key, value in line.items()}
            with self.path.open("a", encoding="utf8") as file:
                file.write(f"{json.dumps(line)}\n")

    def trim(self, step: int) -> None:
        """Forget what was written after `step`, or not to its end: that part is about to be done again."""
        kept = [f"{json.dumps(line)}\n" for line in self.read() if line["step"] <= step]
        if self.path and self.path.exists():
            with replacing(self.path) as partial:
                partial.write_text("".join(kept), "utf8")

    def read(self) -> list[dict[str, Any]]:
        """All lines that were written to their end."""
        text = self.path.read_text("utf8") if self.path and self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


# -- checkpoint and resume ---------------------------------------------------------------------------------------------

FIT, FLOW = "a fit", "a saved flow"
"""The kinds of folders, as their marks say it."""
CONFIG, CHECKPOINT, WEIGHTS, RESULT = "config.json", "checkpoint.safetensors", "weights.safetensors", "result.json"
OPENS = ("network", "state_shape", "interval", "step", "dtype")
FIT_KEYS = (*OPENS, "data", "config")
"""What a config.json must have to be opened, and that of a fit."""


@dataclass
class Progress:
    """The numbers that training remembers from step to step."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    best_error: float = 0.0
    waited: int = 0
    warned: bool = False
    stopped: bool = False
    seconds: float = 0.0


@dataclass
class Learner:
    """Everything that training changes: weights, their moving average (or themselves), optimiser, the best so far."""

    network: nn.Module
    average: nn.Module
    optimiser: Optimizer
    progress: Progress = field(default_factory=Progress)
    best: dict[str, Tensor] = field(default_factory=dict)

    def keep_best(self) -> None:
        self.best = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.average.state_dict().items()}

    def best_weights(self) -> dict[str, Tensor]:
        """The best weights; the present ones, if none was found yet."""
        if not self.best:
            self.keep_best()
        return self.best

    def tensors(self) -> dict[str, Tensor]:
        average = {} if self.average is self.network else self.average.state_dict()
        network, optimiser = self.network.state_dict(), optimiser_tensors(self.optimiser)
        return join(network=network, average=average, optimiser=optimiser, best=self.best)

    def restore(self, tensors: dict[str, Tensor], progress: dict[str, Any], where: Path) -> None:
        load_weights(self.network, part(tensors, "network"), where)
        if self.average is not self.network:
            load_weights(self.average, part(tensors, "average"), where)
        restore_optimiser(self.optimiser, part(tensors, "optimiser"))
        self.best, self.progress = part(tensors, "best"), Progress(**progress)


def check_out(out: str | Path) -> None:
    """Refuse a folder that is neither new nor empty nor that of a fit."""
    check_folder(out, FIT, keys=FIT_KEYS)


def identify(
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


class Folder:
    """The folder of one run, or none (`out=None`): every rank reads it, only one that `writes` has it as its `own`.

    `identity` says what is being trained, on what and how; a folder that holds another run is refused. While it is
    `locked`, no other process can write there: of the processes of one run, rank 0 has the lock.
    """

    def __init__(self, out: str | Path | None, identity: dict[str, Any], *, writes: bool):
        self.path = Path(out) if out is not None else None
        self.own = self.path if writes else None
        self.identity = json.loads(json.dumps(identity))
        self.metrics = Metrics(self.own and self.own / "metrics.jsonl")
        if self.path:
            check_out(self.path)
            self._refuse_another()

    @property
    def finished(self) -> bool:
        return self.path is not None and (self.path / RESULT).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the folder; none may have begun another run there meanwhile."""
        with writing(self.own, FIT, keys=FIT_KEYS) if self.own else nullcontext():
            self._refuse_another()
            yield

    @contextmanager
    def training(self, learner: Learner, about: dict[str, Any], barrier: Callable[[], None]) -> Iterator[None]:
        """The folder, locked, from where the checkpoint left the run, or from its beginning, to its end."""
        with self.locked():
            self._restore(learner)
            barrier()  # every process has read the folder before one of them writes to it
            if self.own:
                (self.own / WEIGHTS).unlink(missing_ok=True)  # of a run that diverged
                write_json(self.own / CONFIG, self.identity | about)
                self.metrics.trim(learner.progress.step)
            yield
            self._finish(learner)

    def _restore(self, learner: Learner) -> None:
        if not self.path or not (file := self.path / CHECKPOINT).exists():
            return
        tensors, facts = load_tensors(file)
        if not isinstance(facts, dict) or "progress" not in facts:
            raise ValueError(f"{file} holds weights, but no state of a training run. Delete it to start again.")
        self._refuse(facts["identity"], file.name)
        learner.restore(tensors, facts["progress"], file)

    def save(self, learner: Learner) -> None:
        if self.own:
            facts = {"identity": self.identity, "progress": asdict(learner.progress)}
            save_tensors(self.own / CHECKPOINT, learner.tensors(), facts)

    def save_weights(self, weights: dict[str, Tensor]) -> Path | None:
        if self.own:
            save_tensors(self.own / WEIGHTS, weights)
        return self.path and self.path / WEIGHTS

    def _finish(self, learner: Learner) -> None:
        """The best weights and the result; the state in between is no longer needed."""
        self.save_weights(learner.best_weights())
        if self.own:
            p = learner.progress
            result = {"steps": p.step, "stopped_early": p.stopped, "best_step": p.best_step, "held_out": p.best}
            write_json(self.own / RESULT, result)
            (self.own / CHECKPOINT).unlink(missing_ok=True)

    def _refuse_another(self) -> None:
        """Refuse to go on with what is there if it is another run."""
        if not self.path or not (self.finished or (self.path / CHECKPOINT).exists()):
            return
        try:
            identity = json.loads((self.path / CONFIG).read_text("utf8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path / CONFIG} cannot be read: {error}. Choose another `out`.") from error
        self._refuse(identity, CONFIG)

    def _refuse(self, identity: dict[str, Any], file: str) -> None:
        known = {key: identity.get(key) for key in self.identity}
        if found := differences(known, self.identity):
            what = f"({file}): {'; '.join(found[:4])}{' …' if found[4:] else ''}"
            raise ValueError(f"{self.path} holds another run {what}. Choose another `out`, or delete it.")


def keep_solved(
    out: str | Path,
    velocity: nn.Module,
    about: dict[str, Any],
    identity: dict[str, Any],
    *,
    leads: bool,
    score: Any = None,
) -> None:
    """What was solved in closed form, kept like what was trained, unless the same run is there already."""
    folder = Folder(out, identity, writes=leads)
    if folder.own and not folder.finished:
        with folder.locked():
            write_json(folder.own / CONFIG, folder.identity | about)
            folder.save_weights(velocity.state_dict())
            result = {"steps": 0, "stopped_early": False, "best_step": 0, "held_out": score, "closed_form": True}
            write_json(folder.own / RESULT, result)


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """`name: a then, b now` for everything that is not equal in two JSON contents."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [*then, *(key for key in now if key not in then)]
        return [line for k in keys for line in differences(then.get(k), now.get(k), f"{name}.{k}".lstrip("."))]
    return [] if then == now else [f"{name}: {_short(then)} then, {_short(now)} now"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:56]} …"


# -- flows in folders --------------------------------------------------------------------------------------------------


class Fitted(nn.Module):
    """A trained network as a velocity of states of any floating type; it computes in the type of its weights."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network.eval().requires_grad_(False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        shape = getattr(self.network, "state_shape", x.shape[1:])
        if tuple(shape) != tuple(x.shape[1:]):
            raise ValueError(f"This flow was fitted on states {tuple(shape)}; got {tuple(x.shape[1:])}.")
        like = [*self.network.buffers(), *self.network.parameters()][-1]  # a fit in closed form may have only buffers
        return self.network(x.to(like.dtype), t.to(like.dtype)).to(x.dtype)


def describe(network: nn.Module) -> dict[str, Any]:
    """Name, arguments and normalisation of a network, as plain JSON; of a user's own module its class and sizes."""
    inner = network.network if isinstance(network, Normalised) else network
    names = [name for name, kind in NETWORKS.items() if type(inner) is kind]
    if isinstance(inner, AffineField):
        about: dict[str, Any] = {"name": "affine_field", "arguments": {"times": len(inner.times)}}
    elif names:
        about = {"name": names[0], "arguments": inner.arguments}
    else:
        sizes = {name: list(tensor.shape) for name, tensor in inner.state_dict().items()}
        about = {"name": f"{type(inner).__module__}.{type(inner).__qualname__}", "sizes": sizes}
    return json.loads(json.dumps(about | {"normalised": isinstance(network, Normalised)}))


def about_flow(network: nn.Module, flow: Flow, dtype: torch.dtype) -> dict[str, Any]:
    """What `open_flow` needs besides the weights: what the network is, and what the flow knows."""
    return {
        "network": describe(network),
        "state_shape": list(getattr(network, "state_shape", ())),
        "interval": list(flow.interval) if flow.interval else None,
        "step": flow.step,
        "dtype": str(dtype).removeprefix("torch."),
        "labels": flow.labels.texts() if flow.labels else [],
        "method": flow.method,
    }


def of_data(velocity: nn.Module, data: Trajectories, objective: str) -> Flow:
    """The velocity as a flow on the interval of the data, with its step and labels; the objective has an integrator."""
    return Flow(velocity, data.interval, data.typical_step, data.labels, find_objective(objective).method)


def save_flow(flow: Flow, folder: str | Path, **facts: Any) -> Path:
    """Keep a flow whose velocity is a network; any further `facts` are written to its `config.json`.

    >>> import phibe, tempfile
    >>> data = phibe.OU.reversible().simulate(paths=20, times=[0, 0.1, 0.2])
    >>> flow = phibe.fit(data, "affine", "phibe", progress=False)
    >>> folder = phibe.save_flow(flow, tempfile.mkdtemp())
    >>> phibe.open_flow(folder).interval
    (0.0, 0.2)
    """
    network = flow.velocity.network if isinstance(flow.velocity, Fitted) else flow.velocity
    if not isinstance(network, nn.Module) or not (isinstance(network, AffineField) or list(network.parameters())):
        raise ValueError(f"Only the flow of a network can be saved; this one is of {type(flow.velocity).__name__}.")
    folder, dtype = Path(folder), [*network.buffers(), *network.parameters()][-1].dtype
    with writing(folder, FLOW, keys=OPENS):
        save_tensors(folder / WEIGHTS, network.state_dict())
        write_json(folder / CONFIG, facts | about_flow(network, flow, dtype))
    return folder


def open_flow(folder: str | Path, *, network: nn.Module | None = None) -> Flow:
    """The flow that was kept there. One of a module of your own needs that module, with any weights, as `network`.

    >>> import phibe, tempfile, torch
    >>> data = phibe.OU.reversible().simulate(paths=20, times=[0, 0.1, 0.2])
    >>> flow = phibe.fit(data, "affine", "phibe", progress=False)
    >>> again, x, t = phibe.open_flow(phibe.save_flow(flow, tempfile.mkdtemp())), torch.ones(1, 2), torch.ones(1)
    >>> torch.equal(again.velocity(x, t), flow.velocity(x, t))
    True
    """
    about = read_config(folder)
    if name := about.get("forecaster", {}).get("name"):
        raise ValueError(f"{folder} holds a {name}, not a flow. Open it with that class, e.g. `PFI.open(folder)`.")
    if "codec" in about:
        raise ValueError(f"{folder} holds a codec, not a flow. Open it with `open_vq`.")
    network = rebuild(about, folder, network).double()  # holds the weights of any type exactly
    load_weights(network, read_weights(folder), folder)
    interval = tuple(about["interval"]) if about["interval"] else None
    labels = Labels.read(about["labels"]) if about.get("labels") else None
    objective = OBJECTIVES.get(about.get("objective", {}).get("name"), OBJECTIVES["phibe"])  # of a run without `method`
    method = about.get("method", objective.method)
    return Flow(Fitted(network.to(getattr(torch, about["dtype"]))), interval, about["step"], labels, method)


def read_config(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / CONFIG
    try:
        about = json.loads(path.read_text("utf8"))
        if missing := set(OPENS) - about.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return about
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"There is no run in {folder}: it has no config.json. Fit one first, with `out=`.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not the description of a fitted flow: {error}.") from error


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """The weights of a finished run."""
    folder = Path(folder)
    if (folder / CHECKPOINT).exists() and not (folder / WEIGHTS).exists():
        raise ValueError(f"The run in {folder} has not finished. Start it again with the same call: it goes on.")
    return load_tensors(folder / WEIGHTS)[0]


def rebuild(about: dict[str, Any], folder: str | Path, network: nn.Module | None = None) -> nn.Module:
    """The network that a config describes, with any weights; one of your own must be given."""
    name, shape = about["network"]["name"], about["state_shape"]
    if name == "affine_field":
        count, d = about["network"]["arguments"]["times"], shape[0]
        return AffineField(torch.zeros(count), torch.zeros(count, d, d), torch.zeros(count, d))
    if network is None:
        if name not in NETWORKS:
            raise ValueError(f"The run in {folder} is of a {name}, a network of your own: pass one as `network=`.")
        network = build(name, shape, **about["network"]["arguments"])
    wrap = about["network"]["normalised"] and not isinstance(network, Normalised)
    return Normalised(network, tuple(shape)) if wrap else network


def load_weights(network: nn.Module, tensors: dict[str, Tensor], where: str | Path) -> None:
    """Give the network these weights; the first that does not fit is named."""
    own = network.state_dict()
    for name in [*own, *tensors]:
        here, there = (tuple(state[name].shape) if name in state else "absent" for state in (own, tensors))
        if here != there:
            raise ValueError(f"The weights in {where} are of another network: `{name}` is {there} there, {here} here.")
    network.load_state_dict(tensors)
