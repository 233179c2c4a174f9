"""Read every step of a replay once, by env and in order of time, from the overlapping items of its table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from starling import tree
from starling.replay.ring import Ring
from starling.replay.storage import Items
from starling.replay.table import Table
from starling.types import NDArray, Trajectory, Tree

AT_ONCE = 1024
"""Number of steps to read at once, which limits memory: they have whole observations."""


@dataclass(frozen=True)
class Steps:
    """N observations with the actions that followed, sorted by env and time.

    A stretch is an uninterrupted series of steps of one env: an episode, or what remains of it. No action follows its
    last observation: there `valid` is False, and `action`, `rewards`, `terminated`, and `truncated` are 0.
    """

    env_index: NDArray  # [N] int64: global index of the env
    obs: Tree  # [N, ...]
    first: NDArray  # [N] bool: an episode begins with this observation
    valid: NDArray  # [N] bool: an action was taken
    action: Tree  # [N, ...]
    rewards: dict[str, NDArray]  # [N] float32 per stream, as used in learning
    terminated: NDArray  # [N] bool: the action ended the episode
    truncated: NDArray  # [N] bool: the episode was cut off after the action
    extras: Tree  # [N, ...] recorded outputs of act()
    policy_version: NDArray  # [N] int64: of the item that the step was read from
    priority: NDArray  # [N] float64: of the item that begins here; 0 if none does
    carry: Tree  # [N, ...] the carry before the observation if an item begins here, else 0


@dataclass(frozen=True)
class _Pick:
    """An item to read steps from: its first `count` observations, possibly including the last of the stretch."""

    item: int
    count: int


def read_steps(table: Table) -> Iterator[Steps]:
    """Yield all steps of a table's items, a few at a time, so that memory stays bounded."""
    ring = table.ring
    assert ring is not None, "only a ring keeps steps in order"
    items = ring.items()
    priorities = table.priorities(items.slots)
    at_once = max(1, AT_ONCE // table.spec.length)
    for i in np.unique(items.env_index):
        low, high = np.searchsorted(items.env_index, [i, i + 1])
        mine: Items = tree.map(lambda column, a=low, b=high: column[a:b], items)
        picks = _picks(mine, every=bool(tree.leaves(ring.gather(mine.slots[:1]).carry)))
        for begin in range(0, len(picks), at_once):
            yield _read(ring, mine, priorities[low:high], picks[begin : begin + at_once])


def _picks(items: Items, every: bool) -> list[_Pick]:
    """Choose items of one env that cover each of its steps once: `every` item, or as few as possible."""
    starts, ends = items.start.tolist(), (items.start + items.steps).tolist()
    picks, i = [], 0
    while i < len(starts):
        j = i + 1 if every else bisect_right(starts, ends[i], lo=i + 1) - 1  # the last to begin in or right after it
        goes_on = j < len(starts) and starts[j] <= ends[i] and (every or ends[j] > ends[i])
        picks.append(_Pick(i, starts[j] - starts[i] if goes_on else ends[i] - starts[i] + 1))
        i = j if goes_on or every else j + 1
    return picks


def _read(ring: Ring, items: Items, priorities: NDArray, picks: list[_Pick]) -> Steps:
    """Read the steps of these items of one env."""
    which, counts = np.array([pick.item for pick in picks]), np.array([pick.count for pick in picks])
    column = np.repeat(np.arange(len(picks)), counts)  # [N] index of the sequence that each step is read from
    t = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)  # [N] time step in that sequence
    windows = ring.gather(items.slots[which])
    at = items.start[which][column] + t
    found = np.minimum(np.searchsorted(items.start, at), len(items.start) - 1)
    begins = items.start[found] == at
    return _flat(windows, t, column, int(items.env_index[0]), np.where(begins, priorities[found], 0.0))


def _flat(windows: Trajectory[NDArray], t: NDArray, column: NDArray, env_index: int, priority: NDArray) -> Steps:
    valid = t < windows.valid.sum(axis=0)[column]
    starts = (t == 0) & (priority > 0)

    def shown(leaf: NDArray) -> NDArray:
        return np.asarray(leaf[t, column])

    def done(leaf: NDArray) -> NDArray:
        values = np.asarray(leaf[np.minimum(t, len(leaf) - 1), column])
        values[~valid] = 0
        return values

    def before(leaf: NDArray) -> NDArray:
        values = np.zeros((len(t), *leaf.shape[1:]), leaf.dtype)
        values[starts] = leaf[column[starts]]
        return values

    return Steps(
        env_index=np.full(len(t), env_index, np.int64),
        obs=tree.map(shown, windows.obs),
        first=shown(windows.first),
        valid=valid,
        action=tree.map(done, windows.action),
        rewards=tree.map(done, windows.rewards),
        terminated=done(windows.terminated),
        truncated=done(windows.truncated),
        extras=tree.map(shown, windows.extras),
        policy_version=windows.policy_version[column],
        priority=priority,
        carry=tree.map(before, windows.carry),
    )
