"""A short animation of a video, small enough for TensorBoard."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from starling.tools.video import as_shown, encode_gif
from starling.types import NDArray

MOST_FRAMES, MOST_PIXELS = 120, 240
"""Frames of an animation, and its largest width and height."""


class Preview:
    """Keeps every n-th image of a video as it is made, so that at most `MOST_FRAMES` are left at any length.

    Args:
        fps: images per second.
    """

    def __init__(self, fps: float) -> None:
        self._fps, self._stride, self._seen = fps, 1, 0
        self._kept: list[NDArray] = []

    def add(self, picture: NDArray) -> None:
        if self._seen % self._stride == 0:
            self._kept.append(_small(as_shown(picture)))
        self._seen += 1
        if len(self._kept) > MOST_FRAMES:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def gif(self) -> tuple[bytes, tuple[int, int]] | None:
        """Return the animation with its height and width; None without images, or without Pillow (extra `video`)."""
        if not self._kept or find_spec("PIL") is None:
            return None
        height, width = self._kept[0].shape[:2]
        return encode_gif(iter(self._kept), self._fps / self._stride), (height, width)


def _small(picture: NDArray) -> NDArray:
    step = -(-max(picture.shape[:2]) // MOST_PIXELS)
    return np.ascontiguousarray(picture[::step, ::step])
