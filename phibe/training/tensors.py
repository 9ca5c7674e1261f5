"""Tensors in files: safetensors with plain facts beside them and a checksum over both, and groups of tensors in one.

What a checkpoint and the weights of a run are written with; nothing is ever unpickled. Next: `phibe.training.runs`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from phibe.files import replacing
from phibe.trajectories import Trajectories


def save_tensors(path: str | Path, tensors: dict[str, Tensor], facts: Any = None) -> None:
    """Write the tensors and the facts about them to one file, which is either the old one or the new one."""
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    header = json.dumps({"facts": facts, "sha256": _digest(tensors, facts)}, allow_nan=False)
    with replacing(path) as partial:
        try:
            save_file(tensors, partial, metadata={"phibe": header})  # one key: the order of several would be random
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}. Is the disk full?") from None
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
