"""Collective operations of the learners that train the same agent, and their trivial form for a single learner.

The form for several is `runtime.distributed_learners`; `runtime.learners_runtime` lists the other files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starling.types import Tensor


class RankLostError(RuntimeError):
    """Another rank is gone or did not answer in time (`late`); the group can no longer be used."""

    def __init__(self, message: str, late: bool) -> None:
        super().__init__(message)
        self.late = late


class LearnerGroup(Protocol):
    """Learners that take every optimizer step together. All of them call the same methods in the same order.

    Methods raise `RankLostError` if another rank is gone; this learner is then in the state before its current
    optimizer step.
    """

    @property
    def size(self) -> int: ...

    def sync_env_steps(self, ready: bool, env_steps: int) -> int | None:
        """Return the env steps of all ranks in total if every rank is `ready` (has a batch), else None."""
        ...

    def total(self, env_steps: int) -> int:
        """The env steps of all ranks in total at the last `sync_env_steps`; `env_steps` are those of this rank."""
        ...

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """All-reduce (sum) in place; the result is bitwise identical on all ranks."""
        ...

    def all_reduce_min(self, value: float) -> float:
        """Return the minimum of the value over all ranks; it waits much longer for them than `all_reduce_sum`."""
        ...

    def all_equal(self, fingerprint: Callable[[], int]) -> bool:
        """Return True if the fingerprint, a number below 2**63, is the same on all ranks."""
        ...


class SingleLearner:
    """A group of one learner."""

    size = 1

    def sync_env_steps(self, ready: bool, env_steps: int) -> int | None:
        return env_steps if ready else None

    def total(self, env_steps: int) -> int:
        return env_steps

    def all_reduce_sum(self, tensor: Tensor) -> None: ...

    def all_reduce_min(self, value: float) -> float:
        return value

    def all_equal(self, fingerprint: Callable[[], int]) -> bool:
        return True
