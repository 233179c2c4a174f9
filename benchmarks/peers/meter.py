"""What every peer's process shares: counting steps after a warm-up, and the line of JSON it ends with."""

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
    """How many agent steps there were, and when."""

    steps: int
    time: float


class Meter:
    """Agent steps per second between two ticks, the first of them past the warm-up.

    A peer ticks at the same point of each of its cycles, so that only whole ones are counted.
    """

    def __init__(self, seconds: float, warm_up: int) -> None:
        self.seconds = seconds
        self.warm_up = warm_up
        self._begin: Mark | None = None
        self._end: Mark | None = None

    def tick(self, steps: int) -> bool:
        """Note that `steps` agent steps are done; True once enough was seen."""
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
    """Run the algorithm that the command line names, with its settings, and print what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=algorithms)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    run, settings = algorithms[arguments.algorithm]
    meter = run(settings, arguments.seconds)
    versions = describe(*packages)["versions"]
    print(json.dumps({"steps_per_s": meter.steps_per_s, "settings": asdict(settings), "versions": versions}))
