"""Learners that all-reduce their gradients with torch.distributed; only tensors are sent, nothing is pickled.

How ranks are started does not matter here: each is told where they meet, who it is and how many there are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from starling.actor.usage import BUSY, WAIT_IN, WAIT_OUT, Usage
from starling.learner.group import RankLostError
from starling.types import Tensor

R = TypeVar("R")
SLICE = 0.25
"""Seconds between two signs of life of a rank that waits for others."""
LONGEST = timedelta(days=1)
"""Timeout of ranks that wait for a batch; the supervisor finds one that hangs."""
NEVER = 2 * LONGEST
"""Timeout given to the process groups, which must not be the first to act: nccl's watchdog would end the process."""
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 0.01
"""Seconds between two looks at a collective operation; in between, a tenth of the time that it has taken so far."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class RendezvousInfo:
    """The arguments of a process group: a store that all ranks reach, this rank, their number, and its own address."""

    store: Store
    rank: int
    size: int
    timeout: float  # seconds, for the ranks to meet and for the reduction of a gradient
    host: str = LOOPBACK  # nobody outside this machine can reach it


class DistributedLearners:
    """A complete group of ranks. Gradients use gloo, or `nccl` if each rank has its own GPU; all else uses gloo.

    While this rank waits for others its `usage` says so, and shows a sign of life. docs/dev/devices.md says why it asks
    again and again whether an operation has completed.
    """

    def __init__(self, rendezvous: RendezvousInfo, usage: Usage, nccl: bool = False) -> None:
        self.size, self._usage, self._total = rendezvous.size, usage, 0
        self._timeout = timedelta(seconds=rendezvous.timeout)
        self._store = rendezvous.store  # torch keeps its own half of a store that is written in Python, not ours
        rendezvous.store.set_timeout(self._timeout)
        try:
            self._talk = self._beside(lambda: _gloo(rendezvous, self._timeout))
            self._reduction = self._beside(lambda: _nccl(rendezvous)) if nccl else self._talk
        except RuntimeError as error:
            raise RankLostError(f"the learners did not connect: {_first_line(error)}", late=True) from error

    def _beside(self, make: Callable[[], R]) -> R:
        """Call `make`, which waits for other ranks, in a thread, and give signs of life."""
        with ThreadPoolExecutor(1) as thread:
            made = thread.submit(make)
            while not wait([made], SLICE).done:
                self._usage.beat()
        return made.result()

    def sync_env_steps(self, ready: bool, env_steps: int) -> int | None:
        told = torch.tensor([int(ready), env_steps])
        self._all_reduce(self._talk, told, dist.ReduceOp.SUM, LONGEST, WAIT_IN)
        count, self._total = told.tolist()
        return self._total if count == self.size else None

    def total(self, env_steps: int) -> int:
        return self._total

    def all_reduce_sum(self, tensor: Tensor) -> None:
        self._all_reduce(self._reduction, tensor, dist.ReduceOp.SUM, self._timeout, WAIT_OUT)

    def all_reduce_min(self, value: float) -> float:
        told = torch.tensor(value, dtype=torch.float64)
        self._all_reduce(self._talk, told, dist.ReduceOp.MIN, LONGEST)
        return float(told)

    def all_equal(self, fingerprint: Callable[[], int]) -> bool:
        mine = fingerprint()
        told = torch.tensor([mine, -mine])
        self._all_reduce(self._talk, told, dist.ReduceOp.MIN, LONGEST)
        return int(told[0]) == -int(told[1])

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        """Broadcast the bytes of the rank `source` to all ranks."""
        size = torch.tensor([0 if data is None else len(data)])
        self._broadcast(size, source)
        try:
            content = torch.empty(int(size), dtype=torch.uint8)
        except RuntimeError as error:  # negative, or more than there is
            raise RankLostError(f"rank {source} wants to send {int(size):,} bytes", late=False) from error
        if data is not None:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._broadcast(content, source)
        return content.numpy().tobytes()

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = source, 0, NEVER
        self._run(self._talk, lambda: self._talk.broadcast([tensor], options), self._timeout)

    def _all_reduce(self, group: Any, tensor: Tensor, operation: Any, limit: timedelta, phase: str = WAIT_IN) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = operation, NEVER
        self._usage.enter(phase)
        try:
            self._run(group, lambda: group.allreduce([tensor], options), limit)
        finally:
            self._usage.enter(BUSY)

    def _run(self, group: Any, begin: Callable[[], Any], limit: timedelta) -> None:
        """Begin a collective operation and wait until it is done.

        Raises `RankLostError` if it fails, or if it takes longer than `limit`, after which the group is aborted.
        `work.wait` is called only once it is done: with a timeout it would abort the communicator of nccl.
        """
        start = time.monotonic()
        try:
            work = begin()
            while not work.is_completed():
                waited = time.monotonic() - start
                if waited >= limit.total_seconds():
                    group.abort()
                    raise RankLostError(f"another learner did not answer within {limit.total_seconds():g} s", late=True)
                self._usage.beat()
                time.sleep(min(max(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))
            work.wait()
        except RankLostError:
            raise
        except RuntimeError as error:
            raise RankLostError(_first_line(error), late=False) from error


def _gloo(rendezvous: RendezvousInfo, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=rendezvous.host, lazy_init=False)]
    options._timeout, options._threads = timeout, 1
    return gloo(PrefixStore("gloo", rendezvous.store), rendezvous.rank, rendezvous.size, options)


def _nccl(rendezvous: RendezvousInfo) -> Any:
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # errors are raised here, and end no process
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = NEVER
    return nccl(PrefixStore("nccl", rendezvous.store), rendezvous.rank, rendezvous.size, options)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
