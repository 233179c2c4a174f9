"""PPO (1707.06347) in one file: networks, GAE, clipped surrogate, value loss, entropy bonus, minibatches.

python examples/ppo.py                           # train on CartPole in one process
python examples/ppo.py runtime=ray seed=1        # the same file on Ray; also runtime=processes, algo.clip=0.1, ...
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn

import starling
from starling.ops.distributions import Categorical
from starling.ops.policy import masked_mean, normalize
from starling.ops.returns import gae
from starling.ops.streams import stream_terms


class PPOConfig(starling.AlgoConfig):
    """Settings, with defaults for CartPole; `algo.NAME=VALUE` on the command line changes one."""

    discount: float = Field(0.98, ge=0, lt=1, description="gamma")
    gae_lambda: float = Field(0.8, ge=0, le=1, description="lambda of GAE")
    hidden: int = Field(64, ge=1, description="width of the hidden layers")
    rollout: int = Field(32, ge=1, description="steps that every env takes for one batch")
    epochs: int = Field(10, ge=1, description="passes over a batch")
    minibatches: int = Field(2, ge=1, description="parts of a batch, one optimizer step each")
    clip: float = Field(0.2, gt=0, description="largest change of the policy's ratio that is rewarded")
    value_coef: float = Field(1.0, ge=0, description="weight of the value loss")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    optimizer: starling.OptimizerConfig = Field(
        starling.OptimizerConfig(
            name="Adam",
            args={"lr": 1.5e-3, "eps": 1e-5},
            clip_norm=0.5,
            schedule={"name": "LinearLR", "args": {"start_factor": 1.0, "end_factor": 0.0, "total_iters": "run"}},
        ),
        description="of policy and value",
    )


@dataclass(frozen=True)
class Estimates:
    """Computed once per batch, used in all its epochs."""

    advantage: Tensor  # [T, B]
    value_target: Tensor  # [T, B]


def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers; orthogonal weights, with `gain` in the last layer."""
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)]
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class ActorCritic(nn.Module):
    """A policy and a state value, without shared layers; observations are [..., S]."""

    def __init__(self, inputs: int, hidden: int, actions: int) -> None:
        super().__init__()
        self.logits = mlp(inputs, hidden, actions, gain=0.01)
        self.v = mlp(inputs, hidden, 1, gain=1.0)

    def policy(self, obs: Tensor) -> Categorical:
        return Categorical(self.logits(obs))

    def value(self, obs: Tensor) -> Tensor:
        """V(s) [...]."""
        return self.v(obs).squeeze(-1)

    def initial_carry(self, batch_size: int) -> dict[str, Any]:
        """The recurrent state before an episode: none."""
        return {}


class PPO(starling.Algorithm):
    Config = PPOConfig

    def __init__(self, config: PPOConfig, net: starling.NetConfig) -> None:
        if net != starling.NetConfig():
            raise starling.UserError("this PPO has its own network: set algo.hidden, or change ActorCritic, not net")
        self.config = config

    def streams(self) -> tuple[starling.StreamSpec, ...]:
        return (starling.StreamSpec(discount=self.config.discount, lambda_=self.config.gae_lambda),)

    def build(self, env: starling.EnvSpec, streams: tuple[starling.StreamSpec, ...]) -> ActorCritic:
        if not isinstance(env.action, spaces.Discrete) or len(env.observation.shape or ()) != 1:
            raise starling.UserError(f"this PPO needs Discrete actions and vectors as observations, unlike {env.id}")
        return ActorCritic(env.observation.shape[0], self.config.hidden, int(env.action.n))

    def tables(self, num_envs: int) -> tuple[starling.TableSpec, ...]:
        """A queue of on-policy rollouts, one of each env in a batch."""
        return (starling.rollout_table(length=self.config.rollout, num_envs=num_envs),)

    def learning(self) -> starling.LearnSpec:
        return starling.LearnSpec(
            optimizers={"ppo": starling.OptimizerSpec(self.config.optimizer)},
            epochs=self.config.epochs,
            minibatches=self.config.minibatches,
            split="step",  # minibatches of single steps, not of whole rollouts
        )

    def act(self, model: ActorCritic, inputs: starling.ActInput) -> starling.ActOutput:
        """Sample an action, and record its log-probability under the policy that acts."""
        policy = model.policy(inputs.obs)
        action = policy.sample(inputs.noise(policy.noise_size)) if inputs.explore else policy.mode()
        return starling.ActOutput(action, extras={"log_prob": policy.log_prob(action)})

    def prepare(self, model: ActorCritic, target_net: None, batch: starling.Batch) -> starling.Batch:
        """GAE: A_t = δ_t + γ λ A_{t+1}, with δ_t = r_t + γ V(s_{t+1}) − V(s_t)."""
        value = model.value(batch.trajectory.obs)  # [T+1, B]
        terms = stream_terms(batch.trajectory, self.streams()[0])  # its discount_t is 0 where an episode terminated
        advantage = gae(terms.r_t, terms.discount_t, value[:-1], value[1:], terms.lambda_t, terms.valid_t)
        return replace(batch, prepared=Estimates(advantage, advantage + value[:-1]))

    def loss(self, model: ActorCritic, target_net: None, batch: starling.Batch) -> starling.Loss:
        """Clipped surrogate, value loss, and entropy bonus of a minibatch of N steps; all tensors are [1, N, ...]."""
        steps, config, estimates = batch.trajectory, self.config, batch.prepared
        policy = model.policy(steps.obs)
        ratio = (policy.log_prob(steps.action) - steps.extras["log_prob"]).exp()  # π(a|s) / π_old(a|s)
        advantage = normalize(estimates.advantage, steps.valid)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
        error = 0.5 * (model.value(steps.obs) - estimates.value_target).square()
        means = {"policy": -surrogate, "value": error, "entropy": policy.entropy()}
        means = {name: masked_mean(term, steps.valid) for name, term in means.items()}  # not over resets
        loss = means["policy"] + config.value_coef * means["value"] - config.entropy_coef * means["entropy"]
        return starling.Loss({"ppo": loss}, metrics=lambda: means)


CARTPOLE = {
    "algo": {"name": "ppo:PPO"},  # module:class, since worker processes import this file as a module
    "env": {"id": "CartPole-v1", "num": 16},
    "stop": {"env_steps": 120_000, "return": 475},
}

if __name__ == "__main__":
    result = starling.train(CARTPOLE, sys.argv[1:], display=starling.PrintDisplay())
    score = "none yet" if result.score is None else f"{result.score:.1f}"
    print(f"{result.reason}; mean return of the last {result.scored} episodes: {score}")
