"""Joins samples along B, and takes parts of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starling import tree
from starling.types import NDArray, Sample


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
