"""Runs: a fitted flow in a folder, `config.json` and `weights.safetensors`, from which it can be had back."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from phibe.files import replacing, write_json
from phibe.flow import Flow
from phibe.linear.affine import AffineField
from phibe.networks import NETWORKS, build
from phibe.networks.normalised import Normalised
from phibe.objectives import OBJECTIVES, find_objective
from phibe.training.config import WHERE, FitConfig
from phibe.trajectories import Labels, Trajectories

# -- checkpoints -----------------------------------------------------------------------------------------------------


# -- files of tensors ----------------------------------------------------------------------------------------------


def save_tensors(path: str | Path, tensors: dict[str, Tensor], facts: Any = None) -> None:
    """Write the tensors and the facts about them to one file, which is either the old one or the new one."""
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    header = json.dumps({"facts": facts, "sha256": _digest(tensors, facts)}, allow_nan=False)
    with replacing(path) as partial:
        save_file(tensors, partial, metadata={"phibe": header})  # one key: the order of several would be random
        partial.chmod(0o644)


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], Any]:
    """Tensors and facts as they were saved, or an error that says what is wrong with the file."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("phibe")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is cut short or no safetensors file: {error}. Delete it to start again.") from error
    if header is None:
        raise ValueError(f"{path} holds tensors, but not ones that this package saved. Is it of another program?")
    try:
        content = json.loads(header)
        facts, digest = content["facts"], content["sha256"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: its header cannot be read. Delete it to start again.") from error
    if _digest(tensors, facts) != digest:
        raise ValueError(f"{path} is damaged: its content does not match its checksum. Delete it to start again.")
    return tensors, facts


def _digest(tensors: dict[str, Tensor], facts: Any) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    """The memory of a tensor; a single number may be contiguous with a stride of zero, which `view` does not take."""
    return tensor.cpu().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def fingerprint(data: Trajectories) -> str:
    """A hash of all numbers in the data, read a few megabytes at a time."""
    digest = hashlib.sha256(f"{data.states.dtype} {tuple(data.states.shape)}".encode())
    for part in (data.times, data.lengths, *(chunk.states for chunk in data.chunks())):
        if part is not None:
            digest.update(_bytes(part))
    return digest.hexdigest()


# -- groups of tensors ---------------------------------------------------------------------------------------------


def join(**groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """{"network.layer.weight": …, "best.layer.weight": …} of groups network, best, …"""
    return {f"{group}.{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def part(tensors: dict[str, Tensor], group: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{group}."): t for name, t in tensors.items() if name.startswith(f"{group}.")}


def optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory: `3.exp_avg` is that of the fourth parameter."""
    state = optimiser.state_dict()["state"]
    return {f"{i}.{name}": torch.as_tensor(value) for i, values in state.items() for name, value in values.items()}


def restore_optimiser(optimiser: Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


# -- facts ---------------------------------------------------------------------------------------------------------


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """`name: a then, b now` for everything that is not equal in two JSON contents."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [*then, *(key for key in now if key not in then)]
        return [line for k in keys for line in differences(then.get(k), now.get(k), f"{name}.{k}".lstrip("."))]
    return [] if then == now else [f"{name}: {_short(then)} then, {_short(now)} now"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:56]} …"


class Metrics:
    """`metrics.jsonl`: a line for each evaluation, appended as training goes; without a folder it only forgets."""

    def __init__(self, path: Path | None):
        self.path = path

    def append(self, line: dict[str, Any]) -> None:
        """A number that is not finite is written as null, which every reader of JSON takes."""
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps({key: _finite(value) for key, value in line.items()}) + "\n")

    def trim(self, step: int) -> None:
        """Forget what was written after `step`, or not to its end: that part is about to be done again."""
        if self.path and self.path.exists():
            kept = [line for line in self.path.read_text().splitlines() if _step(line) <= step]
            with replacing(self.path) as partial:
                partial.write_text("".join(f"{line}\n" for line in kept))

    def read(self) -> list[dict[str, Any]]:
        if not self.path or not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines() if _step(line) < math.inf]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


# -- resume ----------------------------------------------------------------------------------------------------------


