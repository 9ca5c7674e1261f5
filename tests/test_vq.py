"""The codec of video: its codebook against brute force and formula, its training, and weights from outside."""

import math

import pytest
import torch
from problems import normal, real
from safetensors.torch import save_file
from torch.nn import functional as F

from phibe import FitConfig, Trajectories
from phibe.experiments.video.taming import open_taming
from phibe.experiments.video.vq import Codebook, VQCodec, VQLoss, fit_vq, open_vq, straight_through
from phibe.training.runs import open_flow

QUICK = FitConfig(steps=6, batch=8, evaluate_every=3, checkpoint_every=2, learning_rate=3e-3, warmup=1, held_out=0.25)


def book(size: int = 37, dimension: int = 3, **options) -> Codebook:
    """A codebook with known codes, all alive."""
    made = Codebook(size, dimension, **options).double()
    made.codes.copy_(normal(size, dimension, seed=5))
    made.counts.fill_(2.0)
    made.sums.copy_(2.0 * made.codes)
    return made


def small() -> VQCodec:
    """The same small codec each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return VQCodec(channels=8, codes=16)


def videos(paths: int = 8, frames: int = 4, *, seed: int = 0) -> Trajectories:
    """A bright disc that moves on a grey ramp: (path, time, 1, 16, 16)."""
    start = 16 * torch.rand(paths, 1, 2, 1, 1, generator=torch.Generator().manual_seed(seed))
    place = start + 0.7 * torch.arange(frames)[:, None, None, None]
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    disc = torch.sigmoid(9 - (grid - place % 16).square().sum(2))
    return Trajectories((0.2 + 0.02 * grid[1] + 0.4 * disc)[:, :, None], torch.arange(frames) / 25)


# -- the codebook ------------------------------------------------------------------------------------------------------


def test_the_nearest_code_is_that_of_brute_force(monkeypatch):
    monkeypatch.setattr("phibe.experiments.video.vq.BLOCK", 50)  # several blocks, the last not full
    found, z = book(), normal(211, 3)
    brute = torch.tensor([min(range(37), key=lambda k: float((e - found.codes[k]).square().sum())) for e in z])
    assert torch.equal(found.nearest(z), brute)
    assert not torch.equal(found.nearest(-z), brute)


def test_a_grid_of_vectors_is_rounded_place_by_place():
    found, z = book().eval(), normal(2, 3, 4, 5)
    rounded = found(z)
    for n, i, j in [(0, 0, 0), (1, 2, 4), (0, 3, 1)]:
        torch.testing.assert_close(rounded[n, :, i, j], found.codes[found.nearest(z[n, :, i, j][None])[0]])
    before = found.codes.clone()
    found(normal(2, 3, 4, 5, seed=9))
    assert torch.equal(found.codes, before)  # outside training nothing moves


def test_codes_move_by_the_moving_average_of_what_they_stand_for():
    """e = m/N with N ← γN + (1 − γ)n and m ← γm + (1 − γ)Σz, by a loop over the codes."""
    gamma, found, z = 0.9, book(5, decay=0.9, dead=0.0), normal(100, 3)
    old, index = found.codes.clone(), found.nearest(z)
    found.update(z, index)
    for k in range(5):
        mine = z[index == k]
        count = gamma * 2.0 + (1 - gamma) * len(mine)
        total = gamma * 2.0 * old[k] + (1 - gamma) * mine.sum(0)
        torch.testing.assert_close(found.codes[k], total / count)
        torch.testing.assert_close(found.counts[k], real(count))
    assert (found.codes - old).abs().max() > 0.01


def test_repeated_updates_end_at_the_means_of_clusters():
    """Lloyd's fixed point: every code is the mean of the vectors next to it."""
    centres = 10 * normal(4, 2, seed=3)
    z = (centres[:, None] + 0.1 * normal(4, 50, 2)).reshape(-1, 2)
    found = Codebook(4, 2, decay=0.5).double().train()
    found(z.clone(), generator=torch.Generator().manual_seed(0))
    for _ in range(60):
        found(z, generator=torch.Generator().manual_seed(1))
    index = found.nearest(z)
    means = torch.stack([z[index == k].mean(0) for k in range(4)])
    torch.testing.assert_close(found.codes, means, rtol=1e-6, atol=1e-6)


