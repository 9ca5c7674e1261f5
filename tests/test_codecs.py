"""The codec: sizes of the paper's table, the losses on answers known by hand, training that resumes and that learns."""

import math

import pytest
import torch
from problems import normal, real

from phibe.experiments.conditioned import with_velocity
from phibe.experiments.pendulum.codec import (
    CodecConfig,
    GeometryCodec,
    curves,
    distortion,
    fit_codec,
    reconstruction,
    smoothness,
)
from phibe.experiments.pendulum.rendering import render

QUICK = CodecConfig(encoder_steps=6, decoder_steps=4, encoder_batch=16, decoder_batch=10, checkpoint_every=2)


def draw(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    theta = 2 * math.pi * torch.rand(n, 2, generator=generator)
    return render(theta), render(theta + 0.05 * torch.randn(n, 2, generator=generator))


def layers(network, kind) -> list[tuple[int, ...]]:
    """Shapes of what each module of a kind makes of one sample."""
    shapes = []
    hooks = [m.register_forward_hook(lambda _, __, y: shapes.append(tuple(y.shape[1:])))
             for m in network.modules() if isinstance(m, kind)]  # fmt: skip
    network.eval()(torch.zeros(1, 1, 32, 32) if kind is torch.nn.Conv2d else torch.zeros(1, 3, 1, 1))
    for hook in hooks:
        hook.remove()
    return shapes


def test_the_networks_are_those_of_the_table():
    codec = GeometryCodec()
    assert layers(codec.encoder, torch.nn.Conv2d) == [(32, 16, 16), (64, 8, 8), (128, 4, 4)]
    assert [m.in_features for m in codec.encoder if isinstance(m, torch.nn.Linear)] == [2048]
    norms = [m.num_features for m in codec.encoder if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms == [32, 128]
    grown = layers(codec.decoder, torch.nn.ConvTranspose2d)
    assert grown == [(64, 4, 4), (64, 8, 8), (32, 16, 16), (128, 32, 32)]
    assert codec.decode(torch.zeros(2, 3)).shape == (2, 1, 32, 32)


def test_the_distortion_is_the_sum_over_all_pairs():
    z, x = normal(7, 3), normal(7, 1, 4, 4, seed=1)
    by_hand = [
        (math.log(1 + float((z[i] - z[j]).square().sum())) - math.log(1 + float((x[i] - x[j]).square().sum()))) ** 2
        for i in range(7)
        for j in range(7)
    ]
    assert float(distortion(z, x)) == pytest.approx(sum(by_hand) / 49, rel=1e-9)
    flat = x.flatten(1)
    turn = torch.linalg.qr(normal(16, 16, seed=2)).Q
    assert float(distortion(flat @ turn, x)) < 1e-20  # an isometry distorts nothing


def test_smoothness_and_reconstruction_sum_over_coordinates():
    z = torch.zeros(2, 3, dtype=torch.float64)
    assert float(smoothness(z, z + real([[1, 2, 2], [0, 0, 1]]))) == pytest.approx((9 + 1) / 2)
    x = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    assert float(reconstruction(x, x + 0.5)) == pytest.approx(16 / 4)


def test_the_velocity_of_a_latent_is_its_last_difference():
    z, times = normal(2, 5, 3), torch.tensor([0.0, 0.1, 0.3, 0.4, 0.8], dtype=torch.float64)
    data = with_velocity(z, times)
    assert data.state_shape == (6,)
    torch.testing.assert_close(data.times, times[1:])
    torch.testing.assert_close(data.states[1, 2, 3:], (z[1, 3] - z[1, 2]) / 0.1)
    torch.testing.assert_close(data.states[..., :3], z[:, 1:])


def test_a_killed_training_resumes_to_the_same_weights(tmp_path, monkeypatch):
    whole = fit_codec(draw, QUICK, progress=False).state_dict()
    calls = []

    def fail_late(n, generator):
        calls.append(n)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return draw(n, generator)

    with pytest.raises(KeyboardInterrupt):
        fit_codec(fail_late, QUICK, out=tmp_path, progress=False)
    resumed = fit_codec(draw, QUICK, validation=draw, out=tmp_path, progress=False).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    steps, losses, validated = zip(*curves(tmp_path)["decoder"], strict=True)
    assert steps == (2, 4)
    assert all(loss > 0 for loss in losses)
    assert validated[0] is None and validated[-1] > 0  # the part that was stopped had no validation


def test_another_configuration_is_not_continued(tmp_path):
    fit_codec(draw, QUICK, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="another configuration"):
        fit_codec(draw, CodecConfig(**{**vars(QUICK), "smooth": 1.0}), out=tmp_path, progress=False)


@pytest.mark.slow
def test_training_lowers_the_distortion_of_unseen_frames():
    config = CodecConfig(encoder_steps=60, decoder_steps=0, encoder_batch=50, learning_rate=1e-3, smooth=1.0)
    x, _ = draw(100, torch.Generator().manual_seed(99))
    fresh, trained = (
        float(distortion(codec.eval().encode(x).detach(), 2 * x))
        for codec in (GeometryCodec(), fit_codec(draw, config, progress=False))
    )
    assert trained < fresh / 3
