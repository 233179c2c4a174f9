"""Cells of rings: their numbers, and arrays of them saved in segments; unchanged segments are not saved again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from starling.errors import require, to_count
from starling.state_io import Block, Segmented
from starling.types import NDArray

BLOCK_BYTES = 2**22
LEAST_BYTES = 2**26
"""Bytes of a segment, and of the smallest array that is saved in segments; copying a smaller one is fast."""


@dataclass(frozen=True)
class Grid:
    """`rings` rings of `length` cells each; cells are numbered ring by ring."""

    rings: int
    length: int

    @property
    def num_cells(self) -> int:
        return self.rings * self.length

    def at(self, rings: NDArray, steps: NDArray) -> NDArray:
        """Cells of the absolute `steps` of `rings`."""
        return np.asarray(rings * self.length + steps % self.length)

    def shift(self, cells: NDArray, by: NDArray) -> NDArray:
        """Cells `by` steps later (earlier if negative) in the same rings."""
        begin = cells // self.length * self.length
        return np.asarray(begin + (cells - begin + by) % self.length)

    def save(self, array: NDArray, used: int) -> NDArray:
        """Copy the first `used` cells of every ring: [rings, used, ...]."""
        return array.reshape(self.rings, self.length, *array.shape[1:])[:, :used].copy()

    def load(self, array: NDArray, saved: NDArray) -> None:
        array.reshape(self.rings, self.length, *array.shape[1:])[:, : saved.shape[1]] = saved


class Blocks:
    """Blocks of consecutive cells of every ring; remembers those that have not changed since they were saved."""

    def __init__(self, values: NDArray, grid: Grid) -> None:
        self._values, self._grid = values, grid
        self._length = max(1, BLOCK_BYTES // max(1, values.nbytes // len(values)))  # cells per block
        self._saved: dict[int, Block] = {}  # first cell -> block

    def touch(self, cells: NDArray) -> None:
        """Must be called before the values of `cells` [...] change."""
        if self._saved:
            begins = cells - cells % self._grid.length % self._length
            for begin in set(begins.ravel().tolist()) & self._saved.keys():
                self._saved.pop(begin).detach()

    def forget(self) -> None:
        """Must be called before all values change."""
        for block in self._saved.values():
            block.detach()
        self._saved.clear()

    def get_state(self, used: int) -> dict[str, Any]:
        """State of the first `used` cells of every ring; nothing is copied, see `Block`."""
        parts = tuple(self._block(begin, end).hold() for begin, end in self._ranges(used, self._length))
        return {"used": used, "length": self._length, "parts": Segmented(parts)}

    def _block(self, begin: int, end: int) -> Block:
        view, known = self._values[begin:end], self._saved.get(begin)
        if known is not None and known.size == view.nbytes:
            return known
        if known is not None:
            known.detach()
        block = self._saved[begin] = Block(view)
        return block

    def _ranges(self, used: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield the half-open range of cells of every block of `length` cells."""
        for ring in range(0, self._grid.num_cells, self._grid.length):
            for begin in range(0, used, length):
                yield ring + begin, ring + min(begin + length, used)

    def set_state(self, state: dict[str, Any]) -> None:
        used, length = to_count(state["used"], self._grid.length + 1), to_count(state["length"])
        require(length > 0, "empty blocks")
        ranges = self._ranges(used, length)
        for (begin, end), part in zip(ranges, state["parts"].parts, strict=True):
            view = self._values[begin:end]
            if part.size != view.nbytes:
                raise ValueError(f"a segment of {part.size:,} bytes where {view.nbytes:,} are expected")
            view[:] = np.frombuffer(part.read(), view.dtype).reshape(view.shape)
            if length == self._length:
                self._saved[begin] = Block(view, part.name)
