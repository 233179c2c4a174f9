"""DQN (Mnih et al. 2015) in one file: network, epsilon-greedy actions, replay, loss, target network.

python examples/dqn.py                           # train on CartPole in one process
python examples/dqn.py runtime=ray seed=1        # the same file on Ray; also runtime=processes, algo.discount=0.98, ...
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn

import starling
from starling.ops.explore import epsilon_greedy, epsilon_metrics
from starling.ops.value import batched_index, huber


class DQNConfig(starling.AlgoConfig):
    """Settings, with defaults for CartPole; `algo.NAME=VALUE` on the command line changes one."""

    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    hidden: list[int] = Field([256, 256], description="widths of the hidden layers")
    batch: int = Field(64, ge=1, description="transitions in a batch")
    capacity: int = Field(100_000, ge=1, description="env steps kept in replay")
    learning_starts: int = Field(1_000, ge=1, description="transitions in replay before the first update")
    fragment: int = Field(32, ge=1, description="steps that an env takes between two inserts into replay")
    updates_per_step: float = Field(0.5, gt=0, description="updates per env step")
    target_every: int = Field(250, ge=1, description="updates between two copies into the target network")
    epsilon: starling.Linear = Field(
        starling.Linear(start=1.0, end=0.02, fraction=0.2), description="probability of a random action"
    )
    optimizer: starling.OptimizerConfig = Field(
        starling.OptimizerConfig(name="Adam", args={"lr": 1e-3}, clip_norm=10.0), description="of the Q network"
    )


class QNetwork(nn.Module):
    """Q(s, a) of all actions: observations [B, S] to [B, A]."""

    def __init__(self, inputs: int, hidden: list[int], actions: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.Linear(inputs, actions))

    def forward(self, obs: Tensor) -> Tensor:
        q: Tensor = self.layers(obs)
        return q

    def initial_carry(self, batch_size: int) -> dict[str, Any]:
        """The recurrent state before an episode: none."""
        return {}


class DQN(starling.Algorithm):
    Config = DQNConfig

    def __init__(self, config: DQNConfig, net: starling.NetConfig) -> None:
        if net != starling.NetConfig():
            raise starling.UserError("this DQN has its own network: set algo.hidden, or change QNetwork, not net")
        self.config = config

    def streams(self) -> tuple[starling.StreamSpec, ...]:
        return (starling.StreamSpec(discount=self.config.discount),)

    def build(self, env: starling.EnvSpec, streams: tuple[starling.StreamSpec, ...]) -> QNetwork:
        if not isinstance(env.action, spaces.Discrete) or len(env.observation.shape or ()) != 1:
            raise starling.UserError(f"this DQN needs Discrete actions and vectors as observations, unlike {env.id}")
        return QNetwork(env.observation.shape[0], self.config.hidden, int(env.action.n))

    def tables(self, num_envs: int) -> tuple[starling.TableSpec, ...]:
        """A uniform replay of transitions."""
        config = self.config
        return (
            starling.replay_table(
                batch=config.batch,
                capacity=config.capacity,
                learning_starts=config.learning_starts,
                fragment=config.fragment,
                updates_per_step=config.updates_per_step,
            ),
        )

    def learning(self) -> starling.LearnSpec:
        return starling.LearnSpec(
            optimizers={"q": starling.OptimizerSpec(self.config.optimizer)},
            target=starling.TargetSpec(every=self.config.target_every),
        )

    def act(self, model: QNetwork, inputs: starling.ActInput) -> starling.ActOutput:
        """A random action with probability epsilon, else argmax_a Q(s, a)."""
        epsilon = self.epsilon(inputs.progress) if inputs.explore else 0.0
        return starling.ActOutput(epsilon_greedy(model(inputs.obs), epsilon, inputs.noise(2)), extras={})

    def epsilon(self, progress: starling.Progress) -> float:
        return self.config.epsilon.at(progress)

    def exploration_metrics(self, progress: starling.Progress, num_envs: int) -> dict[str, float]:
        return epsilon_metrics(self.epsilon(progress))

    def loss(self, model: QNetwork, target_net: QNetwork, batch: starling.Batch) -> starling.Loss:
        """Huber loss of r + γ max_a Q_target(s', a) − Q(s, a).

        Termination ends the return; a truncated episode bootstraps from its final observation s'.
        """
        trajectory = batch.trajectory  # T = 1: obs is [2, B, S]; action, rewards, and terminated are [1, B]
        s, next_s, a = trajectory.obs[0], trajectory.obs[1], trajectory.action[0]
        r, goes_on = trajectory.rewards["extrinsic"][0], ~trajectory.terminated[0]
        with torch.no_grad():
            target = r + self.config.discount * goes_on * target_net(next_s).amax(-1)
        q = batched_index(model(s), a)  # Q(s, a) [B]
        loss = huber(target - q).mean()
        return starling.Loss({"q": loss}, metrics=lambda: {"q": loss, "q_values": q.mean()})


CARTPOLE = {
    "algo": {"name": "dqn:DQN"},  # module:class, since worker processes import this file as a module
    "env": {"id": "CartPole-v1", "num": 1},
    "stop": {"env_steps": 60_000, "return": 475},
}

if __name__ == "__main__":
    result = starling.train(CARTPOLE, sys.argv[1:], display=starling.PrintDisplay())
    score = "none yet" if result.score is None else f"{result.score:.1f}"
    print(f"{result.reason}; mean return of the last {result.scored} episodes: {score}")
