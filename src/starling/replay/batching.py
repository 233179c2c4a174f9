"""How a batch is put together: divided among tables, selected among candidates, and joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starling import tree
from starling.errors import UserError
from starling.replay.spec import Selection
from starling.types import NDArray, Sample


def split(n: int, shares: Sequence[float]) -> list[int]:
    """Split `n` items by share (largest remainder method; ties go to the first); the counts sum to `n`."""
    total = sum(shares)
    if not shares or min(shares) < 0 or not total > 0:
        raise UserError(f"shares must be at least 0 and not all 0, not {list(shares)}")
    exact = [n * share / total for share in shares]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    return counts


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


def join(samples: Sequence[Sample]) -> Sample:
    """Concatenate samples along B."""
    if len(samples) == 1:
        return samples[0]
    one, *more = [sample.trajectory for sample in samples]
    steps = tree.map_trajectory(
        one, lambda *parts: np.concatenate(parts, axis=1), lambda *parts: np.concatenate(parts), *more
    )
    columns = [np.concatenate([getattr(s, name) for s in samples]) for name in ("probability", "table_size", "source")]
    keys = tree.concat([sample.keys for sample in samples], axis=0)
    return Sample(steps, keys, *columns)


def take_rows(sample: Sample, rows: slice | NDArray) -> Sample:
    """Select items of a sample along B."""

    def by_row(leaf: NDArray) -> NDArray:
        return leaf[rows]

    return Sample(
        tree.map_trajectory(sample.trajectory, lambda leaf: leaf[:, rows], by_row),
        tree.map(by_row, sample.keys),
        by_row(sample.probability),
        by_row(sample.table_size),
        by_row(sample.source),
    )
