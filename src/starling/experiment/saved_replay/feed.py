"""Insert recorded steps into a table again, as fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from starling import tree
from starling.experiment.saved_replay.steps import Steps
from starling.replay.ring import ring_length
from starling.replay.store import shard_envs
from starling.replay.table import Table
from starling.types import Fragment, Keys, Layout, NDArray, Trajectory

LONGEST = 512
"""Largest number of steps in a fragment, if the ring has space for them."""
AGED = 64
"""The same if policy versions are known: a fragment has only one."""


class Feed:
    """Insert the steps of one env as an actor would: each fragment begins where the last one ended.

    `num_envs` envs share the table. `own`: weights of this run acted, so the policy versions of the steps are known.
    """

    def __init__(self, table: Table, layout: Layout, env_index: int, num_envs: int, own: bool) -> None:
        self._own = own
        stack = layout.stack.n if layout.stack else 1
        self._table, self._env_index = table, np.array([env_index])
        room = ring_length(table.spec, num_envs, stack) - table.spec.length - stack
        self._longest = min(AGED if own else LONGEST, room)
        self._recurrent = bool(tree.leaves(layout.carry))
        self._last: Steps | None = None  # one step, kept until the next observation is known
        self._priorities: list[NDArray] = []
        self._sequence = 0
        self.written = 0  # steps, including the last observation of each stretch

    def add(self, steps: Steps) -> None:
        """Insert the next steps of this env."""
        joined = steps if self._last is None else tree.concat([self._last, steps], axis=0)
        count = len(joined.valid) - 1
        for begin in range(0, count, self._longest):
            self._insert(_slice(joined, begin, min(begin + self._longest, count) + 1))
        self._last = _slice(joined, count, count + 1)
        self.written += len(steps.valid)

    def finish(self) -> None:
        """End the stretch with the last observation: later steps of this env do not continue it."""
        if self._last is not None:
            self._last = replace(self._last, valid=np.zeros(1, bool))
            self.add(self._last)

    def priorities(self) -> NDArray:
        """Return priorities [N] of the items that begin with each inserted step; 0 if none does."""
        return np.concatenate([np.zeros(0), *self._priorities])

    def _insert(self, steps: Steps) -> None:
        """Insert a fragment of all `steps` but the last, which only contributes the final observation."""
        self._sequence += 1
        self._priorities.append(steps.priority[:-1])
        shown = {name: tree.map(_one_env, getattr(steps, name)) for name in ("obs", "first", "extras", "carry")}
        names = ("action", "rewards", "terminated", "truncated", "valid")
        done = {name: tree.map(lambda leaf: _one_env(leaf[:-1]), getattr(steps, name)) for name in names}
        carries = shown.pop("carry")
        carry = tree.map(lambda leaf: leaf[0], carries)
        oldest = steps.policy_version[:-1].min() if self._own else 0  # the oldest version
        policy_version = np.array([oldest], np.int64)
        trajectory: Trajectory[NDArray] = Trajectory(**shown, **done, carry=carry, policy_version=policy_version)
        actor = -1 - int(self._env_index[0])  # no actor has this id
        fragment = Fragment(trajectory, self._env_index, carries if self._recurrent else None, actor, self._sequence)
        self._table.insert(fragment)


def feed_all(shards: Sequence[Table], layout: Layout, num_envs: int, own: bool = False) -> list[dict[int, Feed]]:
    """Build a `Feed` for each of `num_envs` envs into its shard of a table: one dict per shard, by env index."""
    dealt = shard_envs(num_envs, len(shards))
    return [
        {i: Feed(table, layout, i, len(mine), own) for i in mine.tolist()}
        for table, mine in zip(shards, dealt, strict=True)
    ]


def take_over(table: Table, feeds: Mapping[int, Feed], prioritized: bool) -> None:
    """Restore the items and priorities of a table that was filled by `feeds`, which are given by env index.

    Items that did not exist before are evicted: they arise since stretches that were still open have ended now.
    """
    assert table.ring is not None
    items = table.ring.items()
    given = {i: feed.priorities() for i, feed in feeds.items()}
    priorities = np.array([given[i][start] for i, start in zip(items.env_index.tolist(), items.start, strict=True)])
    same = np.full((2, len(priorities)), [[table.shard], [table.index]], np.int64)
    keys = Keys(same[0], same[1], items.slots, items.generation)
    had = priorities > 0
    table.evict(tree.map(lambda column: column[~had], keys))
    if prioritized:
        table.reprioritize(tree.map(lambda column: column[had], keys), priorities[had])


def _one_env(leaf: NDArray) -> NDArray:
    """Reshape [T, ...] to [T, 1, ...]."""
    return leaf[:, None]


def _slice(steps: Steps, begin: int, end: int) -> Steps:
    sliced: Steps = tree.map(lambda leaf: leaf[begin:end], steps)
    return sliced
