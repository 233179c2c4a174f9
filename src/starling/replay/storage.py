"""The interface between a table and its storage: `ring.Ring` or `slots.Slots`, see `TableSpec.storage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from starling.types import Fragment, NDArray, Trajectory


@dataclass(frozen=True)
class Change:
    """Effect of an insertion: some items are removed, then others are added, perhaps in the same slots."""

    removed: NDArray  # [m] int64 slots of removed items
    added: NDArray  # [n] int64 slots of new items


@dataclass(frozen=True)
class Items:
    """All items of a ring, sorted by env and time."""

    slots: NDArray  # [n] int64
    generation: NDArray  # [n] int64
    env_index: NDArray  # [n] int64 global env indices
    start: NDArray  # [n] int64: first step of the item, counted from 0 in its env
    steps: NDArray  # [n] number of valid steps


class Storage(Protocol):
    """Stores steps; an item is identified by its slot and the generation of the slot's content."""

    @property
    def slots(self) -> int:
        """Number of slots."""
        ...

    @property
    def broken(self) -> int:
        """Number of times that an env's fragment did not continue the previous one."""
        ...

    def append(self, fragment: Fragment, continues: bool) -> Change:
        """Write a fragment; `continues` is True if it directly follows the actor's previous fragment."""
        ...

    def gather(self, slots: NDArray, with_obs: bool = True) -> Trajectory[NDArray]:
        """Copy the items in live `slots` [B], as [T, B]; `obs` is None if `with_obs` is False."""
        ...

    def generation(self, slots: NDArray) -> NDArray: ...

    def alive(self, slots: NDArray, generations: NDArray) -> NDArray:
        """Mask [B] of the items that still exist."""
        ...

    def release(self, slots: NDArray) -> None:
        """Remove the items in `slots` [n]."""
        ...

    def check_valid(self) -> None: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...