def test_a_dead_code_begins_anew_at_a_vector_of_the_batch_and_a_living_one_does_not():
    found, z = book(8, dead=0.03, decay=0.5).train(), normal(64, 3, seed=2)
    found.codes[3] = 1e3  # stands for nothing
    found.counts[3], found.sums[3] = 0.01, 0.01 * found.codes[3]
    index = found.nearest(z)
    used = torch.bincount(index, minlength=8) > 0
    found.update(z, index, generator=torch.Generator().manual_seed(0))
    distance = torch.cdist(found.codes, z).min(1).values
    assert float(distance[3]) == 0.0 and not used[3]
    assert float(found.counts[3]) == 64 / 8
    assert (distance[used] > 0).all()
    lasting = book(8, dead=0.0, decay=0.5)
    lasting.codes[3] = 1e3
    lasting.sums[3] = 2e3
    lasting.update(z, index)
    assert float(lasting.codes[3].abs().max()) == 1e3  # without revival it stays where it is


def test_processes_that_share_a_batch_move_the_codes_as_one_would(monkeypatch):
    z, whole, shared = normal(100, 3), book(5, dead=0.0), book(5, dead=0.0)
    index = whole.nearest(z)
    whole.update(z, index)
    counts = torch.bincount(index[60:], minlength=5).double()
    others = [counts, torch.zeros(5, 3, dtype=torch.float64).index_add_(0, index[60:], z[60:])]
    monkeypatch.setattr("phibe.experiments.video.vq.dist.is_initialized", lambda: True)
    monkeypatch.setattr("phibe.experiments.video.vq.dist.all_reduce", lambda part: part.add_(others.pop(0)))
    shared.update(z[:60], index[:60])
    torch.testing.assert_close(shared.codes, whole.codes)
    assert not others


def test_the_first_batch_makes_the_codes():
    found, z = Codebook(16, 3).double().train(), normal(6, 3, 2, 2)
    rounded = found(z, generator=torch.Generator().manual_seed(0))
    vectors = z.movedim(1, -1).reshape(-1, 3)
    assert float(torch.cdist(rounded.movedim(1, -1).reshape(-1, 3), vectors).min(1).values.max()) == 0.0
    assert 0 < found.usage() <= 1


def test_usage_is_one_when_all_codes_are_used_alike():
    assert book().usage() == pytest.approx(1.0)
    lopsided = book()
    lopsided.counts.zero_()[4] = 1.0
    assert lopsided.usage() == pytest.approx(1 / 37)


def test_the_gradient_goes_straight_through():
    """∂/∂z of f(round(z)) is f' at the rounded value: that of the codes, as if z were they."""
    found, z = book().eval(), normal(5, 3).requires_grad_()
    codes = found(z)
    (straight_through(z, codes).pow(3) / 3).sum().backward()
    torch.testing.assert_close(z.grad, codes.square())
    assert not codes.requires_grad  # the rounding itself has no gradient


# -- the codec ---------------------------------------------------------------------------------------------------------


def test_the_codec_of_the_paper_s_sizes():
    codec = VQCodec()
    z = codec.eval().encode(torch.rand(2, 1, 64, 64))
    assert z.shape == (2, 4, 8, 8) and codec.decode(z).shape == (2, 1, 64, 64)


def test_quantised_decoding_depends_on_the_nearest_code_alone():
    codec = small().eval()
    codec.codebook.codes.copy_(normal(16, 4))
    z = codec.codebook.codes[torch.arange(4).reshape(1, 2, 2)].movedim(-1, 1)
    moved = z + 1e-3
    torch.testing.assert_close(codec.decode(z), codec.decode(moved), rtol=0, atol=0)
    assert not torch.equal(codec.decode(z, quantise=False), codec.decode(moved, quantise=False))
    paths = codec.decode_paths(torch.cat([z, z], 1)[None])  # further channels, e.g. a velocity, are not looked at
    torch.testing.assert_close(paths[0], codec.decode(z).clamp(0, 1))


def test_the_loss_is_reconstruction_plus_commitment():
    codec = small().double().eval()
    codec.codebook.codes.copy_(normal(16, 4))
    x = videos(3, 2).states[:, :1].double()
    z = codec.encode(x[:, 0])
    pixels = (codec.decode(z) - x[:, 0]).square().mean((1, 2, 3))
    moved = (z - codec.codebook(z)).square().mean((1, 2, 3))
    torch.testing.assert_close(VQLoss(codec, 0.5)(x), pixels + 0.5 * moved)


def test_mixed_precision_rounds_to_the_same_codes_nearly_everywhere():
    codec, x = small().train(), videos(8, 2).states[:, :1]
    codec(x[:, 0], generator=torch.Generator().manual_seed(0))  # the first batch makes the codes
    full, mixed = (VQLoss(codec.eval(), 0.1, mixed=mixed)(x) for mixed in (False, True))
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, full, rtol=0.1, atol=0)


