"""Minibatches: the rows of a batch in random order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from starling import tree
from starling.types import Batch, Tensor


def minibatches(batch: Batch, parts: int, rng: np.random.Generator) -> Iterator[tuple[Any, Batch]]:
    """Yield `parts` random minibatches of the batch, each with the indices of its rows."""
    if parts == 1:
        yield slice(None), batch
        return
    order = torch.from_numpy(rng.permutation(batch.trajectory.rows)).to(batch.weight.device)
    shuffled, begin = _take_rows(batch, order), 0
    for rows in order.tensor_split(parts):
        yield rows, _narrow_rows(shuffled, begin, len(rows))
        begin += len(rows)


def steps_as_rows(batch: Batch) -> Batch:
    """Turn every step of every row into a row of length 1; the last observation, which only bootstraps, is dropped."""
    length = batch.trajectory.length
    if tree.leaves(batch.trajectory.carry):
        raise ValueError("a recurrent batch cannot be split by step")

    def by_step(leaf: Tensor) -> Tensor:
        return leaf[:length].reshape(1, -1, *leaf.shape[2:])

    def by_row(leaf: Tensor) -> Tensor:
        return leaf.repeat(length)

    return _map(batch, by_step, by_row)


def _take_rows(batch: Batch, rows: Tensor) -> Batch:
    """Select rows; `index_select` copies images 15 times as fast as `leaf[:, rows]`."""
    return _map(batch, lambda leaf: leaf.index_select(1, rows), lambda leaf: leaf.index_select(0, rows))


def _narrow_rows(batch: Batch, begin: int, count: int) -> Batch:
    """A view of `count` rows from `begin` on."""
    return _map(batch, lambda leaf: leaf.narrow(1, begin, count), lambda leaf: leaf.narrow(0, begin, count))


def _map(batch: Batch, by_step: Callable[[Tensor], Tensor], by_row: Callable[[Tensor], Tensor]) -> Batch:
    return replace(
        batch,
        trajectory=tree.map_trajectory(batch.trajectory, by_step, by_row),
        weight=by_row(batch.weight),
        source=by_row(batch.source),
        prepared=tree.map(by_step, batch.prepared),
    )
