"""Config: how a network is trained, in one frozen record that is saved with every run, and the names to choose from.

The command line reads this file on its way to an answer, so it imports neither torch nor numpy.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

OBJECTIVE_NAMES = (
    *("phibe", "isotropic", "regression", "stratonovich", "symmetric", "symmetric2", "symmetric4", "phibe2", "centred"),
)
METHOD_NAMES = ("euler", "heun", "rk4", "leapfrog", "filtered", "adaptive")
CLOSED = ("affine", "basis")
MODELS = ("auto", *CLOSED, "mlp", "residual", "unet", "transformer")
MISSING = ("error", "drop", "split")
"""The names of objectives, integrators, what is solved in closed form, what can be fitted, and the ways with missing
values: those of the registries, which import torch. A test says which is missing here."""


def closest(name: str, known: Iterable[str]) -> str:
    """` (did you mean …?)`, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


Accelerator = Literal["auto", "cpu", "cuda", "gpu", "mps"]
Precision = Literal["32-true", "64-true", "bf16-mixed"]

RULES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    (
        "steps batch micro_batches evaluate_every devices nodes checkpoint_every",
        "a whole number from 1",
        lambda n: n >= 1,
    ),
    ("weight_decay warmup clip input_noise patience seed", "0 or more", lambda value: value >= 0),
    ("ema held_out", "from 0 to below 1", lambda share: 0 <= share < 1),
    ("learning_rate", "above 0", lambda rate: rate > 0),
    ("floor", "from 0 to 1", lambda share: 0 <= share <= 1),
    ("noise", "above 0", lambda noise: noise is None or noise > 0),
    ("optimiser", "adam or adamw", ("adam", "adamw").__contains__),
    ("strategy", "auto or one of Fabric's ddp strategies", lambda name: name.startswith(("auto", "ddp"))),
    ("precision", f"one of {', '.join(get_args(Precision))}", get_args(Precision).__contains__),
    ("accelerator", f"one of {', '.join(get_args(Accelerator))}", get_args(Accelerator).__contains__),
)
"""What the fields must be."""


@dataclass(frozen=True)
class FitConfig:
    """How to train: all of it is saved with the run, and a run resumes only under the same values.

    >>> import phibe
    >>> config = phibe.FitConfig(steps=1000, warmup=50)
    >>> config.rate(0), config.rate(49), config.rate(525)
    (2e-05, 0.001, 0.000505)

    Args:
        steps: updates of the weights.
        batch: samples in each, over all devices.
        micro_batches: parts that a batch is worked through in, for less memory.
        optimiser: adam, or adamw, whose weight decay is separate from the gradient.
        learning_rate: the highest, after the warm-up.
        weight_decay: pull of the weights towards zero.
        warmup: first steps, in which the rate grows from zero.
        floor: the rate at the end of the cosine, as a share of the highest; 1 keeps it constant.
        clip: longest gradient, longer ones are shortened to it; 0 leaves them.
        ema: memory of the moving average of the weights that is evaluated and returned; 0 takes the weights themselves.
        input_noise: Gaussian noise on the states while training, in standard deviations of the data.
        balance: weigh each coordinate of the velocity by its size, so that none dominates by its units.
        noise: σ² of the objective `isotropic`; estimated from the training paths if not given.
        held_out: share of the paths kept from training, to find the best weights on; 0 trains on all, returns the last.
        evaluate_every: steps between two evaluations of the held-out objective.
        patience: evaluations without a new best after which training stops; 0 never stops early.
        seed: of the split, the weights, the batches and every other random number.
        normalise: wrap the network in the units of the data.
        precision: 32-true, 64-true, or bf16-mixed (the network alone in bfloat16).
        accelerator: auto (CUDA, else MPS, else CPU), cpu, cuda, gpu or mps.
        devices: devices on each machine; more than one needs Lightning Fabric.
        nodes: machines.
        strategy: how several devices share the work: auto, ddp or another of Fabric's ddp strategies.
        checkpoint_every: steps between two checkpoints from which a killed run goes on.
    """

    steps: int = 2000
    batch: int = 256
    micro_batches: int = 1
    optimiser: Literal["adam", "adamw"] = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup: int = 50
    floor: float = 0.01
    clip: float = 1.0
    ema: float = 0.0
    input_noise: float = 0.0
    balance: bool = True
    noise: float | None = None
    held_out: float = 0.1
    evaluate_every: int = 100
    patience: int = 0
    seed: int = 0
    normalise: bool = True
    precision: Precision = "32-true"
    accelerator: Accelerator = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        for names, wanted, fulfilled in RULES:
            for name in names.split():
                if not fulfilled(value := getattr(self, name)):
                    raise ValueError(f"`{name}` must be {wanted}; got {value!r}.")

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear up to the highest, then half a cosine down to the floor."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * share)))


WHERE = ("accelerator", "devices", "nodes", "strategy", "checkpoint_every")
"""Fields that may change when a run is resumed: where it runs, not what it computes."""
