"""Nearest-neighbor search and episodic novelty, compiled with numba and without intermediate arrays.

The search is a single pass over float16 entries, which halves the memory traffic of float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from starling.types import NDArray


def _from_half(_context: Any, _bits: Any) -> Any:
    """Convert the bits of a float16 to float32: numba has no float16, but CPUs convert eight at a time."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


_single: Any = intrinsic(_from_half)


@njit(cache=True, fastmath={"reassoc", "contract"})
def _distance(a: NDArray, bits: NDArray) -> float:
    """Squared distance of a [F] to the float16 vector [F] with these bits."""
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

    Only the first count [B] entries are used; if these are fewer than k, the rest of `best` is inf.
    """
    _nearest(query, entries.view(np.uint16), count, best)


@njit(cache=True)
def novelty_of(
    near: NDArray,  # [B, k] squared distances to the nearest entries
    known: NDArray,  # [B] bool: the episode has at least k entries
    distance: NDArray,  # [B] sum of the mean squared distances of all queries so far; updated
    queries: NDArray,  # [B] number of these queries; updated
    settings: tuple[float, float, float, float],  # cluster, kernel, constant, and most of the configuration
    reward: NDArray,  # [B] output
) -> None:
    """Fill `reward` with 1 / similarity to the nearest entries (2002.06038, algorithm 1), or 0 if these are too few."""
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
