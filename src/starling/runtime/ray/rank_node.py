"""A Ray actor that holds one of several learners, which runs in a child process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from starling.config.schema import SupervisionConfig
from starling.runtime.ray.node import Answers, prepare_process

if TYPE_CHECKING:
    from starling.runtime.messages import Message
    from starling.runtime.ray.rank_relay import RankNews, RankWorker
    from starling.types import Sample


class RankArgs(Protocol):
    """Settings of a rank; see `launch.ray`."""

    def build(self, state: bytes, address: str) -> RankWorker:
        """Build the rank on its node, which has this address."""
        ...


@dataclass(frozen=True)
class RankNodeSpec:
    """A rank and the state that it starts with."""

    args: RankArgs
    state: bytes
    supervision: SupervisionConfig


class RankNode:
    """Methods are called over Ray; each returns once its result is available."""

    def __init__(self, spec: RankNodeSpec) -> None:
        self._output = prepare_process()
        from starling.runtime.ray.cluster import address_here
        from starling.runtime.ray.rank_relay import RankRelay

        self._answers = Answers()
        worker = spec.args.build(spec.state, address_here())
        self._relay = RankRelay(worker, spec.supervision, self._answers.ring)

    async def tell(self, number: int, message: Message, sample: Sample | None) -> None:
        """Send the rank its n-th message, with the batch that it names."""
        self._relay.tell(number, message, sample)

    async def beat(self) -> tuple[RankNews, list[str]]:
        """Return the rank's messages once there are any, and printed lines; also serves as a heartbeat."""
        return await self._answers.beat(self._relay.news), self._output.lines()

    async def stop(self) -> None:
        await asyncio.to_thread(self._relay.stop)
