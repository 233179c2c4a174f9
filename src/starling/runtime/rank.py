"""One learner of several, in a process of its own: takes batches, meets the other ranks, learns with them.

Over its line it is told of batches (`batch`), where and from whose state to begin (`form`) and what to tell of itself
(`tell`); it reports when it waits for the others (`waits`), which
batch it has learned from (`update_priorities`), and what it was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from starling.actor.usage import BUSY, WAIT_IN, Usage
from starling.learner.group import RankLostError, SingleLearner
from starling.learner.learner import Learner
from starling.runtime.batch_buffer import BatchSlot
from starling.runtime.distributed_learners import DistributedLearners, Meeting
from starling.runtime.link import wait_readable
from starling.runtime.rendezvous import RankLine
from starling.state_io import pack, unpack
from starling.types import Keys, NDArray, Progress, Sample

PATIENCE = 0.05
"""Seconds a rank waits for a batch before it asks the others."""


class StateBuffer(Protocol):
    """Where a rank leaves what is too large for its line."""

    def write(self, data: bytes) -> None: ...


class RankSource:
    """Batches in shared memory, named over the line by a `LearnerRank`, which sets what this calls."""

    def __init__(self, slots: list[BatchSlot]) -> None:
        self._slots = slots
        self.waiting: deque[int] = deque()
        self.fetch: Callable[[], None] = lambda: None  # waits a moment for batches
        self.report: Callable[[int, bool], None] = lambda slot, with_priorities: None  # a batch is learned from
        self.env_steps = 0
        self._open: int | None = None

    def sample(self) -> Sample | None:
        if not self.waiting:
            self.fetch()
        if not self.waiting:
            return None
        self._open = self.waiting.popleft()
        slot = self._slots[self._open]
        nobody = np.zeros(len(slot.probability), np.int64)
        keys = Keys(nobody, nobody, nobody, nobody)  # who drew the batch knows its items
        return Sample(slot.trajectory, keys, slot.probability, slot.table_size, slot.source)

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None:
        assert self._open is not None, "a batch was taken"
        if priorities is not None:
            np.copyto(self._slots[self._open].priorities, priorities)
        self.report(self._open, priorities is not None)
        self._open = None


class LearnerRank:
    """The role: learns whenever all ranks are together, and waits for them to be brought together again."""

    def __init__(
        self,
        rank: int,
        learner: Learner,
        source: RankSource,
        line: RankLine,
        state_buffer: StateBuffer,
        usage: Usage,
        meet: Callable[[int], Meeting],
        publish: Callable[[Progress], None],
    ) -> None:
        self._rank, self._learner, self._source = rank, learner, source
        self._line, self._outbox, self._usage, self._meet = line, state_buffer, usage, meet
        self._publish = publish
        self._together = False
        source.fetch, source.report = self._fetch, self._report
        self._say_waiting()

    def step(self) -> bool:
        self._hear()
        if not self._together:
            return False
        try:
            self._learner.step()
        except RankLostError as error:
            self._leave(error)
        return True

    def wait(self) -> tuple[str, list[Any], float | None]:
        return WAIT_IN, [self._line], None

    def close(self) -> None: ...

    def _report(self, slot: int, with_priorities: bool) -> None:
        """A batch is learned from: weights go out before the credits that it frees come back."""
        self._publish(self._learner.progress)
        self._line.send({"update_priorities": [slot, with_priorities, self._learner.updates]})

    def _fetch(self) -> None:
        self._usage.enter(WAIT_IN)
        wait_readable([self._line], PATIENCE)
        self._usage.enter(BUSY)
        self._hear()

    def _hear(self) -> None:
        while messages := self._line.receive():  # a rendezvous reads the line and leaves other messages there
            for message in messages:
                if "batch" in message:
                    slot, self._source.env_steps = message["batch"]
                    self._source.waiting.append(slot)
                elif "form" in message:
                    self._form(message["form"])
                elif "tell" in message:
                    self._tell(message["tell"])
        if self._line.ended:
            raise EOFError("the main process is gone")

    def _form(self, order: dict[str, Any]) -> None:
        """Meet the others, and go on from the state of the one who has come furthest."""
        learner = self._learner
        self._source.env_steps = order["env_steps"]
        try:
            where = next(learner.model.parameters()).device
            ranks = DistributedLearners(self._meet(order["time"]), where, self._usage)
            mine = pack(learner.get_state()) if self._rank == order["source"] else None
            state = ranks.broadcast(mine, order["source"])
            if mine is None:
                learner.set_state(unpack(state))
            learner.join(ranks, self._rank)
            ranks.sync_env_steps(False, self._source.env_steps)
        except RankLostError as error:
            self._leave(error)
            return
        self._publish(learner.progress)
        self._together = True
        self._line.send({"formed": learner.updates})

    def _leave(self, error: RankLostError) -> None:
        self._learner.ranks, self._together = SingleLearner(), False  # closes the lines to the others, who then notice
        self._say_waiting(late=error.late, why=str(error))

    def _say_waiting(self, late: bool = False, why: str | None = None) -> None:
        self._line.send({"waits": {"standing": list(self._learner.standing), "late": late, "why": why}})

    def _tell(self, what: str) -> None:
        if what == "state":
            self._outbox.write(pack(self._learner.get_state()))
            self._line.send({"told": {"state": self._learner.updates}})
        else:
            self._line.send({"told": {"metrics": self._learner.drain_metrics()}})
