"""Metrics of a run: rows as JSON lines, each a flat object, and the mean return of the last hundred episodes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from starling.errors import UserError
from starling.experiment.run_folder.disk import GrowingFile, publish
from starling.experiment.run_folder.rows import Row, Rows, damage_line, to_json
from starling.types import Episode

_NOT_JSON = re.compile(rb"NaN|Infinity")
TIMING = "time/"
"""Keys with this prefix depend on the machine's speed; all others are a function of configuration and seed."""


class Scoreboard:
    """Raw returns and lengths of the last `window` finished episodes."""

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
        """Number of episodes in the mean."""
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
    """Append rows to a file; a resumed run first removes rows that are newer than its checkpoint, at `env_steps`."""

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None],
        keep_rows: int = 0,
        env_steps: int = 0,
        see: Callable[[Row], None] = lambda row: None,
    ) -> None:
        """Keep at most `keep_rows` rows, none later than `env_steps` even if some are damaged; pass each to `see`."""
        self.rows = 0
        kept, found = bytearray(), Rows(path)
        for line, row in found.lines() if path.exists() else ():
            if self.rows < keep_rows and row["env_steps"] <= env_steps:
                self.rows += 1
                kept += _line(row) if _NOT_JSON.search(line) else line.rstrip(b"\r\n") + b"\n"
                see(row)
        try:
            publish(path, memoryview(kept))
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}; make room, then try again") from None
        if found.damaged:
            warn(f"warning: {damage_line(path, found.damaged)}")
        self._file = GrowingFile(path, warn)

    def write(self, row: Row) -> None:
        """Append a row as one line, which is readable when this returns; on a full disk it is buffered in memory."""
        self._file.append(_line(row))
        self.rows += 1

    @property
    def failure(self) -> str | None:
        """Reason why rows could not be written yet, or None."""
        return self._file.failure

    def sync(self) -> None:
        """Sync the rows to disk."""
        self._file.sync()

    def close(self) -> None:
        self._file.flush()


def _line(row: Row) -> bytes:
    return to_json(row) + b"\n"


def read_rows(path: Path) -> list[Row]:
    """Return all undamaged rows."""
    return list(Rows(path))
