"""Main function of every worker process: build the role, run it, report faults, and die with the main process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import forkserver, parent_process
from typing import Any, Protocol

from starling.actor.usage import BUSY, Usage
from starling.runtime.link import Link, PipeEnd, wait_readable
from starling.runtime.messages import Fault, Ready
from starling.runtime.shared_memory import AnonymousSharedMemory
from starling.runtime.worker_output import print_to
from starling.types import ArraySpec

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
BEAT_SECONDS = 0.5
"""How often a worker that waits gives a sign of life."""
LAST_SECONDS = 10.0
"""Seconds that the main process may take to read the last messages of a worker that ends."""


class WorkerRole(Protocol):
    """The work of a process: an actor, an env loop, an inference server, an evaluator, or a learner."""

    def step(self) -> bool:
        """One unit of work; False when there is nothing to do before something arrives."""
        ...

    def wait(self) -> tuple[str, list[Any], float | None]:
        """What a role with nothing to do waits for: a phase of `Usage`, what to watch, and seconds at most."""
        ...

    def close(self) -> None: ...


class WorkerArgs(Protocol):
    """The settings of a worker, sent to its process, which builds the role from them; see `launch.workers`."""

    def for_incarnations(self, incarnations: Mapping[int, int]) -> WorkerArgs:
        """The settings for a start of the worker, given the current incarnation of every group of envs."""
        ...

    def build(self, link: Link, usage: Usage) -> WorkerRole: ...


@dataclass(frozen=True)
class WorkerProcessArgs:
    """Everything that a worker process starts with."""

    name: str
    args: WorkerArgs
    link: Link
    status: AnonymousSharedMemory
    cells: tuple[ArraySpec, int]  # of this worker in `status`: spec and offset
    output: PipeEnd  # where it prints


def main(process: WorkerProcessArgs) -> None:
    """Run a worker until it is told to stop, fails, or loses the main process."""
    _leave_signals_to_the_main_process()
    _die_with_main_process()
    _show_name(process.name)
    print_to(process.output)
    usage = Usage(process.status.array(*process.cells))
    role = None
    try:
        role = process.args.build(process.link, usage)
        process.link.send(Ready())
        _work(role, usage, process.link)
    except EOFError:
        pass  # the main process is gone
    except BaseException as error:
        name = type(error).__name__
        process.link.send(Fault(str(error) or name, name, _details(error)))
        sys.exit(1)
    finally:
        if role is not None:
            role.close()
        process.link.flush(LAST_SECONDS)


def _leave_signals_to_the_main_process() -> None:
    """Signals to the whole process group are the main process's business, which then tells us.

    SIGTERM gets a handler that does nothing, because programs that an env starts would inherit an ignored signal.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _work(role: WorkerRole, usage: Usage, link: Link) -> None:
    while not usage.told_to_stop:
        link.flush()
        usage.enter(BUSY)
        if not role.step():
            phase, watched, patience = role.wait()
            usage.enter(phase)
            wait_readable(watched, BEAT_SECONDS if patience is None else min(patience, BEAT_SECONDS))


def _show_name(name: str) -> None:
    """What ps and top show."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, f"starling {name}"[:15].encode())


def _details(error: BaseException) -> str:
    found = getattr(error, "details", None)
    return found if isinstance(found, str) else "".join(traceback.format_exception(error))


def _die_with_main_process() -> None:
    """Two ways, so that neither a stuck extension nor a stopped process survives: see both functions."""
    _kill_with_parent()
    parent = parent_process()
    assert parent is not None, "a worker is started by the main process"
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_readable([sentinel], None)
    os._exit(1)


def _kill_with_parent() -> None:
    """Ask Linux to kill this process with its parent, the fork server, which ends when the main process does.

    It stays alive as long as any process holds the pipe it watches, so we let go of ours.
    """
    if sys.platform != "linux":
        return
    server = getattr(forkserver, "_forkserver", None)
    alive = getattr(server, "_forkserver_alive_fd", None)
    if server is not None and alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
