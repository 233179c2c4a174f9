"""Actors, inference and evaluation in processes of their own; store and learner here."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

from starling.actor.core import next_incarnation
from starling.actor.usage import BUSY, WAIT_IN, Shares, Usage
from starling.learner.learner import Learner
from starling.runtime.hub import Hub
from starling.runtime.premises import Premises
from starling.runtime.shared_weights import WeightWriter
from starling.runtime.tables import Tables
from starling.types import Episode, Keys, NDArray, Sample

PATIENCE = 0.05
"""Seconds the learner waits for a batch before the run's other business has its turn."""


class HubSource:
    """Where the learner gets its batches, and where it reports back: the hub, which another thread runs."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.usage = Usage()
        self.before_report: Callable[[], None] = lambda: None  # weights go out before credits come back

    @property
    def env_steps(self) -> int:
        return self._hub.store.env_steps

    def sample(self) -> Sample | None:
        self.usage.enter(WAIT_IN)
        try:
            sample = self._hub.ready.get(timeout=PATIENCE)
        except queue.Empty:
            return None
        finally:
            self.usage.enter(BUSY)
        self._hub.wake()
        return sample

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None:
        self.before_report()
        self._hub.post(lambda: self._hub.store.update_priorities(keys, priorities))


class ProcessesRuntime:
    """Lets the learner learn while the hub's thread and the workers do everything else."""

    def __init__(
        self, hub: Hub, learner: Learner, source: HubSource, weights: WeightWriter, premises: Premises | None = None
    ) -> None:
        self.hub, self.learner, self._source, self._weights = hub, learner, source, weights
        self._premises = premises or Premises()
        self._shares = Shares()
        self.last_saved: Callable[[], dict[str, Any] | None] = lambda: None  # tables on disk, where parts may be lost
        source.before_report = self.publish
        self._premises.begin([hub])

    @property
    def env_steps(self) -> int:
        return self.hub.store.env_steps

    @property
    def stores(self) -> list[Tables]:
        """The tables, a shard each learner."""
        return [self.hub.store]

    @property
    def updates(self) -> int:
        return self.learner.updates

    def run(self) -> Iterator[None]:
        """Yields after every version of the weights, or when there is nothing to learn from yet."""
        self.publish()
        self.hub.start()
        while True:
            self.learner.step()
            if self.hub.failure is not None:
                raise self.hub.failure
            yield

    def publish(self) -> None:
        """Make the present weights known to whoever acts."""
        self._weights.publish(self.learner.progress)

    def episodes(self) -> list[Episode]:
        return self.hub.episodes()

    def notices(self) -> list[str]:
        return self.hub.notices()

    def drain_metrics(self) -> dict[str, Any]:
        shares = self._shares.look("learner", self._source.usage.cells)
        timed = {f"time/learner/{phase}": round(shares[phase], 3) for phase in (BUSY, WAIT_IN) if shares}
        return {**self.learner.drain_metrics(), **self.hub.metrics(), **timed, **self._premises.metrics()}

    def save(self, with_tables: bool) -> dict[str, Any]:
        """What a later run needs: fragments under way are lost with it, everything that has arrived is kept."""
        return {
            "store": self.hub.call(lambda: self.hub.store.get_state(with_tables)),
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
        for seat in self.hub.credits.actor_slots.values():
            seat.incarnation = incarnation

    def evaluate(self, wait: bool) -> Iterator[None]:
        """Have the present weights evaluated, beside training; with `wait` yields until that is done."""
        if wait:
            yield from self._await_evaluation()  # an earlier one, of older weights
        self.hub.evaluate()
        if wait:
            yield from self._await_evaluation()

    def _await_evaluation(self) -> Iterator[None]:
        while self.hub.evaluating and self.hub.failure is None:
            time.sleep(PATIENCE)
            yield

    def evaluations(self) -> list[dict[str, float]]:
        return self.hub.evaluations()

    def halt(self) -> None:
        """Let nothing more come in, so that what is saved last is all there is."""
        self.hub.halt()

    def close(self) -> None:
        self._premises.before_end()
        self.hub.stop()
        self._premises.end()
