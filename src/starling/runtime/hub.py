"""The hub between workers and a learner: owns the store, grants credits, prepares batches, handles workers' messages.

One thread runs it, so nothing in here needs a lock; other threads change its state through `post` and `call` only.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from starling.actor.recorder import FragmentBuffer
from starling.actor.usage import BUSY, WAIT_IN, Shares, Usage
from starling.config.schema import SupervisionConfig
from starling.replay.mixture import Candidates
from starling.replay.store import Tables
from starling.runtime.candidate_scorer import ScoringThread
from starling.runtime.credits import ActorSlots, Credits
from starling.runtime.event_queue import EventQueue, drain
from starling.runtime.messages import (
    BrokenMessageError,
    CreditGranted,
    CreditsReturned,
    EnvGroupLost,
    EnvGroupPaused,
    EnvGroupResumed,
    EpisodesDropped,
    EpisodesEnded,
    Evaluate,
    EvaluationDone,
    FragmentReady,
    FragmentReceived,
    IncarnationEnded,
    Message,
    SlotFreed,
    StepsLost,
    StepsStored,
)
from starling.runtime.status import HubStatus
from starling.runtime.supervisor import Supervisor
from starling.runtime.worker import ACTING, ENV_LOOP, PAUSING, Worker
from starling.runtime.worker_output import PrintedLine
from starling.runtime.worker_status import Looks, worker_statuses
from starling.types import Episode, Fragment, NDArray, Sample

R = TypeVar("R")
CHECK_SECONDS = 0.25
STOP_SECONDS = 3.0
STUCK_SECONDS = 1.0


class Hub:
    """The store with its limiter, the workers that fill it, and the batches that are ready for the learner."""

    def __init__(
        self,
        store: Tables,
        event_queue: EventQueue,
        workers: Sequence[Worker],
        actor_slots: dict[int, ActorSlots],
        settings: SupervisionConfig,
        prefetch: int,
        scoring_thread: ScoringThread | None,  # for attentive and elite replay
    ) -> None:
        self.store = store
        self.credits = Credits(actor_slots, store.begin, store.take_back)
        self._prefetched: queue.SimpleQueue[Sample] = queue.SimpleQueue()
        self._in_line: deque[Sample] = deque()  # the same batches, for who looks ahead
        self.failure: BaseException | None = None
        self._prefetch, self._scoring_thread = prefetch, scoring_thread
        self._being_scored = 0  # batches with drawn candidates that are not selected yet
        self._event_queue = event_queue
        self.supervisor = Supervisor(workers, settings, self)
        self._next_check = 0.0
        self._shares, self._usage, self._looks = Shares(), Usage(), Looks()
        self._served_at = time.monotonic()
        self._episodes: deque[Episode] = deque()
        self._dropped = 0  # episodes in which an env gave no numbers
        self._evaluations: deque[dict[str, float]] = deque()
        self.evaluator_state: dict[str, Any] = {}  # what the last evaluation leaves to the next
        self._evaluating = self._stopping = self._stuck = False
        self._answered = threading.Condition()  # of `call`; also when nobody will answer any more
        self._serving = False
        self._thread = threading.Thread(target=self._serve, name="hub", daemon=True)

    # For other threads.

    def start(self) -> None:
        self._serving = True
        self._thread.start()
        if self._scoring_thread is not None:
            self._scoring_thread.start(
                lambda candidates, scores: self.post(lambda: self._select(candidates, scores)), self._set_failure
            )

    def post(self, function: Callable[[], None]) -> None:
        """Run a function in the hub's thread, soon; never, if that thread ends before."""
        self._event_queue.post(function)

    def wake(self) -> None:
        """Let the hub's thread look now at what has changed."""
        self._event_queue.wake()

    def call(self, function: Callable[[], R]) -> R:
        """Run a function in the hub's thread and return its result.

        It runs in the caller's thread instead if the hub's has not started, has ended, or is stuck (see `fail`). If the
        hub's thread is stuck in the function itself, then the function runs a second time in the caller's thread, so it
        must be harmless to run twice.
        """
        if not self._serving or threading.current_thread() is self._thread:
            return function()
        answer: Future[R] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # this thread was stuck, and the caller did not wait for it
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)
            with self._answered:
                self._answered.notify_all()

        self.post(run)
        with self._answered:
            self._answered.wait_for(lambda: answer.done() or not self._serving or self._stuck)
        if answer.cancel() or not answer.done():
            return function()
        return answer.result(0)

    def next_batch(self, timeout: float) -> Sample | None:
        """Take a prepared batch; None if none is ready within `timeout` seconds."""
        try:
            sample = self._prefetched.get(timeout=timeout)
        except queue.Empty:
            return None
        self._in_line.popleft()
        self.wake()  # another one can be prepared
        return sample

    def upcoming_batch(self) -> Sample | None:
        """The batch that `next_batch` will return, if it is prepared already."""
        try:
            return self._in_line[0]
        except IndexError:
            return None

    def episodes(self) -> list[Episode]:
        return drain(self._episodes)

    def evaluations(self) -> list[dict[str, float]]:
        return drain(self._evaluations)

    def notices(self) -> list[str]:
        return drain(self.supervisor.notices)

    def printed(self) -> list[PrintedLine]:
        return drain(self.supervisor.printed)

    @property
    def evaluating(self) -> bool:
        """True while an evaluation is running and its evaluator has not been given up."""
        evaluator = self.supervisor.workers.get("evaluator")
        return self._evaluating and evaluator is not None and not evaluator.given_up

    def evaluate(self) -> None:
        """Request an evaluation of the newest weights; no effect while one is running."""
        self.call(self._ask_evaluator)

    def metrics(self) -> dict[str, Any]:
        return self.call(self._metrics)

    def status(self, rank: int = 0) -> HubStatus:
        """The state of this hub and its workers; any thread may ask, and the hub's may be stuck."""
        credits, envs = self.credits, self.credits.next_envs()
        limiter = self.store.limiter
        return HubStatus(
            rank=rank,
            silent_seconds=round(time.monotonic() - self._served_at, 3) if self._serving else 0.0,
            requests=self._event_queue.waiting,
            batches_ready=self._batches_ready(),
            batches_scored=self._being_scored,
            lent=sum(len(slots.lent) for slots in credits.actor_slots.values()),
            free=credits.free,
            acting_waits=None if envs is None else limiter.why_no_credit(envs),
            learning_waits=limiter.why_no_batch(),
            workers=worker_statuses(self.supervisor.workers.values(), credits, self._looks),
        )

    def tables_state(self, with_tables: bool) -> dict[str, Any]:
        """State of the tables; parts from other machines are awaited here, not in the hub's thread."""
        return self.store.await_state(self.call(lambda: self.store.get_state(with_tables)))

    # How a run ends, in this order: `fail`, only after an error; `halt`, before the last state is saved; `stop`, from
    # the runtime's `close`.

    def fail(self, failure: BaseException) -> None:
        """Fail the run from another thread, and do not wait for the hub's, which may be stuck waiting for an answer."""
        with self._answered:
            self.failure, self._stuck = failure, True
            self._answered.notify_all()

    def halt(self) -> None:
        """End the thread, so that the store no longer changes; the workers run on until `stop`."""
        self._stopping = True
        if self._thread.is_alive():
            self.wake()
            self._thread.join(STUCK_SECONDS if self._stuck else None)

    def stop(self) -> None:
        """End the thread and all workers."""
        self.halt()
        if self._scoring_thread is not None:
            self._scoring_thread.stop()
        self.supervisor.stop(STOP_SECONDS)
        self._event_queue.close()

    # The hub's own thread.

    def _serve(self) -> None:
        try:
            while not self._stopping:
                self._serve_once(max(0.0, self._next_check - time.monotonic()))
        except BaseException as error:
            self._set_failure(error)
        finally:
            with self._answered:
                self._serving = False
                self._answered.notify_all()

    def _set_failure(self, error: BaseException) -> None:
        self.failure = error

    def _serve_once(self, timeout: float) -> None:
        """Wait for events, at most `timeout` seconds; handle them, then prepare batches and grant credits."""
        self._served_at = time.monotonic()
        self._usage.enter(WAIT_IN)
        events = self._event_queue.wait(timeout)
        self._usage.enter(BUSY)
        self._event_queue.run(events)
        now = time.monotonic()
        if now >= self._next_check:
            all_started = self.supervisor.supervise()
            self._next_check = now + CHECK_SECONDS if all_started else now
        self._prefetch_batches()
        for writer, group, slot in self.credits.grant():
            self._send(writer, CreditGranted(group, slot))

    def _prefetch_batches(self) -> None:
        """Prepare batches before the learner asks for them."""
        while self._being_scored < self._free_places():
            candidates = self.store.draw_candidates()
            if candidates is None:
                return
            self._being_scored += 1
            if candidates.tables_to_score and self._scoring_thread is not None:
                self._scoring_thread.put(candidates)
            else:
                self._select(candidates, {})

    def _select(self, candidates: Candidates, distances: dict[int, NDArray]) -> None:
        self._being_scored -= 1
        self._deliver(self.store.select(candidates, distances))

    def _free_places(self) -> int:
        """Number of batches that may still be delivered; `RankHub` counts the slots that it shares with its rank."""
        return self._prefetch - self._prefetched.qsize()

    def _batches_ready(self) -> int:
        return self._prefetched.qsize()

    def _deliver(self, sample: Sample) -> None:
        """Hand a batch to the learner, here in the main thread; `RankHub` sends it to its rank."""
        self._in_line.append(sample)
        self._prefetched.put(sample)

    def _send(self, name: str, message: Message) -> None:
        self.supervisor.workers[name].send(message)

    def _ask_evaluator(self) -> None:
        if "evaluator" in self.supervisor.workers and not self._evaluating:
            self._evaluating = True
            self._send("evaluator", Evaluate(self.evaluator_state))

    def _metrics(self) -> dict[str, Any]:
        living = {
            self.credits.actor_slots[group].actor_id(group): steps
            for group, steps in self.supervisor.produced().items()
        }
        shares = self._shares.look("hub", self._usage.cells)
        return {
            **{f"ledger/{name}": count for name, count in self.credits.ledger.row(living).items()},
            **self.store.metrics(),
            "envs/dropped": self._dropped,
            **self.supervisor.metrics(),
            **({"time/hub/busy": round(shares[BUSY], 3)} if shares else {}),
            **(self._scoring_thread.metrics() if self._scoring_thread is not None else {}),
        }

    # Called by the supervisor.

    @property
    def incarnations(self) -> dict[int, int]:
        return self.credits.incarnations

    def handle_message(self, worker: Worker, message: Message) -> None:
        credits = self.credits
        match message:
            case FragmentReady(group, slot, actor_id, sequence):
                self._insert(group, slot, actor_id, sequence, credits.actor_slots[group].buffers[slot])
            case FragmentReceived(group, slot, actor_id, sequence, buffer):
                self._insert(group, slot, actor_id, sequence, buffer)
            case CreditsReturned(group, slots):
                credits.take_back_unused(group, slots)
            case EpisodesEnded(episodes):
                self._episodes.extend(episodes)
            case EpisodesDropped(count, notices):
                self.supervisor.notices.extend(notices)
                self._dropped += count
            case EvaluationDone(row, state):
                self._evaluations.append(row)
                self.evaluator_state = state
                self._evaluating = False
            case SlotFreed(group, slot):
                credits.free_slot(group, slot)
            case StepsStored(actor_id, steps):
                credits.ledger.on_inserted(actor_id, steps)
            case StepsLost(actor_id, steps):
                credits.ledger.on_lost(actor_id, steps)
            case IncarnationEnded(group, steps):
                credits.incarnation_ends(group, steps)
            case EnvGroupPaused(group):
                credits.pause(group)
            case EnvGroupResumed(group):
                credits.resume(group)
            case _:
                raise BrokenMessageError(f"{worker.name} sent {type(message).__name__}, which a hub does not handle")

    def _insert(self, group: int, slot: int, actor_id: int, sequence: int, buffer: FragmentBuffer | None) -> None:
        slots, before = self.credits.actor_slots[group], self.store.env_steps
        assert buffer is not None, "a fragment lies in its slot or was sent"
        self.store.insert(Fragment(buffer.steps, slots.env_index, buffer.carries, actor_id, sequence))
        self.credits.ledger.on_inserted(actor_id, self.store.env_steps - before)  # valid steps; none of a duplicate
        self.credits.free_slot(group, slot)

    def worker_started(self, worker: Worker) -> None:
        """Free the slots that the worker writes, resume its groups, and repeat an evaluation that died with it."""
        self.credits.writer_begins(worker.name)
        if worker.spec.kind in PAUSING:
            for group in worker.spec.groups:
                self.credits.resume(group)
        if worker.name == "evaluator" and self._evaluating:
            self._send(worker.name, Evaluate(self.evaluator_state))

    def worker_ended(self, worker: Worker) -> None:
        """Balance the books of a dead worker, whatever its kind (`worker.WorkerKind`).

        1. A writer of fragments: those that it had begun are lost, and their credits are free for others.
        2. A worker that steps envs: an incarnation of each of its groups ends. The steps that it produced and that were
           never inserted count as lost in the ledger.
        3. An env loop without a policy: its groups get no credits until it is started again, and the inference server
           that writes for them is told to return those that it still has (`CreditsReturned`).

        The restart is the supervisor's decision.
        """
        self.credits.writer_ends(worker.name)
        if worker.spec.kind in ACTING:
            for group in worker.spec.groups:
                self.credits.incarnation_ends(group, worker.produced[group])
        if worker.spec.kind == ENV_LOOP:
            for group in worker.spec.groups:
                self.credits.pause(group)
                self._send(self.credits.actor_slots[group].writer, EnvGroupLost(group))
