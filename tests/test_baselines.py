"""Forecasters on a Gaussian transition x′ ~ N(Ax, C), whose best networks and conditional distributions are known."""

from types import SimpleNamespace

import pytest
import torch
from problems import normal, order, real
from torch import nn
from torch.func import jacfwd

from phibe import FitConfig, Trajectories
from phibe.experiments.baselines.forecaster import conditional_unet, fit_forecaster
from phibe.experiments.baselines.mcvd import LEVELS, MCVD, signal
from phibe.experiments.baselines.persistence import ConstantVelocity, Persistence
from phibe.experiments.baselines.pfi import PFI
from phibe.training import loop
from phibe.training.runs import open_flow
from phibe.training.sampling import Batches, Samples
from phibe.training.tensors import load_tensors, save_tensors

A, C = real([[0.8, -0.4], [0.3, 0.7]]), real([[0.3, 0.1], [0.1, 0.2]])
MEAN, SCALE, STEP = real([1.0, -2.0]), 0.5, 0.1
START = real([2.0, -1.0])
EYE = torch.eye(2, dtype=torch.float64)


def conditional(frames):
    """Mean (2·frames,) and covariance of the next frames from START, all stacked."""
    powers = [torch.linalg.matrix_power(A, k) for k in range(frames + 1)]
    mean = torch.cat([MEAN + powers[k] @ (START - MEAN) for k in range(1, frames + 1)])
    factor = torch.zeros(2 * frames, 2 * frames, dtype=torch.float64)  # frame i = … + Σⱼ A^(i−j) noiseⱼ
    for i in range(frames):
        for j in range(i + 1):
            factor[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = powers[i - j]
    return mean, factor @ torch.block_diag(*[C] * frames) @ factor.mT


def observe(paths=200, frames=9, seed=0):
    """Stationary paths of the process, float64."""
    root, noise = torch.linalg.cholesky(C), normal(40 + frames, paths, 2, seed=seed)
    x, states = torch.zeros(paths, 2, dtype=torch.float64), []
    for xi in noise:
        x = x @ A.mT + xi @ root.mT
        states.append(x + MEAN)
    return Trajectories(torch.stack(states[40:], dim=1), STEP * torch.arange(frames, dtype=torch.float64))


# -- the networks that training would find at best ------------------------------------------------------------------


class Drift(nn.Module):
    """E[−x₀ + 2τx₁ − σ√τ ε | z_τ, x₀] in standard units: affine in z, by conditioning the Gaussian (R, z)."""

    state_shape = (2,)

    def __init__(self, sigma=1.0, scale=SCALE):
        super().__init__()
        self.sigma, self.covariance = sigma, C / scale**2

    def forward(self, z, tau, condition):
        now, t = condition[:, -2:], tau.clamp(min=1e-9)[:, None, None]
        bridge = self.sigma**2 * t * (1 - t)
        spread = t**4 * self.covariance + bridge * (1 - t) * EYE
        gain = torch.linalg.solve(spread, 2 * t**3 * self.covariance - bridge * EYE)  # symmetric, and they commute
        later = now @ A.mT
        gap = z - (1 - t[:, 0]) * now - t[:, 0] ** 2 * later
        return 2 * t[:, 0] * later - now + (gain @ gap[:, :, None])[:, :, 0]


class Noise(nn.Module):
    """E[ε | z_k, x₀] of a block of frames in standard units."""

    def __init__(self, frames=2, scale=SCALE):
        super().__init__()
        self.state_shape, self.covariance = (2 * frames,), conditional(frames)[1] / scale**2
        self.later = torch.cat([torch.linalg.matrix_power(A, k) for k in range(1, frames + 1)])

    def forward(self, z, level, condition):
        kept = signal(z)[(level * LEVELS).round().long()][:, None]
        spread = kept[:, :, None] * self.covariance
        spread = spread + (1 - kept)[:, :, None] * torch.eye(z.shape[1], dtype=z.dtype)
        gap = z - kept.sqrt() * condition[:, -2:] @ self.later.mT
        return (1 - kept).sqrt() * torch.linalg.solve(spread, gap)


def ideal(kind, scale=SCALE, **settings):
    """A forecaster with its best network, in units of its own; MCVD's predicts two frames at once."""
    made = PFI(Drift(scale=scale), **settings) if kind == "pfi" else MCVD(Noise(scale=scale), frames=2, **settings)
    model = made.double()
    model.mean.copy_(MEAN)
    model.scale.fill_(scale)
    model.step.fill_(STEP)
    return model


class Impulses:
    """In place of the sampler's noise: row 0 gets none, each other row a unit in one coordinate of one call."""

    def __init__(self):
        self.used = 1

    def __call__(self, like, generator):
        noise, flat = torch.zeros_like(like), like[0].numel()
        noise[range(self.used, self.used + flat), range(flat)] = 1.0
        self.used += flat
        return noise


def sampled_distribution(model, frames, monkeypatch):
    """The exact distribution of what the sampler gives: with an affine network its frames are affine in its noise."""
    rows = 1 + 2 * frames * model.steps
    monkeypatch.setattr(model, "_noise", Impulses())
    history = START.expand(rows, model.past, 2)
    made = model.generate(history, STEP * torch.arange(frames + 1)).states[:, 1:].flatten(1)
    effects = made[1:] - made[0]
    return made[0], effects.mT @ effects


def errors(model, monkeypatch, frames=2):
    (mean, covariance), (found, spread) = conditional(frames), sampled_distribution(model, frames, monkeypatch)
    return float((found - mean).norm()), float((spread - covariance).norm() / covariance.norm())


# -- their samples ----------------------------------------------------------------------------------------------------


def test_pfi_draws_from_the_conditional_distribution_to_first_order_in_its_steps(monkeypatch):
    steps = [50, 100, 200]
    means, spreads = zip(*(errors(ideal("pfi", steps=n), monkeypatch) for n in steps), strict=True)
    assert means[1] < 0.04 and spreads[1] < 0.05
    assert 0.9 < -order(steps, means) < 1.2 and 0.8 < -order(steps, spreads) < 1.2
    wrong = ideal("pfi", steps=100)
    wrong.sigma = 1.5  # more noise than the drift was made for
    assert errors(wrong, monkeypatch)[1] > 0.3


def test_mcvd_draws_blocks_from_the_conditional_distribution_as_its_steps_grow(monkeypatch):
    steps = [50, 100, 200]
    means, spreads = zip(*(errors(ideal("mcvd", past=1, steps=n), monkeypatch, 4) for n in steps), strict=True)
    assert max(means) < 0.02 and spreads[1] < 0.08
    assert 0.6 < -order(steps, spreads) < 1.2  # the ancestral rule of the published sampler: too little variance
    wrong = ideal("mcvd", past=1, steps=100)
    wrong.network.covariance = 2 * wrong.network.covariance
    assert errors(wrong, monkeypatch, 4)[1] > 0.5


@pytest.mark.parametrize("kind", ["pfi", "mcvd"])
def test_the_noise_is_standard_and_drawn_from_the_generator(kind, monkeypatch):
    model, n = ideal(kind, past=1, steps=10), 3000
    draws = [
        model.generate(START.expand(n, 2), STEP * torch.arange(3), generator=torch.Generator().manual_seed(seed)).states
        for seed in (0, 0, 1)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    x = draws[0][:, 1:].flatten(1)
    mean, covariance = sampled_distribution(model, 2, monkeypatch)
    deviation = covariance.diagonal().sqrt()
    assert ((x.mean(0) - mean).abs() < 4 * deviation / n**0.5).all()
    assert ((torch.cov(x.mT) - covariance).abs() < 6 * deviation[:, None] * deviation / n**0.5).all()
    assert (draws[0][:, 0] == START).all()


def test_estimates_beyond_the_data_are_held_at_its_range():
    model = ideal("mcvd", past=1, steps=10)
    model.bound.fill_(0.5)
    made = model.generate(START.expand(50, 2), STEP * torch.arange(3), generator=torch.Generator().manual_seed(0))
    assert ((made.states[:, 1:] - MEAN) / SCALE).abs().max() <= 0.5 + 1e-12


# -- their losses -----------------------------------------------------------------------------------------------------


class Moved(nn.Module):
    """A network moved by θ along three functions of what it sees."""

    def __init__(self, best, theta):
        super().__init__()
        self.best, self.state_shape, self.theta = best, best.state_shape, theta

    def forward(self, z, t, condition):
        now, (a, b, c) = condition[:, -2:].repeat(1, z.shape[1] // 2), self.theta
        return self.best(z, t, condition) + a * torch.sin(3 * t)[:, None] * z + b * now + c * torch.tanh(z - now)


def fresh_samples(model, n=3000):
    """Independent samples with the random numbers that go with them."""
    data = observe(paths=n, frames=model.width, seed=1)
    drawn = model.draw(n, torch.Generator().manual_seed(1))
    return *(data.pairs() if model.width == 2 else data.windows(model.width)), *(part.double() for part in drawn)


def pulls(model):
    """Largest slope of the mean loss along these functions, in standard errors: of order one at its minimum."""
    sample, best = fresh_samples(model), model.network

    def values(theta):
        model.network = Moved(best, theta)
        return model.loss(*sample)

    slopes = jacfwd(values)(torch.zeros(3, dtype=torch.float64))
    return (slopes.mean(0) / slopes.std(0) * len(slopes) ** 0.5).abs().max()


@pytest.mark.parametrize("kind", ["pfi", "mcvd"])
def test_the_loss_is_least_at_the_conditional_mean(kind):
    assert pulls(ideal(kind, past=1)) < 4
    wrong = ideal(kind, past=1)
    wrong.network.covariance = 4 * wrong.network.covariance  # the best one of another distribution
    assert pulls(wrong) > 10


class Small(nn.Module):
    """A network of vectors with a condition."""

    def __init__(self, size=2, condition=2, width=32):
        super().__init__()
        self.state_shape = (size,)
        sizes = size + 1 + condition
        self.layers = nn.Sequential(nn.Linear(sizes, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.leave = nn.Linear(width, size)

    def forward(self, z, t, condition):
        return self.leave(self.layers(torch.cat([z, t[:, None], condition], dim=1)))


def small(kind, past=1, seed=0):
    torch.manual_seed(seed)
    if kind == "pfi":
        return PFI(Small(2, 2 * past), past=past, steps=4)
    return MCVD(Small(4, 2 * past), past=past, frames=2, steps=4)


QUICK = {"steps": 12, "batch": 16, "evaluate_every": 4, "checkpoint_every": 4, "warmup": 0, "ema": 0.9}


def train(model, out=None, data=None, **changes):
    data = observe(paths=30) if data is None else data
    return fit_forecaster(data, model, config=FitConfig(**QUICK | changes), out=out, progress=False)


@pytest.mark.parametrize("kind", ["pfi", "mcvd"])
def test_training_brings_the_loss_to_that_of_the_best_network(kind):
    data = observe(paths=400).to(torch.float32)
    settings = {"steps": 600, "batch": 256, "learning_rate": 1e-2, "evaluate_every": 300}
    trained = train(small(kind), data=data, **settings).double()
    best = ideal(kind, scale=float(trained.scale), past=1)
    untrained = small(kind).double()
    untrained.load_state_dict(untrained.state_dict() | dict(trained.named_buffers()))
    sample = fresh_samples(best)
    loss, least, most = (model.loss(*sample).mean().item() for model in (trained, best, untrained))
    assert 0.99 * least < loss < 1.12 * least
    assert most > 1.5 * least


# -- the shared loop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pfi", "mcvd"])
def test_a_killed_run_goes_on_to_the_same_bits_and_a_finished_one_comes_back(kind, tmp_path, monkeypatch):
    whole = train(small(kind, past=2), tmp_path / "whole")
    calls, accumulate = [], loop.accumulate

    def fail(*args, **kwargs):
        calls.append(0)
        if len(calls) > 7:
            raise KeyboardInterrupt
        return accumulate(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(loop, "accumulate", fail)
        train(small(kind, past=2), tmp_path / "cut")
    train(small(kind, past=2), tmp_path / "cut")
    weights = [(tmp_path / run / "weights.safetensors").read_bytes() for run in ("whole", "cut")]
    assert weights[0] == weights[1]
    again = type(whole).open(tmp_path / "cut", network=small(kind, past=2, seed=5).network)
    history, times = observe().states[:3, :4], STEP * torch.arange(5)
    first, second = (m.generate(history, times, generator=torch.Generator().manual_seed(2)) for m in (whole, again))
    assert torch.equal(first.states, second.states)
    with pytest.raises(ValueError, match="holds another run .*seed"):
        train(small(kind, past=2), tmp_path / "cut", seed=1)
    with pytest.raises(ValueError, match=f"holds a {kind}, not a flow"):
        open_flow(tmp_path / "cut")
    with pytest.raises(ValueError, match=f"holds a {kind}, not a "):
        (MCVD if kind == "pfi" else PFI).open(tmp_path / "cut")


def test_a_unet_forecaster_comes_back_from_its_folder_and_from_half_precision(tmp_path):
    torch.manual_seed(0)
    data = Trajectories(3 + 2 * torch.randn(6, 5, 1, 4, 4), STEP * torch.arange(5))
    unet = conditional_unet((1, 4, 4), past=2, frames=2, channels=4, multipliers=(1, 2), blocks=1)
    model = train(MCVD(unet, past=2, frames=2, steps=3), tmp_path, data, steps=4)
    assert model.scale == pytest.approx(2, rel=0.2) and model.mean.item() == pytest.approx(3, rel=0.2)
    tensors, _ = load_tensors(tmp_path / "weights.safetensors")
    save_tensors(tmp_path / "weights.safetensors", {name: tensor.half() for name, tensor in tensors.items()})
    again = MCVD.open(tmp_path)
    times = STEP * torch.arange(1, 200, 3)  # the step is known to half precision only
    made = [m.generate(data.states[:, :2], times, generator=torch.Generator().manual_seed(0)) for m in (model, again)]
    gap = (made[0].states - made[1].states)[:, 1].norm() / made[0].states[:, 1].norm()
    assert 0 < gap < 0.02
    assert again.evaluations == 3 / 2


def test_the_random_numbers_of_a_step_do_not_depend_on_how_many_processes_share_it():
    def share(rank, world):
        devices = SimpleNamespace(world_size=world, global_rank=rank, device=torch.device("cpu"))
        batches = Batches(Samples(observe(30)), FitConfig(batch=8), devices, draw=small("mcvd").draw)
        return batches.sample(5)[4:]

    for whole, *parts in zip(share(0, 1), share(0, 2), share(1, 2), strict=True):
        assert torch.equal(whole, torch.cat(parts))


def test_a_centred_diffusion_keeps_the_mean_of_the_fields_and_the_rest_of_the_draw():
    torch.manual_seed(0)
    model = MCVD(
        conditional_unet((1, 8, 8), past=1, frames=2, channels=4, multipliers=(1, 2), blocks=1), past=1, steps=5
    )
    model.mean.fill_(3.0)
    model.step.fill_(STEP)
    model.network.leave[-1].bias.data.fill_(0.1)  # ε̂ is off by a constant
    start, times = 3 + torch.randn(2, 1, 1, 8, 8), STEP * torch.arange(5)
    free, centred = [], []
    for model.centred, frames in ((False, free), (True, centred)):
        frames.append(model.generate(start, times, generator=torch.Generator().manual_seed(0)).states[:, 1:])
    assert float((free[0].mean((-2, -1)) - 3).abs().max()) > 0.1
    torch.testing.assert_close(centred[0].mean((-2, -1)), torch.full((2, 4, 1), 3.0), atol=1e-4, rtol=0)
    off = (free[0] - centred[0])[:, :2]
    assert float(off.std((-2, -1)).max()) < 0.3 * float(free[0].std())


def test_a_share_of_the_pasts_is_masked():
    seen = []

    class Spy(Small):
        def forward(self, z, t, condition):
            seen.append(condition)
            return super().forward(z, t, condition)

    for mask in (0.0, 0.5):
        model = MCVD(Spy(4, 2), past=1, frames=2, mask=mask)
        model.loss(*observe(400, 3).to(torch.float32).windows(3), *model.draw(400, torch.Generator().manual_seed(0)))
    shares = [float((condition == 0).all(1).double().mean()) for condition in seen]
    assert shares[0] == 0 and 0.4 < shares[1] < 0.6


# -- without training -------------------------------------------------------------------------------------------------


def test_persistence_stays_and_constant_velocity_goes_on():
    line = real([[[0.0, 1.0], [0.5, 3.0], [1.0, 5.0]]])  # moves by (0.5, 2) each step
    times = STEP * torch.arange(2, 6, dtype=torch.float64)
    stays = Persistence((2,)).generate(line, times).states
    goes = ConstantVelocity(STEP).generate(line, times).states
    assert (stays == line[:, -1]).all()
    assert torch.equal(stays, Persistence((2,)).generate(line[:, -1], times).states)
    expected = line[:, -1:] + torch.arange(4)[:, None] * real([0.5, 2.0])
    assert torch.allclose(goes, expected) and not torch.allclose(stays, expected)


# -- messages ---------------------------------------------------------------------------------------------------------


def test_what_a_forecaster_cannot_take_is_explained():
    model, history = ideal("pfi", past=2, steps=2), START.expand(3, 2, 2)
    for times in ([0.0], [0.0, 0.15], [0.1, 0.0], [[0.0, 0.1]]):
        with pytest.raises(ValueError, match="increase by whole steps of 0.1"):
            model.generate(history, times)
    with pytest.raises(ValueError, match=r"\(n, 2 frames or more, 2\); got \(3, 2\)"):
        model.generate(START.expand(3, 2), [0.0, 0.1])
    with pytest.raises(ValueError, match="state_shape"):
        MCVD(Small(3), past=1, frames=2)
    uneven = Trajectories(observe(4, 3).states, [0.0, 0.1, 0.3])
    with pytest.raises(ValueError, match="equal steps; here they are from 0.1 to 0.2 apart"):
        train(small("pfi"), data=uneven)
    with pytest.raises(ValueError, match=r"for states \(2,\); the data has \(3,\)"):
        train(small("pfi"), data=Trajectories(normal(6, 4, 3), STEP * torch.arange(4)))
    with pytest.raises(ValueError, match="two frames or more"):
        ConstantVelocity(STEP).generate(START.expand(3, 2), [0.0, 0.1])


def test_a_rollout_that_diverges_is_an_error():
    class Far(Small):
        def forward(self, z, t, condition):
            return z * 1e30

    model = PFI(Far(), steps=20)
    with pytest.raises(ValueError, match="pfi diverged: frame 1"):
        model.generate(torch.ones(3, 2), [0.0, 1.0])
