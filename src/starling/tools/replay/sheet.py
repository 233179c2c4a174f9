"""Contact sheet of sampled items: each is a numbered strip of images with a bar for its probability."""

from __future__ import annotations

import colorsys
import struct
import zlib
from pathlib import Path

import numpy as np

from starling import tree
from starling.errors import UserError
from starling.experiment.saved_replay.step_columns import newest_frames
from starling.tools.replay.drawn import Drawn
from starling.tools.video import PartialFile
from starling.types import Layout, NDArray

WIDTH = 1200
"""Approximate width limit of a sheet in pixels."""
STRIP = 4
"""Images per item: its first and last observation, and evenly spaced ones between them."""
_SMALLEST, _GAP, _HEADER = 84, 4, 16
_BAR = np.array([230, 159, 0], np.uint8)
_DIGITS = (
    "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
    "111100111001111", "111100111101111", "111001010010010", "111101111101111", "111101111001111",
)  # fmt: skip  # 5 x 3 pixels each


def check_pictures(layout: Layout, env: str) -> str:
    """Return the path of the observation leaf that is an image; raises `UserError` if there is none."""
    if layout.stack is not None:
        return layout.stack.path
    for path, spec in tree.items(layout.obs):
        if len(spec.shape) >= 2:
            return path
    raise UserError(f"observations of {env} are not images: leave out --out")


def write_sheet(drawn: Drawn, layout: Layout, path: str, out: Path) -> Path:
    """Write all sampled items, most likely first, as one PNG."""
    frames = dict(tree.items(drawn.trajectory.obs))[path]  # [T+1, B, ...]
    steps = drawn.trajectory.valid.sum(axis=0)
    shown = [frames[_evenly(int(count)), b] for b, count in enumerate(steps)]  # [k, ...] each
    if layout.stack is not None:
        shown = [newest_frames(part, layout.stack) for part in shown]
    pictures = _colored(shown)
    most = max(item.probability for item in drawn.items)
    pairs = enumerate(zip(pictures, drawn.items, strict=True), start=1)
    places = max(len(images) for images in pictures)
    strips = [_strip(number, images, places, item.probability / most) for number, (images, item) in pairs]
    with PartialFile(out) as partial:
        partial.write(png(_grid(strips)))
        return partial.finish()


def _evenly(steps: int) -> NDArray:
    """Return the indices of the observations to show, for a sequence of `steps` valid steps."""
    return np.unique(np.linspace(0, steps, STRIP).round().astype(np.int64))


def _colored(strips: list[NDArray]) -> list[NDArray]:
    """Convert frames [k, ...] of any image format to [k, H, W, 3] uint8, with one scale for all."""
    low, high = min(0.0, *(float(s.min()) for s in strips)), max(1e-9, *(float(s.max()) for s in strips))
    bytes_ = strips[0].dtype == np.uint8 and high > 1
    scaled = strips if bytes_ else [(s.astype(np.float64) - low) / (high - low) * 255 for s in strips]
    return [_rgb(s).astype(np.uint8) for s in scaled]


def _rgb(frames: NDArray) -> NDArray:
    """Convert [k, H, W], or channels first or last, to [k, H, W, 3]: one channel is gray, three are RGB.

    Other numbers of channels get one color each. Of stacks [k, n, H, W, C] the newest frame is shown.
    """
    if frames.ndim == 5 or (frames.ndim == 4 and frames.shape[1] == 1):
        frames = frames[:, -1]
    if frames.ndim == 3:
        return np.repeat(frames[..., None], 3, axis=-1)
    last = frames if frames.shape[1] > frames.shape[-1] else np.moveaxis(frames, 1, -1)
    channels = last.shape[-1]
    if channels == 3:
        return last
    colors = np.array([colorsys.hsv_to_rgb(i / channels, 0.7, 1.0) for i in range(channels)])  # [C, 3]
    return np.asarray((last[..., None] * colors).max(axis=-2))


def _strip(number: int, pictures: NDArray, places: int, share: float) -> NDArray:
    """Place images [k, H, W, 3] side by side in `places`, below a number and a bar over `share` of the width."""
    factor = max(1, -(-_SMALLEST // pictures.shape[1]))
    pictures = pictures.repeat(factor, axis=1).repeat(factor, axis=2)
    _, height, width, _ = pictures.shape
    strip = np.zeros((_HEADER + height, places * (width + 1), 3), np.uint8)
    for i, picture in enumerate(pictures):
        strip[_HEADER:, i * (width + 1) : i * (width + 1) + width] = picture
    digits = _number(number)
    strip[3 : 3 + digits.shape[0], 2 : 2 + digits.shape[1]] = digits[..., None]
    begin = 6 + digits.shape[1]
    strip[5:11, begin : begin + max(1, round(share * (strip.shape[1] - begin)))] = _BAR
    return strip


def _number(number: int) -> NDArray:
    """Render a number as white pixels on black, 10 pixels high."""
    glyphs = [np.array([*_DIGITS[int(digit)]], np.uint8).reshape(5, 3) for digit in str(number)]
    line = np.concatenate([np.pad(glyph, ((0, 0), (0, 1))) for glyph in glyphs], axis=1)
    return (line * np.uint8(255)).repeat(2, axis=0).repeat(2, axis=1)


def _grid(strips: list[NDArray]) -> NDArray:
    """Arrange strips in lines from left to right on a gray background."""
    height, width = strips[0].shape[:2]
    columns = min(len(strips), max(1, WIDTH // (width + _GAP)))
    lines = -(-len(strips) // columns)
    sheet = np.full((lines * (height + _GAP) + _GAP, columns * (width + _GAP) + _GAP, 3), 48, np.uint8)
    for i, strip in enumerate(strips):
        y, x = (_GAP + place * (size + _GAP) for place, size in zip(divmod(i, columns), (height, width), strict=True))
        sheet[y : y + height, x : x + width] = strip
    return sheet


def png(picture: NDArray) -> bytes:
    """Encode an image [H, W, 3] uint8 as PNG."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = picture.shape
    lines = np.pad(picture.reshape(height, width * 3), ((0, 0), (1, 0)))  # each line starts with its filter type, 0
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines.tobytes()))
        + chunk(b"IEND", b"")
    )
