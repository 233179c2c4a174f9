"""Several learners in processes of their own, each with its shard of the tables and its actors; the run is led here.

A rank that dies or hangs loses no experience: shards and batches are kept by the hubs of this process. The others give
up the update they were at, and all go on from the state of the one who had come furthest.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from starling.actor.core import next_incarnation
from starling.config.schema import SupervisionConfig
from starling.learner.learner import Learner
from starling.runtime.event_queue import drain
from starling.runtime.premises import Premises
from starling.runtime.processes import PATIENCE
from starling.runtime.rank_hub import Event, ShardHub
from starling.runtime.regroup import Regroup
from starling.runtime.shared_memory import SharedBytes
from starling.runtime.shared_weights import WeightWriter
from starling.runtime.tables import Tables
from starling.state_io import pack, unpack
from starling.types import Episode, Keys, NDArray, Sample

TIMED = "time/"
METRICS_SECONDS = 2.0


class Newest:
    """The newest learner's state that this process knows: ranks begin with it."""

    def __init__(self) -> None:
        self.data = b""

    def shared_bytes(self) -> SharedBytes:
        return SharedBytes(self.data)


class Total:
    """What the learner of this process, which never learns, knows of the run: how many env steps there are."""

    def __init__(self, hubs: Sequence[ShardHub]) -> None:
        self._hubs = hubs

    @property
    def env_steps(self) -> int:
        return sum(hub.store.env_steps for hub in self._hubs)

    def sample(self) -> Sample | None:
        return None

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None: ...


