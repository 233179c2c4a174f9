"""A sliding stack of frames, of which a ring keeps only the newest a step."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from starling.store.columns import Block, Dense, Grid, Sparse, as_words
from starling.types import ArraySpec, NDArray, StackSpec


class Stacked:
    """An observation leaf whose n frames slide: the newest is kept every step, all of them where a stack begins anew.

    A stack begins anew where a segment does (some envs pad with zeros there, others repeat the first frame) and
    wherever it is not its predecessor shifted by one. What comes out is what went in, to the bit.
    """

    def __init__(self, spec: ArraySpec, stack: StackSpec, grid: Grid) -> None:
        if spec.shape[stack.axis] % stack.n:
            raise ValueError(f"axis {stack.axis} of a leaf {spec.shape} is not {stack.n} frames")
        rest = spec.shape[: stack.axis] + spec.shape[stack.axis + 1 :]
        frame = ArraySpec((spec.shape[stack.axis] // stack.n, *rest), spec.dtype)
        self._shape, self._axis, self._n, self._grid = spec.shape, stack.axis, stack.n, grid
        self._newest = np.zeros((grid.cells, *frame.shape), frame.dtype)
        self._since = np.zeros(grid.cells, np.int16)  # steps since a whole stack was kept, at most n-1
        self._whole = Sparse(ArraySpec((stack.n, *frame.shape), frame.dtype), grid)
        self._warned = False

    def write(self, block: Block, values: NDArray) -> None:
        frames = self._split(values)  # [T+1, B, n, ...]
        new = np.ones(block.cells.shape, bool)
        new[0] = ~block.joins
        whole = block.begins.copy()
        whole[1:] |= ~self._slides(frames, block.begins)
        self._since[block.cells] = self._count_since(block, whole)
        whole &= new
        self._newest[block.cells[1:]] = frames[1:, :, -1]
        if new[0].any():
            self._newest[block.cells[0, new[0]]] = frames[0, new[0], -1]
        self._whole.clear(block.cells[new])
        if whole.any():
            self._whole.put(block.cells[whole], frames[whole])

    def _slides(self, frames: NDArray, begins: NDArray) -> NDArray:
        """Whether every stack but the first is its predecessor shifted by one, bool [T, B]."""
        words = as_words(frames, 3)
        same = (words[1:, :, :-1] == words[:-1, :, 1:]).all(axis=(2, 3))
        if not self._warned and not (same | begins[1:]).all():
            self._warned = True
            warnings.warn("a frame stack does not slide by one frame a step; it is stored whole there", stacklevel=6)
        return np.asarray(same)

    def _count_since(self, block: Block, whole: NDArray) -> NDArray:
        """Steps since the last whole stack, at most n-1: [T+1, B]."""
        step = np.arange(len(whole))[:, None]
        last = np.where(whole, step, -self._n)  # the step of the last whole stack; before step 0 it is negative
        last[0] = np.where(block.joins, -self._since[block.cells[0]], 0)
        return np.minimum(step - np.maximum.accumulate(last, axis=0), self._n - 1)

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        newest = self._split(values[None])[0, :, -1]
        return np.asarray((as_words(self._newest[cells], 1) == as_words(newest, 1)).all(axis=1))

    def gather(self, cells: NDArray) -> NDArray:
        since = self._since[cells][..., None]  # [..., 1]
        age = np.arange(self._n - 1, -1, -1)  # of each frame, oldest first
        back = np.minimum(age, since)  # [..., n]
        out = np.take(self._newest, self._grid.shift(cells[..., None], -back), axis=0)  # [..., n, frame]
        early = np.nonzero(age > since)  # older than the last whole stack: they stand in that stack
        if len(early[0]):
            owner = self._grid.shift(cells[early[:-1]], -back[early])
            out[early] = self._whole.get(owner, early[-1] + back[early])
        return self._join(out, cells.ndim)

    def _split(self, values: NDArray) -> NDArray:
        """[T, B, leaf] to [T, B, n, frame]: the stacked axis first, in n parts."""
        moved = np.moveaxis(values, 2 + self._axis, 2)
        return moved.reshape(*moved.shape[:2], self._n, moved.shape[2] // self._n, *moved.shape[3:])

    def _join(self, frames: NDArray, lead: int) -> NDArray:
        """[..., n, frame] back to [..., leaf]."""
        width = frames.shape[lead] * frames.shape[lead + 1]
        merged = frames.reshape(*frames.shape[:lead], width, *frames.shape[lead + 2 :])
        return np.moveaxis(merged, lead, lead + self._axis)

    def check_valid(self, cells: NDArray) -> None:
        self._whole.check_valid()
        since = self._since[cells]
        assert ((since >= 0) & (since < self._n)).all(), "a stack of impossible age"
        begun = since < self._n - 1
        owner = self._grid.shift(cells[begun], -since[begun].astype(np.int64))
        assert self._whole.has(owner).all(), "a stack whose beginning is gone"

    def get_state(self, used: int) -> dict[str, Any]:
        return {
            "newest": self._grid.save(self._newest, used),
            "since": self._grid.save(self._since, used),
            "whole": self._whole.get_state(used),
            "warned": self._warned,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._grid.load(self._newest, state["newest"])
        self._grid.load(self._since, state["since"])
        self._whole.set_state(state["whole"])
        self._warned = bool(state["warned"])


def observation_column(path: str, spec: ArraySpec, stack: StackSpec | None, grid: Grid) -> Dense | Stacked:
    """The column for one observation leaf: a stack where `stack` names it."""
    return Stacked(spec, stack, grid) if stack is not None and stack.path == path else Dense(spec, grid)
