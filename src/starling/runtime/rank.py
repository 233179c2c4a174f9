"""One of several learners, in its own process: learns from its hub's batches, together with the other ranks.

`learners_runtime` says where this stands among the files of several learners.

Its hub sends `BatchReady`, `JoinLearners`, `StateRequest`, and `MetricsRequest`; the rank sends `BatchLearned`,
`RankWaits`, `LearnersJoined`, and answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from starling.actor.usage import BUSY, WAIT_IN, Usage
from starling.learner.group import RankLostError, SingleLearner
from starling.learner.learner import Learner, LearnResult
from starling.runtime.batch_buffer import BatchSlot
from starling.runtime.distributed_learners import DistributedLearners, RendezvousInfo
from starling.runtime.link import wait_readable
from starling.runtime.messages import (
    BatchLearned,
    BatchReady,
    BrokenMessageError,
    JoinLearners,
    LearnerMetrics,
    LearnersJoined,
    MetricsRequest,
    RankWaits,
    StateRequest,
    StateWritten,
)
from starling.runtime.rendezvous import RankLine
from starling.runtime.shared_memory import SharedBytes
from starling.runtime.shared_weights import WeightWriter
from starling.state_io import pack, unpack
from starling.types import Keys, Sample

LINK_POLL_SECONDS = 0.05
"""Seconds that a rank waits for a batch before it asks the others."""


@dataclass(frozen=True)
class RankSpec:
    """One of several learners, and where it listens for the others."""

    rank: int
    size: int
    timeout: float  # seconds, for the ranks to meet and for the reduction of a gradient
    address: str
    nccl: bool = False  # reduces gradients between GPUs; else gloo does


class LearnerRank:
    """The role of a rank: learns while it is joined with all other ranks, and waits to join them otherwise."""

    def __init__(
        self,
        spec: RankSpec,
        learner: Learner,
        batches: list[BatchSlot],
        line: RankLine,
        weights: WeightWriter,
        state_buffer: SharedBytes,
        usage: Usage,
    ) -> None:
        self._spec, self._learner, self._batches, self._line = spec, learner, batches, line
        self._weights, self._state_buffer, self._usage = weights, state_buffer, usage
        self._waiting: deque[int] = deque()  # slots with batches to learn from
        self._env_steps = 0  # that have arrived at this rank's hub
        self._joined = False
        self._send_waits()

    def step(self) -> bool:
        self._handle_messages()
        if not self._joined:
            return False
        if not self._waiting:
            self._wait_for_batch()
        sample = self._sample(self._waiting[0]) if self._waiting else None
        try:
            result = self._learner.step(sample, self._env_steps, self._upcoming)
        except RankLostError as error:
            self._leave_learners(error)
            return True
        if result is not None:
            self._report(self._waiting.popleft(), result)
        return True

    def wait(self) -> tuple[str, list[Any], float | None]:
        return WAIT_IN, [self._line], None

    def close(self) -> None: ...

    def _wait_for_batch(self) -> None:
        self._usage.enter(WAIT_IN)
        wait_readable([self._line], LINK_POLL_SECONDS)
        self._usage.enter(BUSY)
        self._handle_messages()

    def _upcoming(self) -> Sample | None:
        """The batch after the one that is being learned from, if it is here."""
        return self._sample(self._waiting[1]) if len(self._waiting) > 1 else None

    def _sample(self, slot: int) -> Sample:
        batch = self._batches[slot]
        unknown = np.zeros(len(batch.probability), np.int64)  # the hub keeps the keys of the items
        return Sample(
            batch.trajectory,
            Keys(unknown, unknown, unknown, unknown),
            batch.probability,
            batch.table_size,
            batch.source,
        )

    def _report(self, slot: int, result: LearnResult) -> None:
        """Publish the weights, then report the batch: the credits that it frees must find the new weights."""
        if result.priorities is not None:
            np.copyto(self._batches[slot].priorities, result.priorities)
        self._publish()
        self._line.send(BatchLearned(slot, result.priorities is not None, self._learner.updates))

    def _publish(self) -> None:
        self._weights.publish(self._learner.progress(self._env_steps))
        self._usage.set("weights", self._learner.updates)
        self._usage.set("publish", self._weights.publish_ns)
        self._usage.add("bytes_out", self._weights.size)

    def _handle_messages(self) -> None:
        while messages := self._line.receive():  # a rendezvous reads the line and leaves other messages there
            for message in messages:
                match message:
                    case BatchReady(slot, env_steps):
                        self._env_steps = env_steps
                        self._waiting.append(slot)
                    case JoinLearners():
                        self._join_learners(message)
                    case StateRequest():
                        self._state_buffer.write(pack(self._learner.get_state()))
                        self._line.send(StateWritten(self._learner.updates))
                    case MetricsRequest():
                        self._line.send(LearnerMetrics(self._learner.drain_metrics()))
                    case _:
                        raise BrokenMessageError(f"{type(message).__name__}, which a learner does not handle")
        self._line.raise_if_ended()

    def _join_learners(self, order: JoinLearners) -> None:
        """Meet the other ranks and take over the state of the one that has learned most."""
        spec, learner = self._spec, self._learner
        self._env_steps = order.env_steps
        try:
            store = self._line.rendezvous(order.attempt, spec.timeout)
            rendezvous = RendezvousInfo(store, spec.rank, spec.size, spec.timeout, spec.address)
            group = DistributedLearners(rendezvous, self._usage, nccl=spec.nccl)
            mine = pack(learner.get_state()) if spec.rank == order.source else None
            state = group.broadcast(mine, order.source)
            if mine is None:
                learner.set_state(unpack(state))
            learner.join(group, spec.rank)
            group.sync_env_steps(False, self._env_steps)
        except RankLostError as error:
            self._leave_learners(error)
            return
        self._publish()
        self._joined = True
        self._line.send(LearnersJoined(learner.updates))

    def _leave_learners(self, error: RankLostError) -> None:
        self._learner.group, self._joined = SingleLearner(), False  # closes the connections, so the others notice
        self._send_waits(late=error.late, why=str(error))

    def _send_waits(self, late: bool = False, why: str | None = None) -> None:
        self._line.send(RankWaits(*self._learner.position, late, why))
