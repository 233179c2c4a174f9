"""The worker processes of a run: started, listened to, watched, started again, given up."""

from __future__ import annotations

import selectors
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from starling.config.schema import SupervisionConfig
from starling.roles.usage import Shares, mean
from starling.runtime.workers import StatusBoard, Worker, WorkerSpec, stop_all

ACTING = ("actor", "env")
"""Kinds of workers that step envs."""
NEEDED = ("inference", "learner")
"""Kinds of workers without which a run cannot go on."""


HOPELESS = ("DivergedError",)
"""Faults that a restart would only repeat."""


class RunFailedError(RuntimeError):
    """Too few workers are left, or one cannot go on; nor can the run."""


class Listener(Protocol):
    """Who is told what happens to workers."""

    def heard(self, worker: Worker, message: dict[str, Any]) -> None: ...

    def began(self, worker: Worker) -> None: ...

    def ended(self, worker: Worker) -> None: ...


class Crew:
    """All workers; whoever runs the selector calls back, so nothing here waits."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        settings: SupervisionConfig,
        selector: selectors.BaseSelector,
        listener: Listener,
        births: Callable[[], Mapping[int, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._selector, self._listener = settings, selector, listener
        self._births, self._clock = births, clock
        board = StatusBoard(len(specs))
        self.workers = {spec.name: Worker(spec, board, i, settings.restarts, clock) for i, spec in enumerate(specs)}
        self.notices: deque[str] = deque()
        self._crashes: Counter[str] = Counter()
        self._shown: set[str] = set()
        self._shares = Shares()
        self._looked: float | None = None

    def supervise(self) -> None:
        """Kill who hangs, start whose time has come."""
        now, before = self._clock(), self._looked
        self._looked = now
        slept = before is not None and now - before > self._settings.timeout / 2  # this process itself was stopped
        for worker in self.workers.values():
            if worker.process is not None and worker.silent_seconds > self._settings.timeout and not slept:
                worker.hung = True
                worker.kill()
            if worker.start_at is not None and self._clock() >= worker.start_at:
                self._start(worker)

    def _start(self, worker: Worker) -> None:
        process, link = worker.start(self._births())
        self._selector.register(link, selectors.EVENT_READ, lambda: self._hear(worker))
        self._selector.register(process.sentinel, selectors.EVENT_READ, lambda: self._crashed(worker))
        self._listener.began(worker)

    def _hear(self, worker: Worker) -> None:
        link = worker.link
        if link is None or link.ended:
            return
        for message in link.receive():
            if "fault" in message:
                worker.fault = message
            elif "ready" in message:
                worker.ever_ready = True
            else:
                self._listener.heard(worker, message)
        if link.ended:
            self._selector.unregister(link)

    def _crashed(self, worker: Worker) -> None:
        """A process is dead that nobody told to stop."""
        if worker.process is None:
            return  # it has just been put away together with another
        reason = self._bury(worker)
        if not worker.ever_ready and not worker.may_mend:
            self._show_details(worker, reason)
            raise RunFailedError(f"{worker.name} could not be started: {reason}")
        if worker.fault is not None and worker.fault["kind"] in HOPELESS:
            raise RunFailedError(f"{worker.name}: {worker.fault['fault']}")
        self._crashes[worker.spec.kind] += 1
        self._announce(worker, reason, worker.rest())
        for name in worker.spec.dependents:
            self._start_anew(self.workers[name])
        self._check_enough()

    def _start_anew(self, worker: Worker) -> None:
        """A sound worker whose partner is gone goes too, and comes back at once."""
        if worker.process is not None:
            worker.kill()
            self._bury(worker)
            worker.start_at = self._clock()

    def _bury(self, worker: Worker) -> str:
        """Take what a dead process still sent and put it away; says what it died of."""
        assert worker.process is not None, "only a process can die"
        assert worker.link is not None, "a process has a link"
        worker.process.join()
        self._hear(worker)
        self._selector.unregister(worker.process.sentinel)
        if not worker.link.ended:
            self._selector.unregister(worker.link)
        reason = worker.reap()
        self._listener.ended(worker)
        return reason

    def _announce(self, worker: Worker, reason: str, pause: float | None) -> None:
        plan = "given up after repeated crashes" if pause is None else f"starting it again in {pause:g} s"
        self.notices.append(f"{worker.name} died ({reason}): {plan}")
        self._show_details(worker, reason)

    def _show_details(self, worker: Worker, reason: str) -> None:
        """The traceback of a fault, the first time it comes."""
        details = (worker.fault or {}).get("details", "")
        if details and reason not in self._shown:
            self._shown.add(reason)
            self.notices.extend(details.rstrip().splitlines())

    def _check_enough(self) -> None:
        acting = [worker for worker in self.workers.values() if worker.spec.kind in ACTING]
        left = sum(not worker.given_up for worker in acting)
        needed = min(self._settings.min_actors, len(acting))
        if left < needed:
            raise RunFailedError(f"{left} of {len(acting)} actors are left, and supervision.min_actors is {needed}")
        for worker in self.workers.values():
            if worker.given_up and worker.spec.kind in NEEDED:
                raise RunFailedError(f"{worker.name} was given up after repeated crashes")

    def produced(self) -> dict[int, int]:
        """Env steps that the living have produced, by group."""
        acting = [worker for worker in self.workers.values() if worker.spec.kind in ACTING and worker.process]
        return {group: worker.counters["env_steps"] for worker in acting for group in worker.spec.groups}

    def metrics(self) -> dict[str, Any]:
        """Crashes by kind, and how each kind spent its time since the last call."""
        row: dict[str, Any] = {f"faults/{kind}": count for kind, count in self._crashes.items()}
        looks: dict[str, list[dict[str, float]]] = {}
        for worker in self.workers.values():
            kind = "actors" if worker.spec.kind in ACTING else worker.spec.kind
            looks.setdefault(kind, []).append(self._shares.look(worker.name, worker.cells))
        for kind, parts in looks.items():
            row |= {f"time/{kind}/{phase}": round(share, 3) for phase, share in mean(parts).items()}
        return row | self._batching()

    def _batching(self) -> dict[str, float]:
        """How central inference batches: mean rows of a batch, how long its first row waited, and the budget for it."""
        server = next((worker for worker in self.workers.values() if worker.spec.kind == "inference"), None)
        if server is None:
            return {}
        cells = server.counters
        calls = max(1, cells["calls"])
        return {
            "time/inference/batch": round(cells["rows"] / calls, 2),
            "time/inference/wait_ms": round(cells["waited"] / calls / 1e6, 3),
            "time/inference/budget_ms": round(cells["budget"] / 1e6, 3),
        }

    def tell_to_stop(self) -> None:
        for worker in self.workers.values():
            worker.tell_to_stop()

    def stop(self, seconds: float) -> None:
        stop_all(list(self.workers.values()), seconds)
