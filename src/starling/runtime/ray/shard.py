"""A replay shard in a Ray actor: the tables for some of the envs; does not import Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from starling.actor.recorder import FragmentBuffer
from starling.replay.mixture import Mixture
from starling.state_io import Joined, Segment, Segmented
from starling.types import Fragment, Keys, NDArray, Sample


class ShardArgs(Protocol):
    """Settings of the tables of a shard; see `launch.ray`."""

    def build(self) -> Mixture: ...


@dataclass(frozen=True)
class ShardSpec:
    """A shard: its tables, its envs, and the state that it starts with."""

    args: ShardArgs
    env_index: NDArray  # [n] int64: global env indices
    state: dict[str, Any] | None


@dataclass(frozen=True)
class Empty:
    """A fragment without its arrays: its envs, its actor id, and its sequence number."""

    env_index: NDArray  # [B] int64: global env indices
    actor_id: int
    sequence: int


@dataclass(frozen=True)
class Holds:
    """The current contents of a shard."""

    sizes: tuple[int, ...]  # items in each table
    metrics: dict[str, int]


@dataclass(frozen=True)
class Listed:
    """Stands for a segment of a state, which stays in the shard until it is released."""

    number: int
    size: int
    name: str | None


class Shard:
    """Methods are called over Ray, one after the other."""

    def __init__(self, spec: ShardSpec) -> None:
        self._tables: Mixture = spec.args.build()
        self._env_index = spec.env_index
        self._held: dict[int, Segment] = {}
        self._number = 0
        if spec.state is not None:
            self._tables.set_state(spec.state)
            self._tables.check_valid()

    def beat(self) -> Holds:
        """Return the current contents; also serves as a heartbeat."""
        return Holds(self._tables.sizes, self._tables.metrics())

    def insert(self, empty: Empty, buffer: FragmentBuffer) -> tuple[int, Holds]:
        """Insert a fragment, given its arrays; return its number of valid steps, 0 if it is a duplicate."""
        before = self._tables.steps
        local_index = np.searchsorted(self._env_index, empty.env_index)  # among the envs of this shard
        self._tables.insert(Fragment(buffer.steps, local_index, buffer.carries, empty.actor_id, empty.sequence))
        return self._tables.steps - before, self.beat()

    def sample(self, n: int) -> Sample | None:
        return self._tables.sample(n)

    def reprioritize(self, keys: Keys, priorities: NDArray) -> None:
        self._tables.reprioritize(keys, priorities)

    def get_state(self) -> dict[str, Any]:
        """Return the state of all tables with a `Listed` in place of every segment; see `read` and `release`."""
        listed: dict[str, Any] = _replace_segments(self._tables.get_state(), self._list)
        return listed

    def _list(self, segment: Segment) -> Listed:
        self._number += 1
        self._held[self._number] = segment
        return Listed(self._number, segment.size, segment.name)

    def read(self, number: int) -> bytes:
        """Return the bytes of a segment as of the time of `get_state`."""
        return self._held[number].read()

    def release(self, number: int, name: str | None) -> None:
        """Release a segment that was written under this name, or is no longer needed (None)."""
        segment = self._held.pop(number)
        segment.name = name
        segment.release()

    def stop(self) -> None: ...


def _replace_segments(state: Any, by: Any) -> Any:
    if isinstance(state, dict):
        return {key: _replace_segments(value, by) for key, value in state.items()}
    return Segmented(tuple(by(part) for part in state.parts)) if isinstance(state, Segmented) else state


def sendable(state: dict[str, Any]) -> dict[str, Any]:
    """Return a saved state with the bytes of its segments loaded."""
    filled: dict[str, Any] = _replace_segments(state, lambda part: Joined((part.read(),), part.name))
    return filled


def attached(state: dict[str, Any], attach: Any) -> dict[str, Any]:
    """Return a result of `Shard.get_state` with every `Listed` replaced by the segment `attach(listed)`."""
    whole: dict[str, Any] = _replace_segments(state, attach)
    return whole
