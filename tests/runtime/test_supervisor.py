"""Supervision: it never waits for a worker, neither for its end nor for its start."""

import time
from typing import ClassVar

import pytest

from starling.config.schema import SupervisionConfig
from starling.runtime import supervisor as supervision
from starling.runtime.messages import Ready
from starling.runtime.supervisor import Supervisor
from starling.runtime.worker import Worker, WorkerSpec


class SlowWorker(Worker):
    """A worker whose process takes its time to start, and ends only when the test says so."""

    def __init__(self, name, kind="actor", dependents=(), start_seconds=0.0):
        super().__init__(WorkerSpec(name, kind, None, (0,), dependents), restarts=5, timeout=60.0)
        self._seconds, self.starts, self.kills = start_seconds, 0, 0
        self.killed_by_us = self._running = False
        self.messages = []
        self.silent = 0.0

    running = property(lambda self: self._running)
    silent_seconds = property(lambda self: self.silent)
    members = property(lambda self: [])

    @property
    def produced(self):
        return {0: 0}

    def start(self, incarnations, hear, crashed):
        time.sleep(self._seconds)
        self.starts += 1
        self._running, self.start_at, self.ended_for_another, self.hung = True, None, False, False
        self._hear, self._crashed = hear, crashed
        self.messages.append(Ready())
        hear()

    def receive(self):
        messages, self.messages = self.messages, []
        return messages

    def send(self, message): ...

    def kill(self):
        self.kills += 1

    def end(self):
        """What the selector does once the process has ended."""
        self._crashed()

    def reap(self):
        self._running, self.killed = False, True
        return "killed by SIGKILL"

    def tell_to_stop(self): ...

    def join(self, seconds): ...


class Books:
    """Notes the ends of workers, as a hub does."""

    incarnations: ClassVar = {0: 0}

    def __init__(self):
        self.ended = []

    def handle_message(self, worker, message): ...

    def worker_started(self, worker): ...

    def worker_ended(self, worker):
        self.ended.append(worker.name)


def supervised(*workers):
    books = Books()
    return Supervisor(workers, SupervisionConfig(), books), books


def test_dependents_that_do_not_end_at_once_are_not_waited_for():
    """A process may stay in the kernel after SIGKILL, for example on a network file system."""
    server = SlowWorker("inference", "inference", ("env 0", "env 1"))
    loops = [SlowWorker("env 0", "env"), SlowWorker("env 1", "env")]
    supervisor, books = supervised(server, *loops)
    supervisor.supervise()
    server.end()
    assert [loop.kills for loop in loops] == [1, 1], "both at once"
    assert books.ended == ["inference"]
    loops[1].end()
    assert books.ended == ["inference", "env 1"]
    supervisor.supervise()
    assert [loop.starts for loop in loops] == [1, 2]
    assert supervisor.crashes == {"inference": 1}, "only one worker crashed"
    assert loops[0].running


def test_starts_of_many_workers_leave_time_for_messages(monkeypatch):
    monkeypatch.setattr(supervision, "START_SECONDS", 0.03)
    workers = [SlowWorker(f"actor {i}", start_seconds=0.02) for i in range(6)]
    supervisor, _ = supervised(*workers)
    assert supervisor.supervise() is False
    assert 1 <= sum(worker.running for worker in workers) < 6
    for _ in range(6):
        last = supervisor.supervise()
    assert last is True
    assert [worker.starts for worker in workers] == [1] * 6


@pytest.mark.parametrize("ends", [1, 2])
def test_end_that_is_reported_twice_counts_once(ends):
    supervisor, books = supervised(worker := SlowWorker("actor 0"), SlowWorker("actor 1"))
    supervisor.supervise()
    for _ in range(ends):
        worker.end()
    assert books.ended == ["actor 0"]
    assert supervisor.crashes == {"actor": 1}
