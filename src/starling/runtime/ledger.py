"""The ledger of env steps: produced = inserted + open + lost."""

from __future__ import annotations

from collections import defaultdict


class Ledger:
    """Env steps by actor id, i.e. per incarnation of a group."""

    def __init__(self) -> None:
        self._inserted: dict[int, int] = defaultdict(int)  # of each life
        self._lost: dict[int, int] = defaultdict(int)  # of what came in
        self._produced: dict[int, int] = {}  # of lives that have ended

    def inserted(self, life: int, steps: int) -> None:
        self._inserted[life] += steps

    def lost(self, life: int, steps: int) -> None:
        """Steps of an actor that arrived were lost before they were inserted."""
        self._lost[life] += steps

    def ended(self, life: int, produced: int) -> None:
        """An incarnation has ended after so many steps: those that were not inserted are lost."""
        self._produced[life] = produced

    def row(self, living: dict[int, int]) -> dict[str, int]:
        """The balance, given the steps of all running actors: produced = inserted + open + lost."""
        produced = sum(self._produced.values()) + sum(living.values())
        inserted = sum(self._inserted.values())
        lost = sum(count - self._inserted[life] for life, count in self._produced.items())
        lost += sum(steps for life, steps in self._lost.items() if life not in self._produced)
        return {"produced": produced, "inserted": inserted, "lost": lost, "open": produced - inserted - lost}
