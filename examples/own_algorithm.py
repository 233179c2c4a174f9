"""A user-defined algorithm in one file: REINFORCE (Williams 1992) with a learned baseline.

PYTHONPATH=examples starling train examples/own_algorithm.yaml
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

import starling
from starling import tree
from starling.ops.policy import masked_mean, policy_gradient_loss, value_loss
from starling.ops.returns import lambda_return
from starling.ops.streams import stream_terms


class ReinforceConfig(starling.AlgoConfig):
    """Settings; they are validated, documented, and overridden like those of built-in algorithms."""

    networks: ClassVar[dict[str, str]] = {"policy": "the policy", "value": "the baseline"}  # names for `nets`
    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    rollout: int = Field(64, ge=1, description="steps of every env per update")
    entropy_coef: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    optimizer: starling.OptimizerConfig = Field(
        starling.OptimizerConfig(name="Adam", args={"lr": 0.005}, clip_norm=1.0), description="of policy and value"
    )


class Reinforce(starling.Algorithm):
    Config = ReinforceConfig

    def __init__(self, config: ReinforceConfig, net: starling.NetConfig) -> None:
        self.config, self.net = config, net
        self.optimizers = starling.network_optimizers(net, "all", config.optimizer)  # several with the section `nets`

    def streams(self) -> tuple[starling.StreamSpec, ...]:
        return (starling.StreamSpec(discount=self.config.discount),)

    def build(self, env: starling.EnvSpec, streams: tuple[starling.StreamSpec, ...]) -> starling.Network:
        heads = {"policy": starling.HeadSpec("policy"), "value": starling.HeadSpec("value")}
        return starling.build_network(env, self.net, heads)

    def tables(self, num_envs: int) -> tuple[starling.TableSpec, ...]:
        length = self.config.rollout
        return (
            starling.TableSpec(
                name="rollouts", storage="slots", sampler="fifo", length=length, fragment=length, batch=num_envs,
                capacity=2 * num_envs, min_size=num_envs, max_lag=0,
            ),
        )  # fmt: skip

    def learning(self) -> starling.LearnSpec:
        return starling.LearnSpec(optimizers=self.optimizers)

    def act(self, model: starling.Network, inputs: starling.ActInput) -> starling.ActOutput:
        outputs, state = model.step(inputs.obs, inputs.first, inputs.carry)
        policy = outputs["policy"]
        action = policy.sample(inputs.noise(policy.noise_size)) if inputs.explore else policy.mode()
        return starling.ActOutput(action, extras={}, state=state)

    def loss(self, model: starling.Network, target_net: None, batch: starling.Batch) -> starling.Loss:
        trajectory = batch.trajectory
        outputs, _, _ = model.unroll_trajectory(trajectory)
        value = outputs["value"]  # [T+1, B]
        policy = tree.map(lambda leaf: leaf[:-1], outputs["policy"])  # the last observation is only for bootstrapping
        terms = stream_terms(trajectory, self.streams()[0])
        v_t, v_tp1 = value[:-1], value[1:]
        target = lambda_return(terms.r_t, terms.discount_t, v_t.detach(), v_tp1.detach(), 1.0, terms.valid_t)
        entropy = masked_mean(policy.entropy(), trajectory.valid)
        loss = (
            masked_mean(policy_gradient_loss(policy.log_prob(trajectory.action), target - v_t), trajectory.valid)
            + masked_mean(value_loss(v_t, target), trajectory.valid)
            - self.config.entropy_coef * entropy
        )
        losses = dict.fromkeys(self.optimizers, loss)
        return starling.Loss(losses, metrics=lambda: {"entropy": entropy, "value": target.mean()})
