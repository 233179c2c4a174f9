"""Rendezvous of learners over their links to the main process: values arrive, other messages wait, nothing listens."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from support.driving import TIMEOUT
from support.listening_sockets import listening_addresses

from starling.actor.usage import Usage
from starling.learner.group import RankLostError
from starling.runtime.distributed_learners import DistributedLearners, RendezvousInfo
from starling.runtime.link import link, wait_readable
from starling.runtime.messages import BatchReady, RendezvousValue, StateRequest
from starling.runtime.rendezvous import RankLine


@contextmanager
def ranks(size):
    """Links of `size` ranks, and a thread that relays posted values to the other ranks, as the hubs do."""
    pairs = [link() for _ in range(size)]
    mains, lines = [main for main, _ in pairs], [RankLine(theirs) for _, theirs in pairs]
    done = threading.Event()

    def relay():
        while not done.is_set():
            for end in wait_readable(mains, 0.02):
                for message in end.receive():
                    for other in mains:
                        if other is not end and isinstance(message, RendezvousValue):
                            other.send(message)

    thread = threading.Thread(target=relay)
    thread.start()
    try:
        yield mains, lines
    finally:
        done.set()
        thread.join()
        for one, other in pairs:
            one.close()
            other.close()


def test_value_arrives_in_all_ranks():
    with ranks(3) as (_, lines):
        stores = [line.rendezvous(1, TIMEOUT) for line in lines]
        stores[0].set("a", b"\x00\xff" * 50)
        assert [store.get("a") for store in stores] == [b"\x00\xff" * 50] * 3
        assert stores[1].check(["a"])
        assert not stores[1].check(["a", "b"])


def test_other_messages_stay_queued_during_a_rendezvous():
    with ranks(2) as (mains, lines):
        mains[1].send(BatchReady(0, 1))
        lines[0].rendezvous(1, TIMEOUT).set("a", b"x")
        assert lines[1].rendezvous(1, TIMEOUT).get("a") == b"x"
        mains[1].send(StateRequest())
        wait_readable([lines[1]], TIMEOUT)
        assert lines[1].receive() == [BatchReady(0, 1), StateRequest()]


def test_early_values_are_kept_and_those_of_earlier_rendezvous_dropped():
    with ranks(2) as (_, lines):
        lines[0].rendezvous(1, TIMEOUT).set("a", b"old")
        lines[0].rendezvous(2, TIMEOUT).set("a", b"new")
        store = lines[1].rendezvous(2, TIMEOUT)
        assert store.get("a") == b"new"
        assert lines[1].values(1) == {}
        assert not lines[1].rendezvous(3, TIMEOUT).check(["a"])


def test_waiting_for_a_value_times_out():
    with ranks(2) as (_, lines):
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"did not arrive within 0\.3 s"):
            lines[0].rendezvous(1, 0.3).get("a")
        assert time.monotonic() - began < TIMEOUT / 4


def test_end_of_the_main_process_ends_the_wait():
    main, theirs = link()
    main.close()
    line = RankLine(theirs)
    with pytest.raises(RuntimeError, match="the main process is gone"):
        line.rendezvous(1, TIMEOUT).get("a")
    with pytest.raises(RuntimeError, match="the main process is gone"):
        line.rendezvous(1, TIMEOUT).set("a", b"x")
    theirs.close()


@pytest.mark.parametrize("size", [2, 4])
def test_gloo_connects_repeatedly_and_only_on_loopback(size):
    before = listening_addresses([os.getpid()])
    with ranks(size) as (_, lines), ThreadPoolExecutor(size) as threads:
        for number in (1, 2):

            def join(rank, number=number):
                store = lines[rank].rendezvous(number, TIMEOUT)
                found = DistributedLearners(RendezvousInfo(store, rank, size, TIMEOUT), Usage())
                total = torch.full((3,), float(rank + 1))
                found.all_reduce_sum(total)
                return total.tolist(), {str(address) for address, _ in listening_addresses([os.getpid()]) - before}

            expected = [size * (size + 1) / 2] * 3
            assert [*threads.map(join, range(size))] == [(expected, {"127.0.0.1"})] * size


def test_rank_that_does_not_join_is_lost():
    with ranks(2) as (_, lines), pytest.raises(RankLostError, match="did not connect: the other learners did not"):
        DistributedLearners(RendezvousInfo(lines[0].rendezvous(1, 1.0), 0, 2, 1.0), Usage())
