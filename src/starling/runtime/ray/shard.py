"""A part of the replay in a Ray actor of its own: the tables of some env rows. Ray itself is not known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from starling.actor.recorder import FragmentBuffer
from starling.replay.mixture import Mixture
from starling.segments import Joined, Segment, Segmented
from starling.types import Fragment, Keys, NDArray, Sample


class ShardArgs(Protocol):
    """Settings of the tables of a shard; see `launch.ray`."""

    def build(self) -> Mixture: ...


@dataclass(frozen=True)
class ShardSpec:
    """A shard: its tables, its envs, and the state that it starts with."""

    args: ShardArgs
    rows: NDArray  # [n] int64: global env rows
    state: dict[str, Any] | None


@dataclass(frozen=True)
class Empty:
    """A fragment without its arrays: whose rows they are, who made it, and its how-manieth."""

    rows: NDArray  # [B] int64: global env rows
    actor: int
    sequence: int


@dataclass(frozen=True)
class Holds:
    """What is in a shard now."""

    sizes: tuple[int, ...]  # items in each table
    metrics: dict[str, int]


@dataclass(frozen=True)
class Listed:
    """A segment of a state that stays with the shard until it is read or released."""

    number: int
    size: int
    name: str | None


class Shard:
    """Methods are called over Ray, one after the other."""

    def __init__(self, spec: ShardSpec) -> None:
        self._tables: Mixture = spec.args.build()
        self._rows = spec.rows
        self._held: dict[int, Segment] = {}
        self._number = 0
        if spec.state is not None:
            self._tables.set_state(spec.state)
            self._tables.check_valid()

    def beat(self) -> Holds:
        """What is in it; also a sign of life."""
        return Holds(self._tables.sizes, self._tables.metrics())

    def insert(self, empty: Empty, buffer: FragmentBuffer) -> tuple[int, Holds]:
        """Copy a fragment in, whose arrays came apart from it; gives its valid steps, 0 where it had come before."""
        before = self._tables.steps
        rows = np.searchsorted(self._rows, empty.rows)
        self._tables.insert(Fragment(buffer.steps, rows, buffer.carries, empty.actor, empty.sequence))
        return self._tables.steps - before, self.beat()

    def sample(self, n: int) -> Sample | None:
        return self._tables.sample(n)

    def reprioritize(self, keys: Keys, priorities: NDArray) -> None:
        self._tables.reprioritize(keys, priorities)

    def get_state(self) -> dict[str, Any]:
        """The state of all tables, in which a `Listed` stands for every segment; see `read` and `release`."""
        listed: dict[str, Any] = _replace_segments(self._tables.get_state(), self._list)
        return listed

    def _list(self, segment: Segment) -> Listed:
        self._number += 1
        self._held[self._number] = segment
        return Listed(self._number, segment.size, segment.name)

    def read(self, number: int) -> bytes:
        """The bytes of a segment as they were when the state was taken."""
        return self._held[number].read()

    def release(self, number: int, name: str | None) -> None:
        """A segment was written under this name, or is not wanted any more."""
        segment = self._held.pop(number)
        segment.name = name
        segment.release()

    def stop(self) -> None: ...


def _replace_segments(state: Any, by: Any) -> Any:
    if isinstance(state, dict):
        return {key: _replace_segments(value, by) for key, value in state.items()}
    return Segmented(tuple(by(part) for part in state.parts)) if isinstance(state, Segmented) else state


def sendable(state: dict[str, Any]) -> dict[str, Any]:
    """A saved state with the bytes of its segments in it."""
    filled: dict[str, Any] = _replace_segments(state, lambda part: Joined((part.read(),), part.name))
    return filled


def attached(state: dict[str, Any], attach: Any) -> dict[str, Any]:
    """What `Shard.get_state` gave, with segments that `attach` makes of every `Listed`."""
    whole: dict[str, Any] = _replace_segments(state, attach)
    return whole
