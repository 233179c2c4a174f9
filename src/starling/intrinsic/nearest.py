"""The nearest of many entries, and how new it makes what was looked for: compiled, without an array on the way.

The search is one pass over numbers of half precision, which is half as much to read as whole ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from starling.types import NDArray


def _from_half(_context: Any, _bits: Any) -> Any:
    """The float32 that the bits of a float16 stand for: numba knows no float16, processors do, eight at a time."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


_single: Any = intrinsic(_from_half)


@njit(cache=True, fastmath={"reassoc", "contract"})
def _distance(a: NDArray, bits: NDArray) -> float:
    """The squared distance of a [F] to the vector [F] with these bits."""
    total = np.float32(0.0)
    for i in range(len(a)):
        apart = a[i] - _single(bits[i])
        total += apart * apart
    return float(total)


@njit(cache=True)
def _nearest(query: NDArray, entries: NDArray, count: NDArray, best: NDArray) -> None:
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


def nearest(query: NDArray, entries: NDArray, count: NDArray, best: NDArray) -> None:
    """Fill `best` [B, k] with the smallest squared distances, in order, of query [B, F] to entries [B, N, F] float16.

    Only the first count [B] of the entries are there; where these are fewer than k, the rest is inf.
    """
    _nearest(query, entries.view(np.uint16), count, best)


@njit(cache=True)
def novelty_of(
    near: NDArray,  # [B, k] squared distances to the nearest entries
    known: NDArray,  # [B] bool: whether an episode has so many
    distance: NDArray,  # [B] sum of the mean distances of all queries so far, and how many these are: both go on here
    queries: NDArray,  # [B]
    settings: tuple[float, float, float, float],  # cluster, kernel, constant and most similarity of the configuration
    reward: NDArray,  # [B] filled
) -> None:
    """One over the similarity to the nearest entries (2002.06038, algorithm 1); 0 while these are too few."""
    cluster, kernel, constant, most = settings
    for b in range(len(near)):
        reward[b] = 0.0
        if not known[b]:
            continue
        distance[b] += near[b].mean()
        queries[b] += 1.0
        usual = max(distance[b] / queries[b], 1e-8)
        similar = 0.0
        for square in near[b]:
            similar += kernel / (max(square / usual - cluster, 0.0) + kernel)
        similarity = np.sqrt(similar) + constant
        if similarity <= most:
            reward[b] = 1.0 / similarity
