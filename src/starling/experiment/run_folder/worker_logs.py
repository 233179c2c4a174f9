"""One log per worker in `logs/` of a run folder: what it printed, with the time, in two files of bounded size.

Does not import torch, for commands that only inspect a run.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starling.errors import UserError, escaped
from starling.experiment.run_folder.disk import append, is_folder, make_folder, open_regular, rename
from starling.experiment.run_folder.log import log_lines, read_log

FOLDER = "logs"
MOST_BYTES = 2**20
"""Bytes of a log, after which it becomes the older one, which is replaced."""
MOST_LOGS = 10_000
MOST_MERGED = 2**28
RUN = "run"
"""The name of the run's own messages among the logs."""
_NAME = re.compile(r"([a-z]+(?:-(?:[a-z]+|\d+)){0,5})(\.old)?\.log")


@dataclass(frozen=True)
class Line:
    """A line of a log."""

    time: str
    worker: str
    text: str


class WorkerLogs:
    """Appends lines to the logs of workers; lines that cannot be written are dropped."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER

    def write(self, worker: str, lines: Sequence[tuple[float, str]]) -> None:
        """Append lines, given as time in seconds since 1970 and text."""
        content = "".join(f"{_stamp(at)} {escaped(text)}\n" for at, text in lines).encode()
        file = self._folder / f"{file_stem(worker)}.log"
        with suppress(OSError):
            if not is_folder(self._folder):
                make_folder(self._folder)
            size = _size(file)
            if size and size + len(content) > MOST_BYTES:
                rename(file, file.with_suffix(".old.log"))
            append(file, content[-MOST_BYTES:])


def _size(file: Path) -> int:
    try:
        return os.lstat(file).st_size
    except OSError:
        return 0


def _stamp(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{int(seconds % 1 * 1000):03}"


def file_stem(worker: str) -> str:
    """The name of a worker's log: `actor-3` for `actor 3`."""
    return re.sub(r"[^a-z0-9]+", "-", worker.lower()).strip("-")


def logged_workers(run: Path) -> list[str]:
    """Stems of the logs of a run, in the order of their names and numbers."""
    try:
        with os.scandir(run / FOLDER) as entries:
            found = {match[1] for entry in entries if (match := _NAME.fullmatch(entry.name)) is not None}
    except OSError:
        return []
    return sorted(found, key=_natural)[:MOST_LOGS]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split("-")]


def read_lines(run: Path, worker: str) -> list[Line]:
    """Lines of a worker's log, the older file first; of `RUN`, the run's own messages."""
    files = [f"{FOLDER}/{worker}.old.log", f"{FOLDER}/{worker}.log"] if worker != RUN else ["log.txt"]
    lines = []
    for file in files:
        for line in log_lines(read_log(run / file)):
            lines += [Line(line.time, worker, text) for text in line.text.split("\n")]
    return lines


def merged(run: Path, workers: Iterable[str]) -> list[Line]:
    """Lines of several logs in the order of their times; lines of one log keep their order.

    Raises:
        UserError: The logs are too large to be merged in memory.
    """
    lines, size = [], 0
    for worker in workers:
        for line in read_lines(run, worker):
            lines.append(line)
            size += len(line.text)
        if size > MOST_MERGED:
            raise UserError(f"the logs of {run} are larger than {MOST_MERGED:,} bytes: name workers with --worker")
    return sorted(lines, key=lambda line: line.time)


def newest_write(run: Path) -> float | None:
    """Time of the last change of any log, in seconds since 1970."""
    times = []
    for worker in [RUN, *logged_workers(run)]:
        file = run / "log.txt" if worker == RUN else run / FOLDER / f"{worker}.log"
        with suppress(OSError):
            descriptor = open_regular(file, os.O_RDONLY)
            times.append(os.fstat(descriptor).st_mtime)
            os.close(descriptor)
    return max(times, default=None)