@pytest.mark.slow
def test_training_lowers_the_error_of_unseen_videos_and_is_had_back(tmp_path):
    config = FitConfig(steps=120, batch=16, evaluate_every=40, learning_rate=5e-3, warmup=5, held_out=0.25)
    codec = fit_vq(videos(32), small(), config=config, out=tmp_path, progress=False)
    unseen = videos(6, seed=9).states
    made = codec.decode_paths(codec.encode_paths(unseen))
    error = float((made - unseen).square().mean())
    mean = float((unseen - unseen.mean()).square().mean())
    assert error < mean / 2  # of the best constant
    again = open_vq(tmp_path)
    torch.testing.assert_close(again.decode_paths(again.encode_paths(unseen)), made)
    with pytest.raises(ValueError, match="holds a codec, not a flow"):
        open_flow(tmp_path)


def test_a_killed_training_goes_on_to_the_same_codec(tmp_path, monkeypatch):
    codec = small()
    whole = fit_vq(videos(), codec, config=QUICK, progress=False).state_dict()
    forward, calls = VQLoss.forward, []

    def fail_late(self, *sample, **options):
        calls.append(self.training)
        if calls.count(True) == 6:
            raise KeyboardInterrupt
        return forward(self, *sample, **options)

    with monkeypatch.context() as patch:
        patch.setattr(VQLoss, "forward", fail_late)
        with pytest.raises(KeyboardInterrupt):
            fit_vq(videos(), codec, config=QUICK, out=tmp_path, progress=False)
    resumed = fit_vq(videos(), codec, config=QUICK, out=tmp_path, progress=False).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (torch.rand(2, 3, 3, 16, 16), "Make them grey"),
        (torch.rand(2, 3, 1, 20, 16), "multiples of 8"),
        (255 * torch.rand(2, 3, 1, 16, 16), "Divide by 255"),
    ],
)
def test_frames_of_another_kind_are_refused(states, message):
    with pytest.raises(ValueError, match=message):
        fit_vq(Trajectories(states, torch.arange(3.0)), small(), config=QUICK, progress=False)


# -- taming's layout ---------------------------------------------------------------------------------------------------


