"""A non-episodic reward stream: with a reward of 1 and a discount of 0.9 every state has the value 10."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import starling
from starling.algos.apex.apex import ApeX
from starling.algos.apex.config import ApeXConfig
from starling.algos.dqn.config import DQNConfig
from starling.algos.dqn.dqn import DQN
from starling.algos.r2d2.config import R2D2Config
from starling.algos.r2d2.r2d2 import R2D2
from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.ops.value import IDENTITY, RESCALED
from starling.types import StreamSpec

pytestmark = pytest.mark.slow

LENGTH = 5


class Chain(gymnasium.Env):
    """Walks from 0 to the end of a short chain, whatever the action; every second episode is truncated there."""

    observation_space = spaces.Box(0.0, 1.0, (LENGTH + 1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.at = self.episode = 0

    def reset(self, *, seed=None, options=None):
        self.at, self.episode = 0, self.episode + 1
        return np.eye(LENGTH + 1, dtype=np.float32)[0], {}

    def step(self, action):
        self.at += 1
        at_end, truncated = self.at == LENGTH, self.episode % 2 == 1
        return np.eye(LENGTH + 1, dtype=np.float32)[self.at], 0.0, at_end and not truncated, at_end and truncated, {}


def with_bonus(base):
    """The algorithm with a non-episodic stream that pays 1 at every step."""

    class WithBonus(base):
        def streams(self):
            return (*super().streams(), StreamSpec("bonus", 0.9, episodic=False))

        def recorded_rewards(self):
            return ("bonus",)

        def intrinsic_state(self, num_envs):
            return {"any": torch.zeros(num_envs)}

        def intrinsic_rewards(self, model, seen, memory):
            return {"bonus": torch.ones(len(seen.first)).masked_fill(seen.first, 0.0)}

    return WithBonus


COMMON = [
    *["env.num=4", "algo.learning_starts=32", "algo.target_every=20", "algo.fragment=4", "stop.return=null"],
    *["algo.optimizer.args.lr=0.003", "algo.huber=100"],
]
DQN_RUN = ["dqn-cartpole", "algo.updates_per_step=0.5", "stop.env_steps=3000"]
R2D2_RUN = [
    *["r2d2-cartpole", "algo.burn_in=0", "algo.unroll=5", "algo.period=5", "algo.batch=16", "net.core.size=16"],
    *["net.torso.hidden=[16]", "algo.dueling_hidden=[16]", "algo.updates_per_step=0.2", "stop.env_steps=4000"],
]
AGENTS = {
    "dqn": (DQN, DQNConfig, [*DQN_RUN, "algo.n_step=1"]),
    "dqn-3-step-double": (DQN, DQNConfig, [*DQN_RUN, "algo.n_step=3", "algo.double=true"]),
    "apex": (ApeX, ApeXConfig, [*DQN_RUN, "algo.n_step=3", "algo.dueling_hidden=[16]"]),
    "r2d2": (R2D2, R2D2Config, [*R2D2_RUN, "algo.n_step=2"]),
    "r2d2-retrace": (R2D2, R2D2Config, [*R2D2_RUN, "algo.retrace=0.9"]),
}
starling.register_env("test/Chain", Chain)
for name, (base, config, _) in AGENTS.items():
    algorithm = with_bonus(base)
    algorithm.Config = config
    starling.register_algorithm(f"bonus-{name}", algorithm)


@pytest.mark.parametrize("name", AGENTS)
def test_every_state_of_the_chain_has_the_value_10(name):
    _, _, (preset, *settings) = AGENTS[name]
    run_plan = RunPlan.from_config(load(preset, [*COMMON, *settings, f"algo.name=bonus-{name}", "env.id=test/Chain"]))
    runtime = build_runtime(run_plan)
    for _ in runtime.run():
        if runtime.env_steps >= run_plan.config.stop.env_steps:
            break
    model, obs = runtime.learner.model, torch.eye(LENGTH + 1)[:LENGTH, None]  # one walk: [T, 1, ...]
    zeros = torch.zeros(LENGTH, 1)
    with torch.no_grad():
        outputs, _, _ = model.unroll(obs, zeros.bool(), zeros.long(), {}, model.initial_carry(1))
    transform = RESCALED if getattr(run_plan.config.algo, "rescale", False) else IDENTITY
    values = transform.inverse(outputs["bonus"].max(-1).values).flatten()
    runtime.close()
    assert values.numpy() == pytest.approx(np.full(LENGTH, 10.0), abs=0.8)
