"""The networks: their symmetries, their units, and the door through which any module may come in."""

import copy
import json
import math

import pytest
import torch
from problems import normal, real
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from phibe import OU, Trajectories
from phibe.calculus import along, dot
from phibe.networks import NETWORKS, build
from phibe.networks.checks import check_gradient, check_network
from phibe.networks.mlp import MLP, ResidualMLP
from phibe.networks.network import Normalised
from phibe.networks.unet import UNet
from phibe.objectives import phibe, regression

SMALL = {
    "basis": ((2,), {"degree": 2, "waves": 5, "knots": 3}),
    "mlp": ((2,), {"width": 8, "depth": 2, "activation": "tanh"}),
    "residual": ((2, 3), {"width": 8, "blocks": 1, "activation": "gelu"}),
    "unet": ((2, 8, 8), {"channels": 4, "multipliers": [1, 2], "blocks": 1}),
    "transformer": ((2, 4, 4), {"width": 8, "depth": 1, "heads": 2}),
}
UNITS = {"mean": [3.0, -40.0], "scale": [1e-3, 1e2], "velocity_scale": [2e-3, 5e3], "t_start": 0.2, "t_scale": 4.0}


def small(name, **changes):
    torch.manual_seed(0)
    shape, arguments = SMALL[name]
    return build(name, shape, **(arguments | changes))


def batch(shape, n=6, dtype=torch.float64):
    """States, times, increments and steps, each sample with its own time and step."""
    t = torch.linspace(0, 1, n)
    return tuple(part.to(dtype) for part in (normal(n, *shape), t, normal(n, *shape, seed=1), 0.1 + t))


# -- the networks ------------------------------------------------------------------------------------------------------


def test_the_networks_of_the_paper():
    assert sum(p.numel() for p in MLP((2,)).parameters()) == 10_502  # five hidden layers of 50, and time
    residual = ResidualMLP((4,))
    assert [block[1].weight.shape for block in residual.blocks] == [(256, 256)] * 2
    x, t, *_ = batch((4,), dtype=torch.float32)
    for block in residual.blocks:
        nn.init.zeros_(block[3].weight), nn.init.zeros_(block[3].bias)
    linear = residual.enter(torch.cat([x, t[:, None]], dim=1))
    torch.testing.assert_close(residual(x, t), residual.leave(linear))  # blocks that add nothing change nothing


