"""Double Q-learning does not overestimate the value of rooms with noisy rewards."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from support.training_scores import Stopwatch, mean_over_training, outputs_of

import starling

ROOMS, ACTIONS, MEAN = 4, 8, -0.35


class NoisyRooms(gymnasium.Env):
    """Stop with reward 0, or enter a room in which every action pays N(MEAN, 1) (Sutton & Barto, example 6.7).

    The lower half of the actions stops; the upper half leads to one of ROOMS rooms. The observation [1 + ROOMS] is
    one-hot.
    """

    observation_space = spaces.Box(0, 1, (1 + ROOMS,), np.float32)
    action_space = spaces.Discrete(ACTIONS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._room = 0  # 0: outside
        return self._observe(), {}

    def step(self, action):
        if self._room:
            return self._observe(), float(self.np_random.normal(MEAN, 1.0)), True, False, {}
        if action < ACTIONS // 2:
            return self._observe(), 0.0, True, False, {}
        self._room = 1 + int(self.np_random.integers(ROOMS))
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return np.eye(1 + ROOMS, dtype=np.float32)[self._room]


starling.register_env("learn/NoisyRooms", NoisyRooms)

UPDATES = 2_000
SETTINGS = [
    *["env={id: learn/NoisyRooms, num: 32}", "net.torso.hidden=[]", "stop.return=null"],  # linear: a table of Q values
    *["algo.n_step=1", "algo.epsilon=1", "algo.huber=100"],
    "algo.optimizer={name: SGD, args: {lr: 5.0}, clip_norm: 1000}",
    # Small enough that all transitions are replaced between two copies: the two networks' errors are then independent.
    *["algo.capacity=512", "algo.learning_starts=256", "algo.fragment=8", "algo.updates_per_step=0.0625"],
    *["algo.batch=64", "algo.target_every=200"],
]


def value_of_entering(model):
    """The mean Q of the actions that enter a room."""
    return outputs_of(model, torch.eye(1 + ROOMS)[:1])["extrinsic"][0, ACTIONS // 2 :].mean().item()


def test_only_double_learning_learns_that_rooms_do_not_pay(record, seed):
    """Entering is worth MEAN x discount = -0.35, stopping 0; scores are means over the second half of training.

    Errors of a room's Q values are about 0.4, and the largest of eight such errors is about +0.6 on average: with max Q
    the rooms seem to pay. With double learning the errors of the network that evaluates are independent of those of the
    network that chooses, so they cancel out.
    """
    values = {}
    for double in ("true", "false"):
        settings = [*SETTINGS, f"algo.double={double}", f"seed={seed}"]
        stopwatch = Stopwatch()
        values[double], env_steps = mean_over_training("dqn-cartpole", settings, UPDATES, value_of_entering)
        record(f"double={double}", score=values[double], env_steps=env_steps, **stopwatch.read())
    assert values["true"] < -0.05
    assert values["false"] > 0.1
