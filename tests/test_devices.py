"""Device mistakes, found without a GPU: all runs on torch's meta device, where a CPU tensor in the way raises."""

import pytest
import torch
from problems import normal

from phibe import Flow, Trajectories
from phibe.integrators import METHODS
from phibe.networks import Normalised, build
from phibe.objectives import OBJECTIVES
from phibe.training.objective import ObjectiveModule

NETWORKS = {
    "the OU processes": ("mlp", (2,)),
    "the double well": ("mlp", (1,)),
    "a pendulum's states": ("residual", (4,)),
    "a pendulum's pictures": ("residual", (6,)),
    "fields": ("unet", (1, 8, 8)),
}
"""What the experiments train, by kind and state."""


def network(kind, shape):
    return Normalised(build(kind, shape), shape)


def sample(name, shape):
    """Samples of an objective, in memory."""
    data = Trajectories(normal(3, 6, *shape), torch.arange(6.0))
    return [part.float() for part in OBJECTIVES[name].samples(data)]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("use", NETWORKS)
def test_a_step_of_training_stays_on_its_device(use, name):
    kind, shape = NETWORKS[use]
    options = {"noise": 0.5} if name == "isotropic" else {}
    module = ObjectiveModule(network(kind, shape), name, balance=True, **options).to("meta")
    values = module(*(part.to("meta") for part in sample(name, shape)))
    values.mean().backward()
    optimiser = torch.optim.AdamW(module.parameters())
    optimiser.step()
    assert values.is_meta and values.ndim == 1
    assert all(p.grad is not None and p.grad.is_meta for p in module.parameters())


@pytest.mark.parametrize("name", ["phibe", "symmetric"])
def test_a_sample_on_another_device_than_the_network_is_an_error(name):
    kind, shape = NETWORKS["fields"]
    module = ObjectiveModule(network(kind, shape), name)
    with pytest.raises(RuntimeError, match="device|meta"):
        module(*(part.to("meta") for part in sample(name, shape)))
    with pytest.raises(RuntimeError, match="device|meta"):
        module.to("meta")(*sample(name, shape))


@pytest.mark.parametrize("method", [method for method in METHODS if method != "adaptive"])
@pytest.mark.parametrize("use", NETWORKS)
def test_a_generation_stays_on_its_device(use, method):
    kind, shape = NETWORKS[use]
    flow = Flow(network(kind, shape).to("meta"))
    start, times = torch.empty(3, *shape, device="meta"), torch.linspace(0, 1, 4, dtype=torch.float64)
    states = flow._march(start, times, [2, 2, 2], method, False)
    assert states.is_meta and states.shape == (3, 4, *shape)
    with pytest.raises(RuntimeError, match="device|meta"):
        flow._march(torch.zeros(3, *shape), times, [2, 2, 2], method, False)
