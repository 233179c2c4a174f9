"""Decides when the learners may join again, whose state they continue from, and which rank keeps them waiting."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from starling.runtime.supervisor import RunFailedError

GRACE = 5.0
"""Seconds that a rank has to report that it waits, after another rank has timed out in a reduction."""
MAX_FAILURES = 8
"""Attempts in a row without an update in common after which the run fails."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before another attempt after one failure, and at most; the pause doubles with every failure."""


@dataclass(frozen=True)
class Order:
    """An order to all ranks: meet for the n-th time, `attempt`, and take over the state of the rank `source`."""

    attempt: int
    source: int
    updates: int  # of that state


class Regroup:
    """The ranks that wait for the others, with their progress. All begin together, or none does.

    An attempt fails if all ranks come back without an update in common, although no process has ended. The next one
    waits a random while (see `FIRST_PAUSE`), so that neither logs nor a busy machine drown in attempts.
    """

    def __init__(
        self,
        size: int,
        notice_seconds: float,
        clock: Callable[[], float],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._size, self._notice_seconds, self._clock, self._uniform = size, notice_seconds, clock, uniform
        self._positions: dict[int, tuple[int, int]] = {}  # of ranks that wait: (updates, optimizer steps)
        self._deadline: float | None = None  # by which ranks that do not wait must have noticed that others do
        self._exited: set[int] = set()
        self._attempts = self._failures = 0
        self._begun_at = -1  # updates at the last attempt
        self._exits = False  # since the last attempt
        self._why = ""  # a rank lost the others last
        self._next: float | None = None  # the time of the next attempt, once all ranks wait

    def on_waiting(self, rank: int, position: tuple[int, int], late: bool, why: str | None = None) -> None:
        """A rank waits, since it has started or lost the others, and `why`."""
        self._exited.discard(rank)
        self._positions[rank] = position
        if why is not None:
            self._why = f"learner {rank}: {why}"
        end = self._clock() + (GRACE if late else self._notice_seconds)
        if self._attempts and (self._deadline is None or end < self._deadline):
            self._deadline = end

    def on_exit(self, rank: int) -> None:
        """A rank's process has ended."""
        self._positions.pop(rank, None)
        self._exited.add(rank)
        self._exits, self._next = True, None

    def overdue_ranks(self) -> list[int]:
        """Ranks that should have reported by now that they wait, as the others do, and hang; each is returned once."""
        if self._deadline is None or self._clock() < self._deadline:
            return []
        self._deadline = None
        return [rank for rank in range(self._size) if rank not in self._positions and rank not in self._exited]

    def order(self) -> Order | None:
        """The order to all ranks, returned once when all of them wait; the state with most updates wins.

        Raises `RunFailedError` after `MAX_FAILURES` attempts that failed.
        """
        if len(self._positions) < self._size:
            return None
        source = max(self._positions, key=lambda rank: (self._positions[rank], -rank))
        updates, _ = self._positions[source]
        if self._next is None:
            self._next = self._clock() + self._pause(updates)
        if self._clock() < self._next:
            return None
        self._positions.clear()
        self._deadline = self._next = None
        self._attempts += 1
        self._begun_at, self._exits = updates, False
        return Order(self._attempts, source, updates)

    def _pause(self, updates: int) -> float:
        """Seconds to the next attempt, from a state with so many updates; counts failures."""
        if updates > self._begun_at:
            self._failures = 0
        elif not self._exits:  # the supervisor counts ends of processes
            self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._next = math.inf  # it is said once
            raise RunFailedError(
                f"the learners lost each other {self._failures} times in a row before an update; the last was"
                f" {self._why}; if they are only slow, raise supervision.reduction"
            )
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1)) if self._failures else 0.0
        return self._uniform(longest / 2, longest)
