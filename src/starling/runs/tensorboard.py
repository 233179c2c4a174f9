"""A run's rows as TensorBoard scalars, beside its `metrics.jsonl`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

STEP = "env_steps"


class TensorBoardFile:
    """One event file with every number of every row; a failure to write costs one warning, never the run.

    Records are framed by TensorBoard's own writer but written in place: a row takes a fraction of a millisecond, which
    its `EventFileWriter` would spend on a thread that blocks on a full queue and dies with a traceback on a full disk.
    """

    def __init__(self, folder: Path, start_step: int | None, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._writer: Any = None
        try:
            self._open(folder, start_step)
        except (OSError, ImportError) as error:
            self._give_up(error)

    def _open(self, folder: Path, start_step: int | None) -> None:
        """A new file, which sorts behind those of earlier processes; steps after `start_step` in those are void."""
        from tensorboard.compat.proto import event_pb2, summary_pb2  # here, since it takes a fifth of a second
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():017.6f}.{os.uname().nodename}.{os.getpid()}"
        self._writer = RecordWriter((folder / name).open("xb"))
        self._append(file_version="brain.Event:2")
        if start_step is not None:
            status = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._append(step=start_step + 1, session_log=status)  # readers drop this step too
        self._writer.flush()

    def write(self, row: dict[str, Any]) -> None:
        """Every number of `row` at its `env_steps`; what has no value yet is left out."""
        if self._writer is None:
            return
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        try:
            self._append(step=row[STEP], summary=self._summary(value=values))
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)
            self._writer = None

    def _append(self, **content: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **content).SerializeToString())

    def _give_up(self, error: Exception) -> None:
        """Say so once and write no more; what lies in the buffer is lost with the handle."""
        writer, self._writer = self._writer, None
        self._warn(f"TensorBoard events are off: {error}; metrics.jsonl goes on")
        if writer is not None:
            with suppress(OSError):
                writer.close()
