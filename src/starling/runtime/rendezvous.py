"""Rendezvous of several learners: a torch store whose values travel over the lines to the main process.

Gloo and nccl exchange the addresses of their ranks through such a store. Torch's TCPStore would listen on every
interface and serve whoever connects; here a value goes up one rank's line (pipes, and between machines calls of Ray,
which asks for a token) and down those of the others. Nothing listens.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import Store

from starling.runtime.link import wait_readable
from starling.runtime.messages import BrokenMessageError, Message, RendezvousValue

SLICE = 0.25
"""Seconds between two looks at whether the line has ended."""


class Line(Protocol):
    """The way to whoever started this rank; see `runtime.link`."""

    ended: bool

    def send(self, message: Message) -> bool: ...

    def receive(self) -> list[Message]: ...

    def raise_if_ended(self) -> None: ...

    def fileno(self) -> int: ...


class RankLine:
    """A rank's line to the main process, with the values that other ranks posted sorted out of its messages."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._present = 0  # the number of the present rendezvous
        self._posts: dict[int, dict[str, bytes]] = {}  # of that one and of those still to come
        self._others: list[Message] = []

    @property
    def ended(self) -> bool:
        return self._line.ended

    def raise_if_ended(self) -> None:
        self._line.raise_if_ended()

    def fileno(self) -> int:
        return self._line.fileno()

    def send(self, message: Message) -> bool:
        return self._line.send(message)

    def receive(self) -> list[Message]:
        """The messages that have arrived, without posted values; never waits."""
        self._read()
        others, self._others = self._others, []
        return others

    def rendezvous(self, number: int, timeout: float) -> LineStore:
        """A store for the n-th rendezvous; values of earlier ones are forgotten."""
        self._present = number
        self._posts = {n: values for n, values in self._posts.items() if n >= number}
        return LineStore(self, number, timeout)

    def post(self, number: int, key: str, value: bytes) -> None:
        """Set a value here and in the other ranks."""
        self._posts.setdefault(number, {})[key] = value
        if not self.send(RendezvousValue(number, key, base64.b64encode(value).decode())):
            raise RuntimeError("the main process is gone")

    def values(self, number: int) -> dict[str, bytes]:
        """The values of a rendezvous that are known here."""
        return self._posts.get(number, {})

    def wait_for(self, known: Callable[[], bool], seconds: float) -> None:
        """Read the line until `known()`; other messages are kept for `receive`."""
        end = time.monotonic() + seconds
        while not known():
            self._raise_if_ended()
            left = end - time.monotonic()
            if left <= 0:
                raise RuntimeError(f"the other learners did not arrive within {seconds:g} s")
            wait_readable([self], min(left, SLICE))
            self._read()

    def _raise_if_ended(self) -> None:
        """Raise RuntimeError, the one error that torch's callers of a store handle."""
        try:
            self.raise_if_ended()
        except (EOFError, BrokenMessageError) as error:
            raise RuntimeError(str(error)) from error

    def _read(self) -> None:
        for message in self._line.receive():
            if isinstance(message, RendezvousValue):
                value = _decoded(message.value)
                if message.attempt >= self._present:
                    self._posts.setdefault(message.attempt, {})[message.key] = value
            else:
                self._others.append(message)


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise BrokenMessageError(f"a posted value: {error}") from error


class LineStore(Store):
    """The part of torch's `Store` that process groups need to find each other: set, get, wait, and check.

    Torch calls it from one thread, while the rank's main thread waits for that thread.
    """

    def __init__(self, line: RankLine, number: int, timeout: float) -> None:
        super().__init__()
        self._line, self._number, self._seconds = line, number, timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    def set(self, key: str, value: bytes | str) -> None:
        self._line.post(self._number, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._line.values(self._number)[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._line.wait_for(lambda: self.check(keys), seconds)

    def check(self, keys: list[str]) -> bool:
        values = self._line.values(self._number)
        return all(key in values for key in keys)
