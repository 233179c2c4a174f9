"""Central inference: one policy for many env loops, with batch sizes that balance waiting time and call overhead."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starling.actor.core import GroupSpec, PolicyCore
from starling.actor.usage import Usage
from starling.types import EnvStep, Tree


@dataclass(frozen=True)
class Arrival:
    """The results of an env loop's last actions; a new incarnation means that the loop was restarted."""

    group: int
    incarnation: int
    step: EnvStep


class Desk(Protocol):
    """The server's side of the channel between env loops and the inference server."""

    def arrivals(self) -> list[Arrival]:
        """Return the observations that arrived since the last call."""
        ...

    def answer(self, group: int, actions: Tree) -> None: ...


class Batcher:
    """Decides when to stop waiting for more observations.

    One call for n envs takes about a + b n seconds. Merging two calls saves a, so waiting longer than a cannot pay off:
    the wait budget is the measured a, unless `budget` is given. The target batch size is the number of envs that can
    still arrive, limited by `target` if given.
    """

    FORGET = 0.02

    def __init__(self, target: int | None = None, budget: float | None = None) -> None:
        self._target, self._fixed = target, budget
        # Moving averages over calls: of the number of envs, its square, the seconds, and envs times seconds.
        self._num_envs = self._squared = self._seconds = self._product = 0.0
        self._calls = 0

    @property
    def budget(self) -> float:
        """Seconds that a batch may wait for more observations."""
        if self._fixed is not None:
            return self._fixed
        variance = self._squared - self._num_envs**2
        if self._calls < 10 or variance < 1e-3 * self._num_envs**2:
            return 0.0  # all batches have about the same size: a cannot be estimated yet
        slope = max(0.0, (self._product - self._num_envs * self._seconds) / variance)
        return min(max(0.0, self._seconds - slope * self._num_envs), self._seconds)

    def due(self, num_envs: int, possible: int, waited: float) -> bool:
        """Return True if the policy should act now for `num_envs` envs, out of at most `possible`."""
        target = possible if self._target is None else min(self._target, possible)
        return num_envs >= target or waited >= self.budget

    def took(self, num_envs: int, seconds: float) -> None:
        """Update the estimate with one call."""
        self._calls += 1
        share = max(self.FORGET, 1 / self._calls)
        self._num_envs += share * (num_envs - self._num_envs)
        self._seconds += share * (seconds - self._seconds)
        self._squared += share * (num_envs**2 - self._squared)
        self._product += share * (num_envs * seconds - self._product)


class InferenceServer:
    """Acts for all groups whose observations have arrived, in one forward pass."""

    def __init__(
        self,
        core: PolicyCore,
        desk: Desk,
        groups: Mapping[int, GroupSpec],
        batcher: Batcher,
        usage: Usage,
    ) -> None:
        self.core, self._desk, self._batcher, self._usage = core, desk, batcher, usage
        self._groups = dict(groups)
        self._pending: dict[int, float] = {}  # groups that wait for actions, and since when
        self._blocked: list[int] = []  # groups without a credit for the next fragment

    def step(self) -> bool:
        """Send actions to all groups that can act now; returns False if there are none."""
        self._take_in()
        answered = self._act(self._blocked)
        if self._pending and self._due():
            num_envs = self._count_envs(self._pending)
            waited = time.monotonic() - min(self._pending.values())
            fresh, self._pending = list(self._pending), {}
            before = time.monotonic()
            answered += self._act(fresh)
            self._batcher.took(num_envs, time.monotonic() - before)
            self._measure(num_envs, waited)
        return answered > 0

    def forget(self, group: int) -> None:
        """Discard the pending observations of a group whose env loop is gone."""
        self._pending.pop(group, None)
        self._blocked = [other for other in self._blocked if other != group]
        self.core.abandon(group)

    def get_state(self) -> dict[str, Any]:
        """State between two rounds, when the observations of every loop have arrived."""
        self._take_in()
        return self.core.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._take_in()  # the state overrides the first observations of new loops
        self.core.set_state(state)
        self._pending = dict.fromkeys(self._groups, time.monotonic())

    @property
    def blocked(self) -> bool:
        """True if groups wait for credits and there is nothing else to do."""
        return bool(self._blocked) and not self._pending

    @property
    def patience(self) -> float | None:
        """Seconds until the server must act even if nothing arrives; None if nothing is pending."""
        if not self._pending:
            return None
        return max(0.0, self._batcher.budget - (time.monotonic() - min(self._pending.values())))

    def _take_in(self) -> None:
        for arrival in self._desk.arrivals():
            group, known = arrival.group, self._groups[arrival.group].incarnation
            if arrival.incarnation < known:
                continue  # from an env loop that is gone
            if arrival.incarnation > known:
                self._groups[group] = replace(self._groups[group], incarnation=arrival.incarnation)
                self.core.start_incarnation(group, self._groups[group])
                self._blocked = [other for other in self._blocked if other != group]
            self.core.observe(group, arrival.step)
            self._pending[group] = time.monotonic()

    def _due(self) -> bool:
        possible = self._count_envs(self._groups) - self._count_envs(self._blocked)
        waited = time.monotonic() - min(self._pending.values())
        return self._batcher.due(self._count_envs(self._pending), possible, waited)

    def _act(self, groups: list[int]) -> int:
        """Act for these groups, and return how many of them got actions."""
        if not groups:
            return 0
        actions = self.core.act(groups)
        for group, action in zip(groups, actions, strict=True):
            if action is not None:
                self._desk.answer(group, action)
        stuck = [group for group, action in zip(groups, actions, strict=True) if action is None]
        self._blocked = [group for group in self._blocked if group not in groups] + stuck
        return len(groups) - len(stuck)

    def _count_envs(self, groups: Any) -> int:
        return sum(len(self._groups[group].env_index) for group in groups)

    def _measure(self, num_envs: int, waited: float) -> None:
        self._usage.add("calls", 1)
        self._usage.add("envs", num_envs)
        self._usage.add("waited", int(waited * 1e9))
        self._usage.set("budget", int(self._batcher.budget * 1e9))


class LocalInferenceChannel:
    """A channel within one process: env loops and server take turns."""

    def __init__(self) -> None:
        self._seen: list[Arrival] = []
        self._actions: dict[int, Tree] = {}

    def observe(self, index: int, step: EnvStep) -> None:
        self._seen.append(Arrival(index, 0, step))

    def act(self, indices: Sequence[int]) -> list[Tree | None]:
        return [self._actions.pop(index, None) for index in indices]

    def arrivals(self) -> list[Arrival]:
        arrived, self._seen = self._seen, []
        return arrived

    def answer(self, group: int, actions: Tree) -> None:
        self._actions[group] = actions
