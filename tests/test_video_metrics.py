"""Measures of videos against scikit-image, closed forms, and discs whose motion is known."""

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from problems import normal, real
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from phibe.experiments.video import features, metrics
from phibe.experiments.video.figures import Figures
from phibe.experiments.video.i3d import I3D, I3DFeatures, open_i3d, prepare
from phibe.experiments.video.metrics import FrechetDistance, floor, frechet, frechet_distance
from phibe.systems.ou import Gaussian


def noise_videos(*shape: int, seed: int = 0) -> torch.Tensor:
    """Smooth random videos in [0, 1], float64: (*shape, 1, 24, 20)."""
    raw = normal(*shape, 1, 24, 20, seed=seed)
    return torch.sigmoid(raw + 2 * raw.roll(1, -1) + raw.roll(1, -2))


# -- frames against scikit-image ---------------------------------------------------------------------------------------


def test_mse_and_psnr_of_a_frame_are_those_of_scikit_image():
    video, truth = noise_videos(2, 3), noise_videos(2, 3, seed=1)
    error = metrics.mse(video, truth)
    assert error.shape == (2, 3)
    for i, j in [(0, 0), (1, 2)]:
        expected = peak_signal_noise_ratio(truth[i, j, 0].numpy(), video[i, j, 0].numpy(), data_range=1)
        assert float(metrics.psnr(error)[i, j]) == pytest.approx(expected, rel=1e-12)


def test_ssim_is_that_of_scikit_image():
    truth = noise_videos(2, 2)
    video = (truth + 0.1 * normal(2, 2, 1, 24, 20, seed=3)).clamp(0, 1)
    found = metrics.ssim(video, truth, block=3)
    for i in range(2):
        for j in range(2):
            pair = (truth[i, j, 0].numpy(), video[i, j, 0].numpy())
            options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1.0}
            assert float(found[i, j]) == pytest.approx(structural_similarity(*pair, **options), abs=1e-12)
            assert float(found[i, j]) != pytest.approx(structural_similarity(*pair, data_range=1.0), abs=1e-6)
    torch.testing.assert_close(metrics.ssim(truth, truth), torch.ones(2, 2, dtype=torch.float64))


def test_scores_so_far_are_the_scores_of_the_frames_up_to_each():
    video, truth = noise_videos(1, 5), noise_videos(1, 5, seed=1)
    found = metrics.score_so_far(video, truth)
    for k in range(5):
        wanted = metrics.score(video[:, : k + 1], truth[:, : k + 1])
        here = (float(found.mse[k]), float(found.psnr[k]), float(found.ssim[k]))
        assert here == pytest.approx((wanted.mse, wanted.psnr_published, wanted.ssim), rel=1e-12)
    assert float(found.psnr[4]) != pytest.approx(metrics.score(video, truth).psnr_frames, rel=1e-6)


def test_the_two_conventions_of_psnr_differ_by_jensen_s_inequality():
    """Frames with errors 0.01 and 0.0001: 10 log₁₀(1/0.00505) published, (20 + 40)/2 as the mean of frames."""
    truth = torch.zeros(1, 2, 1, 16, 16, dtype=torch.float64)
    video = truth + real([0.1, 0.01])[None, :, None, None, None]
    found = metrics.score(video, truth)
    assert found.psnr_published == pytest.approx(-10 * math.log10(0.00505))
    assert found.psnr_frames == pytest.approx(30.0)
    assert metrics.score(truth, truth).psnr_published == math.inf


def test_a_published_row_is_in_the_published_convention():
    """The paper's table: MSE 0.4405e-2 beside 23.56 dB."""
    truth = torch.zeros(1, 1, 1, 16, 16, dtype=torch.float64)
    assert metrics.score(truth + math.sqrt(0.4405e-2), truth).psnr_published == pytest.approx(23.56, abs=0.005)


