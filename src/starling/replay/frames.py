"""Frame stacks in a ring: only the newest frame of each step is stored. Read `columns` first: it defines the words."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from starling.errors import require
from starling.replay.codec import make_cells, pays
from starling.replay.columns import Dense, ReadSpec, WriteSpec, as_words, write_values
from starling.replay.grid import Grid
from starling.replay.sparse import Packed, Sparse
from starling.replay.spec import Codec
from starling.types import ArraySpec, Layout, NDArray, StackSpec


class Stacked:
    """An observation leaf that is a sliding stack of n frames.

    Each step stores its newest frame. The full stack is stored at the start of a segment (some envs pad with zeros
    there, others repeat the first frame) and wherever a stack is not its predecessor shifted by one. Observations are
    restored exactly, bit for bit.

    `gather` reads every frame of a sequence once; neighboring stacks are views of the same frames. If the loss does not
    read past the final observation, the stack slides on with the last frame there, which is a view too, instead of
    being repeated.
    """

    def __init__(self, spec: ArraySpec, stack: StackSpec, grid: Grid, codec: Codec) -> None:
        if spec.shape[stack.axis] % stack.n:
            raise ValueError(f"axis {stack.axis} of a leaf {spec.shape} is not {stack.n} frames")
        rest = spec.shape[: stack.axis] + spec.shape[stack.axis + 1 :]
        frame = ArraySpec((spec.shape[stack.axis] // stack.n, *rest), spec.dtype)
        self._shape, self._axis, self._n, self._grid = spec.shape, stack.axis, stack.n, grid
        self._newest = make_cells(codec, frame, grid)
        self._age = np.zeros(grid.num_cells, np.int16)  # steps since a full stack was stored, at most n-1
        full_stack = ArraySpec((stack.n, *frame.shape), frame.dtype)
        self._full_stacks = Packed(full_stack) if pays(codec, frame.nbytes) else Sparse(full_stack, grid)
        self._warned = False

    def write(self, write: WriteSpec, values: NDArray) -> None:
        frames = self._split(values)  # [T+1, B, n, ...]
        new = np.ones(write.cells.shape, bool)
        new[0] = ~write.joins
        in_full = write.begins.copy()
        in_full[1:] |= ~self._slides(frames, write.begins)
        self._age[write.cells] = self._ages(write, in_full)
        in_full &= new
        write_values(self._newest, write, frames[:, :, -1])
        self._full_stacks.clear(write.cells[new])
        if in_full.any():
            self._full_stacks.put(write.cells[in_full], frames[in_full])

    def _slides(self, frames: NDArray, begins: NDArray) -> NDArray:
        """Mask [T, B]: stacks, but for the first, that are their predecessor shifted by one."""
        words = as_words(frames, 3)
        same = (words[1:, :, :-1] == words[:-1, :, 1:]).all(axis=(2, 3))
        if not self._warned and not (same | begins[1:]).all():
            self._warned = True
            warnings.warn("a frame stack does not slide by one frame per step: stored in full there", stacklevel=6)
        return np.asarray(same)

    def _ages(self, write: WriteSpec, in_full: NDArray) -> NDArray:
        """Steps since the last full stack, at most n-1: [T+1, B]."""
        step = np.arange(len(in_full))[:, None]
        last = np.where(in_full, step, -self._n)  # the step of the last full stack; before step 0 it is negative
        last[0] = np.where(write.joins, -self._age[write.cells[0]], 0)
        return np.minimum(step - np.maximum.accumulate(last, axis=0), self._n - 1)

    def repeats(self, cells: NDArray, values: NDArray) -> NDArray:
        newest = self._split(values[None])[0, :, -1]
        return np.asarray((as_words(self._newest.read(cells), 1) == as_words(newest, 1)).all(axis=1))

    def gather(self, read: ReadSpec) -> NDArray:
        from starling.replay.kernels import locate  # loads numba, which only frame stacks need

        n, sequences = self._n, len(read.steps)
        cells = np.empty((sequences, len(read.cells) + n - 1), np.int64)  # of each frame
        from_full = np.empty((2, sequences * (n - 1)), np.int64)  # (frame, sequence): only a full stack has the frame
        irregular = np.empty(sequences, bool)  # sequences with stacks that are not views of `frames`
        count = locate(
            read.cells[0],
            read.steps,
            read.may_slide,
            self._age,
            self._grid.length,
            n,
            out_cells=cells,
            out_from_full=from_full,
            out_irregular=irregular,
        )
        frames = self._newest.read(cells.T)  # [T+n, B, frame]
        if count:
            frame, sequence = from_full[:, :count]
            age = self._age[read.cells[0, sequence]]
            frames[frame, sequence] = self._full_stacks.get(
                self._grid.shift(read.cells[0, sequence], -age), frame + age
            )
        stacks = np.lib.stride_tricks.as_strided(
            frames,
            (*read.cells.shape, n, *frames.shape[2:]),
            (*frames.strides[:2], frames.strides[0], *frames.strides[2:]),
        )  # [T+1, B, n, frame]: frame i of stack t is frames[t + i]
        if irregular.any():
            stacks = stacks.copy()
            stacks[:, irregular] = self._one_by_one(read.cells[:, irregular])
        return self._join(stacks)

    def _one_by_one(self, cells: NDArray) -> NDArray:
        """Stacks [T+1, B, n, frame] of `cells` [T+1, B], each gathered separately."""
        since = self._age[cells][..., None]  # [T+1, B, 1] steps since a full stack was stored
        ago = np.arange(self._n - 1, -1, -1)  # steps since each frame was the newest, oldest frame first
        back = np.minimum(ago, since)  # [T+1, B, n]
        out = self._newest.read(self._grid.shift(cells[..., None], -back))  # [T+1, B, n, frame]
        from_full = np.nonzero(ago > since)  # frames older than the last full stack are taken from it
        if len(from_full[0]):
            owner = self._grid.shift(cells[from_full[:-1]], -back[from_full])
            out[from_full] = self._full_stacks.get(owner, from_full[-1] + back[from_full])
        return out

    def _split(self, values: NDArray) -> NDArray:
        """Reshape [T, B, leaf] to [T, B, n, frame]: the stacked axis goes first and is split into n frames."""
        moved = np.moveaxis(values, 2 + self._axis, 2)
        return moved.reshape(*moved.shape[:2], self._n, moved.shape[2] // self._n, *moved.shape[3:])

    def _join(self, frames: NDArray) -> NDArray:
        """Reshape [T, B, n, frame] back to [T, B, leaf]."""
        merged = frames.reshape(*frames.shape[:2], self._n * frames.shape[3], *frames.shape[4:])
        return merged if self._axis == 0 else np.moveaxis(merged, 2, 2 + self._axis)

    def check_valid(self, cells: NDArray) -> None:
        self._full_stacks.check_valid()
        since = self._age[cells]
        begun = since < self._n - 1
        owner = self._grid.shift(cells[begun], -since[begun].astype(np.int64))
        require(self._full_stacks.has(owner).all(), "a stack whose beginning is gone")

    def get_state(self, used: int) -> dict[str, Any]:
        return {
            "newest": self._newest.get_state(used),
            "since": self._grid.save(self._age, used),
            "full_stacks": self._full_stacks.get_state(used),
            "warned": self._warned,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._newest.set_state(state["newest"])
        self._grid.load(self._age, state["since"])
        require(((self._age >= 0) & (self._age < self._n)).all(), "a stack of impossible age")
        self._full_stacks.set_state(state["full_stacks"])
        self._warned = bool(state["warned"])


def observation_column(path: str, spec: ArraySpec, layout: Layout, grid: Grid, codec: Codec) -> Dense | Stacked:
    """Build the column of one observation leaf: `Stacked` if the layout declares it as a frame stack."""
    if layout.stack is not None and layout.stack.path == path:
        return Stacked(spec, layout.stack, grid, codec)
    return Dense(make_cells(codec, spec, grid), grid)
