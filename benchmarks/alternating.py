"""An env with two alternating tasks: the second has other answers to the same symbols, and a flag shows the task."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.types import NDArray

SYMBOLS = 4
Info = dict[str, Any]


def observation(symbol: int, task: int) -> NDArray:
    """One-hot symbol and one-hot task, [SYMBOLS + 2]."""
    obs = np.zeros(SYMBOLS + 2, np.float32)
    obs[symbol], obs[SYMBOLS + task] = 1, 1
    return obs


def answer(symbol: int, task: int) -> int:
    return (symbol + task) % SYMBOLS


class Alternating(gymnasium.Env[NDArray, Any]):
    """The right answer earns 1; an episode has `length` rounds; the task changes every `period` steps of an env."""

    def __init__(self, period: int, length: int = 16) -> None:
        self.observation_space = spaces.Box(0, 1, (SYMBOLS + 2,), np.float32)
        self.action_space = spaces.Discrete(SYMBOLS)
        self._period, self._length, self._steps = period, length, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        self._round = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, Info]:
        reward = float(action == answer(self._symbol, self._task))
        self._round += 1
        self._steps += 1
        return self._draw(), reward, self._round == self._length, False, {}

    def _draw(self) -> NDArray:
        self._symbol, self._task = int(self.np_random.integers(SYMBOLS)), self._steps // self._period % 2
        return observation(self._symbol, self._task)
