"""Decides when the ranks of a group may meet again, from whose state, and which rank keeps them from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

GRACE = 5.0
"""Seconds that a rank has to report that it waits, after another rank has timed out in a reduction."""


@dataclass(frozen=True)
class Order:
    """An order to all ranks: meet for the n-th time, and take over the state of `source`."""

    time: int
    source: int
    updates: int  # of that state


class Regroup:
    """The ranks that wait for the others, with their progress. All begin together, or none does."""

    def __init__(self, size: int, patience: float, clock: Callable[[], float]) -> None:
        self._size, self._patience, self._clock = size, patience, clock
        self._standing: dict[int, tuple[int, int]] = {}  # of ranks that wait
        self._deadline: float | None = None  # when those that are together no longer must be found out
        self._gone: set[int] = set()
        self._times = 0

    def waits(self, rank: int, standing: tuple[int, int], late: bool) -> None:
        """A rank waits, since it has started or lost the others."""
        self._gone.discard(rank)
        self._standing[rank] = standing
        end = self._clock() + (GRACE if late else self._patience)
        if self._times and (self._deadline is None or end < self._deadline):
            self._deadline = end

    def gone(self, rank: int) -> None:
        """A rank's process has ended."""
        self._standing.pop(rank, None)
        self._gone.add(rank)

    def silent(self) -> list[int]:
        """Ranks that should have noticed by now that the others wait; each is returned once."""
        if self._deadline is None or self._clock() < self._deadline:
            return []
        self._deadline = None
        return [rank for rank in range(self._size) if rank not in self._standing and rank not in self._gone]

    def order(self) -> Order | None:
        """The order to all ranks, once all of them wait; the state with most updates wins."""
        if len(self._standing) < self._size:
            return None
        source = max(self._standing, key=lambda rank: (self._standing[rank], -rank))
        updates, _ = self._standing[source]
        self._standing.clear()
        self._deadline = None
        self._times += 1
        return Order(self._times, source, updates)
