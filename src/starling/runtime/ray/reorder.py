"""What is sent over Ray in an order and may arrive in another."""

from __future__ import annotations

from collections.abc import Callable


class Reorder:
    """Numbered messages in the order in which they were given: arrays take longer to arrive than a few words."""

    def __init__(self) -> None:
        self._taken = 0
        self._early: dict[int, Callable[[], None]] = {}

    def came(self, number: int, take: Callable[[], None]) -> None:
        """Have a message taken in as soon as all of smaller numbers have been; the first is 1."""
        self._early[number] = take
        while (next_one := self._early.pop(self._taken + 1, None)) is not None:
            self._taken += 1
            next_one()
