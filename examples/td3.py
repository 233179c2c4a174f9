"""TD3 (1802.09477) in one file: two critics, a deterministic policy, and three techniques against overestimation.

PYTHONPATH=examples starling train examples/td3.yaml
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import nn

import starling
from starling import tree
from starling.nets.critics import Critics, build_critics
from starling.ops.explore import gaussian_exploration
from starling.ops.returns import window_return
from starling.ops.streams import stream_terms

Tensor = torch.Tensor


class TD3Config(starling.AlgoConfig):
    """Settings; the defaults are those of the paper."""

    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    batch: int = Field(256, ge=1, description="transitions in a batch")
    capacity: int = Field(1_000_000, ge=1, description="env steps kept in replay")
    learning_starts: int = Field(25_000, ge=1, description="env steps of random actions before the first update")
    exploration: float = Field(0.1, ge=0, description="std of the noise that is added to actions")
    smoothing: float = Field(0.2, ge=0, description="std of the noise that is added to target actions")
    smoothing_clip: float = Field(0.5, ge=0, description="maximal absolute value of that noise")
    delay: int = Field(2, ge=1, description="updates of the critics per update of policy and target networks")
    tau: float = Field(0.005, gt=0, le=1, description="how far the target networks move in one update")
    optimizer: starling.OptimizerConfig = Field(
        starling.OptimizerConfig(name="Adam", args={"lr": 3e-4}), description="of the policy, and of the critics"
    )


class ActorCritic(nn.Module):
    """A deterministic policy and two critics."""

    def __init__(self, actor: starling.Network, critics: Critics) -> None:
        super().__init__()
        self.actor, self.critics = actor, critics

    def initial_carry(self, batch_size: int) -> dict[str, Any]:
        return self.actor.initial_carry(batch_size)

    def step(self, obs: Any, first: Tensor, carry: Any) -> Any:
        """Outputs for `starling play --log`."""
        return self.actor.step(obs, first, carry)

    def policy(self, obs: Any, first: Tensor) -> Tensor:
        """Actions [B, D] in (-1, 1) at obs [B, ...]."""
        action: Tensor = self.actor.step(obs, first, {})[0]["policy"]
        return action

    def q(self, obs: Any, action: Tensor) -> Tensor:
        """Q values [2, B] of both critics at obs [B, ...] for actions [B, D]."""
        q: Tensor = self.critics(self.critics.encode(obs), action)
        return q


class TD3(starling.Algorithm):
    Config = TD3Config

    def __init__(self, config: TD3Config, net: starling.NetConfig) -> None:
        self.config, self.net = config, net

    def streams(self) -> tuple[starling.StreamSpec, ...]:
        return (starling.StreamSpec(discount=self.config.discount),)

    def build(self, env: starling.EnvSpec, streams: tuple[starling.StreamSpec, ...]) -> ActorCritic:
        if not env.action.shape:
            raise starling.UserError(f"td3 needs a Box of actions; {env.id} has {env.action}")
        actor = starling.build_network(env, self.net, {"policy": starling.HeadSpec("deterministic", gain=1.0)})
        return ActorCritic(actor, build_critics(env, self.net, members=2))

    def tables(self, num_envs: int) -> tuple[starling.TableSpec, ...]:
        config = self.config
        return (
            starling.replay_table(
                batch=config.batch,
                capacity=config.capacity,
                learning_starts=config.learning_starts,
                updates_per_step=1.0,
                fragment=1,
            ),
        )

    def learning(self) -> starling.LearnSpec:
        """Critics step in every update; the policy steps and targets are averaged in every `delay`-th update."""
        config = self.config
        return starling.LearnSpec(
            optimizers={
                "critic": starling.OptimizerSpec(config.optimizer, lambda model: model.critics.parameters()),
                "actor": starling.OptimizerSpec(
                    config.optimizer, lambda model: model.actor.parameters(), every=config.delay
                ),
            },
            target=starling.TargetSpec(every=config.delay, tau=config.tau),
            sequential=True,
        )

    def act(self, model: ActorCritic, inputs: starling.ActInput) -> starling.ActOutput:
        action = model.policy(inputs.obs, inputs.first)
        if inputs.explore:
            noise = inputs.noise(action.shape[-1])
            random = inputs.progress.updates == 0
            action = 2.0 * noise - 1.0 if random else gaussian_exploration(action, self.config.exploration, noise)
        return starling.ActOutput(action, extras={})

    def loss(self, model: ActorCritic, target_net: ActorCritic, batch: starling.Batch) -> starling.Loss:
        return starling.merge_losses([part.compute() for part in self.parts(model, target_net, batch)])

    def parts(
        self, model: ActorCritic, target_net: ActorCritic, batch: starling.Batch
    ) -> tuple[starling.LossPart, starling.LossPart]:
        trajectory, config = batch.trajectory, self.config
        obs, next_obs = (tree.map(lambda leaf, t=t: leaf[t], trajectory.obs) for t in (0, -1))
        action = trajectory.action[0]
        drawn = torch.randn(action.shape, generator=batch.generator, device=action.device)

        def critic() -> starling.Loss:
            """(r + γ min_i Q_i_target(s', π_target(s') + clipped noise) − Q_i(s, a))², for both critics."""
            with torch.no_grad():
                noise = (config.smoothing * drawn).clamp(-config.smoothing_clip, config.smoothing_clip)
                next_action = (target_net.policy(next_obs, trajectory.first[-1]) + noise).clamp(-1.0, 1.0)
                next_value = target_net.q(next_obs, next_action).amin(0)  # [B]
                terms = stream_terms(trajectory, self.streams()[0])
                target = window_return(terms.r_t, terms.discount_t, next_value, terms.valid_t)
            q = model.q(obs, action)  # [2, B]
            loss = (target - q).square().mean(1).sum()
            return starling.Loss({"critic": loss}, lambda: {"critic": loss, "q_values": q.mean()})

        def actor() -> starling.Loss:
            """−Q_1(s, π(s)), with the critics of this update."""
            loss = -model.q(obs, model.policy(obs, trajectory.first[0]))[0].mean()
            return starling.Loss({"actor": loss}, lambda: {"actor": loss})

        return starling.LossPart(critic, ("critic",)), starling.LossPart(actor, ("actor",))
