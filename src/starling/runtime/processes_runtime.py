"""Runs actors, inference, and evaluation in worker processes, and the hub and the learner in this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from starling.actor.core import next_incarnation
from starling.actor.usage import BUSY, WAIT_IN, Shares, Usage
from starling.learner.learner import Learner
from starling.replay.store import Tables
from starling.runtime.hub import Hub
from starling.runtime.lease import Lease, close_hubs, lease_metrics
from starling.runtime.shared_weights import WeightWriter
from starling.runtime.status import WORKING, HubStatus, RuntimeStatus, WorkerStatus
from starling.runtime.worker import LEARNER, Member
from starling.runtime.worker_output import PrintedLine
from starling.runtime.worker_status import Looks
from starling.types import Episode

BATCH_POLL_SECONDS = EVALUATION_POLL_SECONDS = 0.05
"""Seconds the learner waits for a batch before the run's other business has its turn."""


class ProcessesRuntime:
    """Learns in this thread, from batches that the hub's thread prepares.

    Args:
        lease: The cluster that the workers run on, if they do not run on this machine.
    """

    def __init__(self, hub: Hub, learner: Learner, weights: WeightWriter, lease: Lease | None = None) -> None:
        self.hub, self.learner, self._weights, self._lease = hub, learner, weights, lease
        self._usage, self._shares, self._looks = Usage(), Shares(), Looks()
        self.last_saved: Callable[[], dict[str, Any] | None] = lambda: None  # tables on disk, where parts may be lost

    @property
    def env_steps(self) -> int:
        return self.hub.store.env_steps

    @property
    def stores(self) -> list[Tables]:
        """The tables, one shard per learner."""
        return [self.hub.store]

    @property
    def updates(self) -> int:
        return self.learner.updates

    def run(self) -> Iterator[None]:
        """Yield after every update, or after a moment without a batch."""
        self._publish()
        self.hub.start()
        while True:
            self._learn()
            if self.hub.failure is not None:
                raise self.hub.failure
            yield

    def _learn(self) -> None:
        """Learn from the next batch, if one comes soon; publish the weights before its credits are granted again."""
        self._usage.enter(WAIT_IN)
        sample = self.hub.next_batch(BATCH_POLL_SECONDS)
        self._usage.enter(BUSY)
        if sample is None:
            return
        result = self.learner.step(sample, self.env_steps, self.hub.upcoming_batch)
        assert result is not None, "a single learner waits for nobody"
        self._publish()
        self.hub.post(lambda: self.hub.store.update_priorities(result.keys, result.priorities))

    def _publish(self) -> None:
        self._weights.publish(self.learner.progress(self.env_steps))

    def episodes(self) -> list[Episode]:
        return self.hub.episodes()

    def notices(self) -> list[str]:
        return self.hub.notices()

    def printed(self) -> list[PrintedLine]:
        return self.hub.printed()

    def recent_losses(self) -> dict[str, float]:
        """Means of the losses since the last call of `drain_metrics`."""
        return self.learner.recent_losses()

    def drain_metrics(self) -> dict[str, Any]:
        shares = self._shares.look("learner", self._usage.cells)
        timed = {f"time/learner/{phase}": round(shares[phase], 3) for phase in (BUSY, WAIT_IN) if shares}
        return {**self.learner.drain_metrics(), **self.hub.metrics(), **timed, **lease_metrics(self._lease)}

    def status(self) -> RuntimeStatus:
        weights, hub = self._weights, self._with_learner(self.hub.status())
        return RuntimeStatus(self.env_steps, self.updates, weights.publish_ns / 1e6, weights.size, [hub])

    def _with_learner(self, status: HubStatus) -> HubStatus:
        """Add the learner, which is no worker of the hub here."""
        me = Member(LEARNER, LEARNER, self._usage.cells)
        shares = self._looks.shares(me)
        learner = WorkerStatus(
            LEARNER,
            LEARNER,
            None,
            WORKING,
            busy=shares.get(BUSY),
            wait_in=shares.get(WAIT_IN),
            weights=self.updates,
            publish_ms=self._weights.publish_ns / 1e6,
        )
        return replace(status, workers=[learner, *status.workers])

    def save(self, with_tables: bool) -> dict[str, Any]:
        """State for a later run. Open fragments are not in it; everything that has arrived is."""
        return {
            "store": self.hub.tables_state(with_tables),
            "learner": self.learner.get_state(),
            "incarnations": {str(group): incarnation for group, incarnation in self.hub.credits.incarnations.items()},
            "evaluator": self.hub.evaluator_state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.hub.store.set_state(state["store"])
        self.hub.store.abandon()
        self.learner.set_state(state["learner"])
        self.hub.evaluator_state = state.get("evaluator", {})
        incarnation = next_incarnation(state["incarnations"])
        for slots in self.hub.credits.actor_slots.values():
            slots.incarnation = incarnation

    def evaluate(self, wait: bool) -> Iterator[None]:
        """Request an evaluation of the current weights; with `wait`, yield until it is done."""
        if wait:
            yield from self._await_evaluation()  # an earlier one, of older weights
        self.hub.evaluate()
        if wait:
            yield from self._await_evaluation()

    def _await_evaluation(self) -> Iterator[None]:
        while self.hub.evaluating and self.hub.failure is None:
            time.sleep(EVALUATION_POLL_SECONDS)
            yield

    def evaluations(self) -> list[dict[str, float]]:
        return self.hub.evaluations()

    def halt(self) -> None:
        """Stop the hub, so that the state saved last is complete."""
        self.hub.halt()

    def close(self) -> None:
        close_hubs([self.hub], self._lease)
