"""A sum tree with batched sampling, in proportion to the leaves, and batched updates, both compiled by numba.

A node has 8 children (one cache line), so a million leaves are seven levels deep. Parents are recomputed from their
children and never incremented: the tree depends on the leaves alone, not on the order of updates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from starling.errors import require
from starling.types import NDArray

FANOUT = 8


@njit(cache=True, inline="always")
def _children_sum(tree: NDArray, first: int) -> float:
    """Sum of a node's children, always in the same order, so that rebuilt and updated trees are bitwise equal."""
    a = b = c = d = 0.0
    for i in range(first, first + FANOUT, 4):
        a += tree[i]
        b += tree[i + 1]
        c += tree[i + 2]
        d += tree[i + 3]
    return (a + b) + (c + d)


@njit(cache=True)
def _set(tree: NDArray, offsets: NDArray, capacity: int, indices: NDArray, values: NDArray) -> bool:
    """Write leaves and recompute the nodes above them, level by level; returns False, changing nothing, if invalid."""
    for i in range(len(indices)):
        if not (0 <= indices[i] < capacity and 0.0 <= values[i] < np.inf):
            return False
    leaves = offsets[-2]
    nodes = np.empty(len(indices), np.int64)
    for i in range(len(indices)):
        tree[leaves + indices[i]] = values[i]
        nodes[i] = indices[i]
    count = len(nodes)
    for level in range(len(offsets) - 3, -1, -1):
        # Neighbors in the batch often share a parent (stratified draws are sorted): recompute it once.
        kept, previous = 0, np.int64(-1)
        for i in range(count):
            parent = nodes[i] // FANOUT
            if parent != previous:
                tree[offsets[level] + parent] = _children_sum(tree, offsets[level + 1] + parent * FANOUT)
                nodes[kept] = previous = parent
                kept += 1
        count = kept
    return True


@njit(cache=True)
def _sample(tree: NDArray, offsets: NDArray, fractions: NDArray, out: NDArray) -> None:
    """Find the leaf at each fraction of the total mass; draws descend level by level, so that their loads overlap."""
    mass = fractions * tree[0]
    out[:] = 0
    for level in range(1, len(offsets) - 1):
        for i in range(len(out)):
            first = offsets[level] + out[i] * FANOUT
            mass_i, sum_, before, chosen = mass[i], 0.0, 0.0, 0
            for child in range(first, first + FANOUT):  # branch-free: the choice is unpredictable
                sum_ += tree[child]
                passed = sum_ <= mass_i
                chosen += passed
                before = sum_ if passed else before
            if chosen == FANOUT:
                # Past the right edge by rounding: take the last child with mass, never a leaf of 0.
                chosen -= 1
                while chosen > 0 and tree[first + chosen] == 0.0:
                    chosen -= 1
                before = mass_i - tree[first + chosen]
            out[i] = out[i] * FANOUT + chosen
            mass[i] = mass_i - before


@njit(cache=True)
def _rebuild(tree: NDArray, offsets: NDArray) -> None:
    """Recompute every node from the leaves."""
    for level in range(len(offsets) - 3, -1, -1):
        for node in range((offsets[level + 2] - offsets[level + 1]) // FANOUT):
            tree[offsets[level] + node] = _children_sum(tree, offsets[level + 1] + node * FANOUT)


def _level_sizes(capacity: int) -> list[int]:
    """Number of nodes per level from the root down, each padded to a multiple of FANOUT."""
    sizes = [-(-capacity // FANOUT) * FANOUT]
    while sizes[0] > FANOUT:
        sizes.insert(0, -(-(sizes[0] // FANOUT) // FANOUT) * FANOUT)
    return [FANOUT, *sizes]  # the root's level is one node and padding, which aligns siblings to cache lines


def _aligned_zeros(count: int) -> NDArray:
    """Float64 zeros, aligned to a cache line."""
    raw = np.zeros(count + 8, np.float64)
    skip = (-raw.ctypes.data % 64) // 8
    return raw[skip : skip + count]


class SumTree:
    """`capacity` leaves, float64 >= 0, and their sums; samples leaves in proportion to their values."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        sizes = _level_sizes(capacity)
        self.capacity = capacity
        self._offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)  # start of each level, and the end
        self._tree = _aligned_zeros(sum(sizes))
        self._leaves = self._tree[self._offsets[-2] :][:capacity]

    @property
    def total(self) -> float:
        return float(self._tree[0])

    def get(self, indices: NDArray) -> NDArray:
        """The leaves at `indices` [n], float64."""
        return np.take(self._leaves, indices)

    def set(self, indices: NDArray, values: NDArray) -> None:
        """Write leaves [n]; of duplicate indices the last wins."""
        indices = np.ascontiguousarray(indices, np.int64)
        values = np.ascontiguousarray(values, np.float64)
        if indices.shape != values.shape or indices.ndim != 1:
            raise ValueError(f"indices {indices.shape} and values {values.shape} must be vectors of one length")
        if not _set(self._tree, self._offsets, self.capacity, indices, values):
            raise ValueError(f"an index is outside [0, {self.capacity}) or a value is negative or not finite")

    def sample(self, fractions: NDArray) -> NDArray:
        """Indices [n] of the leaves at the given fractions [n], in [0, 1), of the total mass; never a leaf of 0."""
        if not self._tree[0] > 0.0:
            raise ValueError("an empty tree cannot be sampled")
        out = np.empty(len(fractions), np.int64)
        _sample(self._tree, self._offsets, np.ascontiguousarray(fractions, np.float64), out)
        return out

    def check_valid(self) -> None:
        again = self._tree.copy()
        _rebuild(again, self._offsets)
        require(np.array_equal(again, self._tree), "a node is not the sum of its children")
        require((self._leaves >= 0).all(), "a leaf is negative or not a number")
        require(np.isfinite(self._leaves).all(), "a leaf is infinite")
        require(not self._tree[self._offsets[-2] + self.capacity :].any(), "padding has mass")

    def get_state(self) -> dict[str, Any]:
        return {"leaves": self._leaves.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._leaves[:] = state["leaves"]
        _rebuild(self._tree, self._offsets)
