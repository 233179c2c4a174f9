"""A Ray actor that holds the workers of one place: env loops with their policies, or an evaluator.

Its workers are processes of `runtime=processes`, so that one that dies or hangs is replaced within a second where it
was; this actor only passes on. Little is imported here before the workers' server begins to load torch.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starling.registry import import_path
from starling.runtime.prewarm import prewarm
from starling.runtime.ray.output import Output

if TYPE_CHECKING:
    from starling.roles.recorder import Buffer
    from starling.runtime.ray.news import Credit, HostPlan, News, Report

BEAT_SECONDS = 0.5
"""How often a host with no news answers."""


class Host:
    """Methods are called over Ray; each answers when there is something to answer."""

    def __init__(self, plan: HostPlan) -> None:
        vars(sys.modules["__main__"]).pop("__file__", None)  # or every worker would import Ray's own program
        self._output = Output()
        prewarm()
        from starling.runtime.ray.relay import Relay

        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._relay = Relay(import_path(plan.builder)(plan.arguments), plan, self._ring)

    def _ring(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    async def lend(self, credit: Credit, weights: tuple[int, Any]) -> tuple[Report, Buffer | None]:
        """The fragment that this credit leads to, made with these weights or newer ones."""
        self._relay.renew(*weights)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._relay.lend(credit, lambda found: self._answer(answer, found))
        found: tuple[Report, Buffer | None] = await answer
        return found

    async def evaluate(self, weights: tuple[int, Any]) -> None:
        """Begin to evaluate these weights; the result is among the news."""
        self._relay.renew(*weights)
        self._relay.evaluate()

    async def beat(self) -> tuple[News, list[str]]:
        """The news as soon as there are some, and what was printed; also a sign of life."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), BEAT_SECONDS)
        self._news.clear()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._relay.tell(lambda news: self._answer(answer, news))
        return await answer, self._output.lines()

    async def stop(self) -> None:
        await asyncio.to_thread(self._relay.stop)

    def _answer(self, answer: asyncio.Future[Any], value: Any) -> None:
        self._loop.call_soon_threadsafe(lambda: answer.done() or answer.set_result(value))
