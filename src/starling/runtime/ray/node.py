"""A Ray actor that holds the workers of one node: env loops with their policies, or an evaluator.

Its workers are the processes of `runtime=processes`, so that a crashed or hung one is restarted in place within a
second; this actor only relays. Few modules are imported here before the fork server of the workers starts to load
torch.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starling.runtime.prewarm import prewarm

if TYPE_CHECKING:
    from collections.abc import Callable

    from starling.actor.recorder import FragmentBuffer
    from starling.runtime.ray.messages import Credit, FragmentResult, NodeSpec, NodeStatus

BEAT_SECONDS = 0.5
"""Interval at which a node answers if nothing happened."""
MOST_LINES = 200
"""Lines kept between two calls of `Output.lines`; further ones are only counted."""


class Output:
    """Captures what this process and those that it starts from now on print, for the driver's run folder."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        self._lines: deque[str] = deque()
        self._dropped = 0
        threading.Thread(target=self._read, args=(reading,), name="output", daemon=True).start()

    def lines(self) -> list[str]:
        """The lines since the last call."""
        found = [self._lines.popleft() for _ in range(len(self._lines))]
        dropped, self._dropped = self._dropped, 0
        return found + ([f"({dropped} more lines)"] if dropped else [])

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, errors="replace") as source:
            for line in source:
                if len(self._lines) < MOST_LINES:
                    self._lines.append(line.rstrip())
                else:
                    self._dropped += 1


def prepare_process() -> Output:
    """Prepare a Ray process to start its own workers, and capture what they print."""
    vars(sys.modules["__main__"]).pop("__file__", None)  # else every worker would import Ray's main module
    output = Output()
    prewarm()
    return output


class Answers:
    """Results that async Ray methods await and that another thread sets."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # set by the first call
        self.news = asyncio.Event()

    def ring(self) -> None:
        """Wake a waiting `beat`; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.news.set)

    def expect(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """Return a future, and a function with which another thread sets its result."""
        self._loop = loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def give(value: Any) -> None:
            loop.call_soon_threadsafe(_settle, answer, value)

        return answer, give

    async def beat(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        """Wait for `ring`, at most `BEAT_SECONDS`, then return the result of `ask`; also serves as a heartbeat."""
        answer, give = self.expect()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), BEAT_SECONDS)
        self.news.clear()
        ask(give)
        return await answer


class Node:
    """Methods are called over Ray; each returns once its result is available."""

    def __init__(self, spec: NodeSpec, weights: tuple[int, Any]) -> None:
        self._output = prepare_process()
        from starling.runtime.ray.relay import Relay

        self._answers = Answers()
        workers = spec.args.build()
        workers.shared_weights.accept(weights[1])  # before any worker acts
        self._relay = Relay(workers, spec, weights[0], self._answers.ring)

    async def lend(self, credit: Credit, weights: tuple[int, Any]) -> tuple[FragmentResult, FragmentBuffer | None]:
        """Return the fragment of this credit, recorded with these weights or newer ones."""
        self._relay.renew(*weights)
        answer, give = self._answers.expect()
        self._relay.lend(credit, give)
        found: tuple[FragmentResult, FragmentBuffer | None] = await answer
        return found

    async def evaluate(self, weights: tuple[int, Any], state: dict[str, Any]) -> None:
        """Start an evaluation of these weights from the last evaluation's state; the status has its result."""
        self._relay.renew(*weights)
        self._relay.evaluate(state)

    async def beat(self) -> tuple[NodeStatus, list[str]]:
        """Return the status once something happened, and printed lines; also serves as a heartbeat."""
        return await self._answers.beat(self._relay.tell), self._output.lines()

    async def stop(self) -> None:
        await asyncio.to_thread(self._relay.stop)


def _settle(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():  # it is if the call was canceled
        answer.set_result(value)
