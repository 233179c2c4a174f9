"""Links between processes: when a producer is killed, the consumer still gets complete messages and then the end."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from starling.actor.recorder import FragmentBuffer
from starling.runtime.experience_sink import FragmentPort
from starling.runtime.link import Link, link, wait_readable
from starling.runtime.messages import CreditGranted, CreditsReturned, Evaluate, Fault, FragmentReady, Notice
from starling.runtime.shared_memory import AnonymousSharedMemory, size_of
from starling.types import ArraySpec


def fork_with(link_end: Link, work) -> int:
    """Fork a child that only runs `work`."""
    pid = os.fork()
    if pid == 0:
        try:
            work(link_end)
            link_end.flush(60)
        finally:
            os._exit(0)
    return pid


def test_messages_arrive_complete_and_in_order():
    ours, theirs = link()
    pid = fork_with(theirs, lambda end: [end.send(Fault("x" * i * 37, "kind", str(i))) for i in range(300)])
    theirs.close()
    found = []
    while not ours.ended:
        wait_readable([ours], 5)
        found += ours.receive()
    os.waitpid(pid, 0)
    assert [message.details for message in found] == [str(i) for i in range(300)]
    assert all(len(message.text) == int(message.details) * 37 for message in found)


def test_links_work_in_both_directions():
    ours, theirs = link()
    ours.send(CreditGranted(0, 1))
    theirs.send(CreditsReturned(0, (1, 2)))
    assert theirs.receive() == [CreditGranted(0, 1)]
    assert ours.receive() == [CreditsReturned(0, (1, 2))]
    assert ours.receive() == []
    assert not ours.ended


def test_sending_to_a_dead_peer_returns_false(monkeypatch):
    ours, theirs = link()
    theirs.close()
    for _ in range(2):
        assert ours.send(CreditGranted(0, 1)) is False
        assert ours.unsent == 0, "nothing waits for room in a pipe that is closed"


SPEC = FragmentBuffer({"x": ArraySpec((50_000,), np.dtype(np.int64)), "y": ArraySpec((3,), np.dtype(np.uint8))}, None)


def produce(end: Link, port: FragmentPort) -> None:
    """Write fragments as an actor does: fill a granted slot, announce it, wait for the next credit."""
    slots = port.buffers()[0]
    number = 0
    while not end.ended:
        wait_readable([end], 1)
        for message in end.receive():
            number += 1
            slots[message.slot].steps["x"][:] = number
            end.send(Notice("p" * random.randrange(9000)))
            end.send(FragmentReady(0, message.slot, 0, number))


@pytest.mark.parametrize("seed", range(int(os.environ.get("STARLING_KILLS", "12"))))
def test_producer_killed_at_any_moment_neither_corrupts_nor_blocks(seed):
    random.seed(seed)
    size = size_of(SPEC)
    port = FragmentPort(AnonymousSharedMemory(2 * size), {0: SPEC}, {0: [0, size]})
    slots = port.buffers()[0]
    ours, theirs = link()
    pid = fork_with(theirs, lambda end: (ours.close(), produce(end, port)))
    theirs.close()
    ours.send(CreditGranted(0, 0))
    ours.send(CreditGranted(0, 1))
    kill_at = time.monotonic() + random.random() * 0.15
    numbers, slowest, killed = [], 0.0, False
    while not ours.ended:
        if not killed and time.monotonic() >= kill_at:
            os.kill(pid, signal.SIGKILL)
            killed = True
        wait_readable([ours], 0.01)
        before = time.monotonic()
        for message in ours.receive():
            if isinstance(message, FragmentReady):
                values = slots[message.slot].steps["x"]
                assert (values == message.sequence).all(), "an announced fragment is complete"
                numbers.append(message.sequence)
                ours.send(CreditGranted(0, message.slot))
        slowest = max(slowest, time.monotonic() - before)
    os.waitpid(pid, 0)
    assert killed
    assert numbers == list(range(1, len(numbers) + 1))
    assert slowest < 30.0


def test_message_that_does_not_fit_follows_whole_once_the_peer_reads_again():
    ours, theirs = link()
    sent = [Evaluate({"padding": "x" * size}) for size in (10, 1_000_000, 20)]
    assert all(ours.send(message) for message in sent)
    assert ours.unsent > 0, "nothing waited for the peer"
    found = []
    while len(found) < len(sent):
        found += theirs.receive()
        assert theirs.broken is None
        ours.flush()
    assert found == sent
    assert ours.unsent == 0


def test_peer_that_never_reads_is_treated_as_gone(monkeypatch):
    monkeypatch.setattr("starling.runtime.link.MOST_UNSENT", 2_000_000)
    ours, theirs = link()
    assert ours.send(Evaluate({"padding": "x" * 1_500_000}))
    assert not ours.send(Evaluate({"padding": "x" * 1_500_000}))
    assert theirs.receive() == [], "the half-written message is none"
    assert theirs.ended
    assert theirs.broken is None


def shared_memory():
    """Shared mappings of this process, as listed by the kernel; the last field is the file."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if line.split()[1].endswith("s")}


def test_shared_memory_has_no_name_and_is_freed_with_its_last_user():
    before = shared_memory(), len(os.listdir("/proc/self/fd"))
    memory = AnonymousSharedMemory(1 << 20)
    arrays = memory.arrays(SPEC)
    arrays.steps["x"][:] = 7
    (new,) = shared_memory() - before[0]
    assert not Path(new.split(maxsplit=5)[5]).exists()
    del arrays, memory
    assert new not in shared_memory()
    assert len(os.listdir("/proc/self/fd")) == before[1]


def test_arrays_in_shared_memory_do_not_overlap():
    specs = {str(i): ArraySpec((i,), np.dtype(np.uint8)) for i in range(1, 200, 7)}
    arrays = AnonymousSharedMemory(size_of(specs)).arrays(specs)
    for i, array in enumerate(arrays.values()):
        array[:] = i
    for i, array in enumerate(arrays.values()):
        assert (array == i).all()
        assert array.ctypes.data % 64 == 0
