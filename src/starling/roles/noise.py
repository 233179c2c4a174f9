"""Randomness without a generator: uniform numbers that are a pure function of (seed, row, step).

Nobody calls a global generator, so a policy acts the same wherever it runs and whatever shares its batch.
"""

from __future__ import annotations

import numpy as np

from starling.types import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def _mix(x: NDArray) -> NDArray:
    """The finaliser of SplitMix64: a bijection of 64 bits in which every input bit moves every output bit."""
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    mixed: NDArray = x ^ (x >> np.uint64(31))
    return mixed


def streams(seed: int, rows: NDArray) -> NDArray:
    """A 64-bit stream id for every row, [B] uint64."""
    return _mix(_mix(np.full(1, seed, np.uint64) + _GOLDEN) + (rows.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def bits(stream: NDArray, step: int, n: int) -> NDArray:
    """`n` random words for every stream at `step`, [B, n] uint64."""
    counter = np.arange(n, dtype=np.uint64) + np.uint64(step << 16)
    return _mix(_mix(stream)[:, None] + counter * _GOLDEN)


def uniform(stream: NDArray, step: int, n: int) -> NDArray:
    """`n` numbers in the open interval (0, 1) for every stream at `step`, [B, n] float32."""
    # 23 bits and a half: the largest value is still below 1 in float32
    return ((bits(stream, step, n) >> np.uint64(41)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def seeds(seed: int, rows: NDArray, step: int) -> NDArray:
    """An environment seed for every row, [B] int64 below 2**31."""
    return (bits(streams(seed, rows), step, 2)[:, 1] >> np.uint64(33)).astype(np.int64)
