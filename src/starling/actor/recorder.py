"""Records the steps of a group of envs into fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from starling import tree
from starling.errors import to_count
from starling.types import EXTRINSIC, ArraySpec, EnvStep, Fragment, Layout, NDArray, Trajectory, Tree


@dataclass(frozen=True)
class FragmentBuffer:
    """Memory for one fragment, written by a recorder; see also `FragmentBufferSpec`."""

    steps: Trajectory[Any]
    carries: Tree  # [T+1, B, ...] the carry before every obs; None if no ring stores recurrent states


FragmentBufferSpec = FragmentBuffer
"""A `FragmentBuffer` before allocation: each leaf is an `ArraySpec` instead of an array."""


@dataclass(frozen=True)
class FragmentShape:
    """Length of fragments and layout of their steps."""

    layout: Layout
    length: int
    keep_carries: bool

    def buffer(self, num_envs: int) -> FragmentBufferSpec:
        """The arrays of a fragment of `num_envs` envs."""
        lead = (self.length + 1, num_envs)
        wanted = self.keep_carries and bool(tree.leaves(self.layout.carry))
        carries = tree.map(lambda s: ArraySpec(lead + s.shape, s.dtype), self.layout.carry) if wanted else None
        return FragmentBuffer(self.layout.trajectory(self.length, num_envs), carries)


def _write(buffer: Tree, t: int, value: Tree) -> None:
    def put(into: NDArray, leaf: Any) -> None:
        into[t] = leaf

    tree.map(put, buffer, value)


class Recorder:
    """Records one fragment at a time of one group of envs, into a buffer that the caller lends.

    Order of calls: `begin`, then `action` and `result` alternately until `full`, then `seal`.
    """

    def __init__(self, shape: FragmentShape, env_index: NDArray, *, actor_id: int) -> None:
        self._shape, self._env_index, self._actor_id = shape, env_index, actor_id
        self._buffer: FragmentBuffer | None = None  # None: no fragment is open
        self._sequence = 0
        self._t = 0

    @property
    def open(self) -> bool:
        return self._buffer is not None

    @property
    def full(self) -> bool:
        return self.open and self._t == self._shape.length

    @property
    def _steps(self) -> Trajectory[NDArray]:
        assert self._buffer is not None, "no fragment is open"
        return self._buffer.steps

    def begin(self, buffer: FragmentBuffer, carry: Tree, policy_version: int) -> None:
        """Open a fragment that begins with `carry` [B, ...]; the weights of its first action have `policy_version`."""
        self._buffer, self._t = buffer, 0
        buffer.steps.policy_version[:] = policy_version
        tree.map(np.copyto, buffer.steps.carry, carry)

    def action(self, obs: Tree, first: NDArray, carry: Tree, action: Tree, extras: Tree) -> None:
        """Record the observation, action, and extras of this step, [B, ...] each."""
        _write(self._steps.action, self._t, action)
        self._observation(obs, first, carry, extras)

    def result(self, step: EnvStep, rewards: dict[str, NDArray]) -> None:
        """Record the result of the action; `rewards` are those to learn from, per stream."""
        t, steps = self._t, self._steps
        steps.terminated[t] = step.terminated
        steps.truncated[t] = step.truncated
        steps.valid[t] = step.valid
        for name, reward in rewards.items():
            steps.rewards[name][t] = reward
        self._t += 1

    def seal(self, obs: Tree, first: NDArray, carry: Tree, extras: Tree) -> Fragment:
        """Close a full fragment with the observation after its last step; its arrays are those of the buffer."""
        assert self._buffer is not None, "a fragment is sealed when it is full"
        assert self.full, "a fragment is sealed when it is full"
        self._observation(obs, first, carry, extras)
        buffer, self._buffer = self._buffer, None
        self._sequence += 1
        return Fragment(buffer.steps, self._env_index, buffer.carries, self._actor_id, self._sequence)

    def abandon(self) -> None:
        """Discard the open fragment."""
        self._buffer = None

    def _observation(self, obs: Tree, first: NDArray, carry: Tree, extras: Tree) -> None:
        assert self._buffer is not None, "no fragment is open"
        steps = self._buffer.steps
        _write(steps.obs, self._t, obs)
        steps.first[self._t] = first
        _write(steps.extras, self._t, extras)
        if self._buffer.carries is not None:
            _write(self._buffer.carries, self._t, carry)

    def get_state(self) -> dict[str, Any]:
        arrays = {name: array.copy() for name, array in tree.items(self._buffer)}
        return {"t": self._t, "sequence": self._sequence, "arrays": arrays}

    def set_state(self, state: dict[str, Any]) -> None:
        self._t, self._sequence = to_count(state["t"], self._shape.length + 1), to_count(state["sequence"])
        self._buffer = None
        if state["arrays"]:
            self._buffer = tree.zeros(self._shape.buffer(len(self._env_index)))
            for name, array in tree.items(self._buffer):
                np.copyto(array, state["arrays"][name])
            to_count(self._t, self._shape.length)  # a full fragment is sealed before anything is saved


def learning_rewards(step: EnvStep, clip: float | None) -> dict[str, NDArray]:
    """The extrinsic rewards to learn from; they are clipped here and not in the env, so that scores stay raw."""
    reward = step.reward if clip is None else np.clip(step.reward, -clip, clip)
    return {EXTRINSIC: reward}
