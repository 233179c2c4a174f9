"""Storage of whole fragments, one item per env; items can be evicted in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from starling import tree
from starling.errors import require
from starling.replay.spec import TableSpec
from starling.replay.storage import Change
from starling.types import Fragment, Layout, NDArray, Trajectory


class Slots:
    """`capacity` slots for T steps of one env each; new items replace the oldest when all slots are taken."""

    def __init__(self, spec: TableSpec, layout: Layout) -> None:
        self._capacity, self._length = spec.capacity, spec.length
        self._items: Trajectory[NDArray] = tree.zeros(layout.trajectory(spec.length, spec.capacity))
        self._free = np.arange(spec.capacity)[::-1].copy()  # a stack: slots are taken from its end
        self._inserted_at = np.full(spec.capacity, -1, np.int64)  # insertion number of the item; -1: free
        self._generation = np.zeros(spec.capacity, np.int64)
        self._count = 0

    @property
    def slots(self) -> int:
        return self._capacity

    @property
    def broken(self) -> int:
        return 0  # fragments are independent

    def append(self, fragment: Fragment, continues: bool) -> Change:
        """Copy a fragment into one slot per env."""
        new = fragment.trajectory
        if new.length != self._length or new.batch_size > self._capacity:
            raise ValueError(f"a fragment [{new.length}, {new.batch_size}] does not fit slots of {self._length} steps")
        removed = self._oldest(new.batch_size - len(self._free))
        self.release(removed)
        added, self._free = self._free[: -new.batch_size - 1 : -1].copy(), self._free[: -new.batch_size]
        self._inserted_at[added] = np.arange(self._count, self._count + new.batch_size)
        self._count += new.batch_size
        self._generation[added] += 1
        self._write(added, new)
        return Change(removed, added)

    def _write(self, slots: NDArray, new: Trajectory[NDArray]) -> None:
        """Copy the rows of `new` [T, B] into `slots` [B]."""
        tree.map_trajectory(
            self._items,
            lambda mine, leaf: mine.__setitem__((slice(None), slots), leaf),
            lambda mine, leaf: mine.__setitem__(slots, leaf),
            new,
        )

    def _oldest(self, n: int) -> NDArray:
        """Slots [n] of the `n` oldest items."""
        if n <= 0:
            return np.zeros(0, np.int64)
        live = np.nonzero(self._inserted_at >= 0)[0]
        return np.asarray(live[np.argpartition(self._inserted_at[live], n - 1)[:n]])

    def gather(self, slots: NDArray, with_obs: bool = True) -> Trajectory[NDArray]:
        items = self._items if with_obs else replace(self._items, obs=None)
        return tree.map_trajectory(
            items, lambda array: np.take(array, slots, axis=1), lambda array: np.take(array, slots, axis=0)
        )

    def generation(self, slots: NDArray) -> NDArray:
        return self._generation[slots]

    def alive(self, slots: NDArray, generations: NDArray) -> NDArray:
        return np.asarray((self._inserted_at[slots] >= 0) & (self._generation[slots] == generations))

    def release(self, slots: NDArray) -> None:
        self._inserted_at[slots] = -1
        self._free = np.concatenate([self._free, slots])

    def check_valid(self) -> None:
        live = np.nonzero(self._inserted_at >= 0)[0]
        both = np.sort(np.concatenate([self._free, live]))
        require(np.array_equal(both, np.arange(self._capacity)), "a slot is lost, or both free and taken")
        require(len(np.unique(self._inserted_at[live])) == len(live), "two items were inserted at once")
        require((self._generation[live] > 0).all(), "an item without a generation")
        require(self._inserted_at.max(initial=-1) < self._count < 2**62, "an item from the future")

    def get_state(self) -> dict[str, Any]:
        live = np.nonzero(self._inserted_at >= 0)[0]
        items = self.gather(live)
        return {
            "live": live,
            "items": {str(i): leaf for i, leaf in enumerate(tree.leaves(items))},
            "free": self._free.copy(),
            "inserted_at": self._inserted_at.copy(),
            "generation": self._generation.copy(),
            "count": self._count,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        saved = iter([state["items"][str(i)] for i in range(len(state["items"]))])
        self._write(state["live"], tree.map(lambda _: next(saved), self._items))
        self._free = np.array(state["free"], np.int64)
        self._inserted_at[:], self._generation[:] = state["inserted_at"], state["generation"]
        self._count = int(state["count"])
