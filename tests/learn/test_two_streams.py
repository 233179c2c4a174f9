"""Two reward streams in one agent, one episodic and one not: both values are right."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.trained_agents import load

import starling
from starling.algos.dqn.config import DQNConfig
from starling.algos.dqn.dqn import DQN
from starling.algos.ppo.config import PPOConfig
from starling.algos.ppo.ppo import PPO

LENGTH, DISCOUNT = 5, 0.9
ENDLESS = np.full(LENGTH, 1 / (1 - DISCOUNT))
ENDING = (1 - DISCOUNT ** np.arange(LENGTH, 0, -1)) / (1 - DISCOUNT)  # 4.1 at the start, 1 before the end


class Walk(gymnasium.Env):
    """Walks a chain of LENGTH steps to its end, whatever the action, with a reward of 1 at every step."""

    observation_space = spaces.Box(0.0, 1.0, (LENGTH + 1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self._at = 0
        return np.eye(LENGTH + 1, dtype=np.float32)[0], {}

    def step(self, action):
        self._at += 1
        return np.eye(LENGTH + 1, dtype=np.float32)[self._at], 1.0, self._at == LENGTH, False, {}


def with_bonus(base, config, ends):
    """The algorithm with a second stream that also pays 1 per step; `ends[name]` says whether a stream is episodic."""

    class WithBonus(base):
        Config = config

        def streams(self):
            (own,) = super().streams()
            return tuple(
                starling.StreamSpec(name, DISCOUNT, own.lambda_, episodic=episodic) for name, episodic in ends.items()
            )

        def recorded_rewards(self):
            return ("bonus",)

        def intrinsic_state(self, num_envs):
            return {"any": torch.zeros(num_envs)}

        def intrinsic_rewards(self, model, seen, memory):
            return {"bonus": torch.ones(len(seen.first)).masked_fill(seen.first, 0.0)}

    return WithBonus


ENDS = {
    "right": {"extrinsic": True, "bonus": False},
    "both end": {"extrinsic": True, "bonus": True},
    "none ends": {"extrinsic": False, "bonus": False},
}
COMMON = ["env.id=learn/Walk", "env.num=4"]
AGENTS = {
    "dqn": (
        *(DQN, DQNConfig, "dqn-cartpole"),
        [
            *["algo.learning_starts=32", "algo.target_every=20", "algo.fragment=4", "algo.huber=100"],
            *["algo.updates_per_step=0.5", "algo.n_step=2", "algo.optimizer.args.lr=0.003", "stop.env_steps=4000"],
        ],
    ),
    "ppo": (
        *(PPO, PPOConfig, "ppo-cartpole"),
        ["algo.rollout=32", "algo.gae_lambda=0.9", "algo.optimizer.args.lr=0.005", "stop.env_steps=12000"],
    ),
}
starling.register_env("learn/Walk", Walk)
for agent, (base, config, _, _) in AGENTS.items():
    for variant, ends in ENDS.items():
        starling.register_algorithm(f"learn-{agent}-{variant.replace(' ', '-')}", with_bonus(base, config, ends))


def value_error(result):
    """The largest error of both streams' values along the walk."""
    model, obs = load(result).model, torch.eye(LENGTH + 1)[:LENGTH]
    with torch.no_grad():
        outputs, _ = model.step(obs, torch.zeros(LENGTH, dtype=torch.bool), {})
    values = {name: outputs[name].reshape(LENGTH, -1).max(-1).values.numpy() for name in ("extrinsic", "bonus")}
    return max(np.abs(values["extrinsic"] - ENDING).max(), np.abs(values["bonus"] - ENDLESS).max())


@pytest.mark.parametrize("agent", AGENTS)
def test_episodic_and_non_episodic_streams_have_the_right_values(trial, agent):
    """The score is an error. A wrong `episodic` turns a value of 10 into 1 or vice versa, an error of 9."""
    _, _, preset, settings = AGENTS[agent]
    errors = {}
    for variant in ENDS:
        name = f"algo.name=learn-{agent}-{variant.replace(' ', '-')}"
        errors[variant] = trial(variant, preset, [*COMMON, *settings, name], value_error)
    assert errors["right"] < 0.2
    assert errors["both end"] > 5
    assert errors["none ends"] > 5
