"""A Ray actor that holds the workers of one place: env loops with their policies, or an evaluator.

Its workers are processes of `runtime=processes`, so that one that dies or hangs is replaced within a second where it
was; this actor only passes on. Little is imported here before the workers' server begins to load torch.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starling.runtime.prewarm import prewarm
from starling.runtime.ray.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from starling.actor.recorder import FragmentBuffer
    from starling.runtime.ray.node_status import Credit, FragmentResult, NodeSpec, NodeStatus

BEAT_SECONDS = 0.5
"""How often a node with no news answers."""


def prepare_process() -> Output:
    """Make a process of Ray's fit for workers of its own; what they and it print is kept."""
    vars(sys.modules["__main__"]).pop("__file__", None)  # or every worker would import Ray's own program
    output = Output()
    prewarm()
    return output


class Answers:
    """What calls over Ray wait for in their event loop, given by another thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # known from the first call on
        self.news = asyncio.Event()

    def ring(self) -> None:
        """There is news."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.news.set)

    def expect(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """An answer to wait for, and how another thread gives it."""
        self._loop = loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def give(value: Any) -> None:
            loop.call_soon_threadsafe(_settle, answer, value)

        return answer, give

    async def beat(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        """What `ask` has another thread give, as soon as there is news, or after a while; also a sign of life."""
        answer, give = self.expect()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), BEAT_SECONDS)
        self.news.clear()
        ask(give)
        return await answer


class Node:
    """Methods are called over Ray; each answers when there is something to answer."""

    def __init__(self, spec: NodeSpec, weights: tuple[int, Any]) -> None:
        self._output = prepare_process()
        from starling.runtime.ray.relay import Relay

        self._answers = Answers()
        workers = spec.args.build()
        workers.shared_weights.accept(weights[1])  # before anybody acts
        self._relay = Relay(workers, spec, weights[0], self._answers.ring)

    async def lend(self, credit: Credit, weights: tuple[int, Any]) -> tuple[FragmentResult, FragmentBuffer | None]:
        """The fragment that this credit leads to, made with these weights or newer ones."""
        self._relay.renew(*weights)
        answer, give = self._answers.expect()
        self._relay.lend(credit, give)
        found: tuple[FragmentResult, FragmentBuffer | None] = await answer
        return found

    async def evaluate(self, weights: tuple[int, Any], state: dict[str, Any]) -> None:
        """Begin to evaluate these weights, given what the last evaluation left; the result is among the news."""
        self._relay.renew(*weights)
        self._relay.evaluate(state)

    async def beat(self) -> tuple[NodeStatus, list[str]]:
        """The news as soon as there are some, and what was printed; also a sign of life."""
        return await self._answers.beat(self._relay.tell), self._output.lines()

    async def stop(self) -> None:
        await asyncio.to_thread(self._relay.stop)


def _settle(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():  # it is, where nobody waits any more
        answer.set_result(value)
