"""Writes down what a group of env rows lives through, and hands it out as fragments."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling import tree
from starling.types import EXTRINSIC, EnvStep, Fragment, Layout, NDArray, Trajectory, Tree


def _write(buffer: Tree, t: int, value: Tree) -> None:
    def put(into: NDArray, leaf: Any) -> None:
        into[t] = leaf

    tree.map(put, buffer, value)


class Recorder:
    """One fragment under way for one group of rows; its buffer is reused, so a table must copy on insert.

    The order of calls: `begin`, then `action` and `result` in turns until `full`, then `seal`.
    """

    def __init__(self, layout: Layout, rows: NDArray, length: int, *, actor: int, keep_carries: bool) -> None:
        n, t = len(rows), length
        self.length = length
        self._rows, self._actor = rows, actor
        self._sequence = 0
        self._t = -1  # -1: no fragment is open
        self._steps = Trajectory[NDArray](
            obs=tree.zeros(layout.obs, (t + 1, n)),
            first=np.zeros((t + 1, n), bool),
            action=tree.zeros(layout.action, (t, n)),
            rewards={name: np.zeros((t, n), np.float32) for name in layout.rewards},
            terminated=np.zeros((t, n), bool),
            truncated=np.zeros((t, n), bool),
            valid=np.zeros((t, n), bool),
            extras=tree.zeros(layout.extras, (t + 1, n)),
            carry=tree.zeros(layout.carry, (n,)),
            version=np.zeros(n, np.int64),
        )
        self._carries = tree.zeros(layout.carry, (t + 1, n)) if keep_carries and tree.leaves(layout.carry) else None

    @property
    def open(self) -> bool:
        return self._t >= 0

    @property
    def full(self) -> bool:
        return self._t == self.length

    def begin(self, carry: Tree, version: int) -> None:
        """Open a fragment whose first observation is reached with `carry` [B, ...] under weights `version`."""
        self._t = 0
        self._steps.version[:] = version
        tree.map(np.copyto, self._steps.carry, carry)

    def action(self, obs: Tree, first: NDArray, carry: Tree, action: Tree, extras: Tree) -> None:
        """What was seen and done at this step, [B, ...] each."""
        _write(self._steps.action, self._t, action)
        self._observation(obs, first, carry, extras)

    def result(self, step: EnvStep, rewards: dict[str, NDArray]) -> None:
        """What came of the action; `rewards` are the streams as they are to be learnt from."""
        t, steps = self._t, self._steps
        steps.terminated[t] = step.terminated
        steps.truncated[t] = step.truncated
        steps.valid[t] = step.valid
        for name, reward in rewards.items():
            steps.rewards[name][t] = reward
        self._t += 1

    def seal(self, obs: Tree, first: NDArray, carry: Tree, extras: Tree) -> Fragment:
        """Close the full fragment with the observation that follows its last step."""
        assert self.full, "a fragment is sealed when it is full"
        self._observation(obs, first, carry, extras)
        self._t = -1
        self._sequence += 1
        return Fragment(self._steps, self._rows, self._carries, self._actor, self._sequence)

    def _observation(self, obs: Tree, first: NDArray, carry: Tree, extras: Tree) -> None:
        _write(self._steps.obs, self._t, obs)
        self._steps.first[self._t] = first
        _write(self._steps.extras, self._t, extras)
        if self._carries is not None:
            _write(self._carries, self._t, carry)

    def get_state(self) -> dict[str, Any]:
        arrays = dict(tree.items((self._steps, self._carries)))
        return {"t": self._t, "sequence": self._sequence, "arrays": {k: v.copy() for k, v in arrays.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        self._t, self._sequence = state["t"], state["sequence"]
        for name, array in tree.items((self._steps, self._carries)):
            np.copyto(array, state["arrays"][name])


def learning_rewards(step: EnvStep, clip: float | None) -> dict[str, NDArray]:
    """The extrinsic stream as it is learnt from: clipped here, never in the env, so that scores stay raw."""
    reward = step.reward if clip is None else np.clip(step.reward, -clip, clip)
    return {EXTRINSIC: reward}
