"""Decides when the learners may join again, whose state they continue from, and which rank keeps them waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

GRACE = 5.0
"""Seconds that a rank has to report that it waits, after another rank has timed out in a reduction."""


@dataclass(frozen=True)
class Order:
    """An order to all ranks: meet for the n-th time, `attempt`, and take over the state of the rank `source`."""

    attempt: int
    source: int
    updates: int  # of that state


class Regroup:
    """The ranks that wait for the others, with their progress. All begin together, or none does."""

    def __init__(self, size: int, notice_seconds: float, clock: Callable[[], float]) -> None:
        self._size, self._notice_seconds, self._clock = size, notice_seconds, clock
        self._positions: dict[int, tuple[int, int]] = {}  # of ranks that wait: (updates, optimizer steps)
        self._deadline: float | None = None  # by which ranks that do not wait must have noticed that others do
        self._exited: set[int] = set()
        self._attempts = 0

    def on_waiting(self, rank: int, position: tuple[int, int], late: bool) -> None:
        """A rank waits, since it has started or lost the others."""
        self._exited.discard(rank)
        self._positions[rank] = position
        end = self._clock() + (GRACE if late else self._notice_seconds)
        if self._attempts and (self._deadline is None or end < self._deadline):
            self._deadline = end

    def on_exit(self, rank: int) -> None:
        """A rank's process has ended."""
        self._positions.pop(rank, None)
        self._exited.add(rank)

    def overdue_ranks(self) -> list[int]:
        """Ranks that should have reported by now that they wait, as the others do, and hang; each is returned once."""
        if self._deadline is None or self._clock() < self._deadline:
            return []
        self._deadline = None
        return [rank for rank in range(self._size) if rank not in self._positions and rank not in self._exited]

    def order(self) -> Order | None:
        """The order to all ranks, returned once when all of them wait; the state with most updates wins."""
        if len(self._positions) < self._size:
            return None
        source = max(self._positions, key=lambda rank: (self._positions[rank], -rank))
        updates, _ = self._positions[source]
        self._positions.clear()
        self._deadline = None
        self._attempts += 1
        return Order(self._attempts, source, updates)
