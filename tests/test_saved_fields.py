"""A Navier–Stokes run as it is opened again: videos, methods and rollouts, here of networks that know nothing."""

import pytest
import torch

from phibe.experiments.report import Report
from phibe.experiments.turbulence.methods import assemble, methods, mixtures, restore, rolls
from phibe.experiments.turbulence.run import CONFIGS, Config
from phibe.experiments.turbulence.saved import SavedRun
from phibe.networks.network import Normalised

SHAPE = (1, 16, 16)


def untrained(config: Config) -> dict[str, torch.Tensor]:
    """Random videos, and weights of networks as they begin, of a step of 0.1."""
    past, horizon = 5 * (config.history - 1), round(config.horizon / 0.1)
    weights = {"fields": torch.randn(2, past + horizon + 1, *SHAPE, generator=torch.Generator().manual_seed(1))}
    for name in methods(config)[:-1]:
        model = assemble(name, SHAPE, config)
        if name in ("pfi", "mcvd"):
            model.step.fill_(0.1)
        else:
            model = Normalised(model, SHAPE)
        for part in model.parameters():
            part.data.add_(0.01)  # the last layer begins at zero
        weights |= {f"0.1.{name}.{part}": tensor for part, tensor in model.state_dict().items()}
    return weights | {f"0.1.{name}.power": torch.ones(1, 16, 9) for name in mixtures(config) if "ode" not in name}


@pytest.fixture(scope="module")
def saved() -> SavedRun:
    config = CONFIGS["smoke"]
    weights = untrained(config)
    models = {
        name: restore(name, 0.1, config=config, weights=weights) for name in (*methods(config), *mixtures(config))
    }
    labels = {label: {} for name, model in models.items() for label in rolls(name, model, config, seed=0)}
    return SavedRun(config, Report("navier_stokes", "smoke", {}, {"0.1": labels}, 0.0, "cpu", {}), weights)


def test_a_video_begins_where_its_past_ends_at_each_interval(saved):
    fine, coarse = saved.clip(1, 0.1), saved.clip(1, 0.5)
    assert torch.equal(fine.history[-1], fine.truth[0]) and torch.equal(coarse.history[-1], fine.truth[0])
    assert torch.equal(coarse.truth, fine.truth[::5])
    assert torch.equal(coarse.times, fine.times[::5])
    assert float(fine.times[-1]) == pytest.approx(saved.config.horizon)
    assert not torch.equal(coarse.history[0], fine.history[0])


def test_every_method_is_rolled_out_and_tells_each_of_its_evaluations(saved):
    video = saved.clip(0, 0.1)
    frames = len(video.truth) - 1
    for label in saved.labels(0.1):
        told = []
        made = saved.roll(label, video, progress=told.append)
        assert torch.equal(made.states[0], video.truth[0])
        assert made.states.shape == video.truth.shape
        assert len(told) == round(made.evaluations * frames)
        assert told == sorted(told) and all(done < frames for done in told)


CHANCE = ["pfi", "mcvd", "sde 0.3, rk4", "calibrated 0.3, rk4", "calibrated 1, euler"]


@pytest.mark.parametrize("label", ["pfi", "sde 0.3, rk4", "calibrated 1, euler", "ode 0.1, rk4", "symmetric, euler"])
def test_draws_differ_by_their_seed_where_there_is_chance_and_nowhere_else(saved, label):
    video = saved.clip(0, 0.1)
    first, same, other = (saved.roll(label, video, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.states, same.states)
    assert torch.equal(first.states, other.states) == (not first.random)
    assert first.random == (label in CHANCE)


def test_what_the_watch_raises_ends_a_rollout(saved):
    class EnoughError(Exception):
        pass

    def watch(done: float) -> None:
        if done >= 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        saved.roll("pfi", saved.clip(0, 0.1), progress=watch)
    saved.roll("pfi", saved.clip(0, 0.1))  # nobody else is told
