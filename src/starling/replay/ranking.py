"""Which of many candidates to learn from, given how far off each is and how often it was picked before."""

from __future__ import annotations

import numpy as np

from starling.replay.spec import Selection
from starling.types import NDArray


def choose(how: Selection, distances: NDArray, uses: NDArray, n: int) -> NDArray:
    """`n` different candidates, int64 [n], nearest first where their order is that of distance; both inputs are [N].

    nearest: the first `n` of the ranking by distance. spread: evenly spaced over the ranking, from the nearest on.
    least_sampled: those picked least often, among these the nearest. grouped: the ranking in `n` parts as equal as can
    be, of each the one picked least often, among these the nearest.
    """
    total = len(distances)
    ranking = np.argsort(distances, kind="stable")  # [N]
    if how == "nearest":
        return ranking[:n]
    if how == "spread":
        return ranking[np.arange(n) * total // n]
    if how == "least_sampled":
        return np.lexsort((distances, uses))[:n]
    group = np.arange(total) * n // total  # [N] of the ranking
    order = np.lexsort((uses[ranking], group))  # by group, then by uses, then by rank, as sorting is stable
    first = np.searchsorted(group, np.arange(n))  # groups keep their places in this order
    return ranking[order[first]]
