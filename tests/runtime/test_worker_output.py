"""Lines that workers print arrive one by one; stacks of a hung worker arrive before it is killed."""

import selectors
import time

import pytest
from support.driving import TIMEOUT
from support.talking_worker import TalkingArgs

from starling.config.schema import SupervisionConfig
from starling.runtime.process_worker import make_process_workers
from starling.runtime.supervisor import Supervisor
from starling.runtime.worker import WorkerSpec
from starling.runtime.worker_output import LONGEST


class Books:
    def __init__(self):
        self.incarnations, self.ended = {}, []

    def handle_message(self, worker, message): ...

    def worker_started(self, worker): ...

    def worker_ended(self, worker):
        self.ended.append(worker.name)


@pytest.mark.parametrize("hangs", [False, True])
def test_lines_of_a_worker_that_ends_or_hangs(hangs):
    settings, selector, books = SupervisionConfig(timeout=2.0), selectors.DefaultSelector(), Books()
    workers = make_process_workers([WorkerSpec("talker", "evaluator", TalkingArgs(hangs))], settings, selector)
    supervisor, end = Supervisor(workers, settings, books), time.monotonic() + TIMEOUT
    try:
        while not books.ended:
            assert time.monotonic() < end
            if workers[0].ever_ready or workers[0].start_at is not None:  # it takes its time to start on a busy machine
                supervisor.supervise()
            for key, _ in selector.select(0.05):
                key.data()
        lines = [line.text for line in supervisor.printed]
        assert lines[:2] == ["a line of Python", "a line of C"]
        assert [len(line) for line in lines[2:5]] == [LONGEST, LONGEST, 1001]
        assert {line.worker for line in supervisor.printed} == {"talker"}
        if hangs:
            assert any("in hang_in_c" in line for line in lines), lines
            assert any(line.startswith("talker died (hung") for line in supervisor.notices)
        else:
            assert lines[5:] == ["no end of line"]
            assert any(line.startswith("talker died (SystemExit: 3") for line in supervisor.notices)
    finally:
        supervisor.stop(0)
        selector.close()
