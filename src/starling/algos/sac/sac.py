"""Soft actor-critic (1801.01290) with a learned temperature (1812.05905), for continuous or discrete (1910.07207)
actions; n-step returns and prioritized replay (1511.05952) are optional.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.algos.base import (
    ActInput,
    ActOutput,
    Algorithm,
    LearnSpec,
    Loss,
    LossPart,
    OptimizerSpec,
    TargetSpec,
    merge_losses,
)
from starling.algos.q_learning import beta_schedule, n_step_table
from starling.algos.sac.config import SACConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.nets.critics import Critics, build_critics
from starling.ops.distributions import Categorical, TanhGaussian
from starling.ops.policy import expected_soft_value, soft_value, temperature_loss
from starling.ops.returns import window_return
from starling.ops.streams import stream_terms
from starling.ops.value import batched_index
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor, Trajectory, Tree

POLICY, CRITICS, ENTROPY = "policy", "critics", "entropy"
WIDTHS = [256, 256]
"""Default widths of the hidden layers."""


class SoftActorCritic(nn.Module):
    """A policy, two critics, and the log of the temperature."""

    def __init__(self, actor: Network, critics: Critics, temperature: float) -> None:
        super().__init__()
        self.actor, self.critics = actor, critics
        self.log_alpha = nn.Parameter(torch.tensor(math.log(temperature)))

    def initial_carry(self, batch_size: int) -> dict[str, Tree]:
        return self.actor.initial_carry(batch_size)

    def policy(self, obs: Tree, first: Tensor) -> Any:
        """The policy at obs [B, ...]."""
        return self.actor.step(obs, first, {})[0][POLICY]

    def step(self, obs: Tree, first: Tensor, _carry: Tree) -> tuple[dict[str, Any], None]:
        """The policy, and the critics' Q values: of the policy's mode [B, 2], or of all discrete actions [B, 2, A]."""
        policy = self.policy(obs, first)
        action = None if isinstance(policy, Categorical) else policy.mode()
        return {POLICY: policy, "q": self.critics(self.critics.encode(obs), action).transpose(0, 1)}, None


class Continuous:
    """Box actions: expectations are estimated with reparameterized samples (1812.05905)."""

    def __init__(self, dimensions: int) -> None:
        self.head, self.noise_size = "tanh_gaussian", dimensions
        self.target_entropy = -float(dimensions)

    def choose(self, policy: TanhGaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, D] for noise [B, D], and a sample [B] of the policy's entropy."""
        action, log_prob = policy.sample_with_log_prob(noise)
        return action, -log_prob

    def choose_blindly(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform actions [B, D] and their entropy [B]."""
        return 2.0 * noise - 1.0, noise.new_full(noise.shape[:1], self.noise_size * math.log(2.0))

    def q(self, critics: Critics, features: Tensor, action: Tensor) -> Tensor:
        """Q [2, B] of actions [B, D]."""
        q: Tensor = critics(features, action)
        return q

    def draw(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Standard normal noise [B, D] for `value`."""
        return torch.randn(batch_size, self.noise_size, generator=generator, device=generator.device)

    def value(
        self, policy: TanhGaussian, critics: Critics, features: Tensor, alpha: Tensor, drawn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sample estimates of the soft value [B], with the minimum of the critics, and of the entropy [B]."""
        action, log_prob = policy.from_normal(drawn)
        return soft_value(critics.lowest(features, action), log_prob, alpha), -log_prob


class Discrete:
    """Discrete actions: expectations are exact (1910.07207)."""

    def __init__(self, actions: int) -> None:
        self.head, self.noise_size = "categorical", 1
        self._actions = actions
        self.target_entropy = 0.98 * math.log(actions)

    def choose(self, policy: Categorical, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B] for noise [B, 1], and the policy's entropy [B]."""
        return policy.sample(noise), policy.entropy()

    def choose_blindly(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform actions [B] and their entropy [B]."""
        return self.choose(Categorical(noise.new_zeros(len(noise), self._actions)), noise)

    def q(self, critics: Critics, features: Tensor, action: Tensor) -> Tensor:
        """Q [2, B] of actions [B]."""
        every = critics(features)
        return batched_index(every, action.expand(every.shape[:-1]))

    def draw(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """An empty tensor [B, 0]: `value` needs no noise."""
        return torch.empty(batch_size, 0, device=generator.device)

    def value(
        self, policy: Categorical, critics: Critics, features: Tensor, alpha: Tensor, drawn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The exact soft value [B], with the minimum of the critics, and the exact entropy [B]."""
        return expected_soft_value(torch.minimum(*critics(features)), policy, alpha), policy.entropy()


class SAC(Algorithm):
    """Critics learn the soft Q of the policy, the policy maximizes it, and the temperature controls the entropy."""

    def __init__(self, config: SACConfig, net: NetConfig) -> None:
        if net.has_memory:
            raise UserError(f"{config.name} learns from single transitions: set net.core.kind=none and net.inputs=[]")
        self.config = config
        self._policy_net, self._critics_net = (_with_widths(net.settings_of(name)) for name in (POLICY, CRITICS))
        self._actor_optimizer = net.optimizers(POLICY, config.actor_optimizer)[POLICY]
        self._critic_optimizer = net.optimizers(CRITICS, config.critic_optimizer)[CRITICS]
        (self._stream,) = self.streams()
        self._form: Continuous | Discrete = Discrete(1)  # replaced in `build`, once the env is known

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> SoftActorCritic:
        if len(streams) != 1:
            raise UserError(f"{self.config.name} learns from the environment's reward alone: leave out curiosity")
        (self._stream,) = streams
        self._form = self._form_for(env)
        actor = build_network(env, self._policy_net, {POLICY: HeadSpec(self._form.head, gain=1.0)})
        return SoftActorCritic(actor, build_critics(env, self._critics_net, members=2), self.config.temperature)

    def _form_for(self, env: EnvSpec) -> Continuous | Discrete:
        if isinstance(env.action, spaces.Discrete):
            return Discrete(int(env.action.n))
        if isinstance(env.action, spaces.Box) and len(env.action.shape) == 1:
            return Continuous(env.action.shape[0])
        raise UserError(
            f"{self.config.name} needs a Discrete action space or a Box with one axis; {env.id} has {env.action}"
        )

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        return (n_step_table(self.config),)

    def learning(self) -> LearnSpec:
        config = self.config
        return LearnSpec(
            optimizers={
                "critic": OptimizerSpec(self._critic_optimizer, lambda model: _part(model).critics.parameters()),
                "actor": OptimizerSpec(self._actor_optimizer, lambda model: _part(model).actor.parameters()),
                "temperature": OptimizerSpec(config.temperature_optimizer, lambda model: [_part(model).log_alpha]),
            },
            target=TargetSpec(tau=config.tau),
            importance_beta=beta_schedule(config.prioritized),
        )

    def act(self, model: SoftActorCritic, inputs: ActInput) -> ActOutput:
        """Sample from the policy, or take its mode if not exploring; uniform actions before the first update."""
        noise, records_entropy = inputs.noise(self._form.noise_size), self.config.n_step > 1
        if inputs.explore and inputs.progress.updates == 0:
            action, entropy = self._form.choose_blindly(noise)
            return ActOutput(action, {ENTROPY: entropy} if records_entropy else {})
        policy, extras = model.policy(inputs.obs, inputs.first), {}
        if records_entropy:
            action, extras[ENTROPY] = self._form.choose(policy, noise)
        elif inputs.explore:
            action = policy.sample(noise)
        return ActOutput(action if inputs.explore else policy.mode(), extras)

    def loss(self, model: SoftActorCritic, target_net: SoftActorCritic, batch: Batch) -> Loss:
        return merge_losses([part.compute() for part in self.parts(model, target_net, batch)])

    def parts(self, model: SoftActorCritic, target_net: SoftActorCritic, batch: Batch) -> tuple[LossPart, LossPart]:
        """The loss of the critics, and that of policy and temperature."""
        trajectory, alpha = batch.trajectory, model.log_alpha.detach().exp()
        obs = tree.map(lambda leaf: leaf[0], trajectory.obs)
        features = model.critics.encode(obs)  # [B, F]
        ahead, now = (self._form.draw(trajectory.batch_size, batch.generator) for _ in range(2))

        def critic() -> Loss:
            with torch.no_grad():
                target = self._td_target(model, target_net, trajectory, alpha, ahead)
            q = self._form.q(model.critics, features, trajectory.action[0])  # [2, B]
            errors = target - q
            loss = 0.5 * (batch.weight * errors.square().sum(0)).mean()
            priorities = errors.detach().abs().mean(0) if self.config.prioritized else None
            return Loss({"critic": loss}, lambda: {"critic": loss, "q_values": q.mean()}, priorities)

        def actor() -> Loss:
            policy = model.policy(obs, trajectory.first[0])
            value, entropy = self._form.value(policy, model.critics, features.detach(), alpha, now)
            wanted = self.config.target_entropy
            wanted = self._form.target_entropy if wanted is None else wanted
            losses = {
                "actor": -value.mean(),
                "temperature": temperature_loss(model.log_alpha, entropy, wanted).mean(),
            }
            return Loss(losses, lambda: {"actor": losses["actor"], "temperature": alpha, "entropy": entropy.mean()})

        return LossPart(critic, ("critic",)), LossPart(actor, ("actor", "temperature"))

    def _td_target(
        self,
        model: SoftActorCritic,
        target_net: SoftActorCritic,
        trajectory: Trajectory[Tensor],
        alpha: Tensor,
        drawn: Tensor,
    ) -> Tensor:
        """Critic targets [B]: the sequence's discounted rewards plus the target critics' soft value of its last state.

        Entropies of intermediate steps, as recorded when acting, are added to the rewards.
        """
        last = tree.map(lambda leaf: leaf[-1], trajectory.obs)
        policy = model.policy(last, trajectory.first[-1])
        value, _ = self._form.value(policy, target_net.critics, target_net.critics.encode(last), alpha, drawn)
        terms = stream_terms(trajectory, self._stream)
        r_t = terms.r_t
        if trajectory.length > 1:
            r_t = torch.cat([r_t[:1], r_t[1:] + alpha * trajectory.extras[ENTROPY][1:-1]])
        return window_return(r_t, terms.discount_t, value, terms.valid_t)


def _with_widths(net: NetConfig) -> NetConfig:
    """The settings of one network, with the default widths if they have none."""
    if net.torso.hidden is not None:
        return net
    return net.model_copy(update={"torso": net.torso.model_copy(update={"hidden": WIDTHS})})


def _part(model: nn.Module) -> SoftActorCritic:
    assert isinstance(model, SoftActorCritic), "the model that build() made"
    return model
