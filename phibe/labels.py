"""Labels: what time and the coordinates of a state are called, and their units, from a file to the axes of a plot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Label(NamedTuple):
    """A name and a unit, written `x [m]`; the unit may be empty."""

    name: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    @staticmethod
    def parse(text: str) -> Label:
        """`x [m]` and `x (m)` are x in metres; anything else is a name without a unit."""
        found = re.fullmatch(r"\s*(.*?)\s*[\[(]([^\[\]()]*)[\])]\s*", text)
        return Label(found[1], found[2].strip()) if found and found[1] else Label(text.strip())


class Labels(NamedTuple):
    """Of the time, and of each coordinate of a vector (each channel of a larger state), or of none of them."""

    time: Label = Label("t")
    state: tuple[Label, ...] = ()

    @staticmethod
    def read(texts: Iterable[str]) -> Labels:
        """From `["t [s]", "x [m]", …]`, as `texts` writes them; of nothing, the labels of no name."""
        parsed = [Label.parse(str(text)) for text in texts]
        return Labels(parsed[0], tuple(parsed[1:])) if parsed else Labels()

    def texts(self) -> list[str]:
        return [str(self.time), *map(str, self.state)]

    def coordinates(self, size: int) -> list[Label]:
        """One label for each of `size` coordinates: their own, or x₀, x₁, … where there are none."""
        return list(self.state) or [Label(f"x[{i}]") for i in range(size)]

    def check(self, state_shape: Sequence[int]) -> None:
        if self.state and len(self.state) != state_shape[0]:
            raise ValueError(
                f"`labels` must name each of the {state_shape[0]} coordinates; got {len(self.state)}: "
                f"{', '.join(map(str, self.state))}."
            )