def test_the_best_of_many_is_taken_for_each_clip_and_each_measure():
    truth = noise_videos(3, 2)
    futures = truth + 0.2 * normal(5, 3, 2, 1, 24, 20, seed=4)
    futures[2, 1] = truth[1] + 1e-3  # one future of one clip is nearly right
    best, single = metrics.score(futures, truth), metrics.score(futures[0], truth)
    by_hand = [min(float((f[i] - truth[i]).square().mean()) for f in futures) for i in range(3)]
    assert best.mse == pytest.approx(sum(by_hand) / 3)
    assert best.psnr_published == pytest.approx(-10 * math.log10(sum(by_hand) / 3))
    assert best.ssim > single.ssim and best.mse < single.mse
    assert (best.samples, single.samples) == (5, 1)


def test_videos_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="Clips must be"):
        metrics.score(torch.zeros(2, 3, 1, 16, 16), torch.zeros(2, 4, 1, 16, 16))
    with pytest.raises(ValueError, match="11 × 11"):
        metrics.ssim(torch.zeros(1, 1, 1, 8, 16), torch.zeros(1, 1, 1, 8, 16))


# -- Fréchet distances -------------------------------------------------------------------------------------------------


class Flat:
    """Features that are the first pixels of a video."""

    title, identity = "pixel Fréchet distance", "four pixels"

    def __call__(self, videos: torch.Tensor) -> torch.Tensor:
        return videos.flatten(1)[:, :4].double()


def test_the_frechet_distance_is_that_of_the_gaussians():
    """Diagonal: |m − m'|² + Σ(s − s')². In general, against scipy's matrix root; control: without the cross term."""
    from scipy.linalg import sqrtm

    x = normal(500, 3)
    x = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.mT))).mT  # moments exactly 0 and I
    scale, shift = real([2.0, 0.5, 1.0]), real([1.0, 0.0, -2.0])
    assert frechet(x, x * scale + shift) == pytest.approx(5.0 + 1.25, rel=1e-9)
    assert frechet(x, x) == pytest.approx(0.0, abs=1e-9)
    turn = normal(3, 3, seed=8)
    a, b = torch.cov((x @ turn).mT).numpy(), torch.diag(scale**2).numpy()
    expected = float(np.trace(a + b - 2 * sqrtm(a @ b).real))
    assert frechet(x @ turn, x * scale) == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(float(np.trace(a + b)), rel=0.05)


def test_real_against_real_falls_as_one_over_the_clips():
    """The bias of the distance between equal distributions falls as 1/n: the floor is no property of the videos."""
    marginal = Gaussian(torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64))
    draws = marginal.sample(4000, generator=torch.Generator().manual_seed(0))
    few, many = (np.mean([floor(part, splits=4) for part in draws[: 20 * n].split(n)]) for n in (50, 200))
    assert 3 < few / many < 5.3


def test_distances_carry_their_protocol_and_refuse_another():
    truth = noise_videos(8, 4)
    near, far = truth + 0.01, truth + 0.1
    a, b = (frechet_distance(videos, truth, Flat(), context=1) for videos in (near, far))
    assert a < b and b > a and b - a == pytest.approx(4 * (0.1**2 - 0.01**2), rel=1e-6)
    for other, word in [
        (frechet_distance(far, truth, Flat(), context=2), "context: 1 and 2"),
        (frechet_distance(far[:6], truth[:6], Flat(), context=1), "clips: 8 and 6"),
        (frechet_distance(far[:, :3], truth[:, :3], Flat(), context=1), "frames: 4 and 3"),
        (frechet_distance(far, truth, Flat(), context=1, reference="reconstruction"), "reference"),
        (frechet_distance(far, truth, Flat(), context=1, data="kth"), "data"),
    ]:
        with pytest.raises(ValueError, match=word):
            assert a < other
    assert FrechetDistance.of(json.loads(json.dumps(b.record()))) == b
    assert "real against real" in str(b) and "8 clips" in str(b) and "FVD" not in str(b)
    assert b.floor > 0


