"""Two tasks in turns: the same symbols have other answers in the second, and a flag says which task it is."""

import gymnasium
import numpy as np
from gymnasium import spaces

N = 4


def observation(symbol, task):
    obs = np.zeros(N + 2, np.float32)
    obs[symbol], obs[N + task] = 1, 1
    return obs


def answer(symbol, task):
    return (symbol + task) % N


class Alternating(gymnasium.Env):
    """The right answer earns 1; `length` rounds an episode; the task changes every `period` steps of this env."""

    def __init__(self, period, length=16):
        self.observation_space = spaces.Box(0, 1, (N + 2,), np.float32)
        self.action_space = spaces.Discrete(N)
        self._period, self._length, self._steps = period, length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._round = 0
        return self._draw(), {}

    def step(self, action):
        reward = float(action == answer(self._symbol, self._task))
        self._round += 1
        self._steps += 1
        return self._draw(), reward, self._round == self._length, False, {}

    def _draw(self):
        self._symbol, self._task = int(self.np_random.integers(N)), self._steps // self._period % 2
        return observation(self._symbol, self._task)
