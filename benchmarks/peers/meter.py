"""Shared by all peers: counting steps after a warm-up, and printing the result as a line of JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from machine import describe


@dataclass(frozen=True)
class Mark:
    """The number of agent steps at a time."""

    steps: int
    time: float


class Meter:
    """Agent steps per second between two ticks, the first of them after the warm-up.

    A peer ticks at the same point of each of its cycles, so that only whole cycles are counted.
    """

    def __init__(self, seconds: float, warm_up: int) -> None:
        self.seconds = seconds
        self.warm_up = warm_up
        self._begin: Mark | None = None
        self._end: Mark | None = None

    def tick(self, steps: int) -> bool:
        """Report that `steps` agent steps are done; returns True when enough was measured."""
        now = Mark(steps, time.perf_counter())
        if self._begin is None:
            self._begin = now if steps >= self.warm_up else None
        elif self._end is None and now.time - self._begin.time >= self.seconds:
            self._end = now
        return self._end is not None

    @property
    def steps_per_s(self) -> float:
        if self._begin is None or self._end is None:
            raise SystemExit("the peer ended before it was measured")
        return (self._end.steps - self._begin.steps) / (self._end.time - self._begin.time)


def measure(packages: tuple[str, ...], algorithms: dict[str, tuple[Callable[[Any, float], Meter], Any]]) -> None:
    """Run the algorithm given on the command line with its settings, and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=algorithms)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    run, settings = algorithms[arguments.algorithm]
    meter = run(settings, arguments.seconds)
    versions = describe(*packages)["versions"]
    print(json.dumps({"steps_per_s": meter.steps_per_s, "settings": asdict(settings), "versions": versions}))
