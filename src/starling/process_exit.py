"""The end of this process: on a signal before there is anything to save, or where a library cannot be taken down."""

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
"""Signals that ask a process to end: Ctrl-C, a scheduler, a terminal that is gone."""

_at_once = False


def leave_at_once() -> None:
    """From now on the end of `in_order` is the end of the process: nothing is torn down after it."""
    global _at_once
    _at_once = True


@contextmanager
def in_order() -> Iterator[None]:
    """Run what a command does; its exit code is that of the process, whichever way it ends."""
    try:
        yield
    except SystemExit as end:
        if not _at_once:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def heeded(number: int) -> bool:
    """Return True if a signal may be handled here: one that is ignored stays ignored, as `nohup` wants it."""
    return signal.getsignal(number) not in (signal.SIG_IGN, None)


def exit_on_signals() -> None:
    """Let SIGTERM and SIGHUP end this process in order, with the exit code 128 + number; Ctrl-C raises as ever."""
    for number in filter(heeded, (signal.SIGTERM, signal.SIGHUP)):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
