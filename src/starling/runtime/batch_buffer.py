"""Batches for a learner in another process, in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from starling import tree
from starling.replay.spec import TableSpec
from starling.runtime.shared_memory import AnonymousSharedMemory, size_of
from starling.types import ArraySpec, Keys, Layout, NDArray, Sample, Trajectory


@dataclass(frozen=True)
class BatchSlot:
    """Room for one batch and for the priorities that come back. Its leaves are arrays, or their `ArraySpec`."""

    trajectory: Trajectory[Any]  # [T, B]
    probability: Any  # [B] float64
    table_size: Any  # [B] int64
    source: Any  # [B] int64
    priorities: Any  # [B] float64


def batch_spec(tables: Sequence[TableSpec], layout: Layout) -> BatchSlot:
    """What one batch of these tables takes."""
    first = tables[0]
    number, count = (ArraySpec((first.batch,), np.dtype(kind)) for kind in (np.float64, np.int64))
    return BatchSlot(layout.trajectory(first.length, first.batch), number, count, count, number)


class BatchPort:
    """The slots of one learner; it travels to its process when that is started."""

    def __init__(self, spec: BatchSlot, count: int) -> None:
        self._spec, self._count = spec, count
        self._memory = AnonymousSharedMemory(count * size_of(spec))

    def slots(self) -> list[BatchSlot]:
        size = size_of(self._spec)
        return [self._memory.arrays(self._spec, i * size) for i in range(self._count)]


def fill(slot: BatchSlot, sample: Sample) -> None:
    """Copy a batch into its slot."""
    tree.map(np.copyto, slot.trajectory, sample.trajectory)
    for name in ("probability", "table_size", "source"):
        np.copyto(getattr(slot, name), getattr(sample, name))


class Batches(Protocol):
    """The batches that a rank has not learned from yet, as its hub sees them; see `BatchBuffer`."""

    @property
    def free(self) -> list[int]: ...

    @property
    def out(self) -> list[int]: ...

    def write(self, index: int, sample: Sample) -> None: ...

    def update_priorities(self, index: int, with_priorities: bool) -> tuple[Keys, NDArray | None]: ...


class BatchBuffer:
    """The hub's side: the slots with batches that are not learned from yet, and the keys of their items."""

    def __init__(self, port: BatchPort) -> None:
        self._slots = port.slots()
        self._keys: dict[int, Keys] = {}  # of slots that are out, oldest first

    @property
    def free(self) -> list[int]:
        """Slots that can be written into."""
        return [i for i in range(len(self._slots)) if i not in self._keys]

    @property
    def out(self) -> list[int]:
        """Slots whose batch is not learned from yet, oldest first: a learner that begins anew is given them again."""
        return list(self._keys)

    def write(self, index: int, sample: Sample) -> None:
        fill(self._slots[index], sample)
        self._keys[index] = sample.keys

    def update_priorities(self, index: int, with_priorities: bool) -> tuple[Keys, NDArray | None]:
        """The items of a batch and their new priorities; the slot is free again."""
        keys = self._keys.pop(index)
        return keys, self._slots[index].priorities.copy() if with_priorities else None
