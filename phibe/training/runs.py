"""Runs: a fitted flow in a folder, `config.json` and `weights.safetensors`, from which it can be had back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phibe.files import write_json
from phibe.flow import Flow
from phibe.labels import Labels
from phibe.linear import AffineField
from phibe.networks import NETWORKS, Normalised, build
from phibe.training.checkpoints import load_tensors, save_tensors
from phibe.trajectories import Trajectories


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
    """What `open_flow` needs besides the weights: what the network is, and interval, step and labels of the flow."""
    return {
        "network": describe(network),
        "state_shape": list(getattr(network, "state_shape", ())),
        "interval": list(flow.interval) if flow.interval else None,
        "step": flow.step,
        "dtype": str(dtype).removeprefix("torch."),
        "labels": flow.labels.texts() if flow.labels else [],
    }


def of_data(velocity: nn.Module, data: Trajectories) -> Flow:
    """The velocity as a flow on the interval of the data, with its step and labels."""
    return Flow(velocity, data.interval, data.typical_step, data.labels)


def save_flow(flow: Flow, folder: str | Path, **facts: Any) -> Path:
    """Keep a flow whose velocity is a network; any further `facts` are written to its `config.json`."""
    network = flow.velocity.network if isinstance(flow.velocity, Fitted) else flow.velocity
    if not isinstance(network, nn.Module) or not (isinstance(network, AffineField) or list(network.parameters())):
        raise ValueError(f"Only the flow of a network can be saved; this one is of {type(flow.velocity).__name__}.")
    save_tensors(Path(folder) / "weights.safetensors", network.state_dict())
    dtype = [*network.buffers(), *network.parameters()][-1].dtype
    write_json(Path(folder) / "config.json", facts | about_flow(network, flow, dtype))
    return Path(folder)


def open_flow(folder: str | Path, *, network: nn.Module | None = None) -> Flow:
    """The flow that was kept there. One of a module of your own needs that module, with any weights, as `network`."""
    about = read_config(folder)
    if "forecaster" in about:
        name = about["forecaster"]["name"]
        raise ValueError(f"{folder} holds a {name}, not a flow. Open it with `phibe.baselines.open_forecaster`.")
    if "codec" in about:
        raise ValueError(f"{folder} holds a codec, not a flow. Open it with `phibe.training.vq.open_vq`.")
    network = rebuild(about, folder, network).double()  # holds the weights of any type exactly
    load_weights(network, read_weights(folder), folder)
    interval = tuple(about["interval"]) if about["interval"] else None
    labels = Labels.read(about["labels"]) if about.get("labels") else None
    return Flow(Fitted(network.to(getattr(torch, about["dtype"]))), interval, about["step"], labels)


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
