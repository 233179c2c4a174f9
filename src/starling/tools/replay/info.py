"""Statistics of a replay: its size, the age of its steps, the returns of its episodes, and its priorities."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from starling.experiment.saved_replay.from_checkpoint import SavedReplay
from starling.experiment.saved_replay.steps import Steps, read_steps
from starling.replay.table import Table
from starling.types import EXTRINSIC, NDArray

BINS = 10


@dataclass(frozen=True)
class Histogram:
    """Counts of priorities between edges that are equally spaced on a log scale."""

    edges: list[float]  # [k+1]
    counts: list[int]  # [k]


@dataclass(frozen=True)
class Spread:
    """Mean and quantiles of a number."""

    mean: float
    median: float
    ninety: float  # 90% quantile
    most: float


@dataclass(frozen=True)
class TableInfo:
    """Statistics of one table."""

    name: str
    sampler: str
    codec: str
    items: int
    steps: int  # covered by its items
    capacity: int  # in steps
    bytes: int  # in memory
    episodes: int  # complete ones
    mean_return: float | None  # of these, with rewards as used in learning: clipped to env.reward_clip
    mean_length: float | None
    age: Spread | None  # updates since a step was taken
    priorities: Histogram | None  # None: not prioritized, or no items


def describe(replay: SavedReplay) -> list[TableInfo]:
    return [_describe(table, replay.updates) for table in replay.store.mixture.tables]


def _describe(table: Table, updates: int) -> TableInfo:
    assert table.ring is not None
    tally = _Tally()
    ages = [np.zeros(0, np.int64)]
    for steps in read_steps(table):
        tally.add(steps)
        ages.append(updates - steps.policy_version[steps.valid])
    age = np.concatenate(ages)
    priorities = table.priorities(table.ring.items().slots) if table.spec.sampler == "prioritized" else None
    return TableInfo(
        name=table.spec.name,
        sampler=table.spec.sampler,
        codec=table.spec.codec,
        items=table.size,
        steps=len(age),
        capacity=table.spec.capacity,
        bytes=held_bytes(table),
        episodes=len(tally.returns),
        mean_return=float(np.mean(tally.returns)) if tally.returns else None,
        mean_length=float(np.mean(tally.lengths)) if tally.lengths else None,
        age=_spread(age) if len(age) else None,
        priorities=None if priorities is None or not len(priorities) else histogram(priorities),
    )


class _Tally:
    """Collect the returns and lengths of episodes that are in a replay from their first step to their last."""

    def __init__(self) -> None:
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self._total, self._length = 0.0, 0
        self._whole = False  # the current stretch began with an episode's first step

    def add(self, steps: Steps) -> None:
        reward = steps.rewards[EXTRINSIC].tolist()
        ended = (steps.terminated | steps.truncated).tolist()
        for first, valid, r, end in zip(steps.first.tolist(), steps.valid.tolist(), reward, ended, strict=True):
            if first:
                self._total, self._length, self._whole = 0.0, 0, True
            if not valid:
                self._whole = False
                continue
            self._total, self._length = self._total + r, self._length + 1
            if end and self._whole:
                self.returns.append(self._total)
                self.lengths.append(self._length)
                self._whole = False


def _spread(values: NDArray) -> Spread:
    median, ninety, most = np.quantile(values, [0.5, 0.9, 1.0]).tolist()
    return Spread(float(values.mean()), median, ninety, most)


def histogram(priorities: NDArray) -> Histogram:
    """Return the histogram of positive priorities [n] in `BINS` bins; in one bin if all are equal."""
    low, high = float(priorities.min()), float(priorities.max())
    if low == high:
        return Histogram([low, high], [len(priorities)])
    edges = np.geomspace(low, high, BINS + 1)
    which = np.clip(np.searchsorted(edges, priorities, side="right") - 1, 0, BINS - 1)
    return Histogram(edges.tolist(), np.bincount(which, minlength=BINS).tolist())


def held_bytes(thing: Any) -> int:
    """Return the bytes of all arrays and bytes objects that an object of the store holds, each counted once."""
    seen: dict[int, Any] = {}
    return _held(thing, seen)


def _held(thing: Any, seen: dict[int, Any]) -> int:
    if isinstance(thing, np.ndarray):
        while isinstance(thing.base, np.ndarray):
            thing = thing.base
    if id(thing) in seen:
        return 0
    seen[id(thing)] = thing
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if isinstance(thing, bytes):
        return sys.getsizeof(thing)
    if isinstance(thing, dict):
        return sum(_held(value, seen) for value in thing.values())
    if isinstance(thing, list | tuple):
        return 8 * len(thing) + sum(_held(value, seen) for value in thing)
    ours = type(thing).__module__.startswith("starling.replay")
    return sum(_held(value, seen) for value in vars(thing).values()) if ours and hasattr(thing, "__dict__") else 0
