"""Worker processes on this machine, forked from a server that has torch loaded, and watched through shared memory."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from starling.actor.usage import CELLS
from starling.config.schema import SupervisionConfig
from starling.errors import UserError
from starling.runtime.link import Link, link, pipe
from starling.runtime.messages import BrokenMessageError, Fault, Message
from starling.runtime.open_files import check_limit
from starling.runtime.prewarm import prewarm
from starling.runtime.shared_memory import AnonymousSharedMemory, size_of
from starling.runtime.worker import Member, Worker, WorkerSpec
from starling.runtime.worker_main import WorkerArgs, WorkerProcessArgs, main
from starling.runtime.worker_output import STACKS, PrintedLine, PrintedLines
from starling.types import ArraySpec, NDArray

STACKS_SECONDS = 1.0
"""Seconds that a worker that hangs has to write its stacks."""
KILL_SECONDS = 5.0
"""Seconds that a killed process may take to end, at the end of a run; the kernel may keep it longer, for example on a
network file system that does not answer."""


def context() -> Any:
    """The multiprocessing context of worker processes: a fork server that has torch loaded."""
    prewarm()
    return get_context("forkserver")


class StatusBoard:
    """Shared memory for the status of every worker; see `Usage`."""

    SPEC = ArraySpec((len(CELLS),), np.dtype(np.int64))

    def __init__(self, workers: int) -> None:
        self.shared_memory = AnonymousSharedMemory(workers * size_of(self.SPEC))

    def place(self, index: int) -> tuple[ArraySpec, int]:
        return self.SPEC, index * size_of(self.SPEC)

    def cells(self, index: int) -> NDArray:
        return self.shared_memory.array(*self.place(index))


def make_process_workers(
    specs: Sequence[WorkerSpec[WorkerArgs]], settings: SupervisionConfig, selector: selectors.BaseSelector
) -> list[Worker]:
    """One worker per spec; none is started yet."""
    check_limit(len(specs))
    board = StatusBoard(len(specs))
    return [ProcessWorker(spec, settings, selector, board, i) for i, spec in enumerate(specs)]


class ProcessWorker(Worker):
    """One worker and its current process."""

    def __init__(
        self,
        spec: WorkerSpec[WorkerArgs],
        settings: SupervisionConfig,
        selector: selectors.BaseSelector,
        board: StatusBoard,
        index: int,
    ) -> None:
        super().__init__(spec, restarts=settings.restarts, timeout=settings.timeout)
        self._cells, self._selector = board.cells(index), selector
        self._board, self._index = board, index
        self.process: BaseProcess | None = None
        self.link: Link | None = None
        self._printed: PrintedLines | None = None
        self._kill_at = 0.0  # if it hangs
        self._full: int | None = None  # the pipe to the process, while it is watched for room

    @property
    def running(self) -> bool:
        return self.process is not None

    def start(self, incarnations: Mapping[int, int], hear: Callable[[], None], crashed: Callable[[], None]) -> None:
        mine, theirs = link()
        printed, printing = pipe()
        self._cells[:] = 0
        self._cells[0] = time.monotonic_ns()
        args = WorkerProcessArgs(
            self.name,
            self.spec.args.for_incarnations(incarnations),
            theirs,
            self._board.shared_memory,
            self._board.place(self._index),
            printing,
        )
        process = context().Process(target=main, args=(args,), name=self.name, daemon=True)
        try:
            process.start()
        except (AttributeError, TypeError, ImportError) as error:
            raise UserError(f"{self.name} cannot be sent to its process: {error}") from error
        finally:
            theirs.close()
            printing.close()
        self.process, self.link, self._printed = process, mine, PrintedLines(self.name, printed)
        self.hung, self.ended_for_another, self.start_at, self.fault = False, False, None, None
        self._selector.register(mine, selectors.EVENT_READ, hear)
        self._selector.register(self._printed, selectors.EVENT_READ, hear)
        self._selector.register(process.sentinel, selectors.EVENT_READ, crashed)

    @property
    def silent_seconds(self) -> float:
        return (time.monotonic_ns() - int(self._cells[0])) / 1e9

    def printed(self) -> list[PrintedLine]:
        if self._printed is None or self._printed.ended:
            return []
        lines = self._printed.read()
        if self._printed.ended:
            self._selector.unregister(self._printed)
        return lines

    def receive(self) -> list[Message]:
        if self.link is None or self.link.ended:
            return []
        messages = self.link.receive()
        self._watch_for_room(self.link)
        if self.link.ended:
            self._selector.unregister(self.link)
        if self.link.broken is not None:  # nothing that it does can be relied on
            text = f"sent an invalid message ({self.link.broken})"
            messages.append(Fault(text, BrokenMessageError.__name__, ""))
            self.kill()
        return messages

    def send(self, message: Message) -> None:
        if self.link is not None:
            self.link.send(message)
            self._watch_for_room(self.link)

    def _send_rest(self) -> None:
        assert self.link is not None, "the pipe of a process that was put away is not watched"
        self.link.flush()
        self._watch_for_room(self.link)

    def _watch_for_room(self, link: Link) -> None:
        """Have the rest of the messages sent as soon as the process has read others."""
        if link.unsent and self._full is None:
            self._full = link.writing.fd
            self._selector.register(self._full, selectors.EVENT_WRITE, self._send_rest)
        elif not link.unsent and self._full is not None:
            self._selector.unregister(self._full)
            self._full = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def end_hung(self) -> None:
        """Have it write its Python stacks to its log, and kill it a moment later."""
        if self.process is None or self.process.pid is None:
            return
        if not self.hung:
            self.hung, self._kill_at = True, time.monotonic() + STACKS_SECONDS
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, STACKS)
        elif time.monotonic() >= self._kill_at:
            self.kill()

    def tell_to_stop(self) -> None:
        self._cells[CELLS.index("stop")] = 1

    def join(self, seconds: float) -> None:
        if self.process is not None:
            self.process.join(seconds)
            self.kill()
            self.process.join(KILL_SECONDS)
            if self.process.exitcode is not None:
                self.reap()

    def reap(self) -> str:
        assert self.process is not None, "a dead worker had a process"
        assert self.link is not None, "a dead worker had a link"
        assert self._printed is not None, "a dead worker had a pipe for what it printed"
        self._selector.unregister(self.process.sentinel)
        if not self._printed.ended:
            self._selector.unregister(self._printed)
        if not self.link.ended:
            self._selector.unregister(self.link)
        if self._full is not None:
            self._selector.unregister(self._full)
            self._full = None
        code = self.process.exitcode or 0
        reason, self.killed = self._reason(code), code < 0
        self.process.close()
        self.link.close()
        self._printed.close()
        self.process = self.link = self._printed = None
        return reason

    def _reason(self, code: int) -> str:
        if self.hung:
            return "hung: no heartbeat"
        return self.fault_text() or (
            f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )

    @property
    def produced(self) -> dict[int, int]:
        (me,) = self.members
        return dict.fromkeys(self.spec.groups, me.counters["env_steps"])

    @property
    def members(self) -> list[Member]:
        return [Member(self.spec.kind, self.name, self._cells)]
