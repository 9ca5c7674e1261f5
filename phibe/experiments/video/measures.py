"""Measures of the video experiment: what decoded rollouts are worth against the films and against what the codec makes
of them.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from phibe.experiments.training import Roll
from phibe.experiments.video.clips import Clips
from phibe.experiments.video.frechet import Features, frechet_distance
from phibe.experiments.video.metrics import background, diversity, gait, mse, position_drift, score, silhouette, ssim
from phibe.experiments.video.vq import Coded


class Judge:
    """Test clips (clip, time, 1, 64, 64), of which methods see the latents of the first `context` frames."""

    def __init__(self, clips: Clips, codec: Coded, features: Features, config: Any):
        self.clips, self.codec, self.features, self.config = clips, codec, features, config
        data = clips.trajectories(config.context + config.horizon)
        self.films, self.times = data.states, data.times
        self.few = min(config.few, len(self.films))
        self.latents = codec.encode_paths(self.films)
        self.rebuilt = codec.decode_paths(self.latents)
        self.behind = background(self.films)
        self.detail = (self.films - self.rebuilt)[:, : config.context].mean(1, keepdim=True)

    @property
    def history(self) -> Tensor:
        return self.latents[:, : self.config.context]

    @property
    def lead(self) -> Tensor:
        """Times from the last frame of the context on."""
        return self.times[self.config.context - 1 :]

    def film(self, roll: Roll, history: Tensor) -> Tensor:
        """The decoded frames after those of `history` (clip, past, *latent): (clip, horizon, 1, 64, 64)."""
        return self.codec.decode_paths(roll.frames(history, self.lead)[:, 1:])

    def judge(self, roll: Roll) -> tuple[dict[str, Any], Tensor]:
        """All measures of a method, and its films; of a stochastic one also `samples` futures of the first `few` clips
        are drawn."""
        began = time.perf_counter()
        latents = roll.frames(self.history, self.lead)[:, 1:]
        seconds = time.perf_counter() - began
        made, few, drawn = self.codec.decode_paths(latents), self.few, None
        if roll.random:
            again = self.film(roll, self.history[:few].repeat(self.config.samples - 1, 1, 1, 1, 1))
            drawn = torch.cat([made[None, :few], again.unflatten(0, (-1, few))])
        cost = {"evaluations": roll.evaluations, "milliseconds": 1000 * seconds / made[:, :, 0, 0, 0].numel()}
        return self.measure(made, drawn) | cost, made

    def measure(self, made: Tensor, drawn: Tensor | None = None) -> dict[str, Any]:
        """The measures of films (clip, horizon, 1, 64, 64): `standard` ones against the originals, `adjusted` ones
        against what the codec makes of them; over all frames, and by lead time. `detailed` ones are against the
        originals, after what the codec loses of the context, on average, was added: what stands still needs no codec.

        `few` are the scores of the first clips alone; of several futures `drawn` for them (sample, few, …), `best` are
        those of the best future for each clip and measure.
        """
        truth, rebuilt, few = self._ahead(self.films), self._ahead(self.rebuilt), self.few
        error = mse(made, truth)
        return {
            "standard": score(made, truth)._asdict(),
            "adjusted": score(made, rebuilt)._asdict() if not torch.equal(made, rebuilt) else None,
            "detailed": score((made + self.detail).clamp(0, 1), truth)._asdict(),
            "few": score(made[:few], truth[:few])._asdict(),
            "best": score(drawn, truth[:few])._asdict() if drawn is not None else None,
            "diversity": _numbers(diversity(drawn).mean(0)) if drawn is not None else None,
            "mse": _numbers(error.mean(0)),
            "ssim": _numbers(ssim(made, truth).mean(0)),
            "mse_by_action": self._by_action(error.mean(1)),
            "frechet": {
                "standard": self._frechet(made, self.films, "original"),
                "adjusted": self._frechet(made, self.rebuilt, "reconstruction"),
            },
            "motion": self._motion(made),
        }

    def _ahead(self, films: Tensor) -> Tensor:
        return films[:, self.config.context :]

    def _by_action(self, error: Tensor) -> dict[str, float]:
        actions = self.clips.actions
        chosen = {name: [i for i, action in enumerate(actions) if action == name] for name in sorted(set(actions))}
        return {name or "unnamed": float(error[index].mean()) for name, index in chosen.items()}

    def _frechet(self, made: Tensor, truth: Tensor, reference: Any) -> dict[str, Any]:
        context = self.config.context
        whole = torch.cat([truth[:, :context], made], dim=1)
        found = frechet_distance(
            whole, truth, self.features, context=context, reference=reference, data=self.config.data
        )
        return found.record() | {"text": str(found)}

    def _motion(self, made: Tensor) -> dict[str, Any]:
        """Drift of the figure in pixels by lead time; medians over the clips of how wrong its step frequency is, and of
        its amplitude against the true one; None where no clip shows enough of a figure."""
        ahead = self._ahead(self.films)
        mine, true = (silhouette(films, self.behind) for films in (made, ahead))
        steps = gait(mine, true, self.lead[1:])
        return {
            "drift": _numbers(position_drift(mine, true).nanmean(0)),
            "frequency_error": _number(steps.frequency_error.nanmedian()),
            "amplitude_ratio": _number(steps.amplitude_ratio.nanmedian()),
        }


def _number(value: Tensor) -> float | None:
    """For JSON, which knows no NaN."""
    return float(value) if math.isfinite(value) else None


def _numbers(values: Tensor) -> list[float | None]:
    return [_number(value) for value in values]
