"""Small pictures as text: SVG with lines, dots, steps and arrows over a pair of axes, and grey PNG; no library."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

LEFT, RIGHT, TOP, BOTTOM = 52, 8, 24, 38
"""Room around the frame, in pixels, for titles, ticks and names."""


class Picture:
    """Marks over one pair of axes, added one after the other: `Picture((0, 1), (-2, 2)).line(x, y, "black").svg()`.

    `x` and `y` are the ends of the axes. Text and axes take the colour of the page's text, so that a dark page works.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        size: tuple[int, int] = (340, 230),
        names: tuple[str, str] = ("", ""),
        title: str = "",
    ):
        self.ends = (_open(*x), _open(*y))
        self.size, self.names, self.title = size, names, title
        self.inner = (size[0] - LEFT - RIGHT, size[1] - TOP - BOTTOM)
        self.marks: list[str] = []

    # -- marks -----------------------------------------------------------------------------------------------------

    def line(self, x: Any, y: Any, color: str, *, width: float = 2, dash: str = "", alpha: float = 1) -> Picture:
        """A curve, interrupted where a number is not finite."""
        h, v = self._pixels(x, 0), self._pixels(y, 1)
        kept = np.isfinite(h) & np.isfinite(v)
        pen = "".join(
            f"{'L' if i and kept[i - 1] else 'M'}{a:.1f} {b:.1f}"
            for i, (a, b) in enumerate(zip(h, v, strict=True))
            if kept[i]
        )
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.marks.append(
            f'<path d="{pen}" fill="none" stroke="{color}" stroke-width="{width}"{dashed}{_faint(alpha)}/>'
        )
        return self

    def dots(self, x: Any, y: Any, color: str, *, radius: float = 2, alpha: float = 0.6) -> Picture:
        places = zip(self._pixels(x, 0), self._pixels(y, 1), strict=True)
        pen = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places if math.isfinite(a) and math.isfinite(b))
        style = f'stroke="{color}" stroke-width="{2 * radius}" stroke-linecap="round"{_faint(alpha)}'
        self.marks.append(f'<path class="dots" d="{pen}" {style}/>')
        return self

    def steps(self, edges: Any, heights: Any, color: str, *, fill: bool = False) -> Picture:
        """A histogram between `edges`, as an outline or as a filled ground."""
        x, y = np.repeat(np.asarray(edges, float), 2), np.repeat(np.asarray(heights, float), 2)
        x, y = x if fill else x[1:-1], np.concatenate([[0.0], y, [0.0]]) if fill else y
        if not fill:
            return self.line(x, y, color)
        corners = zip(self._pixels(x, 0), self._pixels(y, 1), strict=True)
        pen = "L".join(f"{a:.1f} {b:.1f}" for a, b in corners)
        self.marks.append(f'<path d="M{pen}Z" fill="{color}" fill-opacity="0.45"/>')
        return self

    def arrows(self, x: Any, y: Any, ends: tuple[Any, Any], color: str) -> Picture:
        """Arrows from (x, y) to `ends`."""
        starts = self._pixels(x, 0), self._pixels(y, 1)
        tips = self._pixels(ends[0], 0), self._pixels(ends[1], 1)
        pen = "".join(_arrow(*four) for four in zip(*starts, *tips, strict=True) if all(map(math.isfinite, four)))
        self.marks.append(f'<path class="arrows" d="{pen}" fill="none" stroke="{color}" stroke-width="1.3"/>')
        return self

    def _pixels(self, values: Any, axis: int) -> np.ndarray:
        """Where values are in the frame, to a few frames beyond it: what is further away is not drawn."""
        low, high = self.ends[axis]
        share = (np.asarray(values, float).reshape(-1) - low) / (high - low)
        share = np.where(np.abs(share) < 20, share, np.nan)
        return self.inner[axis] * (1 - share if axis else share)

    # -- the whole -------------------------------------------------------------------------------------------------

    def svg(self, *, label: str = "") -> str:
        """The picture; it takes the width it is given. `label` says what it shows to who cannot see it."""
        (width, height), (w, h) = self.size, self.inner
        text = escape(label or self.title)
        frame = f'<svg x="{LEFT}" y="{TOP}" width="{w}" height="{h}">{"".join(self.marks)}</svg>'
        title = f'<text x="{LEFT}" y="15" font-weight="600">{escape(self.title)}</text>' if self.title else ""
        across = f'<text x="{LEFT + w / 2}" y="{height - 6}" text-anchor="middle">{escape(self.names[0])}</text>'
        turned = f'transform="translate(12 {TOP + h / 2}) rotate(-90)" text-anchor="middle"'
        words = f"{title}{across}<text {turned}>{escape(self.names[1])}</text>"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{text}" '
            f'font-size="11.5" font-family="sans-serif" fill="currentColor">{self._axes()}{frame}{words}</svg>'
        )

    def _axes(self) -> str:
        w, h = self.inner
        lines, words = [], []
        for value in ticks(*self.ends[0]):
            x = LEFT + float(self._pixels(value, 0)[0])
            lines.append(f"M{x:.1f} {TOP}v{h}")
            words.append(f'<text x="{x:.1f}" y="{TOP + h + 14}" text-anchor="middle">{number(value)}</text>')
        for value in ticks(*self.ends[1]):
            y = TOP + float(self._pixels(value, 1)[0])
            lines.append(f"M{LEFT} {y:.1f}h{w}")
            words.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
        grid = f'<path d="{"".join(lines)}" stroke="currentColor" stroke-opacity="0.13"/>'
        return f'{grid}<g fill-opacity="0.75">{"".join(words)}</g>'


