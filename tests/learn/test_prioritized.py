"""Prioritized replay finds the few transitions that matter among tens of thousands."""

import gymnasium
import numpy as np
from gymnasium import spaces
from support.trained_agents import greedy_return

import starling

LENGTH = 12
LURE = 0.4


class Cliffwalk(gymnasium.Env):
    """The blind cliffwalk (1511.05952, section 3.1): one of 2^LENGTH action sequences leads to the reward of 1 at the
    end.

    Of the two actions at every place one goes on, and the other ends the episode with LURE. The observation [LENGTH]
    is one-hot.
    """

    observation_space = spaces.Box(0, 1, (LENGTH,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._place = 0
        return self._observe(), {}

    def step(self, action):
        if action != self._place % 2:
            return self._observe(), LURE, True, False, {}
        if self._place == LENGTH - 1:
            return self._observe(), 1.0, True, False, {}
        self._place += 1
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return np.eye(LENGTH, dtype=np.float32)[self._place]


starling.register_env("learn/Cliffwalk", Cliffwalk)

STEPS, UPDATES = 65_536, 5_000
SETTINGS = [
    *["env={id: learn/Cliffwalk, num: 64}", "net.torso.hidden=[]"],  # linear: a table of Q values
    *["algo.n_step=1", "algo.double=false", "algo.discount=0.97", "algo.epsilon=1", "algo.eval_epsilon=0"],
    *[f"algo.learning_starts={STEPS}", "algo.capacity=100000", "algo.fragment=16", "algo.updates_per_step=0.25"],
    *["algo.batch=32", "algo.target_every=20", f"stop.updates={UPDATES}"],
    "algo.optimizer={name: SGD, args: {lr: 1.0}, clip_norm: 1000}",
]
PRIORITIZED = "algo.prioritized={alpha: 0.9, beta: {start: 0.4, end: 0.4, fraction: 1.0}}"


def test_only_prioritized_replay_learns_the_reward_of_the_cliffwalk(trial):
    """Random play fills the replay in both runs; about one in 8,000 of its transitions has the reward.

    The 160,000 transitions of 5,000 uniform batches contain about twenty of them, each of which reduces the error of
    the last place by 1/32: the reward does not get back to the start, and the agent takes the lure of 0.4. With
    priorities these transitions are sampled as often as their errors require, and the value propagates from place to
    place.
    """
    prioritized = trial("prioritized", "dqn-cartpole", [*SETTINGS, PRIORITIZED], greedy_return(10))
    uniform = trial("uniform", "dqn-cartpole", SETTINGS, greedy_return(10))
    assert prioritized == 1.0
    assert uniform <= LURE + 1e-6
