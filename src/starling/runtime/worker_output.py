"""Read the output of worker processes, and the Python stacks of hung ones, line by line from one pipe per worker."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from dataclasses import dataclass

from starling.runtime.link import PipeEnd

MOST_KEPT = 2000
"""Lines of all workers that wait to be written to their logs; older ones are dropped."""
LONGEST = 2000
"""Bytes of a line; the rest of a longer one is a line of its own."""
MOST_READ = 2**18
"""Bytes that are read from a worker at a time."""
STACKS = signal.SIGUSR1
"""Has a worker write its stacks, even while it waits in C; nothing may send it for another purpose."""


@dataclass(frozen=True)
class PrintedLine:
    """A line that a worker printed."""

    worker: str
    time: float  # seconds since 1970, on the machine of the worker
    text: str


class PrintedLines:
    """The main process's end of the pipe."""

    def __init__(self, worker: str, end: PipeEnd) -> None:
        self._worker, self._end, self._begun = worker, end, b""
        self.ended = False

    def fileno(self) -> int:
        return self._end.fileno()

    def read(self) -> list[PrintedLine]:
        """The lines that have arrived; never waits. The last one may lack its end if nothing follows."""
        data = bytearray(self._begun)
        while len(data) < MOST_READ and not self.ended:
            try:
                part = os.read(self._end.fd, 2**16)
            except BlockingIOError:
                break
            self.ended = not part
            data += part
        *whole, rest = bytes(data).split(b"\n")
        if self.ended and rest:
            whole, rest = [*whole, rest], b""
        while len(rest) > LONGEST:
            whole, rest = [*whole, rest[:LONGEST]], rest[LONGEST:]
        self._begun = rest
        now = time.time()
        parts = [line[i : i + LONGEST] for line in whole for i in range(0, max(1, len(line)), LONGEST)]
        return [PrintedLine(self._worker, now, part.decode(errors="replace").rstrip("\r")) for part in parts]

    def close(self) -> None:
        self._end.close()


def print_to(end: PipeEnd) -> None:
    """Have this process print into the pipe, write its stacks there at `STACKS`, and say where it crashed in C."""
    os.set_blocking(end.fd, True)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os.dup2(end.fd, 1)
    os.dup2(end.fd, 2)
    end.close()
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False))
    faulthandler.enable(2)
    faulthandler.register(STACKS, 2, all_threads=True)
