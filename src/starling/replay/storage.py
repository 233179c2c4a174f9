"""What a table asks of the place where its steps are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from starling.types import Fragment, NDArray, Trajectory


@dataclass(frozen=True)
class Change:
    """What an insertion did to the items: first some die, then others are born (perhaps in the same slots)."""

    dead: NDArray  # [m] int64 slots
    born: NDArray  # [n] int64 slots


@dataclass(frozen=True)
class Items:
    """All items of a ring, by env row and, of a row, in the order of time."""

    slots: NDArray  # [n] int64
    generation: NDArray  # [n] int64
    rows: NDArray  # [n] int64 global env rows
    start: NDArray  # [n] int64: the how-manieth step of its row each begins with
    steps: NDArray  # [n] valid ones


class Storage(Protocol):
    """Keeps steps; an item is a slot and the generation of what is in it."""

    @property
    def slots(self) -> int:
        """Slots are numbered from 0 to this."""
        ...

    @property
    def broken(self) -> int:
        """How often an env row's fragment did not continue the one before."""
        ...

    def append(self, fragment: Fragment, continues: bool) -> Change: ...

    def gather(self, slots: NDArray, with_obs: bool = True) -> Trajectory[NDArray]:
        """Copies of the items in live `slots` [B], as [T, B]; without observations `obs` is None."""
        ...

    def generation(self, slots: NDArray) -> NDArray: ...

    def alive(self, slots: NDArray, generations: NDArray) -> NDArray:
        """Whether these very items are still there, bool [B]."""
        ...

    def release(self, slots: NDArray) -> None: ...

    def check_valid(self) -> None: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...
