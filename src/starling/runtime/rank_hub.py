"""The hub of one learner of several: its shard of the tables, its actors, and the way to its rank."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

from starling.config.schema import SupervisionConfig
from starling.replay.store import Store
from starling.runtime.batch_buffer import Desk
from starling.runtime.credits import ActorSlots
from starling.runtime.event_queue import EventQueue
from starling.runtime.hub import Hub
from starling.runtime.scoring import ScoringThread
from starling.runtime.workers import Worker
from starling.types import Sample

LEARNER = "learner"
"""The kind of a worker that learns."""
Event = tuple[int, dict[str, Any]]
"""What a rank said, or that it is `gone`, and which it was."""


class ShardHub(Hub):
    """A hub whose learner is one of its workers; what concerns all learners goes to `events`."""

    def __init__(
        self,
        index: int,
        store: Store,
        hire: Callable[[EventQueue], Sequence[Worker]],
        actor_slots: dict[int, ActorSlots],
        settings: SupervisionConfig,
        desk: Desk,
        events: queue.SimpleQueue[Event],
        scoring_thread: ScoringThread | None,
    ) -> None:
        super().__init__(store, hire, actor_slots, settings, 0, scoring_thread)
        self._index, self._desk, self._events = index, desk, events
        self._rank = f"{LEARNER} {index}"
        self.others: Sequence[ShardHub] = ()  # of the other learners

    def say(self, message: dict[str, Any]) -> None:
        """Tell the rank something."""
        self.post(lambda: self._send(self._rank, message))

    def kill_rank(self) -> None:
        """End a rank that does not answer; it is started again as any worker is."""
        self.post(self._kill_rank)

    def _kill_rank(self) -> None:
        worker = self.supervisor.workers[self._rank]
        worker.hung = worker.running
        worker.kill()

    def _room(self) -> int:
        return len(self._desk.free)

    def _deliver(self, sample: Sample) -> None:
        """Put a batch into the hands of the rank, before it asks."""
        slot = self._desk.free[0]
        self._desk.write(slot, sample)
        self._send_batch(slot)

    def _send_batch(self, slot: int) -> None:
        self._send(self._rank, {"batch": [slot, self.store.env_steps]})

    def heard(self, worker: Worker, message: dict[str, Any]) -> None:
        if worker.name != self._rank:
            super().heard(worker, message)
            return
        if "posted" in message:  # for a rendezvous, which must not wait for the main thread
            for hub in self.others:
                hub.say(message)
            return
        if "update_priorities" in message:
            slot, with_priorities, _ = message["update_priorities"]
            self.store.update_priorities(*self._desk.update_priorities(slot, with_priorities))
        self._events.put((self._index, message))

    def began(self, worker: Worker) -> None:
        super().began(worker)
        if worker.name == self._rank:
            for slot in self._desk.out:  # its predecessor had not learned from these
                self._send_batch(slot)

    def ended(self, worker: Worker) -> None:
        super().ended(worker)
        if worker.name == self._rank:
            self._events.put((self._index, {"gone": True}))
