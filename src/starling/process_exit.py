"""Exit of this process: on signals before there is anything to save, and without teardown if a library would crash."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end: from Ctrl-C, a scheduler, or a closed terminal."""

_at_once = False


def leave_at_once() -> None:
    """Make `in_order` end the process with `os._exit`, without any teardown."""
    global _at_once
    _at_once = True


@contextmanager
def in_order() -> Iterator[None]:
    """Run a command; after `leave_at_once`, its SystemExit ends the process immediately with the same exit code."""
    try:
        yield
    except SystemExit as end:
        if not _at_once:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def heeded(number: int) -> bool:
    """Return True if a signal may be handled: ignored signals stay ignored, as `nohup` requires."""
    return signal.getsignal(number) not in (signal.SIG_IGN, None)


def exit_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit with code 128 + number; Ctrl-C raises KeyboardInterrupt as usual."""
    for number in filter(heeded, (signal.SIGTERM, signal.SIGHUP)):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
