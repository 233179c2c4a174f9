"""Random play of an Atari game, recorded once and inserted into replays repeatedly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from gymnasium import spaces

from starling.actor.noise import seeds
from starling.config.env import EnvConfig
from starling.envs.registry import make_env
from starling.types import EXTRINSIC, ArraySpec, EnvStep, Fragment, Layout, NDArray, StackSpec, Trajectory

STACK, SIZE = 4, 84
FRAGMENT = 16
LAYOUT = Layout(
    obs=ArraySpec((STACK, SIZE, SIZE), np.dtype(np.uint8)),
    action=ArraySpec((), np.dtype(np.int64)),
    rewards=(EXTRINSIC,),
    extras={},
    carry={},
    stack=StackSpec("", 0, STACK),
)


@dataclass(frozen=True)
class Recording:
    """N steps of B envs, with only the newest frame of every stack: stacks of the ALE start an episode with zeros."""

    frames: NDArray  # [N+1, B, 84, 84] uint8
    first: NDArray  # [N+1, B] bool
    action: NDArray  # [N, B] int64
    reward: NDArray  # [N, B] float32
    terminated: NDArray  # [N, B] bool
    truncated: NDArray  # [N, B] bool
    valid: NDArray  # [N, B] bool

    @property
    def num_envs(self) -> int:
        return int(self.action.shape[1])

    def stacks(self, begin: int, end: int) -> NDArray:
        """Return the observations of steps `begin` to `end`, exclusive, [end - begin, B, 4, 84, 84]."""
        past = np.arange(begin, end)[:, None] - np.arange(STACK - 1, -1, -1)  # [k, 4]
        stacks: NDArray = self.frames[np.maximum(past, 0)].swapaxes(1, 2)  # [k, B, 4, 84, 84]
        stacks[past[:, None] < self._start[begin:end, :, None]] = 0
        return stacks

    @cached_property
    def _start(self) -> NDArray:
        """First step of the episode of each step, [N+1, B]."""
        return np.asarray(np.maximum.accumulate(np.where(self.first, np.arange(len(self.first))[:, None], 0)))

    def of_env(self, index: int) -> Recording:
        """Return the recording of a single env."""
        return Recording(**{field.name: getattr(self, field.name)[:, index : index + 1] for field in fields(self)})

    def fragments(self) -> Iterator[Fragment]:
        """Yield fragments as actors would insert them, repeating the recording indefinitely."""
        starts = range(0, len(self.action) - FRAGMENT + 1, FRAGMENT)
        for sequence, begin in enumerate(itertools.cycle(starts)):
            yield Fragment(self._trajectory(begin, begin + FRAGMENT), np.arange(self.num_envs), sequence=sequence)

    def _trajectory(self, begin: int, end: int) -> Trajectory[NDArray]:
        part = slice(begin, end)
        return Trajectory(
            obs=self.stacks(begin, end + 1),
            first=self.first[begin : end + 1].copy(),
            action=self.action[part],
            rewards={EXTRINSIC: self.reward[part]},
            terminated=self.terminated[part],
            truncated=self.truncated[part],
            valid=self.valid[part],
            extras={},
            carry={},
            policy_version=np.zeros(self.num_envs, np.int64),
        )


def record(game: str, steps: int, num_envs: int = 8) -> Recording:
    """Record about `steps` env steps of random actions in `num_envs` envs of `ALE/<game>-v5`.

    The last step is marked as terminated, since Atari games are hardly ever truncated.
    """
    env = make_env(EnvConfig(id=f"ALE/{game}-v5", num=num_envs), num_envs)
    count = -(-steps // (num_envs * FRAGMENT)) * FRAGMENT
    kept = _empty(count, num_envs)
    assert isinstance(env.spec.action, spaces.Discrete), "the ALE's own actions"
    kept.action[:] = np.random.default_rng(0).integers(0, env.spec.action.n, kept.action.shape)
    try:
        _see(kept, 0, env.reset(seeds(0, np.arange(num_envs), 0)))
        for t in range(count):
            step = env.step(kept.action[t])
            _see(kept, t + 1, step)
            kept.reward[t] = np.clip(step.reward, -1, 1)
            kept.terminated[t], kept.truncated[t], kept.valid[t] = step.terminated, step.truncated, step.valid
    finally:
        env.close()
    kept.terminated[-1] = kept.valid[-1]
    return kept


def _empty(count: int, num_envs: int) -> Recording:
    flags = [np.empty((count, num_envs), bool) for _ in range(3)]
    frames, first = np.empty((count + 1, num_envs, SIZE, SIZE), np.uint8), np.empty((count + 1, num_envs), bool)
    return Recording(
        frames, first, np.empty((count, num_envs), np.int64), np.empty((count, num_envs), np.float32), *flags
    )


def _see(kept: Recording, t: int, step: EnvStep) -> None:
    kept.frames[t], kept.first[t] = step.obs[:, -1], step.first
