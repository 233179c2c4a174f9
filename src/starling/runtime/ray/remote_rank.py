"""The driver's side of a learner on another node: sends batches, receives weights and priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import ray

from starling.actor.usage import CELLS
from starling.config.schema import Config
from starling.runtime.event_queue import Post
from starling.runtime.learners_runtime import LatestState
from starling.runtime.messages import BatchLearned, BatchReady, Message
from starling.runtime.ray.line import Line
from starling.runtime.ray.placement import Place
from starling.runtime.ray.rank_node import RankArgs, RankNode, RankNodeSpec
from starling.runtime.ray.rank_relay import LearnerMessage, RankNews
from starling.runtime.ray.remote import RemoteWorker
from starling.runtime.shared_memory import SharedBytes
from starling.runtime.shared_weights import SharedWeights
from starling.runtime.worker import Member, WorkerSpec
from starling.types import Keys, NDArray, Sample

CALLS = 64
"""Maximum number of concurrent calls to a rank's node."""


class RemoteBatches:
    """Counterpart of `BatchBuffer` for a remote rank: keeps sent batches until they are learned from."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._samples: dict[int, Sample] = {}  # oldest first
        self._priorities: dict[int, NDArray] = {}

    @property
    def free(self) -> list[int]:
        return [slot for slot in range(self._slots) if slot not in self._samples]

    @property
    def out(self) -> list[int]:
        return list(self._samples)

    def write(self, index: int, sample: Sample) -> None:
        self._samples[index] = sample

    def sample(self, index: int) -> Sample:
        return self._samples[index]

    def came(self, index: int, priorities: NDArray) -> None:
        """Store the new priorities of a batch."""
        self._priorities[index] = priorities

    def update_priorities(self, index: int, with_priorities: bool) -> tuple[Keys, NDArray | None]:
        keys = self._samples.pop(index).keys
        return keys, self._priorities.pop(index) if with_priorities else None


class RemoteRank(RemoteWorker):
    """One learner and its current Ray actor; writes its results where a local rank would write them."""

    def __init__(
        self,
        spec: WorkerSpec[RankArgs],
        config: Config,
        place: Place,
        post: Post,
        batches: RemoteBatches,
        shared_weights: SharedWeights,
        state_buffer: SharedBytes,
        latest: LatestState,
    ) -> None:
        super().__init__(spec, config, place, post)
        self._supervision = config.supervision
        self._batches, self._shared_weights, self._state_buffer, self._latest = (
            batches,
            shared_weights,
            state_buffer,
            latest,
        )
        self._cells: NDArray = np.zeros(len(CELLS), np.int64)
        self._told = 0  # messages sent to the current actor

    def _create(self, incarnations: Mapping[int, int], options: dict[str, Any]) -> Any:
        self._told = 0
        node = RankNodeSpec(self.spec.args, self._latest.read(), self._supervision)
        return ray.remote(RankNode).options(max_concurrency=CALLS, **options).remote(node)

    def _began(self, line: Line) -> None:
        line.call(self._take_news, line.handle.beat.remote())

    def _take_news(self, found: tuple[RankNews, list[str]]) -> None:
        news, printed = found
        self._note_printed(printed)
        self._printed += news.printed
        self.ever_ready = self.ever_ready or bool(news.said)
        self._cells = news.cells
        for said in news.said:
            self._take(said)
        self._note_failure(news.failure)
        if self.line is not None and news.failure is None:
            self._began(self.line)
        self._hear()

    def _take(self, said: LearnerMessage) -> None:
        if said.weights is not None:
            self._shared_weights.accept(said.weights)
        if isinstance(said.message, BatchLearned) and said.priorities is not None:
            self._batches.came(said.message.slot, np.array(said.priorities))
        if said.state is not None:
            self._state_buffer.write(said.state)
        self._messages.append(said.message)

    def send(self, message: Message) -> None:
        if self.line is not None:
            sample = self._batches.sample(message.slot) if isinstance(message, BatchReady) else None
            self._told += 1
            self.line.handle.tell.remote(self._told, message, sample)

    @property
    def produced(self) -> dict[int, int]:
        return {}

    @property
    def members(self) -> list[Member]:
        return [Member(self.spec.kind, self.name, self._cells)]
