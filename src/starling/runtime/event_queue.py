"""The event loop of a thread: file descriptors that it watches, and requests of other threads."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from starling.runtime.link import pipe

T = TypeVar("T")
Post = Callable[[Callable[[], None]], None]
"""Runs a function in the thread of the event queue."""


class EventQueue:
    """Callbacks of a selector and requests of other threads, all run by one thread."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._bell, self._ring = pipe()
        self.selector.register(self._bell, selectors.EVENT_READ, lambda: os.read(self._bell.fd, 1 << 16))
        self._requests: deque[Callable[[], None]] = deque()

    def post(self, request: Callable[[], None]) -> None:
        """Run a function in the thread of this queue, soon."""
        self._requests.append(request)
        self.wake()

    @property
    def waiting(self) -> int:
        """Number of requests that were not run yet."""
        return len(self._requests)

    def wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # a bell that rings is as good as one that rings twice
            os.write(self._ring.fd, b".")

    def wait(self, timeout: float) -> list[tuple[selectors.SelectorKey, Any]]:
        """Events that arrive within `timeout` seconds, for `run`."""
        return self.selector.select(timeout)

    def run(self, events: list[tuple[selectors.SelectorKey, Any]]) -> None:
        for key, _ in events:
            key.data()
        while self._requests:
            self._requests.popleft()()

    def close(self) -> None:
        self.selector.close()


def drain(items: deque[T]) -> list[T]:
    """Remove and return all current items; another thread may add more meanwhile."""
    return [items.popleft() for _ in range(len(items))]
