"""Signals while a run goes on: the first asks it to save and end, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from starling.process_exit import ENDING, heeded


class Interrupts:
    """While entered, notes the first of `ENDING` in `received`; outside the main thread it watches nothing.

    It may be entered again by whoever is handed it. A signal that was ignored before stays ignored. Where an exception
    ends it before anybody has looked, the signal comes again, to whoever handles it outside.
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
            os._exit(128 + number)  # nothing is lost: what is on disk is whole at any moment
        self.received = signal.Signals(number)
