"""Runs several learners, each in its own process with its own hub: a shard of the tables, and actors.

A rank that dies or hangs loses no experience, since the hubs of this process hold shards and batches. The other ranks
abandon the update in progress, and all continue from the state of the rank with most updates.

The files, in the order in which they take part ("main": a part of this process; "rank": of each learner's process):

1. `rank_hub` (main): one hub per learner; it starts the learner's process and sends it batches.
2. `rank` (rank): the role of that process; it learns while it is joined with the others, and else reports `RankWaits`.
3. This file (main): the main loop, which handles the messages of all ranks.
4. `regroup` (main): once all ranks wait, decides whose state they continue from; they are sent `JoinLearners`.
5. `rendezvous` (rank): the torch store through which the ranks then find each other, over their links.
6. `distributed_learners` (rank): the process group of the ranks that have found each other, which all-reduces
   gradients. It implements `learner.group.LearnerGroup`, all that a `Learner` knows of the others.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starling.actor.core import next_incarnation
from starling.config.schema import SupervisionConfig
from starling.learner.learner import Learner
from starling.replay.store import Tables
from starling.runtime.event_queue import drain
from starling.runtime.lease import Lease, close_hubs, lease_metrics
from starling.runtime.messages import (
    BatchLearned,
    JoinLearners,
    LearnerMetrics,
    Message,
    MetricsRequest,
    RankGone,
    RankWaits,
    StateRequest,
    StateWritten,
)
from starling.runtime.rank_hub import Event, RankHub
from starling.runtime.regroup import Regroup
from starling.runtime.shared_memory import SharedBytes
from starling.runtime.shared_weights import WeightWriter
from starling.runtime.status import RuntimeStatus
from starling.runtime.worker_output import PrintedLine
from starling.state_io import pack, unpack
from starling.types import Episode

M = TypeVar("M", StateWritten, LearnerMetrics)
TIMED = "time/"
METRICS_SECONDS = 2.0
EVENT_POLL_SECONDS = 0.05


class LatestState:
    """The newest state of a learner that the main process knows; a rank that is started takes it."""

    def __init__(self) -> None:
        self._memory = SharedBytes()

    def write(self, state: bytes) -> None:
        self._memory = SharedBytes(state)  # never in place: a rank that starts may still read the one before

    def read(self) -> bytes:
        return self._memory.read()


class LearnersRuntime:
    """Regroups the ranks, handles their messages, and collects metrics and states.

    `learner` only holds the state that the ranks start with.
    """

    def __init__(
        self,
        hubs: Sequence[RankHub],
        learner: Learner,
        weights: Sequence[WeightWriter],
        state_buffers: Sequence[SharedBytes],
        latest: LatestState,
        events: queue.SimpleQueue[Event],
        settings: SupervisionConfig,
        lease: Lease | None = None,
    ) -> None:
        self.hubs, self.learner, self._weights, self._state_buffers = hubs, learner, weights, state_buffers
        self._latest, self._events = latest, events
        self._regroup = Regroup(len(hubs), settings.reduction, time.monotonic)
        self._answer_seconds = settings.timeout + 2 * settings.reduction  # a rank that is silent for longer hangs
        self._notices: deque[str] = deque()
        self._answers: dict[tuple[int, type[Message]], Message] = {}  # by rank and class
        self._metrics_asked = False  # of rank 0, which has not answered yet
        self._lost: set[int] = set()  # ranks without a process
        self._updates: int | None = None
        self._last: tuple[dict[str, Any], dict[str, Any]] | None = None  # state and metrics after `halt`
        self._lease = lease

    @property
    def env_steps(self) -> int:
        return sum(hub.store.env_steps for hub in self.hubs)

    @property
    def stores(self) -> list[Tables]:
        """The tables, one shard per learner."""
        return [hub.store for hub in self.hubs]

    @property
    def updates(self) -> int:
        return self.learner.updates if self._updates is None else self._updates

    def run(self) -> Iterator[None]:
        """Yield after every message of a rank, or after a moment without one."""
        self._latest.write(pack(self.learner.get_state()))
        for writer in self._weights:
            writer.publish(self.learner.progress(self.env_steps))
        for hub in self.hubs:
            hub.start()
        while True:
            self._handle_next()
            if failure := self._failure():
                raise failure
            yield

    def _failure(self) -> BaseException | None:
        return next((hub.failure for hub in self.hubs if hub.failure is not None), None)

    def _handle_next(self) -> None:
        """Handle one message of a rank, or wait a moment for one."""
        with suppress(queue.Empty):
            self._handle_message(*self._events.get(timeout=EVENT_POLL_SECONDS))
        for rank in self._regroup.overdue_ranks():
            self.hubs[rank].kill_rank()
        self._regroup_if_complete()

    def _handle_message(self, rank: int, message: Message) -> None:
        match message:
            case BatchLearned(updates=updates):
                self._updates = updates if rank == 0 else self._updates
            case RankWaits(updates, optimizer_steps, late, why):
                self._lost.discard(rank)
                if why is not None:
                    self._notices.append(f"learner {rank} lost the others: {why}")
                self._regroup.on_waiting(rank, (updates, optimizer_steps), late, why)
            case RankGone():
                self._lost.add(rank)
                self._metrics_asked = self._metrics_asked and rank != 0
                self._regroup.on_exit(rank)
            case StateWritten() | LearnerMetrics():
                self._answers[rank, type(message)] = message
                self._metrics_asked = self._metrics_asked and not isinstance(message, LearnerMetrics)

    def _regroup_if_complete(self) -> None:
        order = self._regroup.order()
        if order is None:
            return
        if self._updates is not None:
            self._notices.append(f"the learners continue together from update {order.updates:,}")
        self._updates = order.updates
        for hub in self.hubs:
            hub.send_to_rank(JoinLearners(order.attempt, order.source, hub.store.env_steps))

    def _ask(self, rank: int, request: StateRequest, answer: type[M], seconds: float) -> M | None:
        """The answer of a rank; None if it is gone or does not answer within `seconds`."""
        self._answers.pop((rank, answer), None)
        self.hubs[rank].send_to_rank(request)
        return self._answer(rank, answer, seconds)

    def _answer(self, rank: int, kind: type[M], seconds: float) -> M | None:
        end = time.monotonic() + seconds
        while (found := self._answers.pop((rank, kind), None)) is None:
            if time.monotonic() >= end or rank in self._lost or self.hubs[rank].failure is not None:
                return None
            self._handle_next()
        assert isinstance(found, kind), "answers are found by their class"
        return found

    def _learner_state(self) -> dict[str, Any]:
        """The state of the first rank that answers; else the last one known."""
        if not self._latest.read():
            return self.learner.get_state()
        for rank in range(len(self.hubs)):
            if self.hubs[rank].failure is not None:
                continue
            if self._ask(rank, StateRequest(), StateWritten, self._answer_seconds) is not None:
                self._latest.write(self._state_buffers[rank].read())
                break
        else:
            self._notices.append("no learner is left to report its state: the last known one is saved")
        state: dict[str, Any] = unpack(self._latest.read())
        return state

    def _learner_metrics(self) -> dict[str, Any]:
        """Metrics of the first rank; if its update takes longer than `METRICS_SECONDS`, the next row has them."""
        if not self._metrics_asked and (0, LearnerMetrics) not in self._answers:
            self.hubs[0].send_to_rank(MetricsRequest())
            self._metrics_asked = True
        answer = self._answer(0, LearnerMetrics, METRICS_SECONDS)
        return {} if answer is None else answer.metrics

    def episodes(self) -> list[Episode]:
        return [episode for hub in self.hubs for episode in hub.episodes()]

    def notices(self) -> list[str]:
        return [line for hub in self.hubs for line in hub.notices()] + drain(self._notices)

    def printed(self) -> list[PrintedLine]:
        return [line for hub in self.hubs for line in hub.printed()]

    def recent_losses(self) -> dict[str, float]:
        """Nothing: the learners are other processes, which report their losses in `drain_metrics`."""
        return {}

    def drain_metrics(self) -> dict[str, Any]:
        """Metrics of the first rank's learner, and sums over all hubs; shares of time are means."""
        learned = self._learner_metrics() if self._last is None else self._last[1]
        rows = [hub.metrics() for hub in self.hubs]
        for row in rows:
            if f"{TIMED}learner/wait_out" in row:
                row[f"{TIMED}learner/reduction"] = row.pop(f"{TIMED}learner/wait_out")
        return {**learned, **_joined(rows), **lease_metrics(self._lease)}

    def status(self) -> RuntimeStatus:
        hubs = [hub.status(rank) for rank, hub in enumerate(self.hubs)]
        return RuntimeStatus(self.env_steps, self.updates, None, self._weights[0].size, hubs)

    def save(self, with_tables: bool) -> dict[str, Any]:
        """Like that of one learner over processes, with one state per shard."""
        learner = self._learner_state() if self._last is None else self._last[0]
        shards = {str(i): hub.tables_state(with_tables) for i, hub in enumerate(self.hubs)}
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
            for slots in hub.credits.actor_slots.values():
                slots.incarnation = incarnation

    def evaluate(self, wait: bool) -> Iterator[None]:
        """Request an evaluation of the current weights; with `wait`, yield until it is done."""
        if wait:
            yield from self._await_evaluation()  # an earlier one, of older weights
        self.hubs[0].evaluate()
        if wait:
            yield from self._await_evaluation()

    def _await_evaluation(self) -> Iterator[None]:
        while self.hubs[0].evaluating and self._failure() is None:
            self._handle_next()
            yield

    def evaluations(self) -> list[dict[str, float]]:
        return self.hubs[0].evaluations()

    def halt(self) -> None:
        """Stop the hubs, so that the state saved last is complete."""
        metrics = self._learner_metrics()
        self._last = self._learner_state(), metrics
        self._updates = self._last[0]["updates"]
        for hub in self.hubs:
            hub.halt()

    def close(self) -> None:
        close_hubs(self.hubs, self._lease)


def _joined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the metrics of several hubs: counts add up, shares of time are means."""
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row[key] for row in rows if key in row]
        joined[key] = round(sum(values) / len(values), 3) if key.startswith(TIMED) else sum(values)
    return joined
