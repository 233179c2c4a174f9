"""The loop behind `copying.take`."""

from __future__ import annotations

from numba import njit

from starling.types import NDArray


@njit(cache=True, nogil=True)
def copy_columns(source: NDArray, index: NDArray, into: NDArray, begin: int, end: int) -> None:
    """`into` [T, B, n] = `source` [N, n] at `index` [T, B], one column after the other, from `begin` to `end`."""
    for b in range(begin, end):
        for t in range(index.shape[0]):
            value, place = source[index[t, b]], into[t, b]
            for i in range(len(value)):
                place[i] = value[i]
