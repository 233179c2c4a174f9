"""Stateless random numbers: uniform numbers that are a pure function of (seed, env, step).

No global generator is used, so a policy acts the same wherever it runs and whatever else is in its batch.
"""

from __future__ import annotations

import numpy as np

from starling.types import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def _mix(x: NDArray) -> NDArray:
    """The finalizer of SplitMix64: a bijection on 64 bits in which every input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    mixed: NDArray = x ^ (x >> np.uint64(31))
    return mixed


def _streams(seed: int, env_index: NDArray) -> NDArray:
    """One 64-bit stream id per env, [B] uint64."""
    return _mix(_mix(np.full(1, seed, np.uint64) + _GOLDEN) + (env_index.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _words(streams: NDArray, steps: NDArray, n: int) -> NDArray:
    """`n` random words per step and stream, [K, B, n] uint64."""
    counters = (steps.astype(np.uint64)[:, None] << np.uint64(16)) + np.arange(n, dtype=np.uint64)  # [K, n]
    return _mix(_mix(streams)[None, :, None] + counters[:, None, :] * _GOLDEN)


class Noise:
    """Uniform numbers per env, computed in blocks of steps, because one step costs nearly as much as a block."""

    BLOCK = 64

    def __init__(self, seed: int, env_index: NDArray) -> None:
        self._streams = _streams(seed, env_index)
        self._blocks: dict[int, tuple[int, NDArray]] = {}  # by n: index of the block, and its numbers [BLOCK, B, n]

    def uniform(self, step: int, n: int) -> NDArray:
        """`n` numbers per env in the open interval (0, 1) at `step`, [B, n] float32."""
        number, offset = divmod(step, self.BLOCK)
        known = self._blocks.get(n)
        if known is None or known[0] != number:
            words = _words(self._streams, number * self.BLOCK + np.arange(self.BLOCK), n)
            known = self._blocks[n] = number, _open_interval(words)
        drawn: NDArray = known[1][offset]
        return drawn


def _open_interval(words: NDArray) -> NDArray:
    """Convert words to float32 in (0, 1): (23 bits + 0.5) / 2^23, so that the largest is still below 1."""
    uniform: NDArray = ((words >> np.uint64(41)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return uniform


def seeds(seed: int, env_index: NDArray, step: int) -> NDArray:
    """One environment seed per env, [B] int64 below 2**31."""
    streams = _streams(seed, env_index) + _GOLDEN  # different from those of `Noise`
    return (_words(streams, np.array([step]), 1)[0, :, 0] >> np.uint64(33)).astype(np.int64)
