"""The hub of one of several learners: its shard of the tables, its actors, and the link to its rank."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from starling.config.schema import SupervisionConfig
from starling.replay.store import Store
from starling.runtime.batch_buffer import Batches
from starling.runtime.candidate_scorer import ScoringThread
from starling.runtime.credits import ActorSlots
from starling.runtime.event_queue import EventQueue
from starling.runtime.hub import Hub
from starling.runtime.messages import BatchLearned, BatchReady, Message, RankGone, RendezvousValue
from starling.runtime.worker import LEARNER, Worker
from starling.types import Sample

Event = tuple[int, Message]
"""A rank and its message."""


class RankHub(Hub):
    """A hub whose learner is one of its workers. Messages that concern all learners go to `events`.

    Args:
        peers: The hubs of all ranks, this one included.
    """

    def __init__(
        self,
        index: int,
        store: Store,
        event_queue: EventQueue,
        workers: Sequence[Worker],
        actor_slots: dict[int, ActorSlots],
        settings: SupervisionConfig,
        batches: Batches,
        events: queue.SimpleQueue[Event],
        scoring_thread: ScoringThread | None,
        peers: Sequence[RankHub],
    ) -> None:
        super().__init__(store, event_queue, workers, actor_slots, settings, 0, scoring_thread)
        self._index, self._batches, self._events, self._peers = index, batches, events, peers
        self._rank = f"{LEARNER} {index}"

    def send_to_rank(self, message: Message) -> None:
        self.post(lambda: self._send(self._rank, message))

    def kill_rank(self) -> None:
        """End a rank that does not answer; it is started again as any worker is."""
        self.post(self._kill_rank)

    def _kill_rank(self) -> None:
        worker = self.supervisor.workers[self._rank]
        if worker.running:
            worker.end_hung()

    def _free_places(self) -> int:
        return len(self._batches.free)

    def _batches_ready(self) -> int:
        """Number of batches that the rank has, with the one it learns from."""
        return len(self._batches.out)

    def _deliver(self, sample: Sample) -> None:
        """Hand a batch to the rank before it asks."""
        slot = self._batches.free[0]
        self._batches.write(slot, sample)
        self._send_batch(slot)

    def _send_batch(self, slot: int) -> None:
        self._send(self._rank, BatchReady(slot, self.store.env_steps))

    def handle_message(self, worker: Worker, message: Message) -> None:
        if worker.name != self._rank:
            super().handle_message(worker, message)
            return
        if isinstance(message, RendezvousValue):  # for a rendezvous, which must not wait for the main thread
            for hub in self._peers:
                if hub is not self:
                    hub.send_to_rank(message)
            return
        if isinstance(message, BatchLearned):
            self.store.update_priorities(*self._batches.update_priorities(message.slot, message.with_priorities))
        self._events.put((self._index, message))

    def worker_started(self, worker: Worker) -> None:
        super().worker_started(worker)
        if worker.name == self._rank:
            for slot in self._batches.out:  # the process before it had not learned from these
                self._send_batch(slot)

    def worker_ended(self, worker: Worker) -> None:
        super().worker_ended(worker)
        if worker.name == self._rank:
            self._events.put((self._index, RankGone()))
