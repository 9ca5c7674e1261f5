"""Small pictures: marks stand where the numbers say, and a PNG is what it was made of."""

import base64
import math
import re
import struct
import zlib

import numpy as np
import pytest

from phibe.svg import BOTTOM, LEFT, RIGHT, TOP, Picture, around, png, ticks

SIZE = (100 + LEFT + RIGHT, 100 + TOP + BOTTOM)


def numbers(svg: str, pattern: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?[\d.]+", re.search(pattern, svg)[1])]


def test_a_line_goes_through_its_points_and_stops_where_there_is_none():
    svg = Picture((0, 1), (0, 2), size=SIZE).line([0, 0.5, math.nan, 1], [0, 2, 1, 1], "red").svg()
    path = re.search(r'd="([^"]*)" fill="none" stroke="red"', svg)[1]
    assert path == "M0.0 100.0L50.0 0.0M100.0 50.0"


def test_what_is_far_outside_is_not_drawn():
    svg = Picture((0, 1), (0, 1), size=SIZE).dots([0.5, 1e9], [0.5, 0.5], "red").svg()
    assert numbers(svg, r'class="dots" d="([^"]*)"') == [50.0, 50.0, 0.0]


def test_steps_are_as_high_as_the_bars():
    svg = Picture((0, 2), (0, 4), size=SIZE).steps([0, 1, 2], [1, 3], "red", fill=True).svg()
    corners = np.reshape(numbers(svg, r'd="M([^"]*)Z"'), (-1, 2))
    np.testing.assert_allclose(corners, [[0, 100], [0, 75], [50, 75], [50, 25], [100, 25], [100, 100]])


def test_an_arrow_ends_where_it_points_to():
    svg = Picture((0, 1), (0, 1), size=SIZE).arrows([0.2], [0.5], ([0.7], [0.5]), "red").svg()
    assert 'd="M20.0 50.0L70.0 50.0' in svg


def test_text_is_escaped():
    assert "<b>" not in Picture((0, 1), (0, 1), names=("<b>", "<b>"), title="<b>").svg(label='"<b>"')


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3e-5, 7e-5), (1e6, 1.2e6), (-1, 17)])
def test_ticks_are_round_and_inside(low, high):
    found = ticks(low, high)
    assert 3 <= len(found) <= 11
    assert all(low - 1e-9 * abs(low) <= tick <= high * (1 + 1e-9) for tick in found)
    step = found[1] - found[0]
    assert f"{step:.3e}"[0] in "125"


def test_axes_hold_the_values_but_the_outliers():
    assert around([0.0, 10.0], margin=0.1) == pytest.approx((-1, 11))
    assert around([*range(1000), 1e9], outliers=0.01)[1] < 1100
    assert around([math.nan]) == (0.0, 1.0)
    assert Picture((1, 1), (0, 0)).ends == ((0.5, 1.5), (-0.5, 0.5))


def test_a_png_holds_its_pixels():
    grey = np.array([[0, 0.5, 1], [1, 0, 2]])
    data = base64.b64decode(png(grey).partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">2I", data[16:24]) == (3, 2)
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    rows = np.frombuffer(zlib.decompress(data[start + 4 : start + 4 + length]), np.uint8).reshape(2, 4)
    np.testing.assert_array_equal(rows, [[0, 0, 128, 255], [0, 255, 0, 255]])
