"""Counts a run in every unit, and says when an interval is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starling.config.quantities import Quantity, Unit

Counters = Mapping[Unit, Callable[[], float]]
"""The present count of every unit."""


class Alarm:
    """Due once the count has reached the next multiple of `every`; never, if that is None.

    The multiples depend on the count alone, so a resumed run agrees with one that never stopped. Minutes are those of
    this session.
    """

    def __init__(self, every: Quantity | None, counters: Counters) -> None:
        self._every = None if every is None else every.amount
        self._count = counters["env steps" if every is None else every.unit]
        self._next = 0.0
        self.restart()

    @property
    def due(self) -> bool:
        return self._every is not None and self._count() >= self._next

    def restart(self) -> None:
        """Set the alarm to the next multiple after the present count."""
        if self._every is not None:
            self._next = (self._count() // self._every + 1) * self._every
