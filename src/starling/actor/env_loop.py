"""The env loop: sends observations of a vector env to a policy, steps it with the actions, and tracks returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from starling.actor import noise
from starling.actor.usage import Usage
from starling.envs.vector import VectorEnv
from starling.envs.watch import BoundsWatch
from starling.errors import to_count
from starling.types import EnvStep, Episode, NDArray, Tree

NAMED = 10
"""Number of dropped episodes per loop that get their own notice."""


class Acting(Protocol):
    """Acts for groups of envs: a policy in the same process, or a channel to one elsewhere."""

    def observe(self, index: int, step: EnvStep) -> None: ...

    def act(self, indices: Sequence[int]) -> list[Tree | None]:
        """Actions of these groups; None for a group without actions yet."""
        ...


class EnvLoop:
    """Steps one vector env, whose envs have the global indices `env_index`."""

    def __init__(
        self,
        env: VectorEnv,
        policy: Acting,
        *,
        group: int,
        env_index: NDArray,
        seed: int,
        start: int = 0,
        stagger: int = 0,
        usage: Usage | None = None,
    ) -> None:
        self.env, self.policy = env, policy
        self._stagger = stagger
        self._usage = usage or Usage()
        self._group, self._env_index, self._seed = group, env_index, seed
        self._totals = np.zeros(env.num, np.float64)
        self._lengths = np.zeros(env.num, np.int64)
        self._finished: list[Episode] = []
        self._notices: list[str] = []
        self.dropped = 0  # episodes in which an env returned values that are not finite
        # All envs are of one kind, so it is enough if one loop checks the bounds at the start of a run.
        self._bounds = BoundsWatch(env.spec.id, env.spec.observation) if group == 0 and start == 0 else None
        self._cut = False
        self._start = start  # step offset of the seeds of this incarnation
        self.env_steps = 0
        self._take_in(self._reset())

    def step(self) -> bool:
        """Step every env; returns False if there are no actions yet, or no credit for the next fragment."""
        (actions,) = self.policy.act((self._group,))
        if actions is None:
            return False
        step = self._reset() if self._cut else self.env.step(actions)
        self._cut = False
        self._take_in(step)
        return True

    def cut(self) -> None:
        """Truncate all episodes: the next step resets every env with a seed that is a function of (seed, env, step).

        Hidden state of an env (its generator, its clock) then no longer matters, which makes resuming exact.
        """
        self._cut = True
        self._totals[:] = 0
        self._lengths[:] = 0

    def finished(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        episodes, self._finished = self._finished, []
        return episodes

    def notices(self) -> list[str]:
        """Return the notices for the user since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def _reset(self) -> EnvStep:
        seeds = noise.seeds(self._seed, self._env_index, self._start + self.env_steps)
        step = self.env.reset(seeds)
        self.env.stagger(seeds % (self._stagger + 1))
        return step

    def _take_in(self, step: EnvStep) -> None:
        self.env_steps += int(np.count_nonzero(step.valid))
        self._usage.set("env_steps", self.env_steps)  # before any of them is recorded
        self._totals += step.reward
        self._lengths += step.valid
        ended = self.env.game_over  # if losing a life ends an episode, the game and its score continue
        if ended.any():
            for i in np.flatnonzero(ended):
                self._finished.append(Episode(int(self._env_index[i]), float(self._totals[i]), int(self._lengths[i])))
        if self.env.drops:
            self._name_drops()
        if self._bounds is not None and (found := self._bounds.look(step.obs)) is not None:
            self._warn_of_bounds(*found)
        ended = ended | self.env.cut_short | self.env.dropped  # these count in no score
        self._totals[ended] = 0
        self._lengths[ended] = 0
        self.policy.observe(self._group, step)

    def _name_drops(self) -> None:
        for fault in self.env.drops:
            self.dropped += 1
            env_index = self._env_index[fault.index]
            more = "; further ones are only counted" if self.dropped == NAMED else ""
            if self.dropped <= NAMED:
                self._notices.append(f"env {fault.env!r} {fault.what} (env {env_index}): its episode was dropped{more}")
        self.env.drops.clear()

    def _warn_of_bounds(self, what: str, index: int) -> None:
        self._notices.append(
            f"warning: env {self.env.spec.id!r} {what} (env {self._env_index[index]}): widen the bounds of the space,"
            " or scale its values to them; training uses them as they are"
        )

    def get_state(self) -> dict[str, Any]:
        """State right after `cut`; it excludes the envs themselves, which are about to be reset."""
        assert self._cut, "an env loop is saved after its episodes were cut"
        return {"env_steps": self.env_steps, "dropped": self.dropped}

    def set_state(self, state: dict[str, Any]) -> None:
        self.cut()
        self._finished.clear()
        self._bounds = None
        self.env_steps, self.dropped = to_count(state["env_steps"]), to_count(state["dropped"])
