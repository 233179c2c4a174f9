"""The compiled loop of `copying.take`."""

from __future__ import annotations

from numba import njit

from starling.types import NDArray


@njit(cache=True, nogil=True)
def copy_columns(source: NDArray, index: NDArray, into: NDArray, begin: int, end: int) -> None:
    """Compute `into[:, b] = source[index[:, b]]` for b in [begin, end); into [T, B, n], source [N, n], index [T, B]."""
    for b in range(begin, end):
        for t in range(index.shape[0]):
            value, place = source[index[t, b]], into[t, b]
            for i in range(len(value)):
                place[i] = value[i]
