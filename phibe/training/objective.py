"""The objective as a module, the gradient of a batch of it, and the weights' moving average: one step of training."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from phibe.networks import Normalised
from phibe.objectives import find_objective


class Loss(nn.Module):
    """The loss of a network, sample → (n,): what engines wrap, so that all derivatives are inside `forward`.

    `facts` tell two losses apart, in JSON. `jacobian` says whether the loss differentiates the network in x, `scale` is
    the spread of the states as the network knows it.
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
        self.balance = balance and isinstance(network, Normalised) and objective != "isotropic"
        self.scale = network.scale if isinstance(network, Normalised) else 1.0

    def forward(
        self, *sample: Tensor, generator: torch.Generator | None = None, given: dict[str, Tensor] | None = None
    ) -> Tensor:
        """The objective of each sample, (n,); `given` goes to the network beside x and t."""
        function, options, given = find_objective(self.objective), dict(self.options), given or {}
        if self.objective == "isotropic":
            options["generator"] = generator
        with ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fused attention kernels know no forward derivative
            if self.mixed:
                stack.enter_context(torch.autocast(sample[0].device.type, torch.bfloat16))
            if self.balance:
                return self.network.balanced(function, *sample, given=given, **options)  # type: ignore[operator]
            return function(lambda x, t: self.network(x, t, **given).to(x.dtype), *sample, **options)


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
