"""Runs everything in one thread, in turns: deterministic bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starling.actor.core import PolicyCore, next_incarnation
from starling.actor.env_loop import EnvLoop
from starling.actor.evaluator import Evaluator
from starling.actor.inference import InferenceServer
from starling.actor.recorder import FragmentBuffer
from starling.actor.usage import BUSY, WAIT_IN, Shares, Usage
from starling.errors import require
from starling.learner.learner import Learner
from starling.replay.store import Store
from starling.runtime.acting_weights import ActingWeights
from starling.runtime.candidate_scorer import CandidateScorer
from starling.types import Episode, Fragment, Progress, Sample


class InlineSink:
    """Connects an actor core to a store and a learner in the same process, all with one model or `acting_weights`.

    The learner learns from all batches there are before a fragment begins, so weights never change within a fragment.
    """

    def __init__(
        self,
        store: Store,
        learner: Learner,
        buffers: Mapping[int, FragmentBuffer],
        learner_usage: Usage,
        candidate_scorer: CandidateScorer | None,
        acting_weights: ActingWeights | None,
    ) -> None:
        self._acting_weights = acting_weights
        self._store, self._learner, self._buffers = store, learner, buffers
        self._learner_usage, self._candidate_scorer = learner_usage, candidate_scorer

    def begin(self, group: int) -> FragmentBuffer | None:
        self._learner_usage.enter(BUSY)
        while (sample := self._sample()) is not None:
            result = self._learner.step(sample, self._store.env_steps)
            assert result is not None, "a single learner waits for nobody"
            self._store.update_priorities(result.keys, result.priorities)
            if self._store.limiter.unpaced:  # there is always another batch: one update per fragment
                break
        self._learner_usage.enter(WAIT_IN)
        buffer = self._buffers[group]
        return buffer if self._store.begin(buffer.steps.batch_size) else None

    def _sample(self) -> Sample | None:
        return self._store.sample() if self._candidate_scorer is None else self._candidate_scorer.sample(self._store)

    def insert(self, group: int, fragment: Fragment) -> None:
        self._store.insert(fragment)

    def refresh(self) -> Progress:
        now = self._learner.progress(self._store.env_steps)
        return now if self._acting_weights is None else self._acting_weights.refresh(now)


class InlineRuntime:
    """Steps every env loop in turn; the learner runs in between, see `InlineSink`."""

    def __init__(
        self,
        loops: Sequence[EnvLoop],
        policies: Sequence[PolicyCore | InferenceServer],  # one core per loop, or one server for all of them
        store: Store,
        learner: Learner,
        learner_usage: Usage,
        evaluator: Evaluator | None,
        candidate_scorer: CandidateScorer | None,
        exact: bool,
        acting_weights: ActingWeights | None = None,
    ) -> None:
        self._acting_weights = acting_weights
        self.loops, self.store, self.learner, self.evaluator = list(loops), store, learner, evaluator
        self._policies = list(policies)
        self._cores = [policy.core if isinstance(policy, InferenceServer) else policy for policy in policies]
        self._servers = [policy for policy in policies if isinstance(policy, InferenceServer)]
        self._learner_usage, self._shares = learner_usage, Shares()
        self._candidate_scorer, self._exact = candidate_scorer, exact
        self._evaluations: list[dict[str, float]] = []
        self._evaluator_state: dict[str, Any] = {}

    @property
    def env_steps(self) -> int:
        return sum(loop.env_steps for loop in self.loops)

    @property
    def _dropped(self) -> int:
        return sum(loop.dropped for loop in self.loops)

    @property
    def stores(self) -> list[Store]:
        """The tables, one shard per learner."""
        return [self.store]

    @property
    def updates(self) -> int:
        return self.learner.updates

    def run(self) -> Iterator[None]:
        """Yield after every step of the envs, when no batch is left to learn from and the state can be saved."""
        while True:
            answered = [server.step() for server in self._servers]
            moved = [loop.step() for loop in self.loops]
            if not any(moved + answered):
                raise RuntimeError("no env loop may begin a fragment and there is nothing to learn from: a deadlock")
            if all(moved):
                yield

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call."""
        return [episode for loop in self.loops for episode in loop.finished()]

    def notices(self) -> list[str]:
        """Lines for the user since the last call."""
        return [line for loop in self.loops for line in loop.notices()]

    def recent_losses(self) -> dict[str, float]:
        """Means of the losses since the last call of `drain_metrics`."""
        return self.learner.recent_losses()

    def drain_metrics(self) -> dict[str, Any]:
        self._learner_usage.beat()  # what it is in the middle of counts as well
        busy = self._shares.look("learner", self._learner_usage.cells)  # while the learner waits, the env loops act
        return {
            **self.learner.drain_metrics(),
            **self.store.metrics(),
            "envs/dropped": self._dropped,
            **(self._candidate_scorer.metrics() if self._candidate_scorer is not None else {}),
            **(
                {"time/learner/busy": round(busy[BUSY], 3), "time/actors/busy": round(busy[WAIT_IN], 3)} if busy else {}
            ),
        }

    def save(self, with_tables: bool) -> dict[str, Any]:
        """State for a later run. Exact: truncates all episodes and adds everything that decides what happens next.

        Otherwise nothing changes here; the later run starts new episodes, and open fragments are not in it.
        """
        if self._exact:
            for loop in self.loops:
                loop.cut()
        state = {
            "store": self.store.get_state(with_tables),
            "learner": self.learner.get_state(),
            "incarnations": {
                str(group): incarnation for core in self._cores for group, incarnation in core.incarnations.items()
            },
            "env": {"steps": self.env_steps, "dropped": self._dropped},
            "evaluator": self._evaluator_state,
        }
        if self._exact:
            state["loops"] = {str(i): loop.get_state() for i, loop in enumerate(self.loops)}
            state["policies"] = {str(i): policy.get_state() for i, policy in enumerate(self._policies)}
            if self._acting_weights is not None:
                state["learner"]["acting"] = self._acting_weights.get_state()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        self.store.set_state(state["store"])
        self.learner.set_state(state["learner"])
        self._evaluator_state = state.get("evaluator", {})
        incarnations = {int(group): incarnation for group, incarnation in state["incarnations"].items()}
        if self._is_mine(state):
            self._start_incarnations(incarnations)
            for i, loop in enumerate(self.loops):
                loop.set_state(state["loops"][str(i)])
            for i, policy in enumerate(self._policies):
                policy.set_state(state["policies"][str(i)])
            if self._acting_weights is not None:
                self._acting_weights.set_state(state["learner"].get("acting", {}))
            begun = sum(core.recording for core in self._cores) if "tables" in state["store"] else 0
            require(self.store.limiter.in_flight == begun, "credits of fragments that nobody records")
        else:
            self._take_over(incarnations, state.get("env", {"steps": self.store.env_steps, "dropped": 0}))

    def _is_mine(self, state: dict[str, Any]) -> bool:
        """True if a state is exact and has the same loops and policies."""
        mine = [{str(i) for i in range(len(parts))} for parts in (self.loops, self._policies)]
        return [state.get(key, {}).keys() for key in ("loops", "policies")] == mine

    def _take_over(self, incarnations: Mapping[int, int], taken: Mapping[str, int]) -> None:
        """Continue from a checkpoint that is not exact, or of another runtime: all envs start new episodes."""
        self.store.abandon()
        incarnation = next_incarnation(incarnations)
        self._start_incarnations({group: incarnation for core in self._cores for group in core.incarnations})
        share, rest = divmod(taken["steps"], len(self.loops))
        first, *others = self.loops
        first.set_state({"env_steps": share + rest, "dropped": taken["dropped"]})
        for loop in others:
            loop.set_state({"env_steps": share, "dropped": 0})

    def _start_incarnations(self, incarnations: Mapping[int, int]) -> None:
        for core in self._cores:
            core.restart_all(incarnations)

    def evaluate(self, wait: bool) -> Iterator[None]:
        """Evaluate the present weights without exploration; yields after every step of the envs.

        Whoever stops iterating drops the evaluation.
        """
        for done in self.evaluator.evaluate(self._evaluator_state) if self.evaluator is not None else ():
            if done is not None:
                self._evaluations.append({**done.row, "eval/env_steps": self.env_steps})
                self._evaluator_state = done.state
            yield

    def evaluations(self) -> list[dict[str, float]]:
        """Evaluations that came in since the last call."""
        done, self._evaluations = self._evaluations, []
        return done

    def halt(self) -> None:
        """Let nothing more come in: nothing does here between two steps."""

    def close(self) -> None:
        for loop in self.loops:
            loop.env.close()
        if self.evaluator is not None:
            self.evaluator.env.close()
