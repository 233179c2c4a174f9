"""IMPALA whose actors are held so many updates behind the learner, and the same without V-trace's correction."""

import copy
from dataclasses import replace

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.algos.impala import IMPALA
from starling.config.algo.impala import IMPALAConfig


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

    def loss(self, model, target, batch):
        steps = batch.trajectory
        outputs, _, _ = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
        own = {name: leaf.detach() for name, leaf in outputs["policy"].params().items()}
        steps = replace(steps, extras={**steps.extras, "behaviour": own})
        return super().loss(model, target, replace(batch, trajectory=steps))


class Detour(gymnasium.Env):
    """Ending at once earns `safe`; going on leads to a choice of 1 or nothing: worth it only for who chooses well."""

    def __init__(self, safe=0.7):
        self.observation_space = spaces.Box(0, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._safe = safe

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._on = False
        return np.array([1, 0], np.float32), {}

    def step(self, action):
        over = np.array([0, 0], np.float32)
        if self._on:
            return over, float(action), True, False, {}
        if action == 0:
            return over, self._safe, True, False, {}
        self._on = True
        return np.array([0, 1], np.float32), 0.0, False, False, {}