def test_only_features_of_i3d_are_called_fvd():
    mine = Flat()
    mine.title = "FVD"
    with pytest.raises(ValueError, match="need another title"):
        frechet_distance(noise_videos(4, 2), noise_videos(4, 2), mine, context=1)
    assert "FVD" not in features.FigureFeatures.title
    assert I3DFeatures.title == "FVD"


# -- I3D ---------------------------------------------------------------------------------------------------------------


def test_the_network_has_the_names_and_sizes_of_i3d():
    with torch.device("meta"):
        network = I3D()
    names = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    assert names["Conv3d_1a_7x7.conv3d.weight"] == (64, 3, 7, 7, 7)
    assert names["Mixed_4f.b2b.conv3d.weight"] == (128, 32, 3, 3, 3)
    assert names["logits.conv3d.weight"] == (400, 1024, 1, 1, 1) and names["logits.conv3d.bias"] == (400,)
    assert sum(name.endswith("conv3d.weight") for name in names) == 3 + 9 * 6 + 1
    x = prepare(torch.zeros(2, 16, 1, 64, 64)).to("meta")
    assert x.shape == (2, 3, 16, 224, 224)
    assert network.eval()(x).shape == (2, 400)


class Stand(torch.nn.Module):
    """A network with the interface of the common TorchScript archive."""

    def forward(self, x: torch.Tensor, rescale: bool = True, resize: bool = True, return_features: bool = False):
        return x.mean(dim=[2, 3, 4]) if not rescale and not resize and return_features else x


