"""What a run writes down: one flat JSON object a line, and the score of the last hundred episodes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from starling.errors import UserError
from starling.types import Episode

TIMING = "time/"
"""Keys with this prefix depend on the machine's speed; everything else is a function of configuration and seed."""


class Scoreboard:
    """Raw returns of the last `window` episodes that came to their own end."""

    def __init__(self, window: int = 100) -> None:
        self.episodes = 0
        self._totals: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self.episodes += 1
            self._totals.append(episode.total)
            self._lengths.append(episode.length)

    @property
    def full(self) -> bool:
        return len(self._totals) == self._totals.maxlen

    @property
    def counted(self) -> int:
        """Episodes in the mean."""
        return len(self._totals)

    @property
    def mean(self) -> float | None:
        return sum(self._totals) / len(self._totals) if self._totals else None

    def row(self) -> dict[str, Any]:
        length = sum(self._lengths) / len(self._lengths) if self._lengths else None
        longest = max(self._lengths, default=None)
        return {
            "episodes": self.episodes,
            "return": self.mean,
            "episode_length": length,
            "episode_longest": longest,
        }

    def get_state(self) -> dict[str, Any]:
        return {"episodes": self.episodes, "totals": list(self._totals), "lengths": list(self._lengths)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.episodes = state["episodes"]
        self._totals = deque(state["totals"], self._totals.maxlen)
        self._lengths = deque(state["lengths"], self._lengths.maxlen)


class MetricsFile:
    """Appends rows; a resumed run first drops the rows that its checkpoint had not seen."""

    def __init__(self, path: Path, keep_rows: int = 0) -> None:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:keep_rows] if path.exists() else []
        draft = path.with_name(f".{path.name}")
        draft.write_text("".join(lines), encoding="utf-8")
        draft.replace(path)
        self.rows = len(lines)
        self._handle = path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        try:
            self._handle.write(json.dumps(row) + "\n")
            self._handle.flush()
        except OSError as error:
            advice = "make room, then resume the run from its last checkpoint"
            raise UserError(f"cannot write to {self._handle.name}: {error.strerror}; {advice}") from None
        self.rows += 1

    def close(self) -> None:
        with suppress(OSError):  # what could not be written was said
            self._handle.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
