"""A user-defined sampler, and an algorithm that uses it: the newest item is in every batch (1712.01275).

PYTHONPATH=examples starling train examples/own_sampler.yaml
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import starling
from starling.algos.dqn.config import DQNConfig
from starling.algos.dqn.dqn import DQN
from starling.replay.samplers import Draw, Uniform


class Combined(Uniform):
    """Samples uniformly, but the first item of every batch is the newest one."""

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


class CombinedDQN(DQN):
    """DQN with another sampler."""

    Config = DQNConfig

    def tables(self, num_envs: int) -> tuple[starling.TableSpec, ...]:
        return tuple(replace(table, sampler=f"{__name__}:Combined") for table in super().tables(num_envs))