FILES = ("config.json", "metrics.jsonl", "checkpoint.safetensors", "weights.safetensors", "result.json")
"""All that a run writes: the checkpoint until it ends, weights and result when it does."""


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
    """The folder of one run, or none (`out=None`): only rank 0 writes, every rank reads.

    `identity` says what is being trained, on what and how; a folder that holds another run is refused.
    """

    def __init__(self, out: str | Path | None, identity: dict[str, Any], *, writes: bool):
        self.path = Path(out) if out is not None else None
        self.identity, self.writes = json.loads(json.dumps(identity)), writes
        self.metrics = Metrics(self.path / "metrics.jsonl" if self.path and writes else None)
        if self.path and (self.finished or self._checkpoint.exists()):
            self._refuse_other(self._config(), "config.json")

    @property
    def _checkpoint(self) -> Path:
        assert self.path
        return self.path / "checkpoint.safetensors"

    @property
    def finished(self) -> bool:
        return self.path is not None and (self.path / "result.json").exists()

    def begin(self, learner: Learner) -> None:
        """Take up the run where its checkpoint left it, or begin it."""
        if self.path and self._checkpoint.exists():
            tensors, facts = load_tensors(self._checkpoint)
            if not isinstance(facts, dict) or "progress" not in facts:
                raise ValueError(
                    f"{self._checkpoint} holds weights, but no state of a training run. Delete it to start again."
                )
            self._refuse_other(facts["identity"], self._checkpoint.name)
            learner.restore(tensors, facts["progress"], self._checkpoint)

    def clean(self, learner: Learner, about: dict[str, Any]) -> None:
        """Make the folder agree with the step that training goes on from; after every rank has read it."""
        if self.path and self.writes:
            for name in FILES:
                for left_over in self.path.glob(f".{name}.*"):  # what a killed process was writing
                    shutil.rmtree(left_over, ignore_errors=True)
            write_json(self.path / "config.json", self.identity | about)
            self.metrics.trim(learner.progress.step)

    def save(self, learner: Learner) -> None:
        if self.path and self.writes:
            facts = {"identity": self.identity, "progress": asdict(learner.progress)}
            save_tensors(self._checkpoint, learner.tensors(), facts)

    def save_weights(self, weights: dict[str, Tensor]) -> Path | None:
        if self.path and self.writes:
            save_tensors(self.path / "weights.safetensors", weights)
        return self.path and self.path / "weights.safetensors"

    def finish(self, learner: Learner) -> None:
        """The best weights (the last, if none was) and the result; the state in between is no longer needed."""
        if not learner.best:
            learner.keep_best()
        self.save_weights(learner.best)
        if self.path and self.writes:
            p = learner.progress
            result = {"steps": p.step, "stopped_early": p.stopped, "best_step": p.best_step, "held_out": p.best}
            write_json(self.path / "result.json", result)
            self._checkpoint.unlink(missing_ok=True)

    def _config(self) -> dict[str, Any]:
        assert self.path
        try:
            return json.loads((self.path / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.path} holds a run without a readable config.json: {error}. Choose another `out`."
            ) from error

    def _refuse_other(self, identity: dict[str, Any], file: str) -> None:
        known = {key: identity.get(key) for key in self.identity}
        if found := differences(known, self.identity):
            raise ValueError(
                f"{self.path} holds another run ({file}): {'; '.join(found[:4])}{' …' if found[4:] else ''}. "
                "Choose another `out`, or delete it."
            )


# -- runs ------------------------------------------------------------------------------------------------------------


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
    >>> sorted(path.name for path in folder.iterdir())
    ['config.json', 'weights.safetensors']
    """
    network = flow.velocity.network if isinstance(flow.velocity, Fitted) else flow.velocity
    if not isinstance(network, nn.Module) or not (isinstance(network, AffineField) or list(network.parameters())):
        raise ValueError(f"Only the flow of a network can be saved; this one is of {type(flow.velocity).__name__}.")
    save_tensors(Path(folder) / "weights.safetensors", network.state_dict())
    dtype = [*network.buffers(), *network.parameters()][-1].dtype
    write_json(Path(folder) / "config.json", facts | about_flow(network, flow, dtype))
    return Path(folder)


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
    if "forecaster" in about:
        name = about["forecaster"]["name"]
        raise ValueError(f"{folder} holds a {name}, not a flow. Open it with `open_forecaster`.")
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
    path = Path(folder) / "config.json"
    try:
        about = json.loads(path.read_text())
        if missing := {"network", "state_shape", "interval", "step", "dtype"} - about.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return about
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"There is no run in {folder}: it has no config.json. Fit one first, with `out=`.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not the description of a fitted flow: {error}.") from error


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """The weights of a finished run."""
    if (Path(folder) / "checkpoint.safetensors").exists() and not (Path(folder) / "weights.safetensors").exists():
        raise ValueError(f"The run in {folder} has not finished. Start it again with the same call: it goes on.")
    return load_tensors(Path(folder) / "weights.safetensors")[0]


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
