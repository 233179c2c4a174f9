"""A Ray actor that holds one learner of several, as a process of its own beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starling.config.schema import SupervisionConfig
from starling.registry import import_path
from starling.runtime.ray.host import Answers, prepare_process

if TYPE_CHECKING:
    from starling.runtime.ray.rank_relay import RankNews
    from starling.types import Sample


@dataclass(frozen=True)
class RankPlan:
    """A rank as data: who builds it, from what, and the state that it begins with."""

    builder: str  # import path of a function (arguments, state, address) -> RankStaff
    arguments: Any
    state: bytes
    supervision: SupervisionConfig


class RankHost:
    """Methods are called over Ray; each answers when there is something to answer."""

    def __init__(self, plan: RankPlan) -> None:
        self._output = prepare_process()
        from starling.runtime.ray.cluster import address_here
        from starling.runtime.ray.rank_relay import RankRelay

        self._answers = Answers()
        staff = import_path(plan.builder)(plan.arguments, plan.state, address_here())
        self._relay = RankRelay(staff, plan.supervision, self._answers.ring)

    async def tell(self, number: int, message: dict[str, Any], sample: Sample | None) -> None:
        """What the rank is told, its how-manieth message; a batch that it names comes with it."""
        self._relay.tell(number, message, sample)

    async def beat(self) -> tuple[RankNews, list[str]]:
        """The news as soon as there are some, and what was printed; also a sign of life."""
        return await self._answers.beat(self._relay.news), self._output.lines()

    async def stop(self) -> None:
        await asyncio.to_thread(self._relay.stop)
