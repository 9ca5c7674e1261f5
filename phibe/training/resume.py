"""Resume: what training must remember, in a folder from which a killed run goes on as if nothing had happened."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from phibe.files import write_json
from phibe.training.checkpoints import (
    Metrics,
    differences,
    join,
    load_tensors,
    optimiser_tensors,
    part,
    restore_optimiser,
    save_tensors,
)
from phibe.training.runs import load_weights

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
