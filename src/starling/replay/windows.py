"""Tracks the sequences of a ring: added when complete, removed when their first steps are overwritten."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling.errors import require
from starling.replay.grid import Grid
from starling.replay.storage import Change
from starling.types import NDArray

_NEVER = np.iinfo(np.int64).max // 2


class Windows:
    """Sequences of `length` steps, one every `period` steps of a segment.

    All but the first sequence of a segment have a valid step after the first `burn_in` steps. A segment is an
    uninterrupted run of steps of one env, usually an episode. Steps are numbered from 0 in each env; a sequence is
    identified by the cell of its first step. The `history` cells before a sequence must be present too: they hold the
    frames of its first stack.
    """

    def __init__(self, grid: Grid, length: int, period: int, burn_in: int, history: int) -> None:
        self._grid, self._length, self._period, self._burn_in, self._history = grid, length, period, burn_in, history
        self.head = np.zeros(grid.rings, np.int64)  # absolute step of the newest observation, which has no action yet
        self._start = np.zeros(grid.rings, np.int64)  # first step of the segment that `head` belongs to
        self.steps = np.zeros(grid.num_cells, np.int32)  # valid steps of the sequence that starts in a cell; 0: none

    def advance(self, rings: NDArray, valid: NDArray, begins: NDArray) -> Change:
        """Advance `rings` [B] by T steps; `valid` [T, B] marks real steps, `begins` [T+1, B] the starts of segments."""
        removed = self._overwrite(rings, len(valid))
        head = self.head[rings]  # [B]
        now = head + np.arange(len(valid))[:, None]  # [T, B]
        opened = np.where(begins[:-1], now, 0)
        opened[0] = self._start[rings]  # equals `head` if a segment begins there
        segment = np.maximum.accumulate(opened, axis=0)  # [T, B] first step of each step's segment
        ends = np.where(valid, _NEVER, now)
        ends = np.minimum.accumulate(ends[::-1], axis=0)[::-1]  # [T, B] the next invalid step at or after each
        added = self._complete(rings, head, segment, ends)
        self._start[rings] = np.where(begins[-1], head + len(valid), segment[-1])
        self.head[rings] = head + len(valid)
        return Change(removed, added)

    def _overwrite(self, rings: NDArray, count: int) -> NDArray:
        """Remove the sequences whose steps or history the next `count` steps overwrite; returns their slots [m]."""
        oldest = self.head[rings] - self._grid.length + 1 + self._history
        cells = self._grid.at(rings, oldest + np.arange(count)[:, None])
        removed = cells[self.steps[cells] > 0]
        self.steps[removed] = 0
        return removed

    def _complete(self, rings: NDArray, head: NDArray, segment: NDArray, ends: NDArray) -> NDArray:
        """Add the sequences whose last step, or end of segment, is among the new steps; returns their slots [n]."""
        earlier = self._length - 1  # number of starts before the new steps that may be incomplete
        if earlier:
            # They are in the segment of the first new step, or ended with an earlier segment.
            segment = np.concatenate([np.broadcast_to(segment[:1], (earlier, len(rings))), segment])
            ends = np.concatenate([np.broadcast_to(ends[:1], (earlier, len(rings))), ends])
        start = head - earlier + np.arange(len(segment))[:, None]  # [T + length - 1, B]
        full = start + self._length <= head + len(segment) - earlier
        least = start + np.where(start == segment, 0, self._burn_in)
        made = (full | (ends < start + self._length)) & (least < ends) & (start >= segment)
        if self._period > 1:
            made &= (start - segment) % self._period == 0
        cells = self._grid.at(rings, start)[made]
        self.steps[cells] = np.minimum(self._length, (ends - start)[made])
        return cells

    def is_start(self, rings: NDArray, steps: NDArray, begins: NDArray) -> NDArray:
        """Mask [T, B]: a sequence may start at these `steps` [T, B], which are the next ones of `rings` [B]."""
        opened = np.where(begins, steps, 0)
        opened[0] = self._start[rings]
        return np.asarray((steps - np.maximum.accumulate(opened, axis=0)) % self._period == 0)

    def generation(self, slots: NDArray) -> NDArray:
        """Number of times the ring had wrapped around when the newest step in each slot was written."""
        head = self.head[slots // self._grid.length]
        start = head - (head - slots) % self._grid.length
        return np.asarray(start // self._grid.length)

    def alive(self, slots: NDArray, generations: NDArray) -> NDArray:
        return np.asarray((self.steps[slots] > 0) & (self.generation(slots) == generations))

    def unfinished(self) -> tuple[NDArray, NDArray]:
        """Cells [n] at which incomplete sequences start, and the newest cells [m] of open segments, up to T per ring.

        Rings that were never written have none.
        """
        step = self.head[:, None] - np.arange(self._length)  # [rings, T], the newest first
        own = (step >= self._start[:, None]) & (self.head[:, None] > 0)
        begins = own & ((step - self._start[:, None]) % self._period == 0) & (step < self.head[:, None])
        cells = self._grid.at(np.arange(self._grid.rings)[:, None], step)
        return cells[begins], cells[own]

    def check_valid(self) -> None:
        require(((self._start >= 0) & (self._start <= self.head) & (self.head < 2**62)).all(), "an impossible step")
        cells = np.nonzero(self.steps)[0]
        head = self.head[cells // self._grid.length]
        start = self.generation(cells) * self._grid.length + cells % self._grid.length
        require((self.steps >= 0).all(), "a sequence of negative length")
        require((self.steps[cells] <= self._length).all(), "a sequence is too long")
        require((start + self.steps[cells] <= head).all(), "a sequence ends in the future")
        require((start - self._history > head - self._grid.length).all(), "a sequence's first steps are overwritten")
        require((start >= 0).all(), "a sequence before the beginning")

    def get_state(self, used: int) -> dict[str, Any]:
        return {"head": self.head.copy(), "start": self._start.copy(), "steps": self._grid.save(self.steps, used)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.head[:], self._start[:] = state["head"], state["start"]
        self.steps[:] = 0
        self._grid.load(self.steps, state["steps"])
