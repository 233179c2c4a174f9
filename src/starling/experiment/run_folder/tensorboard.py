"""Write the rows and settings of a run for TensorBoard, beside `metrics.jsonl`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from starling.config.dialect import on_one_line
from starling.experiment.run_folder.disk import GrowingFile

STEP = "env_steps"


class TensorBoardFile:
    """One event file with every number of every row; on write errors, rows are buffered, and the run continues.

    `settings`, nested as in a configuration, are what TensorBoard's tab of hyper-parameters shows.

    TensorBoard's `RecordWriter` frames the records, which are written synchronously, in a fraction of a millisecond per
    row. `EventFileWriter` is not used: its thread blocks on a full queue and dies with a traceback on a full disk.
    """

    def __init__(
        self,
        folder: Path,
        start_step: int | None,
        warn: Callable[[str], None],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._file: GrowingFile | None = None
        try:
            self._open(folder, start_step, warn)
            if self._file is not None and settings is not None:
                self._append(self._file, summary=_hyper_parameters(settings))
        except ImportError as error:
            warn(f"TensorBoard events are off: {error}; metrics.jsonl goes on")

    def _open(self, folder: Path, start_step: int | None, warn: Callable[[str], None]) -> None:
        """Open a new file, which sorts after those of earlier processes; their steps after `start_step` become void."""
        from tensorboard.compat.proto import event_pb2, summary_pb2  # imported here, since it takes 0.2 s
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._framed = event_pb2.Event, summary_pb2.Summary, RecordWriter
        name = f"events.out.tfevents.{time.time():017.6f}.{os.uname().nodename}.{os.getpid()}"
        self._file = GrowingFile(folder / name, warn)
        self._append(self._file, file_version="brain.Event:2")
        if start_step is not None:
            status = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._append(self._file, step=start_step + 1, session_log=status)  # readers also drop this step

    def write(self, row: dict[str, Any]) -> None:
        """Write every number of `row` at its `env_steps`."""
        if self._file is None:
            return
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        self._append(self._file, step=row[STEP], summary=self._summary(value=values))

    def write_image(self, tag: str, image: tuple[bytes, tuple[int, int]], step: int) -> None:
        """Write an encoded image, which may be an animation, with its height and width."""
        if self._file is None:
            return
        content, (height, width) = image
        encoded = self._summary.Image(encoded_image_string=content, height=height, width=width, colorspace=3)
        self._append(self._file, step=step, summary=self._summary(value=[self._summary.Value(tag=tag, image=encoded)]))

    def close(self) -> None:
        if self._file is not None:
            self._file.flush()

    def _append(self, file: GrowingFile, **content: Any) -> None:
        record = BytesIO()
        self._framed(record).write(self._event(wall_time=time.time(), **content).SerializeToString())
        file.append(record.getvalue())


def _hyper_parameters(settings: Mapping[str, Any]) -> Any:
    """Return the summary of TensorBoard's plugin `hparams`."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    return hparams_pb(dict(_flat(settings)))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested settings by their dotted keys, lists as text."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else on_one_line(value)
