"""Data that all packages share: `Trajectory`, `Batch`, and the descriptions of envs, streams, and layouts.

Shapes: T steps, B envs or sequences. Leaves are numpy arrays up to the store and tensors from the learner on, hence the
type parameter of `Trajectory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from gymnasium import spaces

Tree = Any
"""A nested dict or tuple of arrays of one kind; see `starling.tree`."""

NDArray = np.ndarray[Any, np.dtype[Any]]
Tensor = torch.Tensor
A = TypeVar("A", NDArray, Tensor)

EXTRINSIC = "extrinsic"
"""The name of the environment's own reward stream."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array, without the axes of time and batch."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class StackSpec:
    """An observation leaf that is a sliding stack: `n` frames along `axis` (0 = first axis of the leaf)."""

    path: str
    axis: int
    n: int


@dataclass(frozen=True)
class EnvSpec:
    """An environment as algorithms see it: its id and the spaces of one env."""

    id: str
    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    stack: StackSpec | None = None
    frames_per_step: int = 1


@dataclass(frozen=True)
class StreamSpec:
    """A reward stream: discount, lambda, whether it ends with the episode, and its weight in the policy's loss."""

    name: str = EXTRINSIC
    discount: float = 0.99
    lambda_: float = 1.0
    episodic: bool = True
    weight: float = 1.0


@dataclass(frozen=True)
class EnvStep:
    """One step of B envs: the results of the last actions, and the observations that follow.

    The step after the end of an episode is a reset: its action is ignored, `valid` is False, and `first` is True.
    """

    obs: Tree  # [B, ...] seen now
    first: NDArray  # [B] bool: obs begins an episode
    reward: NDArray  # [B] float32: the env's own, never clipped
    terminated: NDArray  # [B] bool: the last action ended the episode
    truncated: NDArray  # [B] bool: the last action was cut off
    valid: NDArray  # [B] bool: the last action was taken (False: it was a reset)
    cut_short: NDArray  # [B] bool: truncated by `env.stagger`, not by the env: the episode counts in no score


@dataclass(frozen=True)
class Episode:
    """An episode that the env ended, with its raw return."""

    env_index: int
    total: float
    length: int


@dataclass(frozen=True)
class Resets:
    """Times t > 0 at which an episode begins in some row of a batch, found on the host; others may be among them.

    A recurrent core runs from one of them to the next. To find them in `first` on a GPU, the host would have to wait.
    """

    times: tuple[int, ...]

    @classmethod
    def of(cls, first: NDArray) -> Resets:
        """The resets of `first` [T, B] bool."""
        return cls(tuple((np.flatnonzero(first[1:].any(1)) + 1).tolist()))

    def between(self, start: int, stop: int) -> Resets:
        """The resets after `start` and before `stop`, counted from `start`."""
        return Resets(tuple(t - start for t in self.times if start < t < stop))


@dataclass(frozen=True)
class Trajectory(Generic[A]):
    """T steps of B envs. A transition, a sequence, and a rollout differ only in T."""

    obs: Tree  # [T+1, B, ...] seen before action[t]
    first: A  # [T+1, B] bool: the recurrent state is reset before obs[t]
    action: Tree  # [T, B, ...] in the policy's own units
    rewards: dict[str, A]  # [T, B] float32 per stream
    terminated: A  # [T, B] bool: bootstrap with 0
    truncated: A  # [T, B] bool: bootstrap with V(obs[t+1])
    valid: A  # [T, B] bool: False on resets and padding
    extras: Tree  # [T+1, B, ...] recorded outputs of act(): logits, q, features
    carry: Tree  # [B, ...] BEFORE obs[0]: recurrent state, previous action, previous rewards
    policy_version: A  # [B] int64: learner updates that had produced the oldest weights that acted
    resets: Resets | None = None  # of `first`, in batches on a device that the host should not wait for

    ONCE_A_ROW: ClassVar[tuple[str, ...]] = ("carry", "policy_version")  # [B, ...]; all other fields are time-major

    @property
    def length(self) -> int:
        return int(self.valid.shape[0])

    @property
    def batch_size(self) -> int:
        """B: envs of a fragment, items of a batch."""
        return int(self.valid.shape[1])


