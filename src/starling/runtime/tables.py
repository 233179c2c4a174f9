"""What a hub needs of the tables, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from starling.replay.mixture import Candidates
from starling.types import Fragment, Keys, NDArray, Sample


class Tables(Protocol):
    """See `Store`, which is all of this in one process."""

    env_steps: int

    def begin(self, rows: int) -> bool: ...

    def insert(self, fragment: Fragment) -> None: ...

    def lost(self, rows: int) -> None: ...

    def abandon(self) -> None: ...

    def draw_candidates(self) -> Candidates | None: ...

    def select(self, candidates: Candidates, distances: Mapping[int, NDArray]) -> Sample: ...

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def get_state(self, with_tables: bool) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...
