"""Which windows of a ring exist: born when complete, dead when their first steps are overwritten."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling.errors import require
from starling.replay.grid import Grid
from starling.replay.storage import Change
from starling.types import NDArray

_NEVER = np.iinfo(np.int64).max // 2


class Windows:
    """Windows of `length` steps, every `period` steps of a segment.

    But for a segment's first, they have a valid step after the first `prefix`.
    A segment is what one env row did without a break: an episode, mostly. Steps have absolute numbers, counted from
    0 in every env row; a window is named by the cell of its first step. `history` cells before a window must be there
    for it to be whole (the frames of its first stack).
    """

    def __init__(self, grid: Grid, length: int, period: int, prefix: int, history: int) -> None:
        self._grid, self._length, self._period, self._prefix, self._history = grid, length, period, prefix, history
        self.head = np.zeros(grid.rows, np.int64)  # absolute step of the row that waits for its action
        self._start = np.zeros(grid.rows, np.int64)  # first step of the segment that `head` belongs to
        self.steps = np.zeros(grid.cells, np.int32)  # valid steps of the window that begins in a cell, 0: none does

    def advance(self, rows: NDArray, valid: NDArray, begins: NDArray) -> Change:
        """Move `rows` [B] on by T steps, of which `valid` [T, B] were taken; segments begin at `begins` [T+1, B]."""
        dead = self._overwrite(rows, len(valid))
        head = self.head[rows]  # [B]
        now = head + np.arange(len(valid))[:, None]  # [T, B]
        opened = np.where(begins[:-1], now, 0)
        opened[0] = self._start[rows]  # it is `head` itself where a segment begins there
        segment = np.maximum.accumulate(opened, axis=0)  # [T, B] first step of the segment that each is in
        ends = np.where(valid, _NEVER, now)
        ends = np.minimum.accumulate(ends[::-1], axis=0)[::-1]  # [T, B] the next invalid step, from each on
        born = self._complete(rows, head, segment, ends)
        self._start[rows] = np.where(begins[-1], head + len(valid), segment[-1])
        self.head[rows] = head + len(valid)
        return Change(dead, born)

    def _overwrite(self, rows: NDArray, count: int) -> NDArray:
        """Kill the windows that lose a step of theirs or of their history when `count` steps follow: slots [m]."""
        oldest = self.head[rows] - self._grid.length + 1 + self._history
        cells = self._grid.at(rows, oldest + np.arange(count)[:, None])
        dead = cells[self.steps[cells] > 0]
        self.steps[dead] = 0
        return dead

    def _complete(self, rows: NDArray, head: NDArray, segment: NDArray, ends: NDArray) -> NDArray:
        """Make the windows of which the last step, or the end of their segment, is among the new steps: slots [n]."""
        earlier = self._length - 1  # so many starts before the new steps may still be incomplete
        if earlier:
            # They are in the segment of the first new step, or were ended with an earlier one.
            segment = np.concatenate([np.broadcast_to(segment[:1], (earlier, len(rows))), segment])
            ends = np.concatenate([np.broadcast_to(ends[:1], (earlier, len(rows))), ends])
        start = head - earlier + np.arange(len(segment))[:, None]  # [T + length - 1, B]
        full = start + self._length <= head + len(segment) - earlier
        least = start + np.where(start == segment, 0, self._prefix)
        made = (full | (ends < start + self._length)) & (least < ends) & (start >= segment)
        if self._period > 1:
            made &= (start - segment) % self._period == 0
        cells = self._grid.at(rows, start)[made]
        self.steps[cells] = np.minimum(self._length, (ends - start)[made])
        return cells

    def is_start(self, rows: NDArray, steps: NDArray, begins: NDArray) -> NDArray:
        """Whether a window may begin at these `steps` [T, B], the next ones of `rows` [B]: bool [T, B]."""
        opened = np.where(begins, steps, 0)
        opened[0] = self._start[rows]
        return np.asarray((steps - np.maximum.accumulate(opened, axis=0)) % self._period == 0)

    def generation(self, slots: NDArray) -> NDArray:
        """How often the ring had come round when the newest step in each slot was written."""
        head = self.head[slots // self._grid.length]
        start = head - (head - slots) % self._grid.length
        return np.asarray(start // self._grid.length)

    def alive(self, slots: NDArray, generations: NDArray) -> NDArray:
        return np.asarray((self.steps[slots] > 0) & (self.generation(slots) == generations))

    def unfinished(self) -> tuple[NDArray, NDArray]:
        """The cells of steps with which windows may begin that are not complete yet, and of those that wait: [n], [m].

        There is none of a ring that was never written.
        """
        step = self.head[:, None] - np.arange(self._length)  # [rows, T], the newest first
        own = (step >= self._start[:, None]) & (self.head[:, None] > 0)
        begins = own & ((step - self._start[:, None]) % self._period == 0) & (step < self.head[:, None])
        cells = self._grid.at(np.arange(self._grid.rows)[:, None], step)
        return cells[begins], cells[own]

    def check_valid(self) -> None:
        require(((self._start >= 0) & (self._start <= self.head) & (self.head < 2**62)).all(), "an impossible step")
        cells = np.nonzero(self.steps)[0]
        head = self.head[cells // self._grid.length]
        start = self.generation(cells) * self._grid.length + cells % self._grid.length
        require((self.steps >= 0).all(), "a window of less than no step")
        require((self.steps[cells] <= self._length).all(), "a window is too long")
        require((start + self.steps[cells] <= head).all(), "a window ends in the future")
        require((start - self._history > head - self._grid.length).all(), "a window's first steps are overwritten")
        require((start >= 0).all(), "a window before the beginning")

    def get_state(self, used: int) -> dict[str, Any]:
        return {"head": self.head.copy(), "start": self._start.copy(), "steps": self._grid.save(self.steps, used)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.head[:], self._start[:] = state["head"], state["start"]
        self.steps[:] = 0
        self._grid.load(self.steps, state["steps"])
