"""What a learner needs of the other learners that train the same agent; alone it needs nothing of anybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starling.types import Tensor


class RankLostError(RuntimeError):
    """Another rank is gone, or does not answer in time (`late`): nothing more can be done together with these."""

    def __init__(self, message: str, late: bool) -> None:
        super().__init__(message)
        self.late = late


class LearnerGroup(Protocol):
    """Learners that take every step together. All of them call the same methods in the same order.

    Raises `RankLostError` where another rank is gone; this learner is then as it was before its present optimizer step.
    """

    @property
    def size(self) -> int: ...

    def sync_env_steps(self, ready: bool, env_steps: int) -> int | None:
        """The env steps of all ranks together, once every one is ready; else None."""
        ...

    def total(self, env_steps: int) -> int:
        """The env steps of all ranks together, when they last agreed; `env_steps` are those of this one."""
        ...

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Put the sum of the ranks' tensors in its place, the same bits in each."""
        ...

    def all_reduce_min(self, value: float) -> float:
        """The smallest of the ranks' values."""
        ...

    def all_equal(self, fingerprint: Callable[[], int]) -> bool:
        """Whether the number, which must be below 2**63, is the same in all ranks."""
        ...


class SingleLearner:
    """One learner by itself."""

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
