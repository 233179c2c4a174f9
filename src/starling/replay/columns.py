"""Columns of a ring: each stores one observation leaf for every step of every env.

From the outside in:

- A `Ring` has one ring of *cells* per env; a cell is the place of one step. `Grid` numbers the cells of all rings.
- A `Column` stores one leaf of the observations in all cells: `Dense` has one value per cell, `frames.Stacked` has one
  frame per cell, from which it restores frame stacks. A `WriteSpec` says in which cells observations are written, a
  `ReadSpec` from which they are read.
- A column keeps its values in `codec.Cells`: `Plain` is one array, `Chunked` compresses a few steps at a time. Values
  that only a few cells have, such as whole frame stacks, are in `sparse.Sparse` (an array) or `sparse.Packed`
  (compressed).
- For checkpoints, `grid.Blocks` splits a plain array into pieces, each a `state_io.Block`; only those that changed are
  written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from starling.errors import require
from starling.replay.codec import Cells
from starling.replay.grid import Grid
from starling.types import NDArray


@dataclass(frozen=True)
class WriteSpec:
    """Position of T + 1 observations of B envs that are written to the columns."""

    cells: NDArray  # [T+1, B]
    begins: NDArray  # [T+1, B] bool: a segment (an episode, or the rest of one after a lost fragment) begins here
    joins: NDArray  # [B] bool: the first observation is already stored in its cell


@dataclass(frozen=True)
class ReadSpec:
    """Position of B sequences of T steps that are read from the columns."""

    cells: NDArray  # [T+1, B]; after the end of a sequence, the cell of its final observation is repeated
    steps: NDArray  # [B] number of valid steps, from 1 to T
    may_slide: NDArray  # [B] bool: nothing is read past the final observation, so that a stack may slide on there


class Column(Protocol):
    """An observation leaf of a ring."""

    def write(self, write: WriteSpec, values: NDArray) -> None: ...

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        """Mask [B]: `values` [B, ...] are bitwise equal to those in `cells` [B] (of a stack, the newest frame)."""
        ...

    def gather(self, read: ReadSpec) -> NDArray:
        """Observations [T+1, B, ...] of sequences; they may share memory and must not be modified."""
        ...

    def check_valid(self, cells: NDArray) -> None:
        """Check that all `cells` can be gathered."""
        ...

    def get_state(self, used: int) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


def as_words(values: NDArray, lead: int) -> NDArray:
    """View the axes after the first `lead` as one axis of words, for bitwise comparison (NaN equals NaN)."""
    flat = np.ascontiguousarray(values).reshape(*values.shape[:lead], -1).view(np.uint8)
    return flat.view(np.uint64) if flat.shape[-1] % 8 == 0 else flat


class Dense:
    """One value per cell."""

    def __init__(self, values: Cells, grid: Grid) -> None:
        self._values, self._grid = values, grid

    def write(self, write: WriteSpec, values: NDArray) -> None:
        write_values(self._values, write, values)

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        return np.asarray((as_words(self._values.read(cells), 1) == as_words(values, 1)).all(axis=1))

    def gather(self, read: ReadSpec) -> NDArray:
        return self._values.read(read.cells)

    def check_valid(self, cells: NDArray) -> None:
        require(((cells >= 0) & (cells < self._grid.num_cells)).all(), "a cell outside the ring")

    def get_state(self, used: int) -> dict[str, Any]:
        return {"values": self._values.get_state(used)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._values.set_state(state["values"])


def write_values(cells: Cells, write: WriteSpec, values: NDArray) -> None:
    """Write `values` [T+1, B, ...]; the first observation only if it is not stored yet."""
    new = ~write.joins
    if new.any():
        cells.write(write.cells[:1, new], values[:1, new])
    cells.write(write.cells[1:], values[1:])
