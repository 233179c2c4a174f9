"""Several tables that feed one batch, each by its share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from starling import tree
from starling.errors import UserError
from starling.store.shares import split
from starling.store.table import Table
from starling.types import Fragment, Keys, NDArray, Sample


class Mixture:
    """Tables side by side: every fragment goes into all, every batch comes from all, joined on B."""

    def __init__(self, tables: Sequence[Table], shares: Sequence[float]) -> None:
        if [table.index for table in tables] != list(range(len(tables))) or len(tables) != len(shares):
            raise ValueError("tables must be numbered from 0 in order, and have a share each")
        if len({table.spec.length for table in tables}) > 1:
            lengths = {table.spec.name: table.spec.length for table in tables}
            raise UserError(f"tables that feed one batch must have one length, not {lengths}")
        self.tables = tuple(tables)
        self.shares = tuple(shares)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Items in each table."""
        return tuple(table.size for table in self.tables)

    @property
    def steps(self) -> int:
        """Valid env steps inserted so far."""
        return self.tables[0].steps

    @property
    def duplicates(self) -> int:
        """Fragments that came in again and were ignored."""
        return self.tables[0].counters["duplicate"]

    def insert(self, fragment: Fragment) -> tuple[Keys, ...]:
        """Copy a fragment into every table; gives the keys of the items now complete, a table each."""
        return tuple(table.insert(fragment) for table in self.tables)

    def sample(self, n: int) -> Sample | None:
        """`n` items by share, or None while a table has fewer than it takes (then none is touched)."""
        if len(self.tables) == 1:
            return self.tables[0].sample(n)
        counts = split(n, self.shares)
        wanted = [(table, count) for table, count in zip(self.tables, counts, strict=True) if count]
        if not all(table.ready(count) for table, count in wanted):
            return None
        samples = [table.sample(count) for table, count in wanted]
        return join([sample for sample in samples if sample is not None])

    def reprioritize(self, keys: Keys, priorities: NDArray) -> None:
        """New priorities [B], each for the table its key names."""
        for table in self.tables:
            table.reprioritize(keys, priorities)

    def evict(self, keys: Keys) -> None:
        """Drop items, each from the table its key names."""
        for table in self.tables:
            table.evict(keys)

    def check_valid(self) -> None:
        for table in self.tables:
            table.check_valid()

    def get_state(self) -> dict[str, Any]:
        return {table.spec.name: table.get_state() for table in self.tables}

    def set_state(self, state: dict[str, Any]) -> None:
        for table in self.tables:
            table.set_state(state[table.spec.name])


def join(samples: Sequence[Sample]) -> Sample:
    """Samples side by side on B."""
    if len(samples) == 1:
        return samples[0]
    one, *more = [sample.trajectory for sample in samples]
    steps = tree.map_trajectory(
        one, lambda *parts: np.concatenate(parts, axis=1), lambda *parts: np.concatenate(parts), *more
    )
    columns = [np.concatenate([getattr(s, name) for s in samples]) for name in ("probability", "table_size", "source")]
    keys = tree.concat([sample.keys for sample in samples], axis=0)
    return Sample(steps, keys, *columns)