def test_the_transformer_attends_to_all_places_and_knows_them_only_by_their_codes():
    network = small("transformer").double()
    x, t, *_ = batch(network.state_shape)
    layer, h = network.layers[0], normal(3, 16, 8)
    q, k, v = layer.ask(layer.before(h)).reshape(3, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
    heard = h + layer.answer(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(3, 16, 8))
    torch.testing.assert_close(layer(h), heard + layer.think(layer.after(heard)))
    turned = lambda z: z.flip(2).transpose(2, 3)  # noqa: E731
    assert not torch.allclose(network(turned(x), t), turned(network(x, t)))
    nn.init.zeros_(network.places)
    torch.testing.assert_close(network(turned(x), t), turned(network(x, t)))
    with pytest.raises(ValueError, match="divisible by 4 × `heads`"):
        build("transformer", (2, 4, 4), width=12, heads=2)
    with pytest.raises(ValueError, match="condition of 2 channels; got 0"):
        small("transformer", condition_channels=2)(x.float(), t.float())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_saved_configuration_and_weights_give_the_network_back(name):
    network = small(name)
    config = json.loads(json.dumps({"name": name, "shape": network.state_shape, "arguments": network.arguments}))
    again = build(config["name"], config["shape"], **config["arguments"])
    network, again = Normalised(network, network.state_shape, **UNITS), Normalised(again, again.state_shape)
    x, t, *_ = batch(network.state_shape, dtype=torch.float32)
    assert not torch.allclose(again(x, t), network(x, t))
    again.load_state_dict(load(save(network.state_dict())))
    assert torch.equal(again(x, t), network(x, t))


@pytest.mark.parametrize("name", NETWORKS)
def test_without_time_the_velocity_is_the_same_at_all_times(name):
    for time in (True, False):
        network = small(name, time=time).double()
        x, t, *_ = batch(network.state_shape)
        assert torch.equal(network(x, t), network(x, t + 1)) is not time


@pytest.mark.parametrize("name", ["basis", "unet", "transformer"])
def test_single_and_double_precision_agree(name):
    network = small(name)
    single, double = batch(network.state_shape, dtype=torch.float32), batch(network.state_shape)
    values = phibe(network, *single)
    torch.testing.assert_close(values.double(), phibe(network.double(), *double), rtol=1e-4, atol=1e-4)


def test_a_periodic_unet_commutes_with_shifts_of_its_coarsest_grid():
    x, t, *_ = batch((2, 8, 8))

    def defect(network, shift):
        with torch.no_grad():
            return float((network(x.roll(shift, (2, 3)), t) - network(x, t).roll(shift, (2, 3))).abs().max())

    periodic = small("unet").double()
    assert defect(periodic, (2, -4)) < 1e-12
    assert defect(periodic, (1, 0)) > 1e-3  # finer than the coarse grid
    assert defect(small("unet", padding="zeros").double(), (2, -4)) > 1e-3  # the edge is seen
    patched = small("unet", patch=2).double()
    assert defect(patched, (4, -4)) < 1e-12
    assert defect(patched, (2, 0)) > 1e-3  # the coarse grid is twice as coarse


def test_a_condition_is_read_but_not_differentiated():
    network = small("unet", condition_channels=1).double()
    x, t, dx, dt = batch((2, 8, 8))
    conditions = normal(6, 1, 8, 8, seed=2), normal(1, 8, 8, seed=3)
    values = [phibe(network.conditioned(c), x, t, dx, dt) for c in conditions]
    torch.testing.assert_close(values[1], phibe(network.conditioned(conditions[1].expand(6, 1, 8, 8)), x, t, dx, dt))
    assert not torch.allclose(values[0], values[1])
    # One with the same weights on the state, and the condition's share as a bias, has the same objective.
    plain = small("unet").double()
    shared = {k: v[:, :2] if k == "enter.weight" else v for k, v in network.state_dict().items()}
    plain.load_state_dict(shared)
    padded = F.pad(conditions[1].expand(6, 1, 8, 8), (1, 1, 1, 1), mode="circular")
    share = F.conv2d(padded, network.enter.weight[:, 2:])
    plain.enter.register_forward_hook(lambda module, args, out: out + share)
    torch.testing.assert_close(phibe(plain, x, t, dx, dt), values[1])
    wrapped = Normalised(network, (2, 8, 8))
    assert torch.equal(wrapped.conditioned(conditions[0])(x, t), network.conditioned(conditions[0])(x, t))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: build("cnn", (2,)), "one of mlp, residual, unet, transformer, basis; got 'cnn'"),
        (lambda: build("mlp", (2,), breadth=3), "no argument breadth; it takes width, depth"),
        (lambda: MLP((2,), activation="relu"), "one of silu, .* kinks"),
        (lambda: MLP((2,), depth=0), "`depth` must be at least 1; got 0"),
        (lambda: MLP(()), "positive sizes"),
        (lambda: Normalised(MLP((2,)), (2,), scale=[1.0, 2.0, 3.0]), "`scale` must be one number or 2; got 3"),
        (lambda: UNet((1, 30, 30)), r"sides divisible by 4; got \(1, 30, 30\)"),
        (lambda: UNet((4,)), r"takes states \(channels, height, width\)"),
        (lambda: UNet((1, 8, 8), padding="mirror"), "'circular' .* or 'zeros'; got 'mirror'"),
        (lambda: MLP((2,))(torch.ones(3, 2), torch.ones(3, 1)), r"t \(n,\); got x \(3, 2\) and t \(3, 1\)"),
        (lambda: UNet((1, 8, 8))(torch.ones(1, 1, 8, 8), torch.ones(1), torch.ones(1, 8, 8)), "0 channels; got 1"),
    ],
)
def test_what_cannot_be_built_or_called_says_why(act, message):
    with pytest.raises(ValueError, match=message):
        act()


# -- units -------------------------------------------------------------------------------------------------------------


def _wrapped():
    network = small("mlp").double()
    return network, Normalised(network, (2,), **UNITS)


