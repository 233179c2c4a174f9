"""Checkpoints beside training: the state is frozen while training rests and written while it goes on."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention
from starling.experiment.run_folder.metrics import TIMING
from starling.segments import SegmentLostError
from starling.state_io import Frozen, freeze


class Saver:
    """Writes the checkpoints of one run, one at a time, in a thread of its own.

    One that cannot be written costs a warning, the first in a row of them, and the next one is tried as if it had been.
    """

    def __init__(
        self,
        root: Path,
        retention: Retention,
        warn: Callable[[str], None],
        sync_first: Callable[[], None] = lambda: None,
    ) -> None:
        """`sync_first` forces to the disk what a checkpoint counts on: the rows of metrics before it."""
        self._root, self._retention, self._warn, self._sync_first = root, retention, warn, sync_first
        self.failure: str | None = None  # why the last checkpoint could not be written
        self._warned = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._times: dict[str, float] = {}

    def save(self, take_state: Callable[[], tuple[int, dict[str, Any]]], score: float | None) -> None:
        """Freeze what `take_state` gives, with its env steps, and have it written; waits for the last one first."""
        started = time.monotonic()
        self.finish()
        self._tell()
        env_steps, state = take_state()
        frozen = freeze(state)
        self._note("checkpoint_stall", started)

        def write() -> None:
            try:
                self._sync_first()
                checkpoint.write(self._root, env_steps, frozen, retention=self._retention, score=score)
            except OSError as error:
                raise OSError(_explain(error, self._root, frozen)) from error
            self._note("checkpoint", started)

        self._writing = self._thread.submit(write)

    def _note(self, what: str, since: float) -> None:
        self._times[f"{TIMING}{what}"] = round(time.monotonic() - since, 3)

    def check(self) -> None:
        """Tell how a checkpoint came out that is no longer being written."""
        if self._writing is not None and self._writing.done():
            self.finish()
            self._tell()

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk; `failure` says if it is not.

        One that lost a part of the replay on its way, with a node of a cluster, is done without.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
            self.failure = None
        except SegmentLostError:
            self._times[f"{TIMING}checkpoints_lost"] = self._times.get(f"{TIMING}checkpoints_lost", 0) + 1
        except OSError as error:
            self.failure = str(error)

    def _tell(self) -> None:
        """Warn of the first of several failures in a row, and say when they are over."""
        if self.failure is not None and not self._warned:
            self._warn(f"warning: {self.failure}; training goes on and tries again at the next checkpoint: make room")
        elif self.failure is None and self._warned:
            self._warn("checkpoints are written again")
        self._warned = self.failure is not None

    def metrics(self) -> dict[str, float]:
        """Seconds: how long the last checkpoint held training up, and how long the last written one took in all."""
        return dict(self._times)

    def close(self) -> None:
        """Let a checkpoint that is being written come to its end."""
        self._thread.shutdown()


def _explain(error: OSError, root: Path, frozen: Frozen) -> str:
    """Why a checkpoint could not be written; of a full disk also how much room it takes."""
    line = f"cannot write a checkpoint to {root}: {error.strerror}"
    if error.errno != errno.ENOSPC:
        return line
    arrays = sum(array.nbytes for part in frozen.values() for array in part.arrays.values())
    segments = sum(leaf.size for part in frozen.values() for leaf in part.segments.values())
    free = shutil.disk_usage(root.parent).free
    return f"{line} (it takes up to {(arrays + segments) / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free)"
