"""The committed results of the pendulum hold what the book says of them, and come from the committed weights."""

import numpy as np
import pytest
import torch

from phibe.experiments.pendulum import images as pendulum_images
from phibe.experiments.pendulum import states as pendulum_states
from phibe.experiments.pendulum.acrobot import Acrobot
from phibe.experiments.pendulum.rendering import render
from phibe.experiments.report import committed

MATCHED = {"phibe": "rk4", "symmetric": "rk4", "regression": "euler"}


@pytest.fixture(scope="module")
def states():
    return committed("pendulum_states")


def ratio(states, key: str, until: int) -> float:
    """Largest error up to a horizon, in units of the divergence of two draws of the SDE."""
    error, own = np.array(states["flows"][key]["error"]), np.array(states["divergence"])
    return float((error[1:until] / own[1:until]).max())


@pytest.mark.parametrize("objective", MATCHED)
def test_with_its_integrator_each_objective_follows_paths_and_marginals(states, objective):
    entry = states["flows"][f"{objective}, circles, {MATCHED[objective]}"]
    assert ratio(states, f"{objective}, circles, {MATCHED[objective]}", 31) < 1
    seven = states["horizon"].index(7.0)
    assert (np.array(entry["error"]) < np.array(states["persistence"]))[1:seven].all()
    until = slice(1, states["marginal_times"].index(2.0) + 1)
    floor = states["floor"]
    assert max(np.array(entry["sliced_w2"][until]) / np.array(floor["sliced_w2"][until])) < 1.5


def test_euler_pumps_a_central_difference_and_rk4_drains_a_forward_one(states):
    gain = {key: entry["energy_gain"][-1] for key, entry in states["flows"].items()}
    for objective in ("phibe", "symmetric"):
        assert gain[f"{objective}, circles, euler"] > max(10, 5 * abs(gain[f"{objective}, circles, rk4"]))
    assert gain["regression, circles, rk4"] < -5
    assert abs(gain["regression, circles, euler"]) < 1


def test_even_the_truth_falls_behind_persistence(states):
    """Why no flow can stay below persistence for ever: a second draw of the SDE does not either."""
    behind = np.array(states["divergence"]) > np.array(states["persistence"])
    assert behind[150:].any() and not behind[1:150].any()


def test_the_committed_weights_give_the_committed_errors(states):
    """They are stored in half precision, and the report comes from the full ones: for a second that is no matter."""
    train, test = pendulum_states.observe(pendulum_states.PENDULUM_STATES.presets["laptop"])
    flow, scale = pendulum_states.committed_flow("symmetric"), pendulum_states.Scale(train)
    x = pendulum_states.rollout(flow, test.states[:, 0], test.times[:31], "rk4")
    error = np.array(scale.error(x, test.states[:, :31]))
    np.testing.assert_allclose(error, states["flows"]["symmetric, circles, rk4"]["error"][:31], rtol=0.02, atol=1e-3)
    with pytest.raises(ValueError, match="no weights"):
        pendulum_states.committed_flow("regression", "time")


def test_the_learnt_field_is_the_drift_for_the_most_part():
    """dθ/dt is the velocity, which the network was not told."""
    x = Acrobot().simulate(paths=50, seed=77).states[:, 60]
    v = pendulum_states.committed_flow("symmetric").velocity(x, torch.full((50,), 2.0, dtype=x.dtype))
    truth = Acrobot().drift(x)
    assert (v - truth)[:, :2].square().mean().sqrt() < 0.05 * truth[:, :2].square().mean().sqrt()
    assert (v - truth)[:, 2:].square().mean().sqrt() < 0.1 * truth[:, 2:].square().mean().sqrt()


@pytest.fixture(scope="module")
def pictures():
    return committed("pendulum_images")


@pytest.mark.parametrize("key", ["symmetric, rk4", "regression, euler"])
def test_decoded_rollouts_show_pendulums_and_beat_persistence(pictures, key):
    entry, still = pictures["flows"][key], pictures["persistence"]
    assert np.mean(entry["valid"][:31]) >= 0.9
    assert entry["pose_error_median"][10] < still["pose_error_median"][10] / 4
    assert entry["pose_error"][10] < pendulum_images.AIM < still["pose_error"][10]
    assert (np.array(entry["pose_error"]) < np.array(still["pose_error"]))[5:].all()
    assert entry["pose_error"][10] > pictures["codec"]["pose_error"][10]  # nothing beats the codec's floor


def test_reconstructions_are_sharp_enough_to_read(pictures):
    assert pictures["reconstruction_psnr"] >= 22 > pictures["black_psnr"]
    assert np.median(pictures["codec"]["pose_error_median"]) < 3


def test_the_committed_codec_reconstructs_as_reported(pictures):
    _, test = pendulum_images.observe(pendulum_images.PENDULUM_IMAGES.presets["laptop"])
    frames = render(test.states[:, ::24].flatten(0, 1)[:300])
    back = pendulum_images.committed_codec()
    back = back.decode_paths(back.encode_paths(frames[None]))[0]
    psnr = -10 * float((back - frames).square().mean().log10())
    assert psnr == pytest.approx(pictures["reconstruction_psnr"], abs=1.5)
