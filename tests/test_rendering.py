"""Images of the pendulum: where its parts are drawn, how smooth the edges are, and what can be read back."""

import math

import pytest
import torch
from problems import normal

from phibe.experiments.pendulum.rendering import GHOST, JOINT, ROD, joints, pose_error, read_pose, render


def poses(n: int, seed: int = 0) -> torch.Tensor:
    uniform = torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (2 * uniform - 1) * math.pi


def test_the_joints_are_where_the_paper_puts_them():
    theta = poses(20)
    elbow, end = joints(theta)
    total = theta.sum(1)
    torch.testing.assert_close(elbow, torch.stack([theta[:, 0].sin(), -theta[:, 0].cos()], 1))
    torch.testing.assert_close(end - elbow, torch.stack([total.sin(), -total.cos()], 1))


def test_the_greys_add_up_to_the_area():
    """Stretched out at any angle: a capsule of length two, and what three discs add to it, which is the same always."""
    straight = math.pi * torch.tensor([[0.25, 0.0], [0.27, 0.0], [0.75, 0.0], [-0.24, 0.0]])  # inside the window
    area = render(straight, size=256).sum((1, 2, 3)) * (4 / 256) ** 2
    segment = JOINT**2 * math.asin(ROD / JOINT) + ROD * math.sqrt(JOINT**2 - ROD**2)  # half of a disc inside a rod
    middle, ends = math.pi * JOINT**2 - 2 * segment, 2 * (math.pi * JOINT**2 - segment)
    covered = 2 * 2 * ROD + middle + ends
    torch.testing.assert_close(area, torch.full((4,), covered), rtol=0.01, atol=0)
    assert abs(float(render(straight[:1] * 0, size=256).sum()) * (4 / 256) ** 2 / covered - 1) > 0.03  # cut off below


@pytest.mark.parametrize(("angle", "place"), [(0.0, (24, 16)), (math.pi, (7, 16)), (math.pi / 2, (16, 24))])
def test_down_is_down_and_right_is_right(angle, place):
    """Folded pendulum: both links from the pivot to one elbow, a length of eight pixels away."""
    frame = render(torch.tensor([[angle, math.pi]]))[0, 0]
    row, column = place
    assert frame[row, column] == 1
    assert frame[31 - row if angle != math.pi / 2 else row, column if angle != math.pi / 2 else 31 - column] == 0


def test_edges_are_anti_aliased():
    """A turn by a quarter of a degree changes the picture a little, by greys, and not by jumps."""
    theta = poses(50)
    change = (render(theta + math.radians(0.25)) - render(theta)).abs()
    assert 0 < change.max() < 0.25
    grey = render(theta)
    assert ((grey > 0.02) & (grey < 0.98)).float().mean() > 0.02


def test_angles_are_read_back_from_an_image():
    theta = poses(200, seed=1)
    pose = read_pose(render(theta))
    error = pose_error(pose.angles, theta)
    assert error.mean() < 0.7 and error.max() < 3
    assert pose.residual.max() < 0.03
    assert pose_error(pose.angles, theta.roll(1, 0)).mean() > 30


def test_what_is_no_pendulum_is_noticed():
    theta = poses(200, seed=2)
    far = theta + torch.tensor([1.5, 0.0], dtype=torch.float64)
    ghosts = (render(theta) + render(far)) / 2
    assert (read_pose(ghosts).residual > GHOST).float().mean() > 0.9
    assert read_pose(torch.zeros(1, 1, 32, 32)).residual.item() == pytest.approx(1.0)
    noisy = render(theta) + 0.03 * normal(200, 1, 32, 32).float()
    assert (read_pose(noisy).residual <= GHOST).all()


def test_an_error_of_the_first_link_counts_once():
    a = torch.tensor([[0.1, -0.1], [0.0, math.pi - 0.05]])
    b = torch.tensor([[0.0, 0.0], [0.0, 0.05 - math.pi]])
    assert pose_error(a, b).tolist() == pytest.approx(
        [math.degrees(0.1) / math.sqrt(2), math.degrees(0.1) / math.sqrt(2)], rel=1e-4
    )
