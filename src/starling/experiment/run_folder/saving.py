"""Saves a run: asynchronous checkpoints, and the last batch of training that diverged.

Training pauses to freeze its state, and continues while a thread writes it.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.arrays import write_arrays
from starling.experiment.run_folder.checkpoint import Retention
from starling.experiment.run_folder.disk import write_synced
from starling.experiment.run_folder.metrics import TIMING
from starling.state_io import Frozen, SegmentLostError, freeze
from starling.types import NDArray


class Saver:
    """Write the checkpoints of one run, one at a time, in a separate thread.

    If one cannot be written, training continues with a warning (one for several failures in a row), and the next
    checkpoint is tried as usual.
    """

    def __init__(
        self,
        root: Path,
        retention: Retention,
        warn: Callable[[str], None],
        sync_first: Callable[[], None] = lambda: None,
    ) -> None:
        """`sync_first` syncs the data to disk that a checkpoint depends on: the rows of metrics before it."""
        self._root, self._retention, self._warn, self._sync_first = root, retention, warn, sync_first
        self.failure: str | None = None  # reason if the last checkpoint could not be written
        self._warned = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._times: dict[str, float] = {}

    def save(self, take_state: Callable[[], tuple[int, dict[str, Any]]], score: float | None) -> None:
        """Wait for the previous checkpoint, freeze the result of `take_state` (env steps, state), start to write it."""
        started = time.monotonic()
        self.finish()
        self._warn_once()
        env_steps, state = take_state()
        frozen = freeze(state)
        self._record_seconds("checkpoint_stall", started)

        def write() -> None:
            try:
                self._sync_first()
                checkpoint.write(self._root, env_steps, frozen, retention=self._retention, score=score)
            except OSError as error:
                raise OSError(_explain(error, self._root, frozen)) from error
            self._record_seconds("checkpoint", started)

        self._writing = self._thread.submit(write)

    def _record_seconds(self, what: str, since: float) -> None:
        self._times[f"{TIMING}{what}"] = round(time.monotonic() - since, 3)

    def check(self) -> None:
        """Report the result of a checkpoint if it has been written, without waiting."""
        if self._writing is not None and self._writing.done():
            self.finish()
            self._warn_once()

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is on disk; sets `failure` if it could not be written.

        A checkpoint is skipped if a part of its replay was lost with a node of the cluster while it was written.
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

    def _warn_once(self) -> None:
        """Display a warning at the first of several failures in a row, and a message when writing works again."""
        if self.failure is not None and not self._warned:
            self._warn(f"warning: {self.failure}; training goes on and tries again at the next checkpoint: make room")
        elif self.failure is None and self._warned:
            self._warn("checkpoints can be written again")
        self._warned = self.failure is not None

    def metrics(self) -> dict[str, float]:
        """Seconds for which the last checkpoint paused training, and total seconds of the last one that was written."""
        return dict(self._times)

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and end the thread."""
        self._thread.shutdown()


def _explain(error: OSError, root: Path, frozen: Frozen) -> str:
    """Return the error message for a checkpoint that could not be written; on a full disk, with sizes."""
    line = f"cannot write a checkpoint to {root}: {error.strerror}"
    if error.errno != errno.ENOSPC:
        return line
    arrays = sum(array.nbytes for part in frozen.values() for array in part.arrays.values())
    segments = sum(leaf.size for part in frozen.values() for leaf in part.segments.values())
    free = shutil.disk_usage(root.parent).free
    return f"{line} (it takes up to {(arrays + segments) / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB is free)"


def write_dump(
    folder: Path, *, reason: str, env_steps: int, updates: int, norms: Mapping[str, float], batch: Mapping[str, NDArray]
) -> None:
    """Dump a diverged run: write `report.json` and, if the batch is known, `batch.safetensors` into `folder`."""
    folder.mkdir(exist_ok=True)
    non_finite = {name: int(np.size(array) - np.isfinite(array).sum()) for name, array in batch.items()}
    report = {
        "reason": reason,
        "env_steps": env_steps,
        "updates": updates,
        "gradient_norms": {name: str(norm) for name, norm in norms.items()},  # JSON has no NaN
        "non_finite_in_batch": {name: count for name, count in non_finite.items() if count},
        "settings": "../config.yaml",
    }
    write_synced(folder / "report.json", json.dumps(report, indent=1).encode())
    if batch:
        write_arrays(folder / "batch.safetensors", {name: np.ascontiguousarray(a) for name, a in batch.items()})
