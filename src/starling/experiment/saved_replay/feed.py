"""One env row's way into a table, for steps that were recorded before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from starling import tree
from starling.experiment.saved_replay.steps import Steps
from starling.replay.ring import ring_length
from starling.replay.shards import shard_rows
from starling.replay.table import Table
from starling.types import Fragment, Keys, Layout, NDArray, Trajectory

LONGEST = 512
"""Steps in a fragment, where the ring has room for so many."""
AGED = 64
"""The same, where it matters how old they are: a fragment has one age."""


class Feed:
    """Steps of one env row, inserted as an actor of their own would: each fragment begins where the last ended.

    `rows` env rows share the table. `own`: the weights that acted were this run's, so it is known how old steps are.
    """

    def __init__(self, table: Table, layout: Layout, row: int, rows: int, own: bool) -> None:
        self._own = own
        stack = layout.stack.n if layout.stack else 1
        self._table, self._row = table, np.array([row])
        self._longest = min(AGED if own else LONGEST, ring_length(table.spec, rows, stack) - table.spec.length - stack)
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
        oldest = steps.policy_version[:-1].min() if self._own else 0  # as old as can be
        policy_version = np.array([oldest], np.int64)
        trajectory: Trajectory[NDArray] = Trajectory(**shown, **done, carry=carry, policy_version=policy_version)
        actor = -1 - int(self._row[0])  # nobody else's
        fragment = Fragment(trajectory, self._row, carries if self._recurrent else None, actor, self._sequence)
        self._table.insert(fragment)


def feed_all(shards: Sequence[Table], layout: Layout, rows: int, own: bool = False) -> list[dict[int, Feed]]:
    """The way of every one of `rows` env rows into the shard of a table that takes it, by shard and row."""
    dealt = shard_rows(rows, len(shards))
    return [
        {row: Feed(table, layout, row, len(mine), own) for row in mine.tolist()}
        for table, mine in zip(shards, dealt, strict=True)
    ]


def take_over(table: Table, feeds: Mapping[int, Feed], prioritized: bool) -> None:
    """Drop the items of a fed table that were none before (a stretch that was still open has ended now), and give the
    others their priorities; `feeds` by env row."""
    assert table.ring is not None
    items = table.ring.items()
    given = {row: feed.priorities() for row, feed in feeds.items()}
    priorities = np.array([given[row][start] for row, start in zip(items.rows.tolist(), items.start, strict=True)])
    same = np.full((2, len(priorities)), [[table.shard], [table.index]], np.int64)
    keys = Keys(same[0], same[1], items.slots, items.generation)
    had = priorities > 0
    table.evict(tree.map(lambda column: column[~had], keys))
    if prioritized:
        table.reprioritize(tree.map(lambda column: column[had], keys), priorities[had])


def _one_row(leaf: NDArray) -> NDArray:
    """[T, ...] as [T, 1, ...]."""
    return leaf[:, None]


def _slice(steps: Steps, begin: int, end: int) -> Steps:
    sliced: Steps = tree.map(lambda leaf: leaf[begin:end], steps)
    return sliced
