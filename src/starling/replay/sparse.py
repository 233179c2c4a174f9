"""Values for a few cells of a grid: in a growing array, or compressed one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling import tree
from starling.errors import require
from starling.replay.codec import Packer, joined, parted
from starling.replay.grid import Grid
from starling.types import ArraySpec, NDArray, Tree


class Sparse:
    """Values for a few cells, in a growing array; freed entries are reused."""

    def __init__(self, specs: Tree, grid: Grid) -> None:
        self._grid = grid
        self._specs = specs
        self._entry = np.full(grid.num_cells, -1, np.int32)  # cell -> index of its value; -1: none
        self._values = tree.zeros(specs, (0,))
        self._free = np.zeros(0, np.int32)
        self._size = 0  # number of entries, used and free

    def put(self, cells: NDArray, values: Tree) -> None:
        """Set the values [n, ...] of `cells` [n], which have none yet."""
        if len(self._free) < len(cells):
            self._grow(len(cells) - len(self._free))
        entries, self._free = self._free[: len(cells)], self._free[len(cells) :]
        self._entry[cells] = entries
        tree.map(lambda mine, new: mine.__setitem__(entries, new), self._values, values)

    def clear(self, cells: NDArray) -> None:
        """Remove the values of `cells` [...], if any."""
        held = self._entry[cells]
        held = held[held >= 0]
        if len(held):
            self._free = np.concatenate([self._free, held])
            self._entry[cells] = -1

    def has(self, cells: NDArray) -> NDArray:
        return self._entry[cells] >= 0

    def get(self, cells: NDArray, *index: NDArray) -> Tree:
        """Values of `cells` [...], indexed with `index` along their own leading axes."""
        where = (self._entry[cells], *index)
        return tree.map(lambda mine: mine[where], self._values)

    def _grow(self, least: int) -> None:
        more = max(least, self._size, 16)
        self._values = tree.map(
            lambda mine, spec: np.concatenate([mine, np.zeros((more, *spec.shape), spec.dtype)]),
            self._values,
            self._specs,
        )
        self._free = np.concatenate([self._free, np.arange(self._size, self._size + more, dtype=np.int32)])
        self._size += more

    def check_valid(self) -> None:
        entries = np.concatenate([self._entry[self._entry >= 0], self._free])
        require((np.sort(entries) == np.arange(self._size)).all(), "an entry is lost, or has two owners")

    def get_state(self, used: int) -> dict[str, Any]:
        values = {str(i): leaf.copy() for i, leaf in enumerate(tree.leaves(self._values))}
        return {"entry": self._grid.save(self._entry, used), "values": values, "free": self._free.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._entry[:] = -1
        self._grid.load(self._entry, state["entry"])
        leaves = iter([state["values"][str(i)] for i in range(len(state["values"]))])
        self._free = np.array(state["free"], np.int32)
        self._size = int((self._entry >= 0).sum()) + len(self._free)
        self._values = tree.map(lambda spec: _checked(next(leaves), spec, self._size), self._specs)


def _checked(saved: NDArray, spec: ArraySpec, size: int) -> NDArray:
    """Copy saved values [n, ...] after checking their shape, dtype, and that there are at least `size`."""
    if saved.shape[1:] != spec.shape or saved.dtype != spec.dtype or len(saved) < size:
        raise ValueError(f"saved values are {saved.dtype} {saved.shape}, not {size:,} of {spec}")
    return np.array(saved)


class Packed:
    """Like `Sparse`, but with one compressed array per cell."""

    def __init__(self, spec: ArraySpec) -> None:
        self._spec, self._packer = spec, Packer()
        self._values: dict[int, bytes] = {}

    def put(self, cells: NDArray, values: NDArray) -> None:
        for cell, value in zip(cells.tolist(), values, strict=True):
            self._values[cell] = self._packer.pack(value)

    def clear(self, cells: NDArray) -> None:
        for cell in cells.ravel().tolist():
            self._values.pop(cell, None)

    def has(self, cells: NDArray) -> NDArray:
        return np.array([cell in self._values for cell in cells.ravel().tolist()], bool).reshape(cells.shape)

    def get(self, cells: NDArray, *index: NDArray) -> NDArray:
        """Values of `cells` [n], each indexed with `index` [n] along its own leading axes."""
        owners, which = np.unique(cells, return_inverse=True)
        values = [self._packer.unpack(self._values[i], self._spec.shape, self._spec.dtype) for i in owners.tolist()]
        return np.asarray(np.stack(values)[(which, *index)])

    def check_valid(self) -> None:
        require(all(self._values.values()), "a value is empty")

    def get_state(self, used: int) -> dict[str, Any]:
        return {"cells": np.array([*self._values], np.int64), "values": joined([*self._values.values()])}

    def set_state(self, state: dict[str, Any]) -> None:
        self._values = dict(zip(state["cells"].tolist(), parted(state["values"]), strict=True))
        for packed in self._values.values():
            self._packer.check(packed, self._spec.nbytes)
