"""The tables of several learners: each learner has its own shard, filled by its own envs; batches are of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from starling.errors import UserError
from starling.replay.limiter import exact_ratio
from starling.replay.spec import TableSpec
from starling.types import NDArray


def shard_rows(rows: int, shards: int) -> list[NDArray]:
    """Env indices of every shard, split as evenly as possible, independently of the actors that run them."""
    return np.array_split(np.arange(rows), shards)


def shard_specs(specs: Sequence[TableSpec], rows: int, shards: int) -> list[tuple[TableSpec, ...]]:
    """Tables of every shard, given the `specs` for all `rows` envs together.

    A learner's batch is its part of one batch of all learners. A shard therefore allows more batches per env step of
    its own: `updates_per_step` times the number of all envs over that of its envs.
    """
    if specs[0].batch % shards:
        raise UserError(
            f"a batch of {specs[0].batch} cannot be divided equally among learners={shards}: make it a multiple of"
            f" {shards}"
        )
    if rows < shards:
        raise UserError(f"learners={shards} are more than the env.num={rows} envs they share")
    return [tuple(_shard(spec, len(mine), rows, shards) for spec in specs) for mine in shard_rows(rows, shards)]


def _shard(spec: TableSpec, mine: int, rows: int, shards: int) -> TableSpec:
    if shards == 1:
        return spec
    ratio = spec.updates_per_step
    return replace(
        spec,
        batch=spec.batch // shards,
        capacity=-(-spec.capacity * mine // rows),
        min_size=-(-spec.min_size * mine // rows),
        updates_per_step=None if ratio is None else float(exact_ratio(ratio) * rows / mine),
    )
