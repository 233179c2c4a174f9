"""A user-defined environment: any gymnasium.Env works."""

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    """Walk right to the end of a corridor; every step has a small cost."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.position = max(0, self.position + (1 if action == 1 else -1))
        done = self.position == 5
        return np.float32([self.position / 5]), 1.0 if done else -0.05, done, False, {}


def make():
    return gymnasium.wrappers.TimeLimit(Corridor(), 50)
