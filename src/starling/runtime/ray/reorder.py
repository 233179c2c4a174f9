"""Restores the order of messages, which Ray does not preserve."""

from __future__ import annotations

from collections.abc import Callable


class Reorder:
    """Handles numbered messages in order; those with arrays may arrive after later ones without."""

    def __init__(self) -> None:
        self._taken = 0
        self._early: dict[int, Callable[[], None]] = {}

    def came(self, number: int, take: Callable[[], None]) -> None:
        """Call `take` once all messages with smaller numbers have been handled; the first number is 1."""
        self._early[number] = take
        while (next_one := self._early.pop(self._taken + 1, None)) is not None:
            self._taken += 1
            next_one()
