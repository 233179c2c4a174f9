"""IMPALA whose actors are held so many updates behind the learner, and the same without V-trace's correction."""

import copy
from dataclasses import replace

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.impala import IMPALA


class HeldConfig(IMPALAConfig):
    held: int = 0


class Held(IMPALA):
    """Acts with the network as it was `held` updates ago."""

    Config = HeldConfig

    def __init__(self, config, net):
        super().__init__(config, net)
        self._past = {}  # by the number of updates

    def act(self, model, inputs):
        now = inputs.progress.updates
        if now not in self._past:
            self._past[now] = copy.deepcopy(model)
        then = max((version for version in self._past if version <= now - self.config.held), default=0)
        self._past = {version: net for version, net in self._past.items() if version >= then}
        return super().act(self._past[then], inputs)


class Uncorrected(Held):
    """Takes what was recorded for the present policy's own choices: all ratios are 1."""

    def loss(self, model, target_net, batch):
        steps = batch.trajectory
        outputs, _, _ = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
        own = {name: leaf.detach() for name, leaf in outputs["policy"].params().items()}
        steps = replace(steps, extras={**steps.extras, "behaviour": own})
        return super().loss(model, target_net, replace(batch, trajectory=steps))


class Corridor(gymnasium.Env):
    """Three places that look alike, in the second of which left is right: only chance gets through (Sutton & Barto,
    example 13.1). Every step costs 1; at best -11.6 an episode, and `limit` for who always does the same.
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