def _gradient(values, network):
    return nn.utils.parameters_to_vector(torch.autograd.grad(values.mean(), list(network.parameters())))


def test_the_objective_stays_that_of_the_original_coordinates():
    inner, network = _wrapped()
    m, s, V = (real(UNITS[name]) for name in ("mean", "scale", "velocity_scale"))
    z, t, dz, dt = batch((2,))
    x, dx = m + s * z, s * dz

    def by_hand(factor):
        """v = V u(z), and (∇v)Δx = V (∇u) Δz: the Jacobian takes V from the output and 1/s from the input."""
        u, slope = torch.func.jvp(lambda y: inner(y, (t - 0.2) / 4), (z,), (dz,))
        return ((V * u) ** 2 - (2 * V * u + factor * slope) * dx / dt[:, None]).sum(1)

    torch.testing.assert_close(phibe(network, x, t, dx, dt), by_hand(V), rtol=1e-9, atol=0)
    torch.testing.assert_close(
        _gradient(phibe(network, x, t, dx, dt), inner), _gradient(by_hand(V), inner), rtol=1e-8, atol=0
    )
    assert not torch.allclose(phibe(network, x, t, dx, dt), by_hand(V * s), rtol=1e-3)  # as if Δx had not been scaled


@pytest.mark.parametrize("objective", [phibe, regression])
def test_the_balanced_objective_weighs_each_coordinate_by_its_velocity_scale(objective):
    _, network = _wrapped()
    z, t, dz, dt = batch((2,))
    x, dx = network.mean + network.scale * z, network.scale * dz
    keep = torch.eye(2, dtype=torch.float64)
    parts = []
    for i in range(2):  # each coordinate's share: the objective sees only row i of the velocity
        only = lambda y, s, i=i: keep[i] * network(y, s)  # noqa: E731
        parts.append(objective(only, x, t, dx, dt) / network.velocity_scale[i] ** 2)
    torch.testing.assert_close(network.balanced(objective, x, t, dx, dt), sum(parts), rtol=1e-9, atol=1e-9)


def _moments_matched(ou, units, n=512, step=1e-3, t=0.3):
    """Transitions Δx = b Δt ± √(2Δt) S eₖ, in other units: given x, their first two moments are those of the SDE."""
    x = ou.marginal(t).sample(n, generator=torch.Generator().manual_seed(0))
    kicks = torch.cat([ou.S.mT, -ou.S.mT]) * math.sqrt(2 * step)
    dx = (ou.drift(x)[:, None] + kicks / step).flatten(0, 1) * step
    x = x.repeat_interleave(4, 0)
    return x * units, torch.full((4 * n,), t).double(), dx * units, torch.full((4 * n,), step).double()


def _trained(network, loss, steps=100):
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 1e-2 * (1 - step / steps)
        optimiser.zero_grad()
        loss().mean().backward()
        optimiser.step()


def test_a_network_trained_in_normalised_coordinates_recovers_the_field_in_the_original_ones():
    ou, units = OU.nonreversible(), real([1e-3, 1e3])
    pairs = [part.float() for part in _moments_matched(ou, units)]
    data = ou.simulate(paths=200, times=torch.linspace(0, 1, 51).double(), generator=torch.Generator().manual_seed(1))
    data = Trajectories(data.states * units, data.times).to(torch.float32)
    points = ou.marginal(0.3).sample(500, generator=torch.Generator().manual_seed(2))
    truth = ou.velocity(points, 0.3)

    def error(wrap, balance):
        torch.manual_seed(0)
        network = MLP((2,), width=16, depth=2)
        network = Normalised.fit(network, data) if wrap else network
        _trained(network, lambda: network.balanced(phibe, *pairs) if balance else phibe(network, *pairs))
        v = network((points * units).float(), torch.full((500,), 0.3)).detach().double() / units
        return ((v - truth).square().mean(0) / truth.square().mean(0)).sqrt()

    assert float(error(wrap=True, balance=True).max()) < 0.05
    assert float(error(wrap=True, balance=False)[0]) > 0.1  # the coordinate of small units is drowned by the other
    assert float(error(wrap=False, balance=False)[0]) > 1


