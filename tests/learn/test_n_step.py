"""n-step returns propagate a reward further back per copy of the target network than one-step returns."""

import gymnasium
import numpy as np
from gymnasium import spaces
from support.trained_agents import greedy_return

import starling

LENGTH = 20
LURE = 0.1


class Corridors(gymnasium.Env):
    """One choice, then a corridor of `LENGTH` steps in which actions have no effect.

    Action 0 pays LURE at once, action 1 pays 1 at the end of its corridor. The observation [1 + 2 * LENGTH] is one-hot.
    """

    observation_space = spaces.Box(0, 1, (1 + 2 * LENGTH,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._observe(0), {}

    def step(self, action):
        if self._step == 0:
            self._corridor = int(action)
        self._step += 1
        if self._step > LENGTH:
            return self._observe(LENGTH + self._corridor * LENGTH), float(self._corridor), True, False, {}
        lure = LURE if self._step == 1 and self._corridor == 0 else 0.0
        return self._observe(self._step + self._corridor * LENGTH), lure, False, False, {}

    def _observe(self, place):
        return np.eye(1 + 2 * LENGTH, dtype=np.float32)[place]


starling.register_env("learn/Corridors", Corridors)

STEPS, TARGET_EVERY, COPIES = 8_000, 100, 15
SETTINGS = [
    # Linear: a table of Q values.
    *["env.id=learn/Corridors", "env.num=4", "net.torso.hidden=[]", f"stop.env_steps={STEPS}"],
    *["algo.discount=0.99", "algo.epsilon=0.5", "algo.eval_epsilon=0", "algo.learning_starts=2000", "algo.batch=64"],
    *[f"algo.updates_per_step={COPIES * TARGET_EVERY / STEPS}", f"algo.target_every={TARGET_EVERY}"],
    *["algo.double=false", "algo.dueling=false", "algo.optimizer.args.lr=0.01"],
]


def test_only_n_step_returns_propagate_the_reward_through_the_corridor(trial):
    """A copy of the target network propagates a reward back by n steps; there are at most 15 copies for 20 steps.

    With 10-step returns two copies are enough, and the greedy agent earns 1. With one-step returns the reward at the
    end of the corridor never reaches the choice, so the agent takes the lure of 0.1.
    """
    ten_step = trial("n_step=10", "dqn-cartpole", [*SETTINGS, "algo.n_step=10"], greedy_return(10))
    one_step = trial("n_step=1", "dqn-cartpole", [*SETTINGS, "algo.n_step=1"], greedy_return(10))
    assert ten_step > 0.95
    assert one_step < 0.2