def convolution(name: str, width: int, out: int, size: int = 3) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, width, size, size), f"{name}.bias": (out,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def residual(name: str, width: int, out: int) -> dict[str, tuple[int, ...]]:
    shapes = norm(f"{name}.norm1", width) | convolution(f"{name}.conv1", width, out)
    shapes |= norm(f"{name}.norm2", out) | convolution(f"{name}.conv2", out, out)
    return shapes | (convolution(f"{name}.nin_shortcut", width, out, 1) if width != out else {})


def attention(name: str, width: int) -> dict[str, tuple[int, ...]]:
    shapes = norm(f"{name}.norm", width)
    for part in ("q", "k", "v", "proj_out"):
        shapes |= convolution(f"{name}.{part}", width, width, 1)
    return shapes


def ends(name: str, width: int, out: int) -> dict[str, tuple[int, ...]]:
    return norm(f"{name}.norm_out", width) | convolution(f"{name}.conv_out", width, out)


def middle(name: str, width: int) -> dict[str, tuple[int, ...]]:
    shapes = residual(f"{name}.mid.block_1", width, width) | attention(f"{name}.mid.attn_1", width)
    return shapes | residual(f"{name}.mid.block_2", width, width)


def taming_shapes() -> dict[str, tuple[int, ...]]:
    """All names and shapes for ch = 32, ch_mult = (1, 2), one block a grid, attention on the coarse one, 3 channels,
    z_channels = 5, embed_dim = 4, n_embed = 9."""
    return {
        **convolution("encoder.conv_in", 3, 32),
        **residual("encoder.down.0.block.0", 32, 32),
        **convolution("encoder.down.0.downsample.conv", 32, 32),
        **residual("encoder.down.1.block.0", 32, 64),
        **attention("encoder.down.1.attn.0", 64),
        **middle("encoder", 64),
        **ends("encoder", 64, 5),
        **convolution("decoder.conv_in", 5, 64),
        **middle("decoder", 64),
        **residual("decoder.up.1.block.0", 64, 64),
        **residual("decoder.up.1.block.1", 64, 64),
        **attention("decoder.up.1.attn.0", 64),
        **attention("decoder.up.1.attn.1", 64),
        **convolution("decoder.up.1.upsample.conv", 64, 64),
        **residual("decoder.up.0.block.0", 64, 32),
        **residual("decoder.up.0.block.1", 32, 32),
        **ends("decoder", 32, 3),
        "quantize.embedding.weight": (9, 4),
        **convolution("quant_conv", 5, 4, 1),
        **convolution("post_quant_conv", 4, 5, 1),
    }


def taming_weights() -> dict[str, torch.Tensor]:
    return {
        name: normal(*shape, seed=i) * 0.1 + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for i, (name, shape) in enumerate(taming_shapes().items())
    }


def by_hand(weights: dict[str, torch.Tensor], frames: torch.Tensor) -> torch.Tensor:
    """Latents of taming's encoder, each line one of its layers, straight from the named weights."""

    def conv(name, h, **options):
        return F.conv2d(h, weights[f"{name}.weight"], weights[f"{name}.bias"], **options)

    def act(name, h):
        return F.silu(F.group_norm(h, 32, weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-6))

    def res(name, h):
        inner = conv(f"{name}.conv1", act(f"{name}.norm1", h), padding=1)
        inner = conv(f"{name}.conv2", act(f"{name}.norm2", inner), padding=1)
        return inner + (conv(f"{name}.nin_shortcut", h) if f"{name}.nin_shortcut.weight" in weights else h)

    def attend(name, h):
        flat = F.group_norm(h, 32, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"], eps=1e-6)
        q, k, v = (conv(f"{name}.{part}", flat).flatten(2) for part in "qkv")
        share = torch.softmax(torch.einsum("ncp,ncr->npr", q, k) / math.sqrt(q.shape[1]), dim=2)
        return h + conv(f"{name}.proj_out", torch.einsum("npr,ncr->ncp", share, v).reshape(h.shape))

    h = conv("encoder.conv_in", 2 * frames.repeat(1, 3, 1, 1) - 1, padding=1)
    h = res("encoder.down.0.block.0", h)
    h = conv("encoder.down.0.downsample.conv", F.pad(h, (0, 1, 0, 1)), stride=2)
    h = attend("encoder.down.1.attn.0", res("encoder.down.1.block.0", h))
    h = res("encoder.mid.block_2", attend("encoder.mid.attn_1", res("encoder.mid.block_1", h)))
    return conv("quant_conv", conv("encoder.conv_out", act("encoder.norm_out", h), padding=1))


def test_weights_in_taming_s_layout_are_read_and_mean_what_they_mean_there(tmp_path):
    weights = taming_weights()
    extra = {"loss.discriminator.main.0.weight": torch.zeros(2), "loss.perceptual_loss.lin0.weight": torch.zeros(2)}
    torch.save({"state_dict": weights | extra, "epoch": 3}, tmp_path / "last.ckpt")
    codec = open_taming(tmp_path / "last.ckpt").double()
    codec.load_state_dict({**codec.state_dict(), **{k: v for k, v in weights.items() if k in codec.state_dict()}})
    frames = torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = codec.encode(frames)
    torch.testing.assert_close(z, by_hand(weights, frames))
    assert z.shape == (2, 4, 4, 4) and codec.decode(z).shape == (2, 1, 8, 8)
    swapped = weights | {"encoder.mid.block_1.conv1.weight": weights["encoder.mid.block_1.conv2.weight"]}
    assert (by_hand(swapped, frames) - z).abs().max() > 1e-3  # the names matter
    torch.testing.assert_close(codec.codebook.codes, weights["quantize.embedding.weight"].float().double())


def test_a_codec_inside_a_larger_model_and_as_safetensors(tmp_path):
    weights = taming_weights()
    save_file(
        {f"module.ae.{k}": v for k, v in weights.items()} | {"flow.w": torch.zeros(1)}, tmp_path / "a.safetensors"
    )
    torch.save(weights, tmp_path / "b.pt")
    a, b = (open_taming(tmp_path / name).state_dict() for name in ("a.safetensors", "b.pt"))
    assert all(torch.equal(a[name], b[name]) for name in b)


class Surprise:
    """What a checkpoint must not bring."""


def test_what_is_no_such_checkpoint_is_explained(tmp_path):
    weights = taming_weights()
    torch.save({"state_dict": weights, "callbacks": Surprise()}, tmp_path / "code.ckpt")
    with pytest.raises(ValueError, match="cannot be read safely"):
        open_taming(tmp_path / "code.ckpt")
    del weights["decoder.up.1.upsample.conv.bias"]
    torch.save(weights, tmp_path / "part.pt")
    with pytest.raises(ValueError, match="`decoder.up.1.upsample.conv.bias` is absent there"):
        open_taming(tmp_path / "part.pt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="taming-transformers' VQModel"):
        open_taming(tmp_path / "other.pt")
