"""Relays between the driver and the process of a rank on its node; does not import Ray."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from starling.config.schema import SupervisionConfig
from starling.runtime.batch_buffer import BatchSlot, fill
from starling.runtime.event_queue import EventQueue, drain
from starling.runtime.messages import BatchLearned, BatchReady, Fault, Message, Ready, StateWritten
from starling.runtime.process_worker import make_process_workers
from starling.runtime.ray.messages import Reorder
from starling.runtime.shared_memory import SharedBytes
from starling.runtime.shared_weights import SharedWeights
from starling.runtime.worker import ENDED, WorkerSpec
from starling.runtime.worker_main import WorkerArgs
from starling.runtime.worker_output import MOST_KEPT, PrintedLine
from starling.types import NDArray, Sample

CHECK_SECONDS = 0.25
STOP_SECONDS = 2.0


@dataclass(frozen=True)
class RankWorker:
    """A rank, and the memory that it shares with the relay."""

    spec: WorkerSpec[WorkerArgs]
    slots: list[BatchSlot]
    shared_weights: SharedWeights
    state_buffer: SharedBytes


@dataclass(frozen=True)
class LearnerMessage:
    """A rank's message with the contents of shared memory that belong to it: priorities, weights, its state."""

    message: Message
    priorities: NDArray | None
    weights: NDArray | None
    state: bytes | None


@dataclass(frozen=True)
class RankNews:
    """Messages of a rank since the last call, its time use, and the reason of its failure, if any."""

    said: list[LearnerMessage]
    printed: list[PrintedLine]
    cells: NDArray
    failure: Fault | None


class RankRelay:
    """Starts the process of a rank and relays its messages, in one thread."""

    def __init__(self, worker: RankWorker, supervision: SupervisionConfig, rang: Callable[[], None]) -> None:
        self._shared, self._timeout = worker, supervision.timeout
        self._rang = rang
        self._event_queue = EventQueue()
        (self._worker,) = make_process_workers([worker.spec], supervision, self._event_queue.selector)
        self._said: deque[LearnerMessage] = deque()
        self._printed: deque[PrintedLine] = deque(maxlen=MOST_KEPT)
        self._known = 0  # number of the weights that were sent last
        self._turns = Reorder()
        self._failure: Fault | None = None
        self._stopping = False
        self._worker.start({}, self._hear, self._ended)
        self._thread = threading.Thread(target=self._serve, name="rank relay", daemon=True)
        self._thread.start()

    # For other threads.

    def tell(self, number: int, message: Message, sample: Sample | None) -> None:
        """Forward a message in the order of the numbers; `sample` is the batch that it names."""
        self._event_queue.post(lambda: self._turns.came(number, lambda: self._tell(message, sample)))

    def news(self, deliver: Callable[[RankNews], None]) -> None:
        """Call `deliver` with the rank's messages from the relay's thread."""
        self._event_queue.post(lambda: deliver(self._news()))

    def stop(self) -> None:
        self._stopping = True
        self._event_queue.wake()
        self._thread.join()
        if self._worker.running:
            self._worker.tell_to_stop()
            self._worker.join(STOP_SECONDS)

    # The relay's own thread.

    def _serve(self) -> None:
        while not self._stopping:
            try:
                self._event_queue.run(self._event_queue.wait(CHECK_SECONDS))
                if self._worker.running and (self._worker.hung or self._worker.silent_seconds > self._timeout):
                    self._worker.end_hung()
            except BaseException as error:
                self._fail("".join(traceback.format_exception(error)), type(error).__name__)

    def _tell(self, message: Message, sample: Sample | None) -> None:
        if isinstance(message, BatchReady) and sample is not None:
            fill(self._shared.slots[message.slot], sample)
        self._worker.send(message)

    def _hear(self) -> None:
        self._printed += self._worker.printed()
        for message in self._worker.receive():
            if isinstance(message, Fault):
                self._worker.fault = message
            elif not isinstance(message, Ready):
                self._said.append(self._with_what_it_left(message))
        self._rang()

    def _with_what_it_left(self, message: Message) -> LearnerMessage:
        state = self._shared.state_buffer.read() if isinstance(message, StateWritten) else None
        priorities = None
        if isinstance(message, BatchLearned) and message.with_priorities:
            priorities = self._shared.slots[message.slot].priorities.copy()
        shared_weights = self._shared.shared_weights
        fresh = shared_weights.newest(self._known, lambda number: (number, shared_weights.bytes_of(number).copy()))
        weights = None
        if fresh is not None:
            self._known, weights = fresh
        return LearnerMessage(message, priorities, weights, state)

    def _ended(self) -> None:
        self._hear()
        reason = self._worker.reap()
        kind = ENDED if self._worker.killed else "RunFailedError"
        fault = self._worker.fault or Fault(reason, kind, "")
        self._fail(fault.details, fault.kind, fault.text)

    def _fail(self, details: str, kind: str, said: str | None = None) -> None:
        words = said or details.strip().splitlines()[-1]
        self._failure = self._failure or Fault(words, kind, details)
        self._rang()

    def _news(self) -> RankNews:
        (me,) = self._worker.members
        return RankNews(drain(self._said), drain(self._printed), np.array(me.cells), self._failure)
