"""Selects among candidates, given their distances and how often each was selected before."""

from __future__ import annotations

import numpy as np

from starling.replay.spec import Selection
from starling.types import NDArray


def choose(how: Selection, distances: NDArray, uses: NDArray, n: int) -> NDArray:
    """Select `n` different candidates, int64 [n], given their distances [N] and numbers of uses [N].

    nearest: the `n` smallest distances. spread: evenly spaced over the ranking by distance, starting with the nearest.
    least_sampled: the fewest uses; ties go to the nearest. grouped: the ranking is split into `n` groups of nearly
    equal size, and each contributes the candidate with the fewest uses; ties go to the nearest.
    """
    total = len(distances)
    ranking = np.argsort(distances, kind="stable")  # [N]
    if how == "nearest":
        return ranking[:n]
    if how == "spread":
        return ranking[np.arange(n) * total // n]
    if how == "least_sampled":
        return np.lexsort((distances, uses))[:n]
    group = np.arange(total) * n // total  # [N] group of each rank
    order = np.lexsort((uses[ranking], group))  # by group, then uses, then rank, since lexsort is stable
    first = np.searchsorted(group, np.arange(n))  # `order` does not move items between groups
    return ranking[order[first]]
