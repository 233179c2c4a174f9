"""Worker processes as the main process sees them: started, watched, started again, given up."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from starling.errors import UserError
from starling.roles.usage import CELLS, read
from starling.runtime import child
from starling.runtime.link import Link, link
from starling.runtime.prewarm import prewarm
from starling.runtime.slab import Slab, size_of
from starling.types import ArraySpec, NDArray

WINDOW_SECONDS = 600.0
"""Crashes that lie further back than this do not count against a worker."""
LONGEST_REST = 30.0


def context() -> Any:
    """How worker processes are started: forked from a server that has torch loaded, within tens of milliseconds."""
    prewarm()
    return get_context("forkserver")


@dataclass(frozen=True)
class WorkerSpec:
    """A worker as data: who builds its role and from what, which rows it holds, who cannot go on without it."""

    name: str
    kind: str  # actor, env, inference, evaluator, learner
    builder: str
    arguments: Callable[[Mapping[int, int]], Any]  # of the births of all groups
    groups: tuple[int, ...] = ()
    dependents: tuple[str, ...] = ()


class Restarts:
    """When a worker that crashed may try again: after 0.5 s, then 1, 2, ... up to 30; not after `allowed` restarts."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._crashes: deque[float] = deque()

    def crashed(self, now: float) -> float | None:
        """Seconds to rest before the next start; None: it is given up."""
        self._crashes.append(now)
        while self._crashes[0] < now - WINDOW_SECONDS:
            self._crashes.popleft()
        count = len(self._crashes)
        return None if count > self._allowed else min(LONGEST_REST, 0.5 * 2 ** (count - 1))


class StatusBoard:
    """Shared memory in which every worker tells how it is; see `Usage`."""

    SPEC = ArraySpec((len(CELLS),), np.dtype(np.int64))

    def __init__(self, workers: int) -> None:
        self.slab = Slab(workers * size_of(self.SPEC))

    def place(self, index: int) -> tuple[ArraySpec, int]:
        return self.SPEC, index * size_of(self.SPEC)

    def cells(self, index: int) -> NDArray:
        return self.slab.array(*self.place(index))


class Worker:
    """One worker and its present process."""

    def __init__(
        self, spec: WorkerSpec, board: StatusBoard, index: int, restarts: int, clock: Callable[[], float]
    ) -> None:
        self.spec, self.cells = spec, board.cells(index)
        self._board, self._index, self._clock = board, index, clock
        self._restarts = Restarts(restarts)
        self.process: BaseProcess | None = None
        self.link: Link | None = None
        self.given_up = False
        self.start_at: float | None = 0.0  # when the next start is due; None: it runs or is given up
        self.fault: dict[str, str] | None = None  # what it told before it died
        self.hung = False
        self.killed = False
        self.ever_ready = False  # whether it was ever built and began to work

    @property
    def name(self) -> str:
        return self.spec.name

    def start(self, births: Mapping[int, int]) -> tuple[BaseProcess, Link]:
        """Start a process; the caller watches the link and the process's sentinel."""
        mine, theirs = link()
        self.cells[:] = 0
        self.cells[0] = time.monotonic_ns()
        node = child.Node(
            self.name,
            self.spec.builder,
            self.spec.arguments(births),
            theirs,
            self._board.slab,
            self._board.place(self._index),
        )
        process = context().Process(target=child.main, args=(node,), name=self.name, daemon=True)
        try:
            process.start()
        except (AttributeError, TypeError, ImportError) as error:
            raise UserError(f"{self.name} cannot be sent to a process of its own: {error}") from error
        finally:
            theirs.close()
        self.process, self.link = process, mine
        self.hung, self.start_at, self.fault = False, None, None
        return process, mine

    @property
    def silent_seconds(self) -> float:
        """Since its last sign of life."""
        return (time.monotonic_ns() - int(self.cells[0])) / 1e9

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def tell_to_stop(self) -> None:
        self.cells[CELLS.index("stop")] = 1

    def reap(self) -> str:
        """Put a dead process away; says what it died of."""
        assert self.process is not None, "a dead worker had a process"
        assert self.link is not None, "a dead worker had a link"
        self.process.join()
        code = self.process.exitcode or 0
        reason, self.killed = self._reason(code), code < 0
        self.process.close()
        self.link.close()
        self.process = self.link = None
        return reason

    def _reason(self, code: int) -> str:
        if self.hung:
            return "hung: no sign of life"
        if self.fault is not None:
            known = self.fault["kind"] in ("EnvFault", "UserError")  # their words say all
            return self.fault["fault"] if known else f"{self.fault['kind']}: {self.fault['fault']}"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    @property
    def may_mend(self) -> bool:
        """Whether what it died of may go away by itself: an env's fault, a kill, a hang; not a mistake in code."""
        return self.fault["kind"] == "EnvFault" if self.fault else self.killed

    def rest(self) -> float | None:
        """Plan the next start after a crash; None: the worker is given up."""
        pause = self._restarts.crashed(self._clock())
        self.given_up = pause is None
        self.start_at = None if pause is None else self._clock() + pause
        return pause

    @property
    def counters(self) -> dict[str, int]:
        return read(self.cells)


def stop_all(workers: list[Worker], seconds: float) -> None:
    """Tell all to stop, and kill those that do not within `seconds`."""
    for worker in workers:
        worker.tell_to_stop()
    deadline = time.monotonic() + seconds
    for worker in workers:
        if worker.process is not None:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.kill()
            worker.reap()
