"""The line to one Ray actor: calls that are under way, answers that have come, and whether it still answers."""

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
"""How often answers are looked for besides being told of them."""


@dataclass(frozen=True)
class _Call:
    refs: tuple[Any, ...]
    done: Callable[..., None]


class Line:
    """Calls to an actor whose answers are taken in by one thread: the one that `post` leads to."""

    def __init__(self, handle: Any, post: Post, timeout: float, failed: Callable[[BaseException], None]) -> None:
        self.handle, self._post, self._timeout, self._failed = handle, post, timeout, failed
        self.answered = False  # whether it ever did
        self._expected: float | None = None  # since when an answer is: its last one, or when it had its place
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._next_sweep = time.monotonic() + SWEEP_SECONDS

    @property
    def silent_seconds(self) -> float:
        """Since its last answer; nothing is expected of an actor that has not found its place yet."""
        return 0.0 if self._expected is None else time.monotonic() - self._expected

    def expect(self) -> None:
        """From now on it should answer, also if it never did."""
        self._expected = self._expected or time.monotonic()

    def call(self, done: Callable[..., None], *refs: Any) -> None:
        """Have `done` called with the values of these references, results of one call, once the last is here."""
        self._number = number = self._number + 1
        self._calls[number] = _Call(refs, done)

        def arrived(_: Future[Any]) -> None:
            self._post(lambda: self._arrived(number))

        refs[-1].future().add_done_callback(arrived)

    def _arrived(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return  # taken in already, or meant for somebody who is gone
        try:
            values = ray.get(list(call.refs), timeout=self._timeout)
        except (RayError, GetTimeoutError) as error:
            self._failed(error)
        else:
            self.answered, self._expected = True, time.monotonic()
            call.done(*values)

    def sweep(self) -> None:
        """Take in answers that nobody told of."""
        now = time.monotonic()
        if now < self._next_sweep or not self._calls:
            return
        self._next_sweep = now + SWEEP_SECONDS
        last = {call.refs[-1]: number for number, call in self._calls.items()}
        for ref in ray.wait(list(last), num_returns=len(last), timeout=0)[0]:
            self._arrived(last[ref])

    def cut(self) -> None:
        """End the actor; answers that are still under way are not heard."""
        self._calls.clear()
        with suppress(RayError):
            ray.kill(self.handle)
