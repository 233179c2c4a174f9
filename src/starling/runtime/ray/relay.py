"""Supervises the workers of one node and relays between them and the driver; does not import Ray."""

from __future__ import annotations

import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from starling.actor.recorder import FragmentBuffer
from starling.runtime.credits import ActorSlots
from starling.runtime.event_queue import EventQueue, drain
from starling.runtime.messages import (
    BrokenMessageError,
    CreditGranted,
    CreditsReturned,
    EnvGroupLost,
    EpisodesDropped,
    EpisodesEnded,
    Evaluate,
    EvaluationDone,
    Fault,
    FragmentReady,
    Message,
)
from starling.runtime.process_worker import make_process_workers
from starling.runtime.ray.messages import (
    Credit,
    FragmentInfo,
    FragmentResult,
    GroupStatus,
    NodeSpec,
    NodeStatus,
    Vitals,
)
from starling.runtime.shared_weights import SharedWeights
from starling.runtime.supervisor import RunFailedError, Supervisor
from starling.runtime.worker import ACTING, Worker, WorkerSpec
from starling.runtime.worker_main import WorkerArgs
from starling.types import Episode

CHECK_SECONDS = 0.25
STOP_SECONDS = 2.0

Deliver = Callable[[tuple[FragmentResult, FragmentBuffer | None]], None]


@dataclass(frozen=True)
class NodeWorkers:
    """The workers of a node, the slots they write into, and the weights they read."""

    specs: list[WorkerSpec[WorkerArgs]]
    actor_slots: dict[int, ActorSlots]
    shared_weights: SharedWeights


