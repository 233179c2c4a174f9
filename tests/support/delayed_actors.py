"""IMPALA whose actors lag a fixed number of updates behind the learner, with and without V-trace's correction."""

import copy
from dataclasses import replace

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.impala import IMPALA


class DelayedConfig(IMPALAConfig):
    delay: int = 0


class Delayed(IMPALA):
    """Acts with the network as it was `delay` updates ago."""

    Config = DelayedConfig

    def __init__(self, config, net):
        super().__init__(config, net)
        self._past = {}  # update count -> network

    def act(self, model, inputs):
        updates = inputs.progress.updates
        if updates not in self._past:
            self._past[updates] = copy.deepcopy(model)
        oldest = max((version for version in self._past if version <= updates - self.config.delay), default=0)
        self._past = {version: net for version, net in self._past.items() if version >= oldest}
        return super().act(self._past[oldest], inputs)


class Uncorrected(Delayed):
    """Treats the recorded actions as the current policy's own: all ratios are 1."""

    def loss(self, model, target_net, batch):
        steps = batch.trajectory
        outputs, _, _ = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
        own = {name: leaf.detach() for name, leaf in outputs["policy"].params().items()}
        steps = replace(steps, extras={**steps.extras, "behavior": own})
        return super().loss(model, target_net, replace(batch, trajectory=steps))


class Corridor(gymnasium.Env):
    """Three states with the same observation; in the second one the actions are swapped (Sutton & Barto, example 13.1).

    Only a random policy gets through. Every step costs 1: the best return is -11.6 per episode, and a deterministic
    policy gets -`limit`.
    """

    def __init__(self, limit=60):
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._place = self._steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        right = (action == 1) != (self._place == 1)
        self._place = max(0, self._place + (1 if right else -1))
        self._steps += 1
        return np.ones(1, np.float32), -1.0, self._place == 3, self._steps == self._limit, {}
