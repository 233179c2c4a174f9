"""The books of the env steps: what was produced is inserted, under way, or lost for a reason."""

from __future__ import annotations

from collections import defaultdict


class Ledger:
    """Env steps by life: one env loop from its start to its end."""

    def __init__(self) -> None:
        self._inserted: dict[int, int] = defaultdict(int)  # of each life
        self._lost: dict[int, int] = defaultdict(int)  # of what came in
        self._produced: dict[int, int] = {}  # of lives that have ended

    def inserted(self, life: int, steps: int) -> None:
        self._inserted[life] += steps

    def lost(self, life: int, steps: int) -> None:
        """Steps of a life that came in are gone before they were inserted."""
        self._lost[life] += steps

    def ended(self, life: int, produced: int) -> None:
        """A life has ended, which had produced so many steps: what was not inserted is lost."""
        self._produced[life] = produced

    def row(self, living: dict[int, int]) -> dict[str, int]:
        """The balance, given what the living have produced: produced = inserted + open + lost."""
        produced = sum(self._produced.values()) + sum(living.values())
        inserted = sum(self._inserted.values())
        lost = sum(count - self._inserted[life] for life, count in self._produced.items())
        lost += sum(steps for life, steps in self._lost.items() if life not in self._produced)
        return {"produced": produced, "inserted": inserted, "lost": lost, "open": produced - inserted - lost}