class LearnersRuntime:
    """Brings the ranks together, hears what they say, and keeps what a run shows and saves.

    `learner` only holds the state that the ranks begin with.
    """

    def __init__(
        self,
        hubs: Sequence[ShardHub],
        learner: Learner,
        weights: Sequence[WeightWriter],
        outboxes: Sequence[SharedBytes],
        newest: Newest,
        events: queue.SimpleQueue[Event],
        settings: SupervisionConfig,
        premises: Premises | None = None,
    ) -> None:
        self.hubs, self.learner, self._weights, self._outboxes = hubs, learner, weights, outboxes
        self._newest, self._events = newest, events
        self._gathering = Regroup(len(hubs), settings.reduction, time.monotonic)
        self._patience = settings.timeout + 2 * settings.reduction  # within which a rank answers or is known to hang
        self._notices: deque[str] = deque()
        self._answers: dict[int, dict[str, Any]] = {}
        self._lost: set[int] = set()  # ranks without a process
        self._updates: int | None = None
        self._last: tuple[dict[str, Any], dict[str, Any]] | None = None  # state and metrics after `halt`
        for hub in hubs:
            hub.others = [other for other in hubs if other is not hub]
        self._premises = premises or Premises()
        self._premises.begin(hubs)

    @property
    def env_steps(self) -> int:
        return sum(hub.store.env_steps for hub in self.hubs)

    @property
    def stores(self) -> list[Tables]:
        """The tables, a shard each learner."""
        return [hub.store for hub in self.hubs]

    @property
    def updates(self) -> int:
        return self.learner.updates if self._updates is None else self._updates

    def run(self) -> Iterator[None]:
        """Yields whenever a rank has said something, or nobody does."""
        self._newest.data = pack(self.learner.get_state())
        for writer in self._weights:
            writer.publish(self.learner.progress)
        for hub in self.hubs:
            hub.start()
        while True:
            self._turn()
            if failure := self._failure():
                raise failure
            yield

    def _failure(self) -> BaseException | None:
        return next((hub.failure for hub in self.hubs if hub.failure is not None), None)

    def _turn(self) -> None:
        """Deal with one thing that a rank said, or wait a moment for one."""
        with suppress(queue.Empty):
            self._hear(*self._events.get(timeout=PATIENCE))
        for rank in self._gathering.silent():
            self.hubs[rank].kill_rank()

    def _hear(self, rank: int, message: dict[str, Any]) -> None:
        if "update_priorities" in message and rank == 0:
            self._updates = message["update_priorities"][2]
        elif "waits" in message:
            self._lost.discard(rank)
            told = message["waits"]
            if told["why"] is not None:
                self._notices.append(f"learner {rank} lost the others: {told['why']}")
            self._gathering.waits(rank, tuple(told["standing"]), told["late"])
        elif "gone" in message:
            self._lost.add(rank)
            self._gathering.gone(rank)
        elif "told" in message:
            self._answers[rank] = message["told"]
        self._bring_together()

    def _bring_together(self) -> None:
        order = self._gathering.order()
        if order is None:
            return
        if self._updates is not None:
            self._notices.append(f"the learners go on together from update {order.updates:,}")
        self._updates = order.updates
        for hub in self.hubs:
            hub.say({"form": {**asdict(order), "env_steps": hub.store.env_steps}})

    def _ask(self, rank: int, what: str, seconds: float) -> dict[str, Any] | None:
        """What a rank tells of itself; None: it is gone, or says nothing for so long."""
        self._answers.pop(rank, None)
        self.hubs[rank].say({"tell": what})
        end = time.monotonic() + seconds
        while time.monotonic() < end and rank not in self._lost and self.hubs[rank].failure is None:
            self._turn()
            if what in self._answers.get(rank, {}):
                return self._answers.pop(rank)
        return None

    def _learner_state(self) -> dict[str, Any]:
        """Ask the ranks in turn; the last state that one gave where none can, and the first before any has begun."""
        if not self._newest.data:
            return self.learner.get_state()
        for rank in range(len(self.hubs)):
            if self.hubs[rank].failure is None and self._ask(rank, "state", self._patience) is not None:
                self._newest.data = self._outboxes[rank].read()
                break
        else:
            self._notices.append("no learner is left to tell its state: the last one that is known is saved")
        state: dict[str, Any] = unpack(self._newest.data)
        return state

    def _learner_metrics(self) -> dict[str, Any]:
        answer = self._ask(0, "metrics", METRICS_SECONDS)
        return {} if answer is None else answer["metrics"]

    def episodes(self) -> list[Episode]:
        return [episode for hub in self.hubs for episode in hub.episodes()]

    def notices(self) -> list[str]:
        return [line for hub in self.hubs for line in hub.notices()] + drain(self._notices)

    def drain_metrics(self) -> dict[str, Any]:
        """Of the first rank what it learned; of all shards sums, and means of how they spent their time."""
        update_priorities = self._learner_metrics() if self._last is None else self._last[1]
        rows = [hub.metrics() for hub in self.hubs]
        for row in rows:
            if f"{TIMED}learner/wait_out" in row:
                row[f"{TIMED}learner/reduction"] = row.pop(f"{TIMED}learner/wait_out")
        return {**update_priorities, **_joined(rows), **self._premises.metrics()}

    def save(self, with_tables: bool) -> dict[str, Any]:
        """As one learner over processes does, with a state a shard."""
        learner = self._learner_state() if self._last is None else self._last[0]
        shards = {str(i): hub.call(partial(hub.store.get_state, with_tables)) for i, hub in enumerate(self.hubs)}
        incarnations = {
            str(group): incarnation for hub in self.hubs for group, incarnation in hub.credits.incarnations.items()
        }
        steps = sum(shard["env_steps"] for shard in shards.values())
        return {
            "store": {"env_steps": steps, "shards": shards},
            "learner": learner,
            "incarnations": incarnations,
            "evaluator": self.hubs[0].evaluator_state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for i, hub in enumerate(self.hubs):
            hub.store.set_state(state["store"]["shards"][str(i)])
            hub.store.abandon()
        self.learner.set_state(state["learner"])
        self.hubs[0].evaluator_state = state.get("evaluator", {})
        incarnation = next_incarnation(state["incarnations"])
        for hub in self.hubs:
            for seat in hub.credits.actor_slots.values():
                seat.incarnation = incarnation

    def evaluate(self, wait: bool) -> Iterator[None]:
        """Have the present weights evaluated, beside training; with `wait` yields until that is done."""
        if wait:
            yield from self._await_evaluation()  # an earlier one, of older weights
        self.hubs[0].evaluate()
        if wait:
            yield from self._await_evaluation()

    def _await_evaluation(self) -> Iterator[None]:
        while self.hubs[0].evaluating and self._failure() is None:
            self._turn()
            yield

    def evaluations(self) -> list[dict[str, float]]:
        return self.hubs[0].evaluations()

    def halt(self) -> None:
        """Let nothing more come in, so that what is saved last is all there is."""
        metrics = self._learner_metrics()
        self._last = self._learner_state(), metrics
        self._updates = self._last[0]["updates"]
        for hub in self.hubs:
            hub.halt()

    def close(self) -> None:
        self._premises.before_end()
        for hub in self.hubs:
            hub.halt()
        for hub in self.hubs:
            hub.supervisor.tell_to_stop()  # all at once: a rank that waits for another then ends with it
        for hub in self.hubs:
            hub.stop()
        self._premises.end()


def _joined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of several shards as one: counts add up, shares of the time are means."""
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row[key] for row in rows if key in row]
        joined[key] = round(sum(values) / len(values), 3) if key.startswith(TIMED) else sum(values)
    return joined
