"""Workers as their supervisor sees them, wherever they run."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from starling.actor.usage import read
from starling.runtime.messages import Fault, Message
from starling.runtime.status import GIVEN_UP, WORKING
from starling.runtime.worker_output import PrintedLine
from starling.types import NDArray

WINDOW_SECONDS = 600.0
"""Crashes that lie further back than this do not count against a worker."""
LONGEST_DELAY = 30.0
JITTER = 0.25
ENDED = "Ended"
"""The kind of a fault that says no more than how a process ended: killed, hung."""

WorkerKind = Literal["actor", "env", "inference", "node", "evaluator", "learner", "shard"]
"""The kinds of workers:

- `actor`: an env loop and its policy in one process; it writes its fragments itself.
- `env`: an env loop only; the inference server of its hub acts for it and writes its fragments.
- `inference`: an inference server, the writer for the groups of several `env` workers.
- `node`: a Ray actor that holds `actor` workers, or `env` workers and their inference server. It restarts them itself
  and reports what became of their groups (`IncarnationEnded`, `EnvGroupPaused`, `EnvGroupResumed`).
- `evaluator`, `learner` (one of several), `shard` (a Ray actor with some of the tables).
"""
LEARNER: Final = "learner"
ACTING = ("actor", "env", "node")
"""Kinds that step envs: with their process, an incarnation of each of their groups ends."""
PAUSING = ("env", "node")
"""Kinds whose groups can be paused, that is without an env loop while their writer still runs."""
ENV_LOOP = "env"
"""The kind whose fragments another worker writes, which must be told of its end."""
NEEDED = ("inference", LEARNER)
"""Kinds without which a run cannot go on."""


A = TypeVar("A", covariant=True)


@dataclass(frozen=True)
class WorkerSpec(Generic[A]):
    """One worker: its settings, the groups of envs that it steps or acts for, and the workers that depend on it."""

    name: str
    kind: WorkerKind
    args: A
    groups: tuple[int, ...] = ()
    dependents: tuple[str, ...] = ()


class Restarts:
    """Exponential backoff: restart after 0.5 s, then 1, 2, ... up to 30, and at most `allowed` times in ten minutes.

    Each pause is up to a quarter shorter or longer, so that workers that died together do not all start together.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._crashes: deque[float] = deque()

    def crashed(self, now: float) -> float | None:
        """Seconds until the next start; None: it is given up."""
        self._crashes.append(now)
        while self._crashes[0] < now - WINDOW_SECONDS:
            self._crashes.popleft()
        count = len(self._crashes)
        pause = min(LONGEST_DELAY, 0.5 * 2 ** (count - 1))
        return None if count > self._allowed else pause * random.uniform(1 - JITTER, 1 + JITTER)


@dataclass(frozen=True)
class Member:
    """A process that tells how it spends its time; a worker is one, or several behind one line."""

    kind: str
    name: str
    cells: NDArray  # see `Usage`

    @property
    def counters(self) -> dict[str, int]:
        return read(self.cells)


class Worker(ABC):
    """One worker with its faults and its next start; a subclass knows where it runs."""

    def __init__(self, spec: WorkerSpec[Any], *, restarts: int, timeout: float) -> None:
        self.spec, self.timeout = spec, timeout
        self._restarts = Restarts(restarts)
        self.given_up = False
        self.start_at: float | None = 0.0  # when the next start is due; None: it runs or is given up
        self.fault: Fault | None = None  # the exception that it died of, if it could report it
        self.hung = False
        self.killed = False
        self.crashes, self.last_end = 0, ""  # how often it died by itself, and why the last time
        self.ended_for_another = False  # killed since it cannot go on without one that died
        self.ever_ready = False  # whether it was ever built and began to work

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    @abstractmethod
    def running(self) -> bool: ...

    @property
    @abstractmethod
    def silent_seconds(self) -> float:
        """Since its last sign of life."""

    @abstractmethod
    def start(self, incarnations: Mapping[int, int], hear: Callable[[], None], crashed: Callable[[], None]) -> None:
        """Start it; `hear` is called when there is something to receive, `crashed` when it is dead."""

    @abstractmethod
    def receive(self) -> list[Message]:
        """The messages that have arrived; never waits."""

    @abstractmethod
    def send(self, message: Message) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    def end_hung(self) -> None:
        """End one that hangs; called repeatedly until it is dead."""
        self.hung = True
        self.kill()

    def printed(self) -> list[PrintedLine]:
        """The lines that it has printed since the last call; never waits."""
        return []

    @abstractmethod
    def reap(self) -> str:
        """Put a dead one away; says what it died of."""

    @abstractmethod
    def tell_to_stop(self) -> None: ...

    @abstractmethod
    def join(self, seconds: float) -> None:
        """Wait so long for one that was told to stop, then end it."""

    @property
    @abstractmethod
    def produced(self) -> dict[int, int]:
        """Env steps of the current incarnation of its groups."""

    @property
    @abstractmethod
    def members(self) -> list[Member]: ...

    @property
    def groups_left(self) -> int:
        """How many of its groups are not given up."""
        return 0 if self.given_up else len(self.spec.groups)

    @property
    def faults(self) -> dict[str, int]:
        """Crashes of its own workers by kind, where it has some."""
        return {}

    def poll(self) -> None:  # noqa: B027 - most have nothing to poll for
        """Called by `Supervisor.supervise` while it runs, to notice what no event reports."""

    @property
    def state(self) -> str:
        """Its state in one or two words, for people."""
        if self.given_up:
            return GIVEN_UP
        if not self.running:
            return "stopped" if self.start_at is None else "waits for its start"
        return "hung" if self.hung else WORKING if self.ever_ready else "starting"

    @property
    def retry_if_never_ready(self) -> bool:
        """Whether to restart it although it died before it was ever ready.

        True after an env's fault, a kill, or a hang, which may not happen again; False after a mistake in code.
        """
        return self.fault.kind in ("EnvFault", ENDED) if self.fault else self.killed

    def fault_text(self) -> str | None:
        """The exception that it reported before it died, in one line; None if it reported none."""
        if self.fault is None:
            return None
        known = self.fault.kind in ("EnvFault", "UserError", "RunFailedError", ENDED)  # their words say all
        return self.fault.text if known else f"{self.fault.kind}: {self.fault.text}"

    def plan_restart(self) -> float | None:
        """Set `start_at` after a crash and return the seconds until then; None: the worker is given up."""
        now = time.monotonic()
        delay = self._restarts.crashed(now)
        self.given_up = delay is None
        self.start_at = None if delay is None else now + delay
        return delay


def stop_all(workers: list[Worker], seconds: float) -> None:
    """Tell all to stop, and kill those that do not within `seconds`."""
    for worker in workers:
        worker.tell_to_stop()
    deadline = time.monotonic() + seconds
    for worker in workers:
        if worker.running:
            worker.join(max(0.0, deadline - time.monotonic()))
