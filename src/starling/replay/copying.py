"""Gathers many values from a large array, in memory order and with two threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np

from starling.hardware import cores
from starling.types import NDArray

WORTH_A_THREAD = 2**22
"""Bytes above which a second thread and the import of a compiled loop pay off."""
SHORT = 16
"""Largest number of steps for which a sequence is copied in one piece; longer ones are laid out step by step."""


def take(values: NDArray, index: NDArray) -> NDArray:
    """Return `values[index]` for index [T, ...]: [T, ..., value].

    Consecutive steps are adjacent in memory, so large results are read down the columns of `index`. Short sequences are
    contiguous in the result too, which is then a view of [B, T, value]: 256 sequences of 7 frames of 84x84 take 0.7 ms
    with one thread, 1.0 ms if each frame is written elsewhere, and 0.9 to 1.4 ms row by row.
    """
    if index.size * values[:1].nbytes < WORTH_A_THREAD:
        return np.take(values, index, axis=0)
    if index.ndim == 2 and len(index) <= SHORT:
        windows = np.ascontiguousarray(index.T)
        pieces = np.empty((*windows.shape, *values.shape[1:]), values.dtype)

        def copy(begin: int, end: int) -> None:
            np.take(values, windows[begin:end], axis=0, out=pieces[begin:end], mode="clip")  # none is out of bounds

        _by_two(copy, len(windows))
        return pieces.swapaxes(0, 1)
    from starling.replay.kernels import copy_columns  # loads numba, which only large copies need

    into = np.empty((*index.shape, *values.shape[1:]), values.dtype)
    columns = np.ascontiguousarray(index.reshape(len(index), -1))
    _by_two(partial(copy_columns, _bytes(values, len(values)), columns, _bytes(into, *columns.shape)), columns.shape[1])
    return into


def _by_two(copy: Callable[[int, int], None], n: int) -> None:
    """Call `copy` for the range [0, n); with a second core, a helper thread copies one half."""
    if cores() == 1:
        return copy(0, n)
    other = _helper().submit(copy, 0, n // 2)
    copy(n // 2, n)
    return other.result()


def _bytes(array: NDArray, *lead: int) -> NDArray:
    return array.reshape(*lead, -1).view(np.uint8)


@cache
def _helper() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="copying")
