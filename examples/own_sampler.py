"""Two user-defined samplers, and algorithms that use them: one without and one with priorities.

PYTHONPATH=examples starling train examples/own_sampler.yaml
PYTHONPATH=examples starling train examples/own_sampler.yaml algo.name=own_sampler:ClippedDQN algo.prioritized={}
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import starling
from starling.algos.dqn.config import DQNConfig
from starling.algos.dqn.dqn import DQN
from starling.replay.samplers import Draw, Prioritized, Uniform


class Combined(Uniform):
    """Samples uniformly, but the first item of every batch is the newest one (1712.01275)."""

    def __init__(self, spec: starling.TableSpec, num_slots: int) -> None:
        super().__init__(num_slots)
        self._newest = -1  # slot of the newest item; -1 if it was removed

    def add(self, slots: np.ndarray, priorities: np.ndarray | None) -> None:
        super().add(slots, priorities)
        self._newest = int(slots[-1])

    def remove(self, slots: np.ndarray) -> None:
        super().remove(slots)
        if self._newest in slots:
            self._newest = -1

    def draw(self, n: int, rng: np.random.Generator) -> Draw | None:
        draw = super().draw(n, rng)
        if draw is not None and self._newest >= 0:
            draw.slots[0] = self._newest
        return draw

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "newest": np.array(self._newest)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._newest = int(state["newest"])


class Clipped(Prioritized):
    """Prioritized replay that draws no item more often because of a TD error above `most`."""

    most = 1.0

    def __init__(self, spec: starling.TableSpec, num_slots: int) -> None:
        super().__init__(num_slots, spec.priority_exponent)

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        super().update(slots, np.minimum(priorities, self.most))


class CombinedDQN(DQN):
    """DQN with a sampler that ignores priorities."""

    Config = DQNConfig

    def tables(self, num_envs: int) -> tuple[starling.TableSpec, ...]:
        return tuple(replace(table, sampler=f"{__name__}:Combined") for table in super().tables(num_envs))


class ClippedDQN(DQN):
    """DQN with a sampler that needs priorities: DQN computes them, and importance weights, if `prioritized` is set."""

    Config = DQNConfig

    def __init__(self, config: DQNConfig, net: starling.NetConfig) -> None:
        if config.prioritized is None:
            raise starling.UserError("ClippedDQN needs priorities: set algo.prioritized={}")
        super().__init__(config, net)

    def tables(self, num_envs: int) -> tuple[starling.TableSpec, ...]:
        return tuple(replace(table, sampler=f"{__name__}:Clipped") for table in super().tables(num_envs))