def _spin(turns, observations, *, rate=3.0):
    """Points that go round an ellipse of half-axes 1 and 1000, about (5, 0), from any angle."""
    t = torch.linspace(0, 2 * math.pi * turns / rate, observations, dtype=torch.float64)
    angle = rate * t + torch.linspace(0, 6, 20, dtype=torch.float64)[:, None]
    return Trajectories(torch.stack([5 + angle.cos(), 1e3 * angle.sin()], dim=-1), t + 7)


def test_the_fitted_units_are_those_of_states_times_and_velocities():
    network = Normalised.fit(small("mlp").double(), _spin(turns=20, observations=2001))
    torch.testing.assert_close(network.mean, real([5, 0]), rtol=0, atol=1.0)
    torch.testing.assert_close(network.scale, real([1, 1e3]) / math.sqrt(2), rtol=1e-2, atol=0)
    torch.testing.assert_close(network.velocity_scale, 3 * network.scale, rtol=0.3, atol=0)
    torch.testing.assert_close(torch.stack([network.t_start, network.t_scale]), real([7, 40 * math.pi / 3]))


@pytest.mark.parametrize("observations", [101, 3201])
def test_the_typical_velocity_does_not_grow_with_the_noise_in_fine_increments(observations):
    ou, times = OU.nonreversible(), torch.linspace(0, 1, observations).double()
    data = ou.simulate(paths=100, times=times, generator=torch.Generator().manual_seed(0))
    at = range(0, observations, (observations - 1) // 100)
    truth = torch.cat([ou.velocity(data.states[:, i], times[i]) for i in at]).square().mean(0).sqrt()
    ratio = Normalised.fit(small("mlp").double(), data).velocity_scale / truth
    assert 0.5 < float(ratio.min()) <= float(ratio.max()) < 2
    noise = (data.pairs().dx / data.pairs().dt[:, None]).square().mean().sqrt()
    assert float(noise) > 0.8 * math.sqrt(observations)  # σ/√Δt grows without end


def test_padding_is_never_read_and_channels_share_their_units():
    full = _spin(turns=4, observations=300)
    lengths = torch.tensor([300] * 15 + [200] * 5)
    states = full.states.clone()
    states[15:, 200:] = math.nan
    ragged = Normalised.fit(small("mlp"), Trajectories(states, full.times, lengths))
    assert ragged.velocity_scale.isfinite().all()
    pictures = Trajectories(full.states[..., None, None].expand(20, 300, 2, 8, 8), full.times)
    network = Normalised.fit(small("unet"), pictures)
    assert network.scale.shape == (2, 1, 1)
    torch.testing.assert_close(network.scale[:, 0, 0], Normalised.fit(small("mlp"), full).scale)


def test_a_coordinate_that_never_moves_keeps_finite_units():
    still = _spin(turns=4, observations=300).states.clone()
    still[..., 1] = 12.5
    network = Normalised.fit(small("mlp").double(), Trajectories(still, torch.linspace(0, 4, 300)))
    assert network.mean[1] == 12.5
    assert network.scale[1] == 1
    assert network.velocity_scale[1] == 0.25


# -- the door ----------------------------------------------------------------------------------------------------------


class Between(nn.Module):
    """v(x, t) with the layer under test in the middle."""

    def __init__(self, enter, layer, leave):
        super().__init__()
        self.enter, self.layer, self.leave = enter, layer, leave

    def forward(self, x, t):
        return self.leave(self.layer(self.enter(x)) + t.reshape(-1, *[1] * (x.ndim - 1)))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, h):
        return self.function(h)


class Attention(nn.Module):
    """Two heads of width four over two tokens, by the fused call; `exact` asks for the kernel with all derivatives."""

    def __init__(self, *, exact):
        super().__init__()
        self.project, self.exact = nn.Linear(4, 12), exact

    def forward(self, h):
        q, k, v = self.project(h.reshape(-1, 2, 4)).reshape(-1, 1, 2, 12).chunk(3, dim=-1)
        with sdpa_kernel([SDPBackend.MATH] if self.exact else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            return F.scaled_dot_product_attention(q, k, v).reshape(-1, 8)


class Heads(nn.Module):
    def __init__(self, *, need_weights):
        super().__init__()
        self.attention, self.need_weights = nn.MultiheadAttention(4, 2, batch_first=True), need_weights

    def forward(self, h):
        h = h.reshape(-1, 2, 4)
        return self.attention(h, h, h, need_weights=self.need_weights)[0].reshape(-1, 8)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True)

    def forward(self, h):
        return self.gru(h.reshape(-1, 2, 4))[0].flatten(1)


