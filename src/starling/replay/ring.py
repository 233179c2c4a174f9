"""One ring buffer per env: every step is stored once; items are sequences that never cross the end of an episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling import tree
from starling.errors import require
from starling.replay.columns import ReadSpec, WriteSpec
from starling.replay.frames import observation_column
from starling.replay.grid import Grid
from starling.replay.sparse import Sparse
from starling.replay.spec import TableSpec
from starling.replay.storage import Change, Items
from starling.replay.windows import Windows
from starling.types import Fragment, Layout, NDArray, Trajectory, Tree

_FIRST, _TERMINATED, _TRUNCATED = 1, 2, 4
_MOST_ENVS = 2**20  # upper bound on the number of envs of a run


def ring_length(spec: TableSpec, num_envs: int, stack: int = 1) -> int:
    """Cells in one env's ring: its share of the capacity, at least a sequence, a fragment, and a frame stack."""
    return max(spec.capacity // num_envs, spec.length + spec.fragment + stack)


def _checked_env_index(saved: NDArray, most: int) -> NDArray:
    """Check saved global env indices [n]: at most `most`, all different, and in range."""
    env_index = np.array(saved)
    listed = env_index.ndim == 1 and env_index.dtype.kind in "iu"
    if not listed or len(env_index) > most or len(np.unique(env_index)) != len(env_index):
        raise ValueError(f"saved env indices are not up to {most} different integers")
    if len(env_index) and not (env_index.min() >= 0 and env_index.max() < _MOST_ENVS):
        raise ValueError(f"a saved env index is outside [0, {_MOST_ENVS:,})")
    return env_index.astype(np.int64)


class Ring:
    """Steps of `num_envs` envs; the slot of a sequence is the cell of its first step.

    Each fragment ends with an observation that has no action yet, and the next fragment of that env begins with the
    same observation. If it does not (an actor died, a fragment was lost), the earlier steps are closed as if the
    episode had been cut off there, so that a transition that never happened is never sampled.
    """

    def __init__(self, spec: TableSpec, layout: Layout, num_envs: int) -> None:
        stack = layout.stack.n if layout.stack else 1
        grid = Grid(num_envs, ring_length(spec, num_envs, stack))
        paths = iter([path for path, _ in tree.items(layout.obs)])
        self._grid, self._length, self._reads_past_end = grid, spec.length, spec.reads_past_end
        self._longest = grid.length - spec.length - stack  # of a fragment that overwrites no sequence it completes
        self._windows = Windows(grid, spec.length, spec.period, spec.burn_in, stack - 1)
        self._obs: Tree = tree.map(
            lambda leaf: observation_column(next(paths), leaf, layout, grid, spec.codec), layout.obs
        )
        self._arrays: dict[str, Tree] = {
            "extras": tree.zeros(layout.extras, (grid.num_cells,)),
            "action": tree.zeros(layout.action, (grid.num_cells,)),
            "rewards": {name: np.zeros(grid.num_cells, np.float32) for name in layout.rewards},
            "flags": np.zeros(grid.num_cells, np.uint8),
            "policy_version": np.zeros(grid.num_cells, np.int64),
        }
        self._carry = Sparse(layout.carry, grid) if tree.leaves(layout.carry) else None
        self._no_carry = layout.carry
        self._awaits_action = np.zeros(num_envs, bool)  # the newest observation of a ring has no action yet
        self._env_of_ring = np.zeros(0, np.int64)  # global env indices in the order in which they were first seen
        self._ring_of_env = np.zeros(0, np.int64)  # global env index -> ring; -1: not seen
        self._broken = 0

    @property
    def slots(self) -> int:
        return self._grid.num_cells

    @property
    def used(self) -> int:
        """Number of cells in use: env steps and the final observation of every episode."""
        return int(np.minimum(self._windows.head, self._grid.length).sum())

    @property
    def env_index(self) -> NDArray:
        """Global indices [n] of the envs that have a ring here."""
        return self._env_of_ring

    @property
    def broken(self) -> int:
        return self._broken

    def append(self, fragment: Fragment, continues: bool) -> Change:
        """Write a fragment; returns the sequences that were overwritten and those that are now complete."""
        new = fragment.trajectory
        if new.length > self._longest:
            raise ValueError(f"a fragment of {new.length} steps is too long for a ring of {self._grid.length} cells")
        if (new.first[1:] & new.valid).any():
            raise ValueError("an episode begins right after a valid step; its reset must be an invalid step")
        rings = self._rings(fragment.env_index)
        joins = self._joins(rings, new, continues)
        closed = self._close(rings[self._awaits_action[rings] & ~joins])
        begins = new.first.copy()
        begins[0] |= ~joins
        begins[1:] |= ~new.valid
        steps = self._windows.head[rings] + np.arange(new.length + 1)[:, None]  # [T+1, B]
        write = WriteSpec(self._grid.at(rings, steps), begins, joins)
        self._write(write, new)
        if self._carry is not None:
            wanted = self._windows.is_start(rings, steps[:-1], begins[:-1]) & new.valid
            self._write_carries(self._carry, write, wanted, fragment.carries)
        change = self._windows.advance(rings, new.valid, begins)
        self._awaits_action[rings] = True
        if closed is None:
            return change
        return Change(np.concatenate([closed.removed, change.removed]), np.concatenate([closed.added, change.added]))

    def _rings(self, env_index: NDArray) -> NDArray:
        """Rings of global env indices [B]; an env that is seen for the first time gets the next free ring."""
        missing = int(env_index.max()) + 1 - len(self._ring_of_env)
        if missing > 0:
            self._ring_of_env = np.concatenate([self._ring_of_env, np.full(missing, -1)])
        unseen = env_index[self._ring_of_env[env_index] < 0]
        if len(unseen):
            known = len(self._env_of_ring)
            if known + len(unseen) > self._grid.rings:
                raise ValueError(f"more envs than the {self._grid.rings} this ring was made for")
            self._ring_of_env[unseen] = np.arange(known, known + len(unseen))
            self._env_of_ring = np.concatenate([self._env_of_ring, unseen])
        return self._ring_of_env[env_index]

    def _joins(self, rings: NDArray, new: Trajectory[NDArray], continues: bool) -> NDArray:
        """Mask [B]: the first observation of the fragment equals the newest one of its ring, which has no action."""
        joins = self._awaits_action[rings] & continues
        if not joins.any():
            return joins
        cells = self._grid.at(rings, self._windows.head[rings])
        joins &= ((self._arrays["flags"][cells] & _FIRST) != 0) == new.first[0]
        same = tree.map(lambda column, leaf: column.repeats(cells, leaf[0]), self._obs, new.obs)
        for equal in tree.leaves(same):
            joins &= equal
        return joins

    def _close(self, rings: NDArray) -> Change | None:
        """End the segments of these rings; their newest observation becomes the final one."""
        if len(rings) == 0:
            return None
        self._broken += len(rings)
        begins = np.zeros((2, len(rings)), bool)
        begins[1] = True
        return self._windows.advance(rings, np.zeros((1, len(rings)), bool), begins)

    def _write(self, write: WriteSpec, new: Trajectory[NDArray]) -> None:
        cells, taken = write.cells, write.cells[:-1]
        tree.map(lambda column, leaf: column.write(write, leaf), self._obs, new.obs)
        tree.map(lambda mine, leaf: mine.__setitem__(cells, leaf), self._arrays["extras"], new.extras)
        tree.map(lambda mine, leaf: mine.__setitem__(taken, leaf), self._arrays["action"], new.action)
        tree.map(lambda mine, leaf: mine.__setitem__(taken, leaf), self._arrays["rewards"], new.rewards)
        flags = new.first * np.uint8(_FIRST)
        flags[:-1] |= new.terminated * np.uint8(_TERMINATED) | new.truncated * np.uint8(_TRUNCATED)
        self._arrays["flags"][cells] = flags
        self._arrays["policy_version"][taken] = new.policy_version

    def _write_carries(self, carry: Sparse, write: WriteSpec, wanted: NDArray, carries: Tree) -> None:
        """Store the carry where a sequence may start (`wanted` [T, B]); it is dropped when its cell is reused."""
        if carries is None:
            raise ValueError("a ring of recurrent states needs Fragment.carries")
        carry.clear(write.cells)
        where = np.nonzero(wanted)
        carry.put(write.cells[where], tree.map(lambda leaf: leaf[where], carries))

    def gather(self, slots: NDArray, with_obs: bool = True) -> Trajectory[NDArray]:
        """Sequences [T, B] in `slots` [B].

        After the end of a segment, the final observation and its extras are repeated; actions, rewards, and flags are
        zero. If the loss does not read observations after a termination, a frame stack slides on instead: see
        `Stacked`.
        """
        length = self._windows.steps[slots]  # [B]
        step = np.arange(self._length + 1)[:, None]
        cells = self._grid.shift(slots, np.minimum(step, length))  # [T+1, B]
        valid, taken = step[:-1] < length, cells[:-1]  # [T, B]
        past = np.nonzero(~valid)

        def at_taken(array: NDArray) -> NDArray:
            values = array.take(taken, axis=0)
            if len(past[0]):
                values[past] = 0
            return values

        flags = at_taken(self._arrays["flags"])
        first = np.zeros(cells.shape, bool)
        first[0] = (flags[0] & _FIRST) != 0  # only the first step of a sequence can begin an episode
        terminated, version = (flags & _TERMINATED) != 0, at_taken(self._arrays["policy_version"])
        may_slide = np.zeros_like(valid[0]) if self._reads_past_end else terminated.any(axis=0)
        read = ReadSpec(cells, length, may_slide)
        return Trajectory(
            obs=tree.map(lambda column: column.gather(read), self._obs) if with_obs else None,
            first=first,
            action=tree.map(at_taken, self._arrays["action"]),
            rewards=tree.map(at_taken, self._arrays["rewards"]),
            terminated=terminated,
            truncated=(flags & _TRUNCATED) != 0,
            valid=valid,
            extras=tree.map(lambda array: np.take(array, cells, axis=0), self._arrays["extras"]),
            carry=self._no_carry if self._carry is None else self._carry.get(slots),
            policy_version=np.where(valid, version, version[0]).min(axis=0),
        )

    def generation(self, slots: NDArray) -> NDArray:
        return self._windows.generation(slots)

    def alive(self, slots: NDArray, generations: NDArray) -> NDArray:
        return self._windows.alive(slots, generations)

    def items(self) -> Items:
        """All sequences in the ring."""
        slots = np.nonzero(self._windows.steps)[0]
        ring, cell = np.divmod(slots, self._grid.length)
        generation, env_index = self.generation(slots), self._env_of_ring[ring]
        start = generation * self._grid.length + cell
        order = np.lexsort((start, env_index))
        return Items(*(column[order] for column in (slots, generation, env_index, start, self._windows.steps[slots])))

    def release(self, slots: NDArray) -> None:
        self._windows.steps[slots] = 0

    def check_valid(self) -> None:
        self._windows.check_valid()
        require(
            np.array_equal(self._awaits_action, np.arange(self._grid.rings) < len(self._env_of_ring)),
            "a ring without its env",
        )
        require(not self._windows.head[~self._awaits_action].any(), "steps of no env")
        slots = np.nonzero(self._windows.steps)[0]
        begun, open_ = self._windows.unfinished()
        if self._carry is not None:
            self._carry.check_valid()
            require(self._carry.has(np.concatenate([slots, begun])).all(), "a sequence without its carry")
        step = np.minimum(np.arange(self._length + 1)[:, None], self._windows.steps[slots])
        cells = np.concatenate([self._grid.shift(slots, step).ravel(), open_])
        tree.map(lambda column: column.check_valid(cells), self._obs)
        require(
            (self._ring_of_env[self._env_of_ring] == np.arange(len(self._env_of_ring))).all(), "envs and rings disagree"
        )

    def get_state(self) -> dict[str, Any]:
        used = min(self._grid.length, int(self._windows.head.max()) + 1)
        arrays = enumerate(tree.leaves(self._arrays))
        return {
            "windows": self._windows.get_state(used),
            "obs": {str(i): column.get_state(used) for i, column in enumerate(tree.leaves(self._obs))},
            "cells": {str(i): self._grid.save(array, used) for i, array in arrays},
            "carry": None if self._carry is None else self._carry.get_state(used),
            "waiting": self._awaits_action.copy(),
            "env_index": self._env_of_ring.copy(),
            "broken": self._broken,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._windows.set_state(state["windows"])
        for i, column in enumerate(tree.leaves(self._obs)):
            column.set_state(state["obs"][str(i)])
        for i, array in enumerate(tree.leaves(self._arrays)):
            self._grid.load(array, state["cells"][str(i)])
        if self._carry is not None:
            self._carry.set_state(state["carry"])
        self._awaits_action[:] = state["waiting"]
        self._env_of_ring = _checked_env_index(state["env_index"], self._grid.rings)
        self._ring_of_env = np.full(int(self._env_of_ring.max(initial=-1)) + 1, -1)
        self._ring_of_env[self._env_of_ring] = np.arange(len(self._env_of_ring))
        self._broken = int(state["broken"])
