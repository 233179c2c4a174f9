"""Columns of a ring: what it keeps of one observation leaf, every step of every env row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from starling.errors import require
from starling.replay.codec import Cells
from starling.replay.grid import Grid
from starling.types import NDArray


@dataclass(frozen=True)
class Block:
    """T steps and the row after them, of B env rows, as they enter the columns."""

    cells: NDArray  # [T+1, B]
    begins: NDArray  # [T+1, B] bool: a segment (an episode, or what is left of it after a loss) begins here
    joins: NDArray  # [B] bool: row 0 repeats what its cell already holds


@dataclass(frozen=True)
class Run:
    """Windows of T steps, as they leave the columns."""

    cells: NDArray  # [T+1, B]; after a window's end the cell of its final observation is repeated
    steps: NDArray  # [B] valid ones, from 1 to T
    unread: NDArray  # [B] bool: nobody looks at what follows the final observation


class Column(Protocol):
    """An observation leaf of a ring."""

    def write(self, block: Block, values: NDArray) -> None: ...

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        """Whether `values` [B, ...] are, to the bit, what `cells` [B] hold (a stack: its newest frame)."""
        ...

    def gather(self, run: Run) -> NDArray:
        """The observations [T+1, B, ...] of windows; parts may share memory, so nobody writes into them."""
        ...

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

    def __init__(self, values: Cells, grid: Grid) -> None:
        self._values, self._grid = values, grid

    def write(self, block: Block, values: NDArray) -> None:
        write_block(self._values, block, values)

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        return np.asarray((as_words(self._values.take(cells), 1) == as_words(values, 1)).all(axis=1))

    def gather(self, run: Run) -> NDArray:
        return self._values.take(run.cells)

    def check_valid(self, cells: NDArray) -> None:
        require(((cells >= 0) & (cells < self._grid.cells)).all(), "a cell outside the ring")

    def get_state(self, used: int) -> dict[str, Any]:
        return {"values": self._values.get_state(used)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._values.set_state(state["values"])


def write_block(cells: Cells, block: Block, values: NDArray) -> None:
    """Write `values` [T+1, B, ...], row 0 only where it is new."""
    new = ~block.joins
    if new.any():
        cells.write(block.cells[:1, new], values[:1, new])
    cells.write(block.cells[1:], values[1:])
