"""Draw the last rewards of every stream in a strip below the frames of a video."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from starling.tools.video import package

if TYPE_CHECKING:
    from starling.types import NDArray

BAND = 40
"""Height in pixels of a stream's band, with its name at the top."""
BAR = 4
"""Width in pixels of one step."""

_TEXT = 14  # height of the name in pixels
_GROUND, _LINE, _INK = (24, 24, 24), (90, 90, 90), (235, 235, 235)
_COLORS = ((0, 158, 115), (213, 94, 0), (86, 180, 233), (230, 159, 0), (204, 121, 167), (240, 228, 66))


class Strip:
    """One band per stream with one bar per step, the newest at the right, scaled by the largest value so far."""

    def __init__(self) -> None:
        self._last: dict[str, deque[float]] = {}
        self._largest: dict[str, float] = {}

    def clear(self) -> None:
        """Remove all bars at the start of an episode."""
        for values in self._last.values():
            values.clear()

    def add(self, rewards: Mapping[str, float]) -> None:
        """Add the rewards of one step, by stream."""
        for name, value in rewards.items():
            self._last.setdefault(name, deque(maxlen=1920)).append(value)
            self._largest[name] = max(self._largest.get(name, 0.0), abs(value))

    def under(self, picture: NDArray, streams: tuple[str, ...]) -> NDArray:
        """Return the image [H, W, 3] with one band per stream below it, [H + n BAND, W, 3]."""
        width = picture.shape[1]
        bands = [self._band(name, _COLORS[i % len(_COLORS)], width) for i, name in enumerate(streams)]
        return np.concatenate([picture, *bands])

    def _band(self, name: str, color: tuple[int, int, int], width: int) -> NDArray:
        values = list(self._last.get(name, ()))
        half = (BAND - _TEXT) // 2
        zero = _TEXT + half
        image = package("PIL.Image").new("RGB", (width, BAND), _GROUND)
        draw = package("PIL.ImageDraw").Draw(image)
        draw.line((0, zero, width, zero), fill=_LINE)
        for i, value in enumerate(reversed(values[-(width // BAR) :])):
            height = round(value / (self._largest[name] or 1.0) * half)
            right = width - 1 - i * BAR
            if height:
                draw.rectangle((right - BAR + 2, zero - max(height, 0), right, zero - min(height, 0)), fill=color)
        draw.text((2, 1), f"{name} {values[-1]:+.3g}" if values else name, fill=_INK)
        return np.array(image)
