"""Captures what the processes of a node print, for the driver's run folder."""

from __future__ import annotations

import os
import threading
from collections import deque

MOST_LINES = 200
"""Lines kept between two calls of `lines`; further ones are only counted."""


class Output:
    """Captures stdout and stderr of this process and of those that it starts from now on."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        self._lines: deque[str] = deque()
        self._dropped = 0
        threading.Thread(target=self._read, args=(reading,), name="output", daemon=True).start()

    def lines(self) -> list[str]:
        """The lines since the last call."""
        found = [self._lines.popleft() for _ in range(len(self._lines))]
        dropped, self._dropped = self._dropped, 0
        return found + ([f"({dropped} more lines)"] if dropped else [])

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, errors="replace") as source:
            for line in source:
                if len(self._lines) < MOST_LINES:
                    self._lines.append(line.rstrip())
                else:
                    self._dropped += 1
