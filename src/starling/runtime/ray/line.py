"""The connection to one Ray actor: pending calls, their results, and the time since the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from starling.runtime.event_queue import Post

SWEEP_SECONDS = 2.0
"""Interval of polling for results whose callback was missed."""


@dataclass(frozen=True)
class _Call:
    refs: tuple[Any, ...]
    done: Callable[..., None]


class Line:
    """Calls to an actor; their results are handled in the thread that `post` dispatches to."""

    def __init__(self, handle: Any, post: Post, timeout: float, failed: Callable[[BaseException], None]) -> None:
        self.handle, self._post, self._timeout, self._failed = handle, post, timeout, failed
        self.answered = False  # at least once
        self._expected: float | None = None  # start of the wait: its last answer, or its placement
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._next_sweep = time.monotonic() + SWEEP_SECONDS

    @property
    def silent_seconds(self) -> float:
        """Seconds since its last answer; 0 for an actor that has not been placed yet."""
        return 0.0 if self._expected is None else time.monotonic() - self._expected

    def expect(self) -> None:
        """Start the timeout now if it has not answered yet."""
        self._expected = self._expected or time.monotonic()

    def call(self, done: Callable[..., None], *refs: Any) -> None:
        """Call `done` with the values of these references, results of one call, once the last is available."""
        self._number = number = self._number + 1
        self._calls[number] = _Call(refs, done)

        def arrived(_: Future[Any]) -> None:
            self._post(lambda: self._arrived(number))

        refs[-1].future().add_done_callback(arrived)

    def _arrived(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return  # already handled, or the line was cut
        try:
            values = ray.get(list(call.refs), timeout=self._timeout)
        except (RayError, GetTimeoutError) as error:
            self._failed(error)
        else:
            self.answered, self._expected = True, time.monotonic()
            call.done(*values)

    def sweep(self) -> None:
        """Handle results whose callback was missed."""
        now = time.monotonic()
        if now < self._next_sweep or not self._calls:
            return
        self._next_sweep = now + SWEEP_SECONDS
        last = {call.refs[-1]: number for number, call in self._calls.items()}
        for ref in ray.wait(list(last), num_returns=len(last), timeout=0)[0]:
            self._arrived(last[ref])

    def cut(self) -> None:
        """Kill the actor and drop its pending calls."""
        self._calls.clear()
        with suppress(RayError):
            ray.kill(self.handle)
