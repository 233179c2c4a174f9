"""Signal handling during a run: the first signal requests a save and stop, the second exits at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from starling.process_exit import ENDING, heeded


class Interrupts:
    """Context manager that stores the first signal of `ENDING` in `received`; no effect outside the main thread.

    It is reentrant. A signal that was ignored before stays ignored. If the context ends with an exception after a
    signal, the signal is raised again for the outer handler.
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
