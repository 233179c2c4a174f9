"""Ray actors as workers of the driver's supervisor."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    RayError,
    RayTaskError,
)

from starling.config.schema import Config
from starling.runtime.event_queue import Post
from starling.runtime.messages import Fault, Message, Notice
from starling.runtime.ray.line import Line
from starling.runtime.ray.placement import Place
from starling.runtime.worker import Worker, WorkerSpec
from starling.runtime.worker_output import PrintedLine

PLACE_SECONDS = 30.0
"""Seconds without a first answer after which the driver asks, repeatedly, whether the part has been placed."""


class RemoteWorker(Worker):
    """One part in the cluster and its current Ray actor; runs in the hub's thread."""

    def __init__(self, spec: WorkerSpec[Any], config: Config, place: Place, post: Post) -> None:
        super().__init__(spec, restarts=config.supervision.restarts, timeout=config.ray.timeout)
        self._place, self._post = place, post
        self._starts = 0
        self._messages: list[Message] = []
        self._printed: list[PrintedLine] = []
        self._crashed: Callable[[], None] = lambda: None
        self._hear: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self._told_waiting = False
        self._ask_again = 0.0  # time of the next question whether it is placed
        self._stopping: Any = None
        self.line: Line | None = None

    @abstractmethod
    def _create(self, incarnations: Mapping[int, int], options: dict[str, Any]) -> Any:
        """Create a Ray actor and return its handle."""

    @abstractmethod
    def _began(self, line: Line) -> None:
        """Send the first call to a new actor."""

    @property
    def running(self) -> bool:
        return self.line is not None

    @property
    def silent_seconds(self) -> float:
        return 0.0 if self.line is None else self.line.silent_seconds

    def start(self, incarnations: Mapping[int, int], hear: Callable[[], None], crashed: Callable[[], None]) -> None:
        self._hear, self._crashed = hear, crashed
        self.hung, self.ended_for_another, self._told_waiting = False, False, False
        self.start_at, self.fault, self._error = None, None, None
        self._starts, self._stopping = self._starts + 1, None
        self._ask_again = time.monotonic() + PLACE_SECONDS
        handle = self._create(incarnations, {"max_restarts": 0, **self._place.options(self._starts)})
        self.line = Line(handle, self._post, self.timeout, self._fail)
        self._began(self.line)

    def receive(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages

    def poll(self) -> None:
        """Poll for missed results, and check the placement of an actor that has not answered yet."""
        if self.line is None:
            return
        self.line.sweep()
        if not self.line.answered and time.monotonic() > self._ask_again:
            self._ask_again = time.monotonic() + PLACE_SECONDS
            asking = threading.Thread(target=self._ask_for_place, args=(self.line,), name="place", daemon=True)
            asking.start()
        self._hear()

    def _ask_for_place(self, line: Line) -> None:
        """Runs in its own thread, since a call to a lost head blocks."""
        kept = self._place.is_kept()
        self._post(lambda: self._late(line, kept))

    def _late(self, line: Line, placed: bool) -> None:
        """Start the timeout of a placed part that has not answered; otherwise notify the user that it waits."""
        if line is not self.line or line.answered:
            return
        if placed:
            line.expect()
        elif not self._told_waiting:
            self._told_waiting = True
            self._messages.append(Notice(f"{self.name} waits for resources in the cluster: {self._place}"))

    def kill(self) -> None:
        if self.line is not None:
            self.line.cut()
            self._post(self._crashed)  # even if its node no longer answers

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self.fault = self.fault or fault_of(error)
            self._post(self._crashed)

    def _note_printed(self, lines: list[str]) -> None:
        """Keep the lines that the actor itself printed."""
        self._printed += [PrintedLine(self.name, time.time(), line) for line in lines]

    def printed(self) -> list[PrintedLine]:
        lines, self._printed = self._printed, []
        return lines

    def _note_failure(self, failure: Fault | None) -> None:
        """Record the failure that the actor reported, if any; see `Worker.fault`."""
        if failure is not None and self.fault is None:
            self.fault = failure
            self._post(self._crashed)

    def reap(self) -> str:
        assert self.line is not None, "a dead part had a line"
        self.line.cut()
        self.line = None
        self.killed = self.fault is None
        return "hung: no answer" if self.hung else self.fault_text() or reason_of(self._error)

    def abandon(self) -> None:
        """Drop an actor that can no longer be reached."""
        self.line = None

    def tell_to_stop(self) -> None:
        if self.line is not None and self._stopping is None:
            self._stopping = self.line.handle.stop.remote()

    def join(self, seconds: float) -> None:
        with suppress(RayError):
            ray.wait([self._stopping], timeout=seconds)
        self.reap()


def reason_of(error: BaseException | None) -> str:
    """Describe why a Ray actor no longer answers."""
    if error is None:
        return "no reason is known"
    text = str(error)
    if isinstance(error, RayTaskError):
        return text.strip().splitlines()[-1]
    if isinstance(error, ActorDiedError):
        return "its node was lost" if _of_node(text) else "its process died"
    if isinstance(error, ActorUnavailableError | GetTimeoutError):
        return "it cannot be reached"
    if isinstance(error, ObjectLostError):
        return "what it sent was lost with its node"
    return text.strip().splitlines()[0]


def _of_node(text: str) -> bool:
    return "node" in text and any(word in text for word in ("NODE_DIED", "node died", "node has died", "node is dead"))


def fault_of(error: BaseException) -> Fault | None:
    """Return the exception that our code raised in an actor, for `Worker.fault`; None if the error is Ray's."""
    if not isinstance(error, RayTaskError) and not getattr(error, "actor_init_failed", False):
        return None
    text = str(error).strip()
    return Fault(text.splitlines()[-1].strip(), "RunFailedError", text)