class Words(nn.Module):
    """The same word's embedding for every sample."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(3, 8)

    def forward(self, h):
        return torch.tanh(h) * self.words(torch.ones(len(h), dtype=torch.long, device=h.device))


def vector(layer):
    torch.manual_seed(0)
    return Between(nn.Linear(6, 8), layer, nn.Linear(8, 6)), (6,)


def picture(layer):
    torch.manual_seed(0)
    circular = nn.Conv2d(2, 8, 3, padding=1, padding_mode="circular")
    return Between(circular, layer, nn.Conv2d(8, 2, 1)), (2, 4, 4)


def coarse(layer):
    return picture(nn.Sequential(layer, nn.Upsample(scale_factor=2)))


REFUSED = {
    "BatchNorm2d": (picture, nn.BatchNorm2d(8), "nn.GroupNorm"),
    "ReLU": (vector, nn.ReLU(), "nn.SiLU, nn.GELU or nn.Tanh"),
    "PReLU": (vector, nn.PReLU(), "nn.SiLU"),
    "Softshrink": (vector, nn.Softshrink(), "nn.SiLU"),
    "MaxPool2d": (coarse, nn.MaxPool2d(2), "nn.AvgPool2d"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_module_that_would_spoil_the_jacobian_term_is_refused_by_name(kind):
    make, layer, replacement = REFUSED[kind]
    network, shape = make(layer)
    with pytest.raises(ValueError, match=rf"`layer(\.0)?` \({kind}\) cannot be used .*: .* Use .*{replacement}"):
        check_network(network, *batch(shape)[:2])
    assert check_network(network.double(), *batch(shape)[:2], objective="regression") < 1e-4


ALLOWED = {
    "SiLU in place": (vector, nn.SiLU(inplace=True)),
    "LayerNorm": (vector, nn.LayerNorm(8)),
    "InstanceNorm2d": (picture, nn.InstanceNorm2d(8, affine=True)),
    "linalg.solve": (
        vector,
        Function(lambda h: torch.linalg.solve(3 * torch.eye(8).to(h) + 0.1 * h[:, :, None] * h[:, None], h)),
    ),
    "GroupNorm": (picture, nn.GroupNorm(2, 8)),
    "frozen BatchNorm2d": (picture, nn.BatchNorm2d(8).eval()),
    "Conv2d, zeros": (picture, nn.Conv2d(8, 8, 3, padding=1)),
    "ConvTranspose2d": (coarse, nn.Sequential(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.AvgPool2d(4))),
    "FFT": (picture, Function(lambda h: torch.fft.irfft2(torch.fft.rfft2(h) * 0.5, s=h.shape[-2:]))),
    "Embedding": (vector, Words()),
    "Dropout": (vector, nn.Dropout(0.3)),
    "GRU": (vector, Recurrent()),
    "attention, exact kernel": (vector, Attention(exact=True)),
    "MultiheadAttention with weights": (vector, Heads(need_weights=True)),
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_a_smooth_module_passes_the_comparison_with_finite_differences(kind):
    make, layer = ALLOWED[kind]
    network, shape = make(layer)
    assert check_network(network.double(), *batch(shape)[:2]) < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_our_own_networks_pass_bare_and_in_units(name):
    network = small(name)
    x, t, *_ = batch(network.state_shape, dtype=torch.float32)
    assert check_network(network, x, t) < 1e-6
    wrapped = Normalised(network, network.state_shape, **UNITS)
    assert check_network(wrapped, wrapped.mean + wrapped.scale * x, t) < 1e-6


NUMERICAL = {
    "functional relu": (vector, Function(torch.relu), "kinks or jumps in x"),
    "rounding": (vector, Function(lambda h: h + 0.01 * h.round()), "kinks or jumps"),
    "ELU with a kink": (vector, nn.ELU(alpha=1.1), "kinks or jumps"),
    "detach": (vector, Function(lambda h: torch.tanh(h) * torch.sigmoid(h).detach()), "% away from finite differences"),
    "fused attention": (vector, Attention(exact=False), r"`layer` \(Attention\) failed .*SDPBackend.MATH"),
    "MultiheadAttention": (vector, Heads(need_weights=False), r"`layer.attention` \(.*SDPBackend.MATH"),
    "cdist alone": (
        vector,
        Function(lambda h: h * torch.cdist(h[:, None], torch.ones(1, 1, 8).to(h))[:, 0]),
        "cannot differentiate this operation forward",
    ),
    "BatchNorm2d without a memory": (
        picture,
        nn.BatchNorm2d(8, track_running_stats=False).eval(),
        "in training it mixes the samples",
    ),
    "softmax over samples": (vector, nn.Softmax(dim=0), "others in its batch"),
}


@pytest.mark.parametrize("kind", NUMERICAL)
def test_what_no_name_betrays_is_found_by_number(kind):
    make, layer, message = NUMERICAL[kind]
    network, shape = make(layer)
    with pytest.raises(ValueError, match=message):
        check_network(network.double(), *batch(shape)[:2])


@pytest.mark.parametrize(("make", "layer"), [(vector, nn.LayerNorm(8)), (picture, nn.InstanceNorm2d(8))])
def test_backward_products_are_right_where_torch_gets_forward_ones_wrong(make, layer):
    """Why the objectives take Δx·∂(v·Δx)/∂x: by (∇v)Δx, forward, the value is right and these gradients are wrong."""

    def forward_phibe(velocity, x, t, dx, dt):
        v, slope = along(lambda z: velocity(z, t), x, dx)
        return dot(v, v) - (2 * dot(v, dx) + dot(slope, dx)) / dt

    network, shape = make(layer)
    sample = x, t, dx, _ = batch(shape)
    torch.testing.assert_close(forward_phibe(network.double(), *sample), phibe(network, *sample))
    assert check_gradient(network, x, t, dx, phibe) < 1e-5
    with pytest.raises(ValueError, match="% away from finite differences"):
        check_gradient(network, x, t, dx, forward_phibe)


def test_relu_really_is_biased():
    """The control: with relu the gradient of a mean over many samples is not the mean of the gradients."""

    def defect(function):
        """Autograd's d/da of the mean of f'(x − a) over [−1, 1], less the exact (f'(−1) − f'(1))/2."""
        a = torch.zeros((), dtype=torch.float64, requires_grad=True)
        x = torch.linspace(-1, 1, 2001, dtype=torch.float64)
        slope = torch.func.jvp(lambda z: function(z - a), (x,), (torch.ones_like(x),))[1]
        ends = torch.func.jvp(function, (x[[0, -1]],), (torch.ones(2, dtype=torch.float64),))[1]
        return abs(float(torch.autograd.grad(slope.mean() + 0 * a, a)[0] - (ends[0] - ends[1]) / 2))

    assert defect(F.silu) < 1e-3
    assert defect(torch.relu) > 0.49


def test_a_last_layer_that_starts_at_zero_hides_nothing():
    network, shape = vector(Function(lambda h: torch.tanh(h) * torch.sigmoid(h).detach()))
    nn.init.zeros_(network.leave.weight), nn.init.zeros_(network.leave.bias)
    with pytest.raises(ValueError, match="% away"):
        check_network(network.double(), *batch(shape)[:2])


class Own(nn.Module):
    """A user's module: one linear layer, and whatever the case does to its output."""

    def __init__(self, after=lambda v, x, t: v, before=lambda x: x):
        super().__init__()
        self.linear, self.after, self.before = nn.Linear(2, 2), after, before

    def forward(self, x, t):
        return self.after(self.linear(self.before(x)), x, t)


