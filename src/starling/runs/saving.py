"""Checkpoints beside training: the state is frozen while training rests and written while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starling.errors import UserError
from starling.frozen import freeze
from starling.runs import checkpoint
from starling.runs.checkpoint import Retention
from starling.runs.metrics import TIMING
from starling.segments import SegmentLostError


class Saver:
    """Writes the checkpoints of one run, one at a time, in a thread of its own."""

    def __init__(self, root: Path, retention: Retention) -> None:
        self._root, self._retention = root, retention
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._times: dict[str, float] = {}

    def save(self, take_state: Callable[[], tuple[int, dict[str, Any]]], score: float | None) -> None:
        """Freeze what `take_state` gives, with its env steps, and have it written; waits for the last one first."""
        started = time.monotonic()
        self.finish()
        env_steps, state = take_state()
        frozen = freeze(state)
        self._note("checkpoint_stall", started)

        def write() -> None:
            checkpoint.write(self._root, env_steps, frozen, retention=self._retention, score=score)
            self._note("checkpoint", started)

        self._writing = self._thread.submit(write)

    def _note(self, what: str, since: float) -> None:
        self._times[f"{TIMING}{what}"] = round(time.monotonic() - since, 3)

    def check(self) -> None:
        """Raise what went wrong with a checkpoint that is no longer being written."""
        if self._writing is not None and self._writing.done():
            self.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk; raises what went wrong with it.

        One that lost a part of the replay on its way, with a node of a cluster, is done without.
        """
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except SegmentLostError:
            self._times[f"{TIMING}checkpoints_lost"] = self._times.get(f"{TIMING}checkpoints_lost", 0) + 1
        except OSError as error:
            advice = "make room, then resume the run from its last checkpoint"
            raise UserError(f"cannot write a checkpoint to {self._root}: {error.strerror}; {advice}") from None

    def metrics(self) -> dict[str, float]:
        """Seconds: how long the last checkpoint held training up, and how long the last written one took in all."""
        return dict(self._times)

    def close(self) -> None:
        """Let a checkpoint that is being written come to its end."""
        self._thread.shutdown()