class Relay:
    """Supervises the workers of a node and relays their messages, in one thread."""

    def __init__(self, workers: NodeWorkers, spec: NodeSpec, weights: int, rang: Callable[[], None]) -> None:
        self._actor_slots, self._shared_weights = workers.actor_slots, workers.shared_weights
        self._rang = rang  # called when the driver should be notified at once
        self._event_queue = EventQueue()
        self.incarnations = dict(spec.incarnations)  # of every group
        supervised = make_process_workers(workers.specs, spec.supervision, self._event_queue.selector)
        self._supervisor = Supervisor(supervised, spec.supervision, self)
        self._lent: dict[tuple[int, int], Deliver] = {}
        self._ended: dict[int, list[int]] = defaultdict(list)
        self._episodes: deque[Episode] = deque()
        self._evaluations: deque[EvaluationDone] = deque()
        self._evaluator_state: dict[str, Any] = {}  # with which the current evaluation started
        self._dropped = 0  # episodes in which an env returned values that are not finite, since the last status
        self._number, self._weights = 0, weights  # of the last status, and of the workers' current weights
        self._failure: Fault | None = None
        self._stopping = self._evaluating = False
        while not self._supervisor.supervise():  # start all workers before the first credit arrives
            pass
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)
        self._thread.start()

    # For other threads.

    def renew(self, number: int, weights: Any) -> None:
        """Publish these weights to the workers, unless they have them or newer ones."""
        if number > self._weights:
            self._weights = number
            self._shared_weights.accept(weights)

    def lend(self, credit: Credit, deliver: Deliver) -> None:
        """Pass on a credit; `deliver` is called with its fragment from the relay's thread."""
        self._event_queue.post(lambda: self._lend(credit, deliver))

    def evaluate(self, state: dict[str, Any]) -> None:
        """Evaluate the newest weights, starting from the last evaluation's state; the status has its result."""
        self._event_queue.post(lambda: self._evaluate(state))

    def tell(self, deliver: Callable[[NodeStatus], None]) -> None:
        """Call `deliver` with the status from the relay's thread."""
        self._event_queue.post(lambda: deliver(self._news()))

    def stop(self) -> None:
        self._stopping = True
        self._event_queue.wake()
        self._thread.join()
        self._supervisor.stop(STOP_SECONDS)

    # The relay's own thread.

    def _serve(self) -> None:
        while not self._stopping:
            try:
                self._event_queue.run(self._event_queue.wait(CHECK_SECONDS))
                if self._failure is None:
                    self._supervisor.supervise()
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Record the failure of the node and return all credits."""
        details = "" if isinstance(error, RunFailedError) else "".join(traceback.format_exception(error))
        fault = Fault(str(error), type(error).__name__, details)
        self._failure = self._failure or fault  # later errors may be consequences of the first
        for group, slot in list(self._lent):
            self._give_back(group, slot)
        self._rang()

    def _lend(self, credit: Credit, deliver: Deliver) -> None:
        group, slot = credit.group, credit.slot
        self._lent[group, slot] = deliver
        if self._works(group) and self._failure is None:
            self._supervisor.workers[self._actor_slots[group].writer].send(CreditGranted(group, slot))
        else:
            self._give_back(group, slot)

    def _works(self, group: int) -> bool:
        """Return True if both the env loop and the policy of a group are running."""
        return all(worker.running for worker in self._supervisor.workers.values() if group in worker.spec.groups)

    def _give_back(self, group: int, slot: int) -> None:
        deliver = self._lent.pop((group, slot), None)
        if deliver is not None:
            deliver((FragmentResult(Credit(group, slot), None, self._news()), None))

    def _news(self) -> NodeStatus:
        self._number += 1
        produced = self._supervisor.produced()
        given_up = {group for w in self._supervisor.workers.values() if w.given_up for group in w.spec.groups}
        groups = {
            group: GroupStatus(
                incarnation, produced.get(group, 0), tuple(self._ended[group]), self._works(group), group in given_up
            )
            for group, incarnation in self.incarnations.items()
        }
        members = [member for worker in self._supervisor.workers.values() for member in worker.members]
        return NodeStatus(
            self._number,
            groups,
            [Vitals(member.kind, member.name, np.array(member.cells)) for member in members],
            dict(self._supervisor.crashes),
            all(worker.ever_ready for worker in self._supervisor.workers.values()),
            drain(self._episodes),
            drain(self._evaluations),
            drain(self._supervisor.notices),
            drain(self._supervisor.printed),
            self._dropped_since(),
            self._failure,
        )

    def _dropped_since(self) -> int:
        dropped, self._dropped = self._dropped, 0
        return dropped

    # Called by the supervisor.

    def handle_message(self, worker: Worker, message: Message) -> None:
        match message:
            case FragmentReady(group, slot, actor_id, sequence):
                self._deliver(group, slot, actor_id, sequence)
            case CreditsReturned(group, slots):
                for slot in slots:
                    self._give_back(group, slot)
            case EpisodesEnded(episodes):
                self._episodes.extend(episodes)
            case EpisodesDropped(count, notices):
                self._supervisor.notices.extend(notices)
                self._dropped += count
            case EvaluationDone():
                self._evaluating = False
                self._evaluations.append(message)
                self._rang()
            case _:
                raise BrokenMessageError(f"{worker.name} sent {type(message).__name__}, which a node does not handle")

    def _deliver(self, group: int, slot: int, actor_id: int, sequence: int) -> None:
        """Deliver a fragment; its slot is lent again only after the arrays have arrived."""
        if self._failure is not None:  # all credits have been returned
            return
        deliver = self._lent.pop((group, slot))
        buffer = self._actor_slots[group].buffers[slot]
        assert buffer is not None, "a fragment lies in its slot"
        made = FragmentInfo(actor_id, sequence, int(buffer.steps.valid.sum()))
        deliver((FragmentResult(Credit(group, slot), made, self._news()), buffer))

    def _evaluate(self, state: dict[str, Any]) -> None:
        self._evaluating, self._evaluator_state = True, state
        self._supervisor.workers["evaluator"].send(Evaluate(state))

    def worker_started(self, worker: Worker) -> None:
        if worker.spec.kind == "evaluator" and self._evaluating:
            self._evaluate(self._evaluator_state)
        self._rang()

    def worker_ended(self, worker: Worker) -> None:
        for group in worker.spec.groups:
            if worker.spec.kind in ACTING:
                self._ended[group].append(worker.produced[group])
                self.incarnations[group] += 1
            if self._actor_slots[group].writer == worker.name:
                for slot in [slot for other, slot in self._lent if other == group]:
                    self._give_back(group, slot)
            else:
                self._supervisor.workers[self._actor_slots[group].writer].send(EnvGroupLost(group))
        self._rang()
