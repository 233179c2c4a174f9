"""Time accounting of a role: busy, waiting for input, or waiting until it may pass on its output."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from starling.types import NDArray

CELLS = (
    *("beat", "busy", "wait_in", "wait_out", "env_steps", "calls", "envs", "waited", "budget", "stop"),
    *("weights", "bytes_in", "bytes_out", "publish"),
)
"""Cells of a role, one int64 each; times are in nanoseconds. The role writes all of them except `stop`.

`weights` is the number of updates of the weights that it uses or has published; `bytes_in` counts those of weights,
`bytes_out` those of fragments or published weights; `publish` is the time that the last publication took.
"""

BUSY, WAIT_IN, WAIT_OUT = "busy", "wait_in", "wait_out"
PHASES = (BUSY, WAIT_IN, WAIT_OUT)
_INDEX = {name: i for i, name in enumerate(CELLS)}


class Usage:
    """Counters that a role writes about itself, in shared memory if another process reads them."""

    def __init__(self, cells: NDArray | None = None) -> None:
        self.cells = np.zeros(len(CELLS), np.int64) if cells is None else cells
        self._phase = _INDEX[BUSY]
        self._since = time.monotonic_ns()
        self.cells[0] = self._since

    def enter(self, phase: str) -> None:
        """Enter a phase; also a heartbeat."""
        now = time.monotonic_ns()
        self.cells[self._phase] += now - self._since
        self._phase, self._since = _INDEX[phase], now
        self.cells[0] = now

    def beat(self) -> None:
        """Send a heartbeat without changing the phase."""
        now = time.monotonic_ns()
        self.cells[self._phase] += now - self._since
        self._since = self.cells[0] = now

    def add(self, cell: str, value: int) -> None:
        self.cells[_INDEX[cell]] += value

    def set(self, cell: str, value: int) -> None:
        self.cells[_INDEX[cell]] = value

    @property
    def told_to_stop(self) -> bool:
        return bool(self.cells[_INDEX["stop"]])


def read(cells: NDArray) -> dict[str, int]:
    """Return the cells by name."""
    return dict(zip(CELLS, cells.tolist(), strict=True))


class Shares:
    """Shares of time that roles spent in each phase since the last look."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, dict[str, int]]] = {}

    def look(self, name: str, cells: NDArray) -> dict[str, float]:
        """Return the share of each phase in [0, 1]; empty at the first look."""
        now, values = time.monotonic_ns(), read(cells)
        then, old = self._before.get(name, (now, values))
        self._before[name] = now, values
        return {phase: min(1.0, max(0, values[phase] - old[phase]) / (now - then)) for phase in PHASES if now > then}


def mean(parts: list[dict[str, float]]) -> dict[str, Any]:
    """Mean share of every phase over several roles of one kind."""
    known = [part for part in parts if part]
    return {phase: sum(part[phase] for part in known) / len(known) for phase in PHASES} if known else {}
