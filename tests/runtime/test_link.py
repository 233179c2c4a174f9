"""Lines between processes: a producer may be killed at any moment, the consumer sees whole messages and then an end."""

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
    """A plain child without anything of ours around it."""
    pid = os.fork()
    if pid == 0:
        try:
            work(link_end)
        finally:
            os._exit(0)
    return pid


def test_messages_arrive_whole_and_in_order():
    mine, theirs = link()
    pid = fork_with(theirs, lambda end: [end.send(Fault("x" * i * 37, "kind", str(i))) for i in range(300)])
    theirs.close()
    found = []
    while not mine.ended:
        wait_readable([mine], 5)
        found += mine.receive()
    os.waitpid(pid, 0)
    assert [message.details for message in found] == [str(i) for i in range(300)]
    assert all(len(message.text) == int(message.details) * 37 for message in found)


def test_both_directions():
    mine, theirs = link()
    mine.send(CreditGranted(0, 1))
    theirs.send(CreditsReturned(0, (1, 2)))
    assert theirs.receive() == [CreditGranted(0, 1)]
    assert mine.receive() == [CreditsReturned(0, (1, 2))]
    assert mine.receive() == []
    assert not mine.ended


def test_sending_to_a_dead_peer_says_so(monkeypatch):
    mine, theirs = link()
    theirs.close()
    assert mine.send(CreditGranted(0, 1)) is False


SPEC = FragmentBuffer({"x": ArraySpec((50_000,), np.dtype(np.int64)), "y": ArraySpec((3,), np.dtype(np.uint8))}, None)


def produce(end: Link, port: FragmentPort) -> None:
    """Writes fragments as an actor does: fill a lent slot, name it, wait for the next credit."""
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
def test_a_producer_killed_at_any_moment_neither_corrupts_nor_blocks(seed):
    random.seed(seed)
    size = size_of(SPEC)
    port = FragmentPort(AnonymousSharedMemory(2 * size), {0: SPEC}, {0: [0, size]})
    slots = port.buffers()[0]
    mine, theirs = link()
    pid = fork_with(theirs, lambda end: (mine.close(), produce(end, port)))
    theirs.close()
    mine.send(CreditGranted(0, 0))
    mine.send(CreditGranted(0, 1))
    kill_at = time.monotonic() + random.random() * 0.15
    numbers, slowest, killed = [], 0.0, False
    while not mine.ended:
        if not killed and time.monotonic() >= kill_at:
            os.kill(pid, signal.SIGKILL)
            killed = True
        wait_readable([mine], 0.01)
        before = time.monotonic()
        for message in mine.receive():
            if isinstance(message, FragmentReady):
                values = slots[message.slot].steps["x"]
                assert (values == message.sequence).all(), "a fragment that was named is whole"
                numbers.append(message.sequence)
                mine.send(CreditGranted(0, message.slot))
        slowest = max(slowest, time.monotonic() - before)
    os.waitpid(pid, 0)
    assert killed
    assert numbers == list(range(1, len(numbers) + 1))
    assert slowest < 30.0


def test_a_peer_that_stops_reading_does_not_block_for_ever(monkeypatch):
    monkeypatch.setattr("starling.runtime.link.SEND_SECONDS", 0.2)
    mine, theirs = link()
    before = time.monotonic()
    assert mine.send(Evaluate({"padding": "x" * 10_000_000})) is False
    assert time.monotonic() - before < 30  # it waits for a reader indefinitely else
    theirs.close()


def shared_memory():
    """What this process shares with others, as the kernel lists it: the last word is the file."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if line.split()[1].endswith("s")}


def test_shared_memory_has_no_name_and_goes_with_its_last_user():
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
