"""A set of small integers in a dense array, so that a uniform draw takes one random number."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling.errors import require
from starling.types import NDArray


class IndexSet:
    """A subset of [0, capacity); vectorized operations whose cost depends only on the batch size."""

    def __init__(self, capacity: int) -> None:
        self._members = np.zeros(capacity, np.int64)  # the first `size` entries are the set, in arbitrary order
        self._position = np.full(capacity, -1, np.int64)  # position of each member; -1: not a member
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, indices: NDArray) -> None:
        """Add `indices` [n]; existing members keep their position."""
        new = _distinct(indices[self._position[indices] < 0])
        end = self._size + len(new)
        self._members[self._size : end] = new
        self._position[new] = np.arange(self._size, end)
        self._size = end

    def discard(self, indices: NDArray) -> None:
        """Remove `indices` [n]; the last members move into the gaps."""
        gone = _distinct(indices[self._position[indices] >= 0])
        kept = self._size - len(gone)
        holes = self._position[gone]
        self._position[gone] = -1
        holes = holes[holes < kept]
        tail = self._members[kept : self._size]
        movers = tail[self._position[tail] >= 0]
        self._members[holes] = movers
        self._position[movers] = holes
        self._size = kept

    def draw(self, n: int, rng: np.random.Generator) -> NDArray:
        """Draw `n` members uniformly with replacement, int64 [n]."""
        return self._members[rng.integers(0, self._size, n)]

    def draw_distinct(self, n: int, rng: np.random.Generator) -> NDArray:
        """Draw `n` members uniformly without replacement, int64 [n]."""
        return self._members[rng.choice(self._size, n, replace=False, shuffle=False)]

    def check_valid(self) -> None:
        members = self._members[: self._size]
        require((self._position[members] == np.arange(self._size)).all(), "members and positions disagree")
        require((self._position >= 0).sum() == self._size, "a position without a member")

    def get_state(self) -> dict[str, Any]:
        return {"members": self._members[: self._size].copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        members = state["members"]
        self._size = len(members)
        self._members[: self._size] = members
        self._position[:] = -1
        self._position[members] = np.arange(self._size)


def _distinct(indices: NDArray) -> NDArray:
    """Remove duplicates from `indices`; increasing ones, the common case, are returned without sorting."""
    return indices if (indices[1:] > indices[:-1]).all() else np.unique(indices)