class Forgetful(nn.Linear):
    """Takes no time."""

    def __init__(self):
        super().__init__(2, 2)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Own(lambda v, x, t: v[:, :1]), r"\(6, 2\) was needed, got \(6, 1\)"),
        (Own(lambda v, x, t: (v, t)), "got tuple"),
        (Own(lambda v, x, t: v.double()), "must be torch.float32 on cpu, .* got torch.float64"),
        (Own(lambda v, x, t: v + torch.log(-x * x - 1)), "sample 0 is not finite"),
        (Own(before=lambda x: x.mul_(2)), "changes x in place"),
        (Own(lambda v, x, t: v.detach()), "does not depend on the parameters"),
        (
            Own(lambda v, x, t: v + torch.ones(5, 2)),
            r"Own failed on x \(6, 2\), torch.float32 on cpu, t \(6,\): The size",
        ),
        (Own().double(), r"`linear` \(Linear\) failed .*one dtype and device"),
        (Own().requires_grad_(False), "no trainable parameters"),
        (Forgetful(), r"called as v\(x, t\)"),
    ],
)
def test_a_module_of_ones_own_gets_a_clear_answer(network, message):
    x, t, *_ = batch((2,), dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        check_network(network, x, t)


def test_a_module_that_holds_on_to_its_graph_is_named():
    network = Own()
    network.last = network(*batch((2,), dtype=torch.float32)[:2])
    with pytest.raises(ValueError, match="Own cannot be copied: .* Detach it"):
        check_network(network, torch.ones(3, 2))


@pytest.mark.parametrize(
    ("x", "t"), [(torch.ones(3), None), (torch.ones(3, 2).long(), None), (torch.ones(3, 2), torch.ones(2))]
)
def test_the_states_to_check_on_are_checked_too(x, t):
    with pytest.raises(ValueError, match=r"`x` must be floats \(n, \*state\) and `t` \(n,\)"):
        check_network(Own(), x, t)


def test_the_check_leaves_no_trace():
    network, shape = picture(nn.Sequential(nn.BatchNorm2d(8), nn.Dropout(0.5)))
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    x = batch(shape, dtype=torch.float32)[0]
    values = [check_network(network, x, objective="regression") for _ in range(2)]
    assert values[0] == values[1]
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training
    assert all(p.grad is None for p in network.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


# -- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basis", "transformer"])  # the others in test_devices
def test_everything_runs_on_another_device_and_mixing_them_fails(name):
    network = small(name)
    network = Normalised(network, network.state_shape, **UNITS)
    here = batch(network.state_shape, dtype=torch.float32)
    there = [part.to("meta") for part in here]
    for mixed in ((network, there), (copy.deepcopy(network).to("meta"), here)):
        with pytest.raises(RuntimeError, match="device|meta"):
            phibe(mixed[0], *mixed[1])
    network.to("meta")
    for values in (phibe(network, *there), network.balanced(phibe, *there)):
        assert values.is_meta
        values.mean().backward()
    assert all(p.grad is not None and p.grad.is_meta for p in network.parameters())
    assert math.isnan(check_network(network, *there[:2]))


def test_a_network_of_circles_has_the_period_of_its_angles():
    x, t = normal(20, 4), torch.zeros(20, dtype=torch.float64)
    turned = x + 2 * torch.pi * torch.tensor([1.0, -2.0, 0.0, 0.0], dtype=torch.float64)
    periodic, plain = (ResidualMLP((4,), width=16, angles=angles).double() for angles in (2, 0))
    torch.testing.assert_close(periodic(turned, t), periodic(x, t), rtol=1e-9, atol=1e-9)
    assert (plain(turned, t) - plain(x, t)).abs().max() > 1e-3
    times = torch.linspace(0, 1, 5, dtype=torch.float64)
    data = Trajectories((x[:, None] * torch.linspace(1, 3, 5, dtype=torch.float64)[:, None]), times)
    kept, scaled = Normalised.fit(periodic, data).keep(slice(0, 2)), Normalised.fit(periodic, data)
    torch.testing.assert_close(kept(turned, t), kept(x, t), rtol=1e-9, atol=1e-9)
    assert (scaled(turned, t) - scaled(x, t)).abs().max() > 1e-3  # in other units the period is lost
    assert kept.scale[2] == scaled.scale[2] != 1
    with pytest.raises(ValueError, match="from 0 to the 4"):
        ResidualMLP((4,), angles=5)