def around(*values: Any, margin: float = 0.06, outliers: float = 0.0) -> tuple[float, float]:
    """Ends of an axis that holds all the values but that share of them at either side."""
    found = np.concatenate([np.asarray(part, float).reshape(-1) for part in values])
    found = found[np.isfinite(found)]
    if not len(found):
        return 0.0, 1.0
    low, high = (float(np.quantile(found, q)) for q in (outliers, 1 - outliers))
    room = margin * (high - low)
    return low - room, high + room


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from low to high."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(digit for digit in (1, 2, 5, 10) if digit * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick's number, short and with a true minus."""
    return f"{value + 0.0:.6g}".replace("-", "−")


def key(entries: Iterable[tuple[str, str]]) -> str:
    """A legend as HTML: (text, colour)."""
    dot = '<svg width="14" height="10" aria-hidden="true"><circle cx="6" cy="5" r="4.5" fill="{}"/></svg>'
    return " ".join(f"<span>{dot.format(color)} {escape(text)}</span>" for text, color in entries)


def png(grey: Any) -> str:
    """An array (h, w) of numbers from 0 (black) to 1 as the `src` of an image."""
    rows = np.round(np.clip(np.asarray(grey, float), 0, 1) * 255).astype(np.uint8)
    height, width = rows.shape
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    parts = (
        (b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    )
    chunks = b"".join(_chunk(*part) for part in parts)
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _open(low: float, high: float) -> tuple[float, float]:
    """Ends that are not the same number."""
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def _faint(alpha: float) -> str:
    return "" if alpha == 1 else f' stroke-opacity="{alpha}"'


def _arrow(x: float, y: float, x1: float, y1: float) -> str:
    """A shaft with two barbs."""
    length = math.hypot(x1 - x, y1 - y)
    if length < 0.5:
        return ""
    u, v, barb = (x1 - x) / length, (y1 - y) / length, min(5.0, 0.4 * length)
    sides = ((x1 - barb * (u - s * 0.6 * v), y1 - barb * (v + s * 0.6 * u)) for s in (1, -1))
    return f"M{x:.1f} {y:.1f}L{x1:.1f} {y1:.1f}" + "".join(f"M{a:.1f} {b:.1f}L{x1:.1f} {y1:.1f}" for a, b in sides)
