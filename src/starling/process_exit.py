"""Exit of this process: on signals before and during a run, and without teardown if a library would crash."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

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
    """Make SIGTERM and SIGHUP raise SystemExit with code 128 + number; Ctrl-C raises KeyboardInterrupt as usual.

    While a module is imported, the process exits at once: libraries catch exceptions there, or wrap them in their own.
    """
    for number in filter(heeded, ENDING):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    if _imports(frame):
        os._exit(128 + number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _imports(frame: FrameType | None) -> bool:
    """Return True if a module is being imported in this frame or in a caller of it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class Interrupts:
    """Signal handling during a run: the first signal requests a save and stop, the second exits at once.

    A context manager that stores the first signal of `ENDING` in `received`; no effect outside the main thread. It is
    reentrant. A signal that was ignored before stays ignored. If the context ends with an exception after a signal, the
    signal is raised again for the outer handler.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._depth = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in filter(heeded, ENDING)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if error is not None and self.received is not None:
            signal.raise_signal(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)  # safe, since the files on disk are consistent at any moment
        self.received = signal.Signals(number)
