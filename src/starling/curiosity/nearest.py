"""The nearest of many entries: one pass, as fast as memory can be read."""

from __future__ import annotations

import numpy as np
from numba import njit

from starling.types import NDArray


@njit(cache=True, fastmath={"reassoc", "contract"})
def _distance(a: NDArray, b: NDArray) -> float:
    """The squared distance of two vectors [F]."""
    total = np.float32(0.0)
    for i in range(len(a)):
        total += (a[i] - b[i]) * (a[i] - b[i])
    return float(total)


@njit(cache=True)
def nearest(query: NDArray, entries: NDArray, count: NDArray, best: NDArray) -> None:
    """Fill `best` [B, k] with the smallest squared distances, in order, of query [B, F] to entries [B, N, F].

    Only the first count [B] of the entries are there; where these are fewer than k, the rest is inf.
    """
    k = best.shape[1]
    best[:] = np.inf
    for b in range(len(query)):
        mine = best[b]
        for e in range(count[b]):
            square = _distance(query[b], entries[b, e])
            if not square < mine[k - 1]:
                continue
            place = k - 1
            while place > 0 and square < mine[place - 1]:
                mine[place] = mine[place - 1]
                place -= 1
            mine[place] = square
