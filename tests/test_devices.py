"""Device mistakes, found without a GPU: all runs on torch's meta device, where a CPU tensor in the way raises."""

import pytest
import torch
from problems import normal

from phibe import Flow, Trajectories
from phibe.experiments.baselines.forecaster import conditional_unet
from phibe.experiments.baselines.mcvd import MCVD
from phibe.experiments.baselines.pfi import PFI
from phibe.experiments.conditioned import ConditionedObjective
from phibe.integrators import METHODS
from phibe.networks import build
from phibe.networks.network import Normalised
from phibe.objectives import OBJECTIVES
from phibe.training.loop import ObjectiveModule

NETWORKS = {"mlp": (2,), "residual": (4,), "unet": (1, 8, 8)}
"""What the experiments train, by kind, with a state."""


FIELD = NETWORKS["unet"]


def network(kind):
    return Normalised(build(kind, NETWORKS[kind]), NETWORKS[kind])


def sample(name, shape):
    """Samples of an objective, in memory."""
    data = Trajectories(normal(3, 6, *shape), torch.arange(6.0))
    return [part.float() for part in OBJECTIVES[name].samples(data)]


@pytest.mark.parametrize(
    ("kind", "name"), [*(("mlp", name) for name in OBJECTIVES), ("residual", "phibe"), ("unet", "symmetric2")]
)
def test_a_step_of_training_stays_on_its_device(kind, name):
    options = {"noise": 0.5} if name == "isotropic" else {}
    module = ObjectiveModule(network(kind), name, balance=True, **options).to("meta")
    values = module(*(part.to("meta") for part in sample(name, NETWORKS[kind])))
    values.mean().backward()
    optimiser = torch.optim.AdamW(module.parameters())
    optimiser.step()
    assert values.is_meta and values.ndim == 1
    assert all(p.grad is not None and p.grad.is_meta for p in module.parameters())


@pytest.mark.parametrize("name", ["phibe", "symmetric"])
def test_a_sample_on_another_device_than_the_network_is_an_error(name):
    module = ObjectiveModule(network("unet"), name)
    with pytest.raises(RuntimeError, match="device|meta"):
        module(*(part.to("meta") for part in sample(name, FIELD)))
    with pytest.raises(RuntimeError, match="device|meta"):
        module.to("meta")(*sample(name, FIELD))


STEPPED = [method for method in METHODS if method != "adaptive"]


@pytest.mark.parametrize(
    ("kind", "method"), [*(("mlp", method) for method in STEPPED), ("residual", "rk4"), ("unet", "rk4")]
)
def test_a_generation_stays_on_its_device(kind, method):
    flow, shape = Flow(network(kind).to("meta")), NETWORKS[kind]
    start, times = torch.empty(3, *shape, device="meta"), torch.linspace(0, 1, 4, dtype=torch.float64)
    states = flow._march(start, times, [2, 2, 2], method, False)
    assert states.is_meta and states.shape == (3, 4, *shape)
    with pytest.raises(RuntimeError, match="device|meta"):
        flow._march(torch.zeros(3, *shape), times, [2, 2, 2], method, False)


@pytest.mark.parametrize("kind", [PFI, MCVD])
def test_a_step_and_a_draw_of_a_forecaster_stay_on_their_device(kind):
    model = kind(conditional_unet(FIELD, past=2 if kind is MCVD else 1, frames=2 if kind is MCVD else 1), steps=2)
    seen, window = model.draw(3, torch.Generator().manual_seed(0)), torch.zeros(3, model.width, *FIELD, device="meta")
    drawn = [part.to("meta") for part in seen]
    past, future = (part.flatten(1, 2) for part in (window[:, : model.past], window[:, model.past :]))
    assert model.to("meta").regress(past, future, *drawn).is_meta
    assert model.sample(past, None).is_meta
    with pytest.raises(RuntimeError, match="device|meta"):
        model.regress(past, future, *seen)


@pytest.mark.parametrize("name", ["phibe", "symmetric"])
def test_a_step_of_a_conditioned_flow_stays_on_its_device(name):
    told = Normalised(build("unet", FIELD, condition_channels=1), FIELD)
    module, window = ConditionedObjective(told, name).to("meta"), torch.zeros(3, 3, *FIELD, device="meta")
    t, dt = torch.zeros(3, 3, device="meta"), torch.ones(3, 2, device="meta")
    module(window, t, dt).mean().backward()
    assert all(p.grad is not None and p.grad.is_meta for p in module.parameters() if p.requires_grad)
    with pytest.raises(RuntimeError, match="device|meta"):
        module(window.new_zeros(window.shape, device="cpu"), t, dt)
