"""Maps the steps of rings to cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starling.types import NDArray


@dataclass(frozen=True)
class Grid:
    """`rows` rings of `length` cells each; cells are numbered ring by ring."""

    rows: int
    length: int

    @property
    def cells(self) -> int:
        return self.rows * self.length

    def at(self, rows: NDArray, steps: NDArray) -> NDArray:
        """Cells of the absolute `steps` of `rows`."""
        return np.asarray(rows * self.length + steps % self.length)

    def shift(self, cells: NDArray, by: NDArray) -> NDArray:
        """Cells `by` steps later (earlier if negative) in the same rings."""
        begin = cells // self.length * self.length
        return np.asarray(begin + (cells - begin + by) % self.length)

    def save(self, array: NDArray, used: int) -> NDArray:
        """Copy the first `used` cells of every ring: [rows, used, ...]."""
        return array.reshape(self.rows, self.length, *array.shape[1:])[:, :used].copy()

    def load(self, array: NDArray, saved: NDArray) -> None:
        array.reshape(self.rows, self.length, *array.shape[1:])[:, : saved.shape[1]] = saved
