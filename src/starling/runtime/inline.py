"""Everything in one thread, in turns: deterministic to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from starling.roles.env_loop import EnvLoop
from starling.roles.evaluator import Evaluator
from starling.roles.learner import Learner
from starling.roles.policy import Header
from starling.store.store import Store
from starling.types import Episode, Fragment


class InlineUpstream:
    """Links a policy to a store and a learner in the same process; they share the model, so weights need no copy.

    The learner has its turn whenever a fragment is about to begin: new data is learnt from before it is acted on again,
    and no weights change within a fragment.
    """

    def __init__(self, store: Store, learner: Learner) -> None:
        self._store, self._learner = store, learner

    def begin(self, rows: int) -> bool:
        while self._learner.step():
            pass
        return self._store.begin(rows)

    def insert(self, fragment: Fragment) -> None:
        self._store.insert(fragment)

    def refresh(self) -> Header:
        return Header(self._learner.version, self._learner.progress)


class InlineRuntime:
    """Steps every env loop in turn; the learner runs in between, see `InlineUpstream`."""

    def __init__(
        self, loops: Sequence[EnvLoop], store: Store, learner: Learner, evaluator: Evaluator | None = None
    ) -> None:
        self.loops, self.store, self.learner, self.evaluator = list(loops), store, learner, evaluator

    @property
    def env_steps(self) -> int:
        return sum(loop.env_steps for loop in self.loops)

    @property
    def updates(self) -> int:
        return self.learner.version

    def run(self) -> Iterator[None]:
        """Yields after every step of the envs, when nothing is left to learn from and the state can be saved."""
        while True:
            moved = [loop.step() for loop in self.loops]
            if not any(moved):
                raise RuntimeError("no env loop may begin a fragment and there is nothing to learn from: a deadlock")
            if all(moved):
                yield

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call."""
        return [episode for loop in self.loops for episode in loop.finished()]

    def drain_metrics(self) -> dict[str, float]:
        return self.learner.drain_metrics() | self.store.metrics()

    def save(self, with_tables: bool) -> dict[str, Any]:
        """Cut all episodes and describe everything that decides what happens next."""
        for loop in self.loops:
            loop.cut()
        return {
            "store": self.store.get_state(with_tables),
            "learner": self.learner.get_state(),
            "loops": {str(i): loop.get_state() for i, loop in enumerate(self.loops)},
            "policies": {str(i): loop.policy.get_state() for i, loop in enumerate(self.loops)},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.store.set_state(state["store"])
        self.learner.set_state(state["learner"])
        for i, loop in enumerate(self.loops):
            loop.set_state(state["loops"][str(i)])
            loop.policy.set_state(state["policies"][str(i)])

    def evaluate(self) -> dict[str, float]:
        """What the agent as it is scores without exploration."""
        return {} if self.evaluator is None else self.evaluator.evaluate()

    def close(self) -> None:
        for loop in self.loops:
            loop.env.close()
        if self.evaluator is not None:
            self.evaluator.env.close()
