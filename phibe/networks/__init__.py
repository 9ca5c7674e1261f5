"""Velocity networks: modules called as v(x, t), smooth in x, in the coordinates of the data.

Shapes everywhere: x (n, *state), t (n,) → (n, *state). All use smooth activations, and GroupNorm or RMSNorm alone,
since the objectives differentiate the velocity in x. `build` makes one from its name and `arguments`, which each
remembers, so that a saved configuration and a file of weights are enough to have it back. Any other module may take
their place: `check_network` says whether it will do. A new network is a subclass of `Network`, a line of `NETWORKS`,
and its name in `phibe.training.config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phibe.networks.basis import Basis
from phibe.networks.mlp import MLP, ResidualMLP
from phibe.networks.network import Network
from phibe.networks.transformer import Transformer
from phibe.networks.unet import UNet

NETWORKS: dict[str, type[Network]] = {
    "mlp": MLP,
    "residual": ResidualMLP,
    "unet": UNet,
    "transformer": Transformer,
    "basis": Basis,
}


def arguments_of(name: str) -> list[str]:
    """The names of the arguments that a network takes."""
    return list(NETWORKS[name].__init__.__kwdefaults__ or {})


def build(name: str, state_shape: Sequence[int], **arguments: Any) -> Network:
    """The network of that name, fresh: `build("mlp", (2,), width=64)`, or from a saved `net.arguments`."""
    if name not in NETWORKS:
        raise ValueError(f"`network` must be one of {', '.join(NETWORKS)}; got {name!r}.")
    if unknown := arguments.keys() - {*arguments_of(name)}:
        takes = ", ".join(arguments_of(name))
        raise ValueError(f"The network {name!r} has no argument {', '.join(sorted(unknown))}; it takes {takes}.")
    return NETWORKS[name](state_shape, **arguments)
