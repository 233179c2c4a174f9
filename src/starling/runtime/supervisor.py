"""Supervise workers: start them, dispatch their messages, restart crashed or hung ones, give up after many crashes."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from starling.actor.usage import Shares, mean
from starling.config.schema import SupervisionConfig
from starling.learner.learner import DivergedError
from starling.runtime.messages import Fault, Message, Notice, Ready
from starling.runtime.worker import ACTING, NEEDED, Member, Worker, stop_all
from starling.runtime.worker_output import MOST_KEPT, PrintedLine

START_SECONDS = 0.1
"""Seconds for which workers are started before messages are handled again."""


class RunFailedError(RuntimeError):
    """Too few workers are left, one of them fails in a way that a restart would repeat, or learners cannot meet."""


class Listener(Protocol):
    """Receives the messages and the starts and ends of workers."""

    @property
    def incarnations(self) -> Mapping[int, int]:
        """The current incarnation of every group."""
        ...

    def handle_message(self, worker: Worker, message: Message) -> None: ...

    def worker_started(self, worker: Worker) -> None: ...

    def worker_ended(self, worker: Worker) -> None: ...


class Supervisor:
    """All workers of one hub. Never waits: the thread that runs the selector calls back."""

    def __init__(
        self,
        workers: Sequence[Worker],
        settings: SupervisionConfig,
        listener: Listener,
    ) -> None:
        self._settings, self._listener = settings, listener
        self.workers = {worker.name: worker for worker in workers}
        self.notices: deque[str] = deque()
        self.printed: deque[PrintedLine] = deque(maxlen=MOST_KEPT)
        self.crashes: Counter[str] = Counter()  # by kind
        self._shown: set[str] = set()
        self._shares = Shares()
        self._supervised_at: float | None = None

    def supervise(self) -> bool:
        """Kill workers that hang, start those that are due; raises `RunFailedError` if too few are left.

        Returns False if some are still due, since starting many at once would keep messages waiting.
        """
        now, before = time.monotonic(), self._supervised_at
        self._supervised_at = now
        idle = 0.0 if before is None else now - before
        for worker in self.workers.values():
            slept = idle > worker.timeout / 2  # this process itself was stopped
            if worker.running:
                worker.poll()
            hangs = worker.silent_seconds > worker.timeout and not slept
            if worker.running and (worker.hung or hangs):
                worker.end_hung()
        self._check_enough()
        return self._start_due(now + START_SECONDS)

    def _start_due(self, end: float) -> bool:
        """Start workers that are due, until `end`, the longest overdue first; returns True if all are started."""
        now = time.monotonic()
        due = [worker for worker in self.workers.values() if worker.start_at is not None and worker.start_at <= now]
        for started, worker in enumerate(sorted(due, key=lambda worker: worker.start_at or 0.0), 1):
            self._start(worker)
            if time.monotonic() >= end:
                return started == len(due)
        return True

    def _start(self, worker: Worker) -> None:
        worker.start(self._listener.incarnations, lambda: self._dispatch(worker), lambda: self._crashed(worker))
        self._listener.worker_started(worker)

    def _dispatch(self, worker: Worker) -> None:
        self.printed += worker.printed()
        for message in worker.receive():
            match message:
                case Fault():
                    worker.fault = message
                case Ready():
                    worker.ever_ready = True
                case Notice(text):
                    self.notices.append(text)
                case _:
                    self._listener.handle_message(worker, message)

    def _crashed(self, worker: Worker) -> None:
        """Handle the end of a process that was not told to stop."""
        if not worker.running:
            return  # it has been put away already
        reason = self._reap(worker)
        if worker.ended_for_another:
            worker.start_at = time.monotonic()
            return
        if not worker.ever_ready and not worker.retry_if_never_ready:
            self._show_details(worker, reason)
            raise RunFailedError(f"{worker.name} could not be started: {reason}")
        if worker.fault is not None and worker.fault.kind == DivergedError.__name__:  # a restart would repeat it
            raise DivergedError(f"{worker.name}: {worker.fault.text}")
        self.crashes[worker.spec.kind] += 1
        worker.crashes, worker.last_end = worker.crashes + 1, reason
        self._announce(worker, reason, worker.plan_restart())
        for name in worker.spec.dependents:
            self._restart(self.workers[name])

    def _restart(self, worker: Worker) -> None:
        """Restart a healthy worker that cannot go on without one that died; `_crashed` hears of its end."""
        if worker.running:
            worker.ended_for_another = True
            worker.kill()

    def _reap(self, worker: Worker) -> str:
        """Dispatch the last messages of a dead process and clean up; returns the reason of its death."""
        self._dispatch(worker)
        reason = worker.reap()
        self._listener.worker_ended(worker)
        return reason

    def _announce(self, worker: Worker, reason: str, delay: float | None) -> None:
        plan = "given up after repeated crashes" if delay is None else f"restarting it in {delay:.1f} s"
        self.notices.append(f"{worker.name} died ({reason}): {plan}")
        self._show_details(worker, reason)

    def _show_details(self, worker: Worker, reason: str) -> None:
        """Show the traceback of a fault the first time it occurs."""
        details = "" if worker.fault is None else worker.fault.details
        if details and reason not in self._shown:
            self._shown.add(reason)
            self.notices.extend(details.rstrip().splitlines())

    def _check_enough(self) -> None:
        acting = [worker for worker in self.workers.values() if worker.spec.kind in ACTING]
        there = sum(len(worker.spec.groups) for worker in acting)
        left = sum(worker.groups_left for worker in acting)
        needed = min(self._settings.min_actors, there)
        if left < needed:
            raise RunFailedError(f"{left} of {there} actors are left, and supervision.min_actors is {needed}")
        for worker in self.workers.values():
            if worker.given_up and worker.spec.kind in NEEDED:
                raise RunFailedError(f"{worker.name} was given up after repeated crashes")

    def produced(self) -> dict[int, int]:
        """Env steps of running workers, by group."""
        acting = [worker for worker in self.workers.values() if worker.spec.kind in ACTING and worker.running]
        return {group: steps for worker in acting for group, steps in worker.produced.items()}

    def metrics(self) -> dict[str, Any]:
        """Crashes by kind, and the shares of time that each kind spent busy and waiting since the last call."""
        crashes = sum((Counter(worker.faults) for worker in self.workers.values()), self.crashes)
        row: dict[str, Any] = {f"faults/{kind}": count for kind, count in crashes.items()}
        looks: dict[str, list[dict[str, float]]] = {}
        members = [member for worker in self.workers.values() for member in worker.members]
        for member in members:
            kind = "actors" if member.kind in ACTING else member.kind
            looks.setdefault(kind, []).append(self._shares.look(member.name, member.cells))
        for kind, parts in looks.items():
            row |= {f"time/{kind}/{phase}": round(share, 3) for phase, share in mean(parts).items()}
        return row | batching([member for member in members if member.kind == "inference"])

    def tell_to_stop(self) -> None:
        for worker in self.workers.values():
            worker.tell_to_stop()

    def stop(self, seconds: float) -> None:
        stop_all(list(self.workers.values()), seconds)


def batching(servers: Sequence[Member]) -> dict[str, float]:
    """Batching of central inference: mean batch size, waiting time of the first request, and the budget for it."""
    if not servers:
        return {}
    cells = [server.counters for server in servers]
    calls = max(1, sum(cell["calls"] for cell in cells))
    return {
        "time/inference/batch": round(sum(cell["envs"] for cell in cells) / calls, 2),
        "time/inference/wait_ms": round(sum(cell["waited"] for cell in cells) / calls / 1e6, 3),
        "time/inference/budget_ms": round(sum(cell["budget"] for cell in cells) / len(cells) / 1e6, 3),
    }
