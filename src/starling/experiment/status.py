"""`status.json` of a run: a thread writes it while the run goes on; `starling top` and `starling doctor` read it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from starling.config.bounded_json import parse_json
from starling.errors import UserError, require
from starling.experiment.run_folder.disk import read_bounded, replace
from starling.experiment.run_folder.rows import to_json
from starling.runtime.status import RunStatus, RuntimeStatus

FILE = "status.json"
SECONDS = 2.0
MOST_BYTES = 2**24
STALE_SECONDS = 15.0
"""Age of a status beyond which the process that writes it is stopped, or too busy to write."""


class StatusWriter:
    """Writes the status of a run every `SECONDS`, from a thread of its own, so that a stuck run shows, too."""

    def __init__(self, run: Path, collect: Callable[[], RuntimeStatus]) -> None:
        self._file, self._collect = run / FILE, collect
        self._started = time.time()
        self._phase, self._since = "starting", time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="status", daemon=True)
        self.newest: RunStatus | None = None

    def start(self) -> None:
        self._thread.start()

    def enter(self, phase: str) -> None:
        """Note what the main loop does now; called at least once per round."""
        self._phase, self._since = phase, time.monotonic()

    def close(self, reason: str) -> None:
        """Write the last status, of a run that has ended for this reason."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._phase = reason
        self._write(ended=True)

    def _work(self) -> None:
        while not self._closing.is_set():
            self._write(ended=False)
            self._closing.wait(SECONDS)

    def _write(self, ended: bool) -> None:
        try:
            runtime = self._collect()
        except Exception:  # something changed while it was looked at: the next status is soon
            if self.newest is None:
                return
            runtime = self.newest.runtime
        self.newest = RunStatus(
            written=time.time(),
            started=self._started,
            pid=os.getpid(),
            host=socket.gethostname(),
            phase=self._phase,
            ended=ended,
            phase_seconds=round(time.monotonic() - self._since, 3),
            runtime=runtime,
        )
        with suppress(OSError):  # a full disk, or a run that was moved: the session reports it
            replace(self._file, to_json(asdict(self.newest)))


_parser = TypeAdapter(RunStatus)


def read_status(run: Path) -> RunStatus | None:
    """Return the status of a run; None if it has none.

    Raises:
        UserError: The file is damaged.
    """
    file = run / FILE
    try:
        content = read_bounded(file, MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    try:
        parse_json(content)  # refuses what is too deep or too large
        status = _parser.validate_json(content, strict=True)
        require(0 <= status.started <= status.written < 2**40 and 0 < status.pid < 2**31, "impossible times")
        return status
    except ValueError:
        raise UserError(f"{file} is damaged, or of another version: remove it") from None


def has_ended(run: Path) -> bool:
    """Return whether the last status of a run says that it has ended."""
    with suppress(UserError):
        status = read_status(run)
        return status is not None and status.ended
    return False


def is_alive(status: RunStatus) -> bool | None:
    """Return whether the process that wrote a status is there; None if it is on another host."""
    if status.host != socket.gethostname():
        return None
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return not status.ended
