"""Columns of a ring: an array with a cell for every kept step of every env row, and values for a few of the cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from starling import tree
from starling.types import ArraySpec, NDArray, Tree


@dataclass(frozen=True)
class Grid:
    """`rows` rings of `length` cells; cells are numbered row by row."""

    rows: int
    length: int

    @property
    def cells(self) -> int:
        return self.rows * self.length

    def at(self, rows: NDArray, steps: NDArray) -> NDArray:
        """The cells of absolute `steps` of `rows`."""
        return np.asarray(rows * self.length + steps % self.length)

    def shift(self, cells: NDArray, by: NDArray) -> NDArray:
        """The cells `by` steps later (earlier, where negative) in the same rings."""
        begin = cells // self.length * self.length
        return np.asarray(begin + (cells - begin + by) % self.length)

    def save(self, array: NDArray, used: int) -> NDArray:
        """A copy of the first `used` cells of every ring, [rows, used, ...]."""
        return array.reshape(self.rows, self.length, *array.shape[1:])[:, :used].copy()

    def load(self, array: NDArray, saved: NDArray) -> None:
        array.reshape(self.rows, self.length, *array.shape[1:])[:, : saved.shape[1]] = saved


@dataclass(frozen=True)
class Block:
    """T steps and the row after them, of B env rows, as they enter the columns."""

    cells: NDArray  # [T+1, B]
    begins: NDArray  # [T+1, B] bool: a segment (an episode, or what is left of it after a loss) begins here
    joins: NDArray  # [B] bool: row 0 repeats what its cell already holds


class Column(Protocol):
    """An observation leaf of a ring."""

    def write(self, block: Block, values: NDArray) -> None: ...

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        """Whether `values` [B, ...] are, to the bit, what `cells` [B] hold (a stack: its newest frame)."""
        ...

    def gather(self, cells: NDArray) -> NDArray: ...

    def check_valid(self, cells: NDArray) -> None:
        """Every one of `cells` can be gathered."""
        ...

    def get_state(self, used: int) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


def as_words(values: NDArray, lead: int) -> NDArray:
    """The bytes behind the first `lead` axes as one axis of words, for comparing to the bit (NaN equals NaN)."""
    flat = np.ascontiguousarray(values).reshape(*values.shape[:lead], -1).view(np.uint8)
    return flat.view(np.uint64) if flat.shape[-1] % 8 == 0 else flat


class Dense:
    """One value a cell."""

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self._grid = grid
        self._values = np.zeros((grid.cells, *spec.shape), spec.dtype)

    def write(self, block: Block, values: NDArray) -> None:
        self._values[block.cells[1:]] = values[1:]
        if not block.joins.all():
            self._values[block.cells[0, ~block.joins]] = values[0, ~block.joins]

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        return np.asarray((as_words(self._values[cells], 1) == as_words(values, 1)).all(axis=1))

    def gather(self, cells: NDArray) -> NDArray:
        return np.take(self._values, cells, axis=0)

    def check_valid(self, cells: NDArray) -> None:
        assert ((cells >= 0) & (cells < self._grid.cells)).all(), "a cell outside the ring"

    def get_state(self, used: int) -> dict[str, Any]:
        return {"values": self._grid.save(self._values, used)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._grid.load(self._values, state["values"])


class Sparse:
    """Values for a few of the cells, in an array that grows; freed entries are used again."""

    def __init__(self, specs: Tree, grid: Grid) -> None:
        self._grid = grid
        self._specs = specs
        self._entry = np.full(grid.cells, -1, np.int32)  # of a cell: where its value is, -1: none
        self._values = tree.zeros(specs, (0,))
        self._free = np.zeros(0, np.int32)
        self._size = 0  # entries there are, used and free

    def put(self, cells: NDArray, values: Tree) -> None:
        """Give `cells` [n], which hold none, their values [n, ...]."""
        if len(self._free) < len(cells):
            self._grow(len(cells) - len(self._free))
        entries, self._free = self._free[: len(cells)], self._free[len(cells) :]
        self._entry[cells] = entries
        tree.map(lambda mine, new: mine.__setitem__(entries, new), self._values, values)

    def clear(self, cells: NDArray) -> None:
        """Take the values of `cells` [...] away, where there are any."""
        held = self._entry[cells]
        held = held[held >= 0]
        if len(held):
            self._free = np.concatenate([self._free, held])
            self._entry[cells] = -1

    def has(self, cells: NDArray) -> NDArray:
        return self._entry[cells] >= 0

    def get(self, cells: NDArray, *index: NDArray) -> Tree:
        """The values of `cells` [...], at `index` of their own leading axes."""
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
        assert (np.sort(entries) == np.arange(self._size)).all(), "an entry is lost, or has two owners"

    def get_state(self, used: int) -> dict[str, Any]:
        values = {str(i): leaf.copy() for i, leaf in enumerate(tree.leaves(self._values))}
        return {"entry": self._grid.save(self._entry, used), "values": values, "free": self._free.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._entry[:] = -1
        self._grid.load(self._entry, state["entry"])
        leaves = iter([state["values"][str(i)] for i in range(len(state["values"]))])
        self._values = tree.map(lambda _: np.array(next(leaves)), self._specs)
        self._free = np.array(state["free"])
        self._size = int((self._entry >= 0).sum()) + len(self._free)
