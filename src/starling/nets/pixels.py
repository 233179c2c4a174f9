"""Convert uint8 images to channels-last floats: 2 ms instead of torch's 12 (256 stacks of 84x84x4, one thread)."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from starling.types import NDArray, Tensor

PACKED = 4
"""Number of channels that fit one 32-bit word, so the usual stack of four frames is written word by word."""


def channels_last_floats(x: Tensor) -> Tensor:
    """Convert `x` [N, C, H, W] uint8 on the CPU, with contiguous channels at any strides, to channels-last float32."""
    n, channels, height, width = x.shape
    pixels = height * width
    flat = x.as_strided((x.untyped_storage().nbytes(),), (1,), 0).numpy()  # the whole storage of `x`
    starts = np.arange(n)[:, None] * x.stride(0) + np.arange(channels) * x.stride(1) + int(x.storage_offset())  # [N, C]
    into = np.empty((n, pixels, channels), np.uint8)
    if channels == PACKED:
        _pack(flat, starts, into.view(np.uint32)[..., 0])
    else:
        _interleave(flat, starts, into)
    return torch.from_numpy(into).float().view(n, height, width, channels).permute(0, 3, 1, 2)


@njit(cache=True)
def _pack(flat: NDArray, starts: NDArray, into: NDArray) -> None:
    """Pack one byte each of the four channels that begin at `starts` [N, 4] in `flat` into words of `into` [N, P]."""
    pixels = into.shape[1]
    for n in range(len(starts)):
        a, b, c, d = starts[n]
        one, two, three, four = flat[a : a + pixels], flat[b : b + pixels], flat[c : c + pixels], flat[d : d + pixels]
        words = into[n]
        for p in range(pixels):
            low = np.uint32(one[p]) | (np.uint32(two[p]) << np.uint32(8))
            words[p] = low | (np.uint32(three[p]) << np.uint32(16)) | (np.uint32(four[p]) << np.uint32(24))


@njit(cache=True)
def _interleave(flat: NDArray, starts: NDArray, into: NDArray) -> None:
    """Copy the channels that begin at `starts` [N, C] in `flat` to `into` [N, P, C]."""
    pixels = into.shape[1]
    for n in range(starts.shape[0]):
        for c in range(starts.shape[1]):
            piece = flat[starts[n, c] : starts[n, c] + pixels]
            for p in range(pixels):
                into[n, p, c] = piece[p]