def test_weights_are_read_only_under_their_hash(tmp_path):
    file = tmp_path / "i3d.pt"
    torch.jit.script(Stand()).save(str(file))
    right = hashlib.sha256(file.read_bytes()).hexdigest()
    videos = torch.rand(3, 9, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = open_i3d(file, sha256=right)
    torch.testing.assert_close(found(videos)[:, 0], 2 * videos.mean((1, 2, 3, 4)) - 1, rtol=1e-4, atol=1e-4)
    assert right[:12] in found.identity
    for wrong in ("", right[::-1]):
        with pytest.raises(ValueError, match=f"has the SHA-256 {right}"):
            open_i3d(file, sha256=wrong)
    with pytest.raises(ValueError, match="9 frames or more"):
        found(videos[:, :5])


def test_a_state_dict_is_read_into_the_network(tmp_path):
    with torch.device("meta"):
        names = {k: t.shape for k, t in I3D().state_dict().items() if "batches" not in k}  # old files have no such
    weights = {name: torch.full(shape, i / len(names)) for i, (name, shape) in enumerate(names.items())}
    file = tmp_path / "i3d.pt"
    torch.save(weights, file)
    found = open_i3d(file, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    assert torch.equal(found.network.Mixed_5c.b1b.conv3d.weight, weights["Mixed_5c.b1b.conv3d.weight"])
    assert not any(tensor.is_meta for tensor in found.network.state_dict().values())
    torch.save({"conv.weight": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match="does not hold the weights"):
        open_i3d(file, sha256=hashlib.sha256(file.read_bytes()).hexdigest())


# -- features of our own -----------------------------------------------------------------------------------------------


def discs(clips: int, frames: int = 12, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Videos of a disc on 64 × 64 that swings sideways or up and down, with its action and its speed."""
    generator = torch.Generator().manual_seed(seed)
    action = torch.randint(2, (clips,), generator=generator)
    speed = torch.exp(0.4 * torch.randn(clips, generator=generator))
    phase = 6.28 * torch.rand(clips, 1, generator=generator) + 0.6 * speed[:, None] * torch.arange(frames)
    swing = 14 * phase.sin()
    middle = 32 + 4 * torch.randn(clips, 2, 1, generator=generator)
    x = middle[:, 0] + torch.where(action[:, None] == 0, swing, torch.zeros_like(swing))
    y = middle[:, 1] + torch.where(action[:, None] == 1, swing, torch.zeros_like(swing))
    grid = torch.arange(64.0)
    away = (grid[None, None, None] - x[..., None, None]) ** 2 + (grid[None, None, :, None] - y[..., None, None]) ** 2
    return (0.3 + 0.5 * torch.sigmoid((49 - away) / 8))[:, :, None], action, speed


@pytest.fixture(scope="module")
def trained() -> features.FigureFeatures:
    videos, action, speed = discs(64)
    torch.manual_seed(0)
    network = features.FigureFeatures(channels=8, actions=2)
    options = {"steps": 60, "batch": 8, "frames": 12, "learning_rate": 1e-2, "progress": False}
    return features.fit_features(videos, action, speed, network=network, **options)


def test_features_recognise_what_they_were_trained_for(trained):
    videos, action, speed = discs(48, seed=1)
    scores, log_speed = trained.recognise(videos)
    assert float((scores.argmax(1) == action).double().mean()) > 0.9
    assert float(torch.corrcoef(torch.stack([log_speed, speed.log()]))[0, 1]) > 0.7


def test_the_distance_of_the_features_grows_with_each_corruption(trained):
    found = features.ladders(discs(64, seed=2)[0], trained)
    for name in features.CORRUPTIONS:
        assert found["floor"][0] < found[name][0] < found[name][1] < found[name][2], name
        assert found[name][2] > 3 * found["floor"][0], name


def test_features_are_known_by_their_weights(trained):
    again = features.FigureFeatures(channels=8, actions=2)
    assert again.identity != trained.identity
    again.load_state_dict(trained.state_dict())
    assert again.identity == trained.identity


def test_corruptions_do_what_they_say():
    videos, generator = noise_videos(2, 8), torch.Generator().manual_seed(0)
    assert torch.equal(features.frozen(videos, 1.0, generator), videos[:, :1].expand_as(videos))
    assert torch.equal(features.frozen(videos, 0.5, generator)[:, :4], videos[:, :4])
    mixed = features.shuffled(videos, 4, generator)
    assert not torch.equal(mixed, videos)
    torch.testing.assert_close(mixed[:, :4].sum(1), videos[:, :4].sum(1))  # nothing leaves its run of four
    torch.testing.assert_close(features.slowed(videos, 2.0, generator)[:, ::2], videos[:, :4])
    still = torch.full((1, 2, 1, 16, 16), 0.4, dtype=torch.float64)
    torch.testing.assert_close(features.blurred(still, 2.0, generator), still)
    assert float(features.noisy(still, 0.05, generator).std()) == pytest.approx(0.05, rel=0.1)


# -- motion ------------------------------------------------------------------------------------------------------------


def walker(frequency: float, *, speed: float = 6.0, amplitude: float = 2.0, frames: int = 30) -> torch.Tensor:
    """A video (1, time, 1, 40, 64) at 25 frames a second of a bright ellipse that drifts and breathes in its width."""
    t = torch.arange(frames, dtype=torch.float64) / 25
    centre = 20 + speed * t
    radius = 8 + amplitude * torch.sin(2 * math.pi * frequency * t)
    y, x = torch.meshgrid(torch.arange(40.0).double(), torch.arange(64.0).double(), indexing="ij")
    inside = ((x - centre[:, None, None]) / radius[:, None, None]) ** 2 + ((y - 21) / 12) ** 2
    return (0.3 + 0.5 * torch.sigmoid((1 - inside) * 20))[None, :, None]


BEHIND = torch.full((1, 1, 1, 40, 64), 0.3, dtype=torch.float64)


def test_the_silhouette_is_where_the_disc_is():
    video = walker(2.0)
    found = metrics.silhouette(video, BEHIND)
    t = torch.arange(30, dtype=torch.float64) / 25
    torch.testing.assert_close(found.centre[0, :, 0], 20 + 6 * t, rtol=0, atol=0.05)
    torch.testing.assert_close(found.centre[0, :, 1], torch.full_like(t, 21.0), rtol=0, atol=0.05)
    drift = metrics.position_drift(metrics.silhouette(walker(2.0, speed=1.0), BEHIND), found)
    torch.testing.assert_close(drift[0], 5 * t, rtol=0, atol=0.08)
    empty = metrics.silhouette(BEHIND.expand(1, 3, 1, 40, 64), BEHIND)
    assert float(empty.mass.sum()) == 0.0 and empty.centre[0, 0].tolist() == [31.5, 19.5]


def test_the_background_is_what_a_passing_figure_uncovers():
    video = walker(2.0, speed=40.0)
    assert float((metrics.background(video) - BEHIND).abs().median()) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("frequency", [1.7, 4.1])
def test_the_frequency_and_amplitude_of_a_sinusoid_on_a_line(frequency):
    t = torch.arange(30, dtype=torch.float64) / 25
    signal = 3 + 2 * t - t**2 + 0.7 * torch.sin(2 * math.pi * frequency * t + 1)
    found = metrics.oscillation(torch.stack([signal, -2 * signal]), t)
    torch.testing.assert_close(found.frequency, torch.full((2,), frequency, dtype=torch.float64), rtol=5e-3, atol=0)
    torch.testing.assert_close(found.amplitude, real([0.7, 1.4]), rtol=5e-3, atol=0)


def test_only_what_is_in_sight_counts():
    """A figure that leaves: without the frames behind the edge the frequency is right, with them it is not."""
    t = torch.arange(30, dtype=torch.float64) / 25
    signal = torch.sin(2 * math.pi * 3 * t).where(t < 0.8, 0.0) + torch.where(t < 0.8, 0.0, 9.0)
    whole, seen = metrics.oscillation(signal, t), metrics.oscillation(signal, t, counts=t < 0.8)
    assert float(seen.frequency) == pytest.approx(3, rel=5e-3)
    assert abs(float(whole.frequency) - 3) > 0.3
    assert metrics.oscillation(signal, t, counts=t < 0.2).frequency.isnan()
    leaves = metrics.silhouette(walker(2.0, speed=60.0), BEHIND)
    assert leaves.visible[0, 0] and not leaves.visible[0, -1]
    assert metrics.position_drift(leaves, leaves)[0, -1].isnan()


@pytest.mark.parametrize("action", ["walking", "handwaving"])
def test_a_figure_s_width_swings_twice_in_its_cycle(action):
    """Two steps make a stride, and both arms rise and fall in a wave: known from the phase that the video shows."""
    scenes = Figures(actions=(action,)).scenes(paths=16, seed=3)
    videos, t = scenes.render().states.double(), scenes.motion.times
    cycles = (scenes.phase[:, -1] - scenes.phase[:, 0]) / (2 * math.pi * float(t[-1] - t[0]))
    seen = metrics.silhouette(videos, metrics.background(videos))
    found = metrics.oscillation(seen.width, t, counts=seen.visible)
    assert float((found.frequency / cycles).nanmedian()) == pytest.approx(2.0, rel=0.06)


def test_a_gait_is_compared_with_the_true_one():
    t = torch.arange(30, dtype=torch.float64) / 25
    true = metrics.silhouette(walker(2.0), BEHIND)
    slower, gliding = (metrics.silhouette(video, BEHIND) for video in (walker(1.5), walker(2.0, amplitude=0.4)))
    assert float(metrics.gait(slower, true, t).frequency_error) == pytest.approx(0.25, abs=0.03)
    assert float(metrics.gait(gliding, true, t).amplitude_ratio) == pytest.approx(0.2, abs=0.03)
    assert float(metrics.gait(true, true, t).frequency_error) == 0.0
    with pytest.raises(ValueError, match="10 values"):
        metrics.oscillation(torch.zeros(2, 4), torch.arange(4.0))


def test_diversity_is_the_distance_between_two_futures():
    futures = 0.3 * normal(400, 2, 3, 1, 5, 5)
    torch.testing.assert_close(
        metrics.diversity(futures), torch.full((2, 3), 0.3 * math.sqrt(2), dtype=torch.float64), rtol=0.03, atol=0
    )
    assert float(metrics.diversity(futures[:1].expand(4, -1, -1, -1, -1, -1)).max()) < 1e-7
    with pytest.raises(ValueError, match="Two futures"):
        metrics.diversity(futures[:1])