@dataclass(frozen=True)
class Fragment:
    """A trajectory as an actor sends it to the tables, with its origin."""

    trajectory: Trajectory[NDArray]
    env_index: NDArray  # [B] int64: global env indices
    carries: Tree = None  # [T+1, B, ...] the carry before every obs, if a ring stores recurrent states
    actor_id: int = 0  # see `GroupSpec.actor_id`; inserts are idempotent by (actor_id, sequence)
    sequence: int = 0


@dataclass(frozen=True)
class Layout:
    """The arrays of one step of one env, as `ArraySpec` trees; found by calling `act()` once."""

    obs: Tree
    action: Tree
    rewards: tuple[str, ...]
    extras: Tree
    carry: Tree
    stack: StackSpec | None = None

    def trajectory(self, length: int, num_envs: int) -> Trajectory[Any]:
        """The `ArraySpec` of every array in a trajectory of `length` steps of `num_envs` envs."""

        def each(specs: Tree, *lead: int) -> Tree:
            if isinstance(specs, ArraySpec):
                return ArraySpec(lead + specs.shape, specs.dtype)
            if isinstance(specs, dict):
                return {name: each(spec, *lead) for name, spec in specs.items()}
            return None if specs is None else tuple(each(spec, *lead) for spec in specs)

        flag, number = ArraySpec((), np.dtype(np.bool_)), ArraySpec((), np.dtype(np.float32))
        return Trajectory(
            obs=each(self.obs, length + 1, num_envs),
            first=each(flag, length + 1, num_envs),
            action=each(self.action, length, num_envs),
            rewards={name: each(number, length, num_envs) for name in self.rewards},
            terminated=each(flag, length, num_envs),
            truncated=each(flag, length, num_envs),
            valid=each(flag, length, num_envs),
            extras=each(self.extras, length + 1, num_envs),
            carry=each(self.carry, num_envs),
            policy_version=ArraySpec((num_envs,), np.dtype(np.int64)),
        )


@dataclass(frozen=True)
class Keys:
    """Keys of items in tables; stale keys (of an older generation) are ignored and counted."""

    shard: NDArray  # [B] int64
    table: NDArray  # [B] int64
    slot: NDArray  # [B] int64
    generation: NDArray  # [B] int64

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(frozen=True)
class Progress:
    """Training progress; published with the weights."""

    env_steps: int = 0
    updates: int = 0
    fraction: float = 0.0  # of the planned length of the run, at most 1; 0 if that is unknown


@dataclass(frozen=True)
class RunLength:
    """The planned length of a run, which `Progress.fraction` and schedules refer to.

    It is in env steps or, if those are None, in updates; if both are None, it is unknown.
    """

    env_steps: int | None = None
    updates: int | None = None
    planned_updates: int = 1  # in the whole run
    updates_per_step: float = 1.0  # planned updates per env step

    def progress(self, env_steps: int, updates: int) -> Progress:
        """The progress after so many env steps and updates."""
        done, whole = (env_steps, self.env_steps) if self.env_steps is not None else (updates, self.updates)
        return Progress(env_steps, updates, 0.0 if whole is None else min(1.0, done / whole))


@dataclass(frozen=True)
class Sample:
    """Items that were sampled from the tables, with their probabilities."""

    trajectory: Trajectory[NDArray]
    keys: Keys
    probability: NDArray  # [B] float64: probability of each item in one draw
    table_size: NDArray  # [B] int64: items that could have been drawn
    source: NDArray  # [B] int64: index of the table in the mixture


@dataclass(frozen=True)
class Batch:
    """Input of a loss: tensors on the learner's device."""

    trajectory: Trajectory[Tensor]
    weight: Tensor  # [B] importance weights, largest 1
    source: Tensor  # [B] int64: index of the table in the mixture
    progress: Progress
    generator: torch.Generator  # for losses that sample; reseeded in every update, so it is in no checkpoint
    prepared: Tree = None  # [T, B, ...] added by prepare(), e.g. advantages and value targets
