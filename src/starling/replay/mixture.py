"""Several tables that fill one batch, each by its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starling.errors import UserError
from starling.replay.batching import join, split
from starling.replay.table import Table
from starling.types import Fragment, Keys, NDArray, Sample


@dataclass(frozen=True)
class Candidates:
    """A batch before its items are selected; dicts are keyed by the index of the table."""

    parts: dict[int, Sample]  # candidates
    quotas: dict[int, int]  # number of candidates to select
    tables_to_score: tuple[int, ...] = ()  # tables whose candidates must be scored before the selection


class Mixture:
    """A set of tables: every fragment is inserted into all of them, and every batch joins items of all along B."""

    def __init__(self, tables: Sequence[Table]) -> None:
        if [table.index for table in tables] != list(range(len(tables))):
            raise ValueError("tables must be numbered from 0 in order")
        if len({table.spec.length for table in tables}) > 1:
            lengths = {table.spec.name: table.spec.length for table in tables}
            raise UserError(f"tables that feed one batch must have one length, not {lengths}")
        self.tables = tuple(tables)
        self._shares = [table.spec.share for table in tables]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of items in each table."""
        return tuple(table.size for table in self.tables)

    @property
    def steps(self) -> int:
        """Number of valid env steps inserted so far."""
        return self.tables[0].steps

    @property
    def duplicates(self) -> int:
        """Number of duplicate fragments that were ignored."""
        return self.tables[0].counters["duplicate"]

    def insert(self, fragment: Fragment) -> tuple[Keys, ...]:
        """Copy a fragment into every table; returns, for each table, the keys of the items that are now complete."""
        return tuple(table.insert(fragment) for table in self.tables)

    def sample(self, n: int) -> Sample | None:
        """Sample `n` items by share; None, without any change, if a table has too few.

        Candidates of ranked tables are selected at random; see `draw_candidates`.
        """
        drawn = self.draw_candidates(n)
        return None if drawn is None else self.select(drawn, {})

    def draw_candidates(self, n: int, fraction: float = 0.0) -> Candidates | None:
        """Draw the candidates for a batch of `n` items when `fraction` of the run is over; None as for `sample`."""
        quotas = {i: quota for i, quota in enumerate(split(n, self._shares)) if quota}
        if not all(self.tables[i].ready(quota) for i, quota in quotas.items()):
            return None
        parts = {i: self.tables[i].draw_candidates(quota, fraction) for i, quota in quotas.items()}
        tables_to_score = tuple(i for i, quota in quotas.items() if self.tables[i].ranks(len(parts[i].keys), quota))
        return Candidates(parts, quotas, tables_to_score)

    def select(self, candidates: Candidates, distances: Mapping[int, NDArray]) -> Sample:
        """Select the batch, given the distances [N] of candidates per table; without distances, the first ones."""
        picked = [
            self.tables[i].select(part, candidates.quotas[i], distances.get(i)) for i, part in candidates.parts.items()
        ]
        return join(picked)

    def reprioritize(self, keys: Keys, priorities: NDArray) -> None:
        """Set new priorities [B], each in the table of its key."""
        for table in self.tables:
            table.reprioritize(keys, priorities)

    def metrics(self) -> dict[str, int]:
        """Metrics of every table, prefixed with its name."""
        return {f"{table.spec.name}/{name}": n for table in self.tables for name, n in table.metrics().items()}

    def check_valid(self) -> None:
        for table in self.tables:
            table.check_valid()

    def get_state(self) -> dict[str, Any]:
        return {table.spec.name: table.get_state() for table in self.tables}

    def set_state(self, state: dict[str, Any]) -> None:
        for table in self.tables:
            table.set_state(state[table.spec.name])
