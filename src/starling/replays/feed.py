"""One env row's way into a table, for steps that were recorded before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starling import tree
from starling.replays.steps import Steps
from starling.store.ring import ring_length
from starling.store.table import Table
from starling.types import Fragment, Layout, NDArray, Trajectory

LONGEST = 512
"""Steps in a fragment, where the ring has room for so many."""


class Feed:
    """Steps of one env row, inserted as an actor of their own would: each fragment begins where the last ended."""

    def __init__(self, table: Table, layout: Layout, row: int, rows: int) -> None:
        stack = layout.stack.n if layout.stack else 1
        self._table, self._row = table, np.array([row])
        self._longest = min(LONGEST, ring_length(table.spec, rows, stack) - table.spec.length - stack)
        self._recurrent = bool(tree.leaves(layout.carry))
        self._last: Steps | None = None  # one step, which waits for the observation after it
        self._priorities: list[NDArray] = []
        self._sequence = 0
        self.written = 0  # steps, each stretch's last observation with them

    def add(self, steps: Steps) -> None:
        """The next steps of this row."""
        joined = steps if self._last is None else tree.concat([self._last, steps], axis=0)
        count = len(joined.valid) - 1
        for begin in range(0, count, self._longest):
            self._insert(_slice(joined, begin, min(begin + self._longest, count) + 1))
        self._last = _slice(joined, count, count + 1)
        self.written += len(steps.valid)

    def finish(self) -> None:
        """Let the row end with its last observation: what follows it in this row is another stretch."""
        if self._last is not None:
            self._last = replace(self._last, valid=np.zeros(1, bool))
            self.add(self._last)

    def priorities(self) -> NDArray:
        """Of the item that begins with each step that was written, 0: none does; [N]."""
        return np.concatenate([np.zeros(0), *self._priorities])

    def _insert(self, steps: Steps) -> None:
        """A fragment of all but the last of `steps`, whose observation is the one that follows."""
        self._sequence += 1
        self._priorities.append(steps.priority[:-1])
        shown = {name: tree.map(_one_row, getattr(steps, name)) for name in ("obs", "first", "extras", "carry")}
        names = ("action", "rewards", "terminated", "truncated", "valid")
        done = {name: tree.map(lambda leaf: _one_row(leaf[:-1]), getattr(steps, name)) for name in names}
        carries = shown.pop("carry")
        carry = tree.map(lambda leaf: leaf[0], carries)
        version = np.zeros(1, np.int64)  # as old as can be: the weights that acted are not this run's
        trajectory: Trajectory[NDArray] = Trajectory(**shown, **done, carry=carry, version=version)
        actor = -1 - int(self._row[0])  # nobody else's
        fragment = Fragment(trajectory, self._row, carries if self._recurrent else None, actor, self._sequence)
        self._table.insert(fragment)


def _one_row(leaf: NDArray) -> NDArray:
    """[T, ...] as [T, 1, ...]."""
    return leaf[:, None]


def _slice(steps: Steps, begin: int, end: int) -> Steps:
    sliced: Steps = tree.map(lambda leaf: leaf[begin:end], steps)
    return sliced
