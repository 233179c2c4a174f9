"""The work of one actor and of the learner, in isolation, to measure its cost."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace

import numpy as np

from starling import tree
from starling.actor.env_loop import EnvLoop
from starling.actor.noise import seeds
from starling.actor.recorder import FragmentBuffer
from starling.envs.registry import make_env
from starling.launch.builders import build_learner, build_policy
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.replay.limiter import steps_per_update
from starling.replay.spec import TableSpec
from starling.replay.store import Store
from starling.types import Fragment, Layout, NDArray, Progress


class Work:
    """One actor and the learner; each method does one unit of work and returns the env steps that it corresponds to."""

    def __init__(self, run_plan: RunPlan) -> None:
        config, model = run_plan.config, build_model(run_plan)
        layout, group = layout_of(run_plan, model), run_plan.groups()[0]
        sink = Refill(run_plan, layout, len(group.env_index))
        core = build_policy(run_plan, model, layout, sink, {0: group})
        self._env = make_env(config.env, len(group.env_index))
        loop = EnvLoop(self._env, core, group=0, env_index=group.env_index, seed=config.seed)
        while (sample := sink.store.sample()) is None:
            loop.step()
        self._policy, self._actions, self._clip = core.policy, sink.actions, config.env.reward_clip
        self._group = core.policy.new_group(group.env_index, config.seed)
        self._group.latest = self._env.reset(seeds(config.seed, group.env_index, 0))
        self._steps_per_update = steps_per_update(run_plan.tables)
        self.learner = build_learner(run_plan, model)
        self.sample = sample
        self.step_envs()
        self.infer()
        self.train()
        self._state = copy.deepcopy(self.learner.get_state())

    def step_envs(self) -> float:
        """Step all envs once; a reset is no env step, but its time counts."""
        self._actions.rotate(-1)
        self._group.latest = step = self._env.step(self._actions[0])
        return float(np.count_nonzero(step.valid))

    def infer(self) -> float:
        """Compute the actions and intrinsic rewards for one step of all envs."""
        self._policy.step([self._group], self._clip)
        return float(len(self._group.env_index))

    def train(self) -> float:
        self.learner.step(self.sample, 0)
        return self._steps_per_update

    def restore(self) -> None:
        """Restore the learner's state: training on one sample repeatedly would soon ruin the weights."""
        self.learner.set_state(copy.deepcopy(self._state))

    def close(self) -> None:
        self._env.close()


class Refill:
    """An experience sink that always grants credit, and inserts every fragment often enough for one batch."""

    def __init__(self, run_plan: RunPlan, layout: Layout, num_envs: int) -> None:
        specs = [_small(table, num_envs) for table in run_plan.tables]
        self.store = Store(
            specs,
            layout,
            num_envs=num_envs,
            seed=run_plan.config.seed,
            priority=run_plan.algorithm.priority,
            length=run_plan.length,
        )
        self.actions: deque[NDArray] = deque()  # [B, ...] each
        self._copies = max(spec.capacity // num_envs for spec in specs)
        self._buffer = tree.zeros(run_plan.fragment_shape(layout).buffer(num_envs))
        self._sequence = 0

    def begin(self, group: int) -> FragmentBuffer:
        return self._buffer

    def refresh(self) -> Progress:
        return Progress(updates=1)  # some algorithms act without their network before the first update

    def insert(self, group: int, fragment: Fragment) -> None:
        self.actions.extend(fragment.trajectory.action.copy())
        for _ in range(self._copies):
            self._sequence += 1
            self.store.insert(replace(fragment, sequence=self._sequence))


def _small(table: TableSpec, num_envs: int) -> TableSpec:
    """Return the spec of a table that fills quickly: a ring of minimal size, or space for one batch of fragments."""
    capacity = num_envs if table.storage == "ring" else num_envs * -(-table.batch // num_envs)
    return replace(table, capacity=capacity, min_size=1)
