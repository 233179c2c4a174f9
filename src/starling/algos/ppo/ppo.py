"""Proximal policy optimization (1707.06347) with generalized advantage estimation (1506.02438), recurrent or not.

With `max_lag` above 0 it is asynchronous: actors run ahead, and V-trace (1802.01561) corrects the advantages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from gymnasium import spaces

from starling import tree
from starling.algos.actor_critic import FINITE, POLICY, build_actor_critic, choose, first_steps
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, network_optimizers
from starling.algos.ppo.config import PPOConfig
from starling.algos.tables import rollout_table
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network
from starling.nets.normalizers import Normalized, RewardScale
from starling.ops.policy import (
    clipped_value_loss,
    is_clipped,
    kl_estimate,
    log_ratio,
    masked_mean,
    masked_means,
    normalize,
    ppo_surrogate,
    total_variation,
    value_loss,
)
from starling.ops.returns import gae
from starling.ops.streams import loss_at_ends, stream_terms, total, weighted_total
from starling.ops.vtrace import vtrace
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor, Trajectory

LOG_PROB = "log_prob"
"""Log-probability of an action under the behavior policy; recorded only if actors run ahead, else recomputed."""


@dataclass(frozen=True)
class Estimates:
    """Results of `PPO.prepare`, once per batch for all epochs, each [T, B]; dicts have one entry per stream."""

    advantage: Tensor  # weighted sum over the streams
    value: dict[str, Tensor]  # v(s) before the update, around which `value_clip` clips
    value_target: dict[str, Tensor]
    log_prob: Tensor  # of the action under the behavior policy
    clip: Tensor  # epsilon of the clipped surrogate, the same number at all steps; see `ppo_surrogate`
    total_variation: Tensor | None  # of behavior policy and policy before the update; only if actors run ahead


class PPO(Algorithm):
    """One policy head, and one value head per stream."""

    def __init__(self, config: PPOConfig, net: NetConfig) -> None:
        self.config, self.net = config, net
        self._streams = self.streams()
        self._has_memory = net.has_memory
        self._optimizers = network_optimizers(net, "ppo", config.optimizer)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount, lambda_=self.config.gae_lambda),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        policy = self._policy_head(env)
        model = build_actor_critic(
            "ppo", env, self.net, streams, policy=policy, normalize=self.config.normalize_observations
        )
        if self.config.normalize_rewards:
            model.reward_scales.update({stream.name: RewardScale(stream.discount) for stream in streams})
        return model

    def _policy_head(self, env: EnvSpec) -> HeadSpec:
        """A categorical policy for a finite action space, a Gaussian one for a Box."""
        wanted, box = self.config.policy, isinstance(env.action, spaces.Box)
        if wanted == "gaussian" and not box:
            raise UserError(
                f"algo.policy=gaussian needs a Box action space; {env.id} has {env.action}: set algo.policy=auto"
            )
        if not box and not isinstance(env.action, FINITE):
            raise UserError(f"ppo needs a Discrete, MultiDiscrete or Box action space; {env.id} has {env.action}")
        return HeadSpec("policy", log_std=self.config.log_std)

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        batch, rollout = self.config.batch_envs or num_envs, self.config.rollout
        most = batch if self._has_memory else batch * rollout
        if self.config.minibatches > most:
            what = "envs (a recurrent batch is split by env)" if self._has_memory else "steps"
            raise UserError(f"algo.minibatches={self.config.minibatches} is more than the batch's {most} {what}")
        return (rollout_table(length=rollout, num_envs=num_envs, batch=batch, max_lag=self.config.max_lag),)

    def learning(self) -> LearnSpec:
        return LearnSpec(
            optimizers=self._optimizers,
            epochs=self.config.epochs,
            minibatches=self.config.minibatches,
            split="env" if self._has_memory else "step",
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        policy, action, state = choose(model, inputs)
        extras = {LOG_PROB: policy.log_prob(action)} if self.config.max_lag else {}
        return ActOutput(action, extras, state)

    def prepare(self, model: Network, target_net: None, batch: Batch) -> Batch:
        """Compute values with the current network, then advantages and value targets [T, B] per stream.

        Unless actors run ahead, the current policy is the behavior policy.
        """
        trajectory = _normalize_and_update(model, batch.trajectory)
        outputs, _, _ = model.unroll_trajectory(trajectory)
        log_prob = first_steps(outputs[POLICY], trajectory.length).log_prob(trajectory.action)
        log_rho = None
        if self.config.max_lag:
            behavior = trajectory.extras[LOG_PROB][: trajectory.length]
            log_prob, log_rho = behavior, log_ratio(log_prob, behavior)
        scaled = _scale_and_update(model, trajectory)
        value = {stream.name: outputs[stream.name] for stream in self._streams}  # [T+1, B]
        estimates = {stream.name: _estimates(scaled, stream, value[stream.name], log_rho) for stream in self._streams}
        advantage = weighted_total({name: advantage for name, (advantage, _) in estimates.items()}, self._streams)
        if self.config.normalize_advantages and self.config.minibatches == 1:
            # Once for all epochs, since their single minibatch is the same.
            advantage = normalize(advantage, trajectory.valid)
        clip = self.config.clip.at(batch.progress)
        prepared = Estimates(
            advantage=advantage,
            value={name: v[:-1] for name, v in value.items()},
            value_target={name: target for name, (_, target) in estimates.items()},
            log_prob=log_prob,
            clip=torch.full_like(advantage, clip),
            total_variation=None if log_rho is None else total_variation(log_rho),
        )
        return replace(batch, trajectory=trajectory, prepared=prepared)

    def loss(self, model: Network, target_net: None, batch: Batch) -> Loss:
        """Mean over valid steps of: clipped surrogate + value_coef * value loss - entropy_coef * entropy."""
        trajectory, valid = batch.trajectory, batch.trajectory.valid
        prepared: Estimates = batch.prepared
        length = trajectory.length
        obs = tree.map(lambda leaf: leaf[:length], trajectory.obs)
        outputs, _, _ = model.unroll(
            obs,
            trajectory.first[:length],
            trajectory.action,
            trajectory.rewards,
            trajectory.carry,
            resets=trajectory.resets,
        )
        policy = outputs[POLICY]
        log_rho = log_ratio(policy.log_prob(trajectory.action), prepared.log_prob)
        advantage = prepared.advantage
        if self.config.normalize_advantages and self.config.minibatches > 1:
            advantage = normalize(advantage, valid)
        value_losses = {
            s.name: self._value_loss(outputs[s.name], prepared.value[s.name], prepared.value_target[s.name])
            for s in self._streams
        }
        losses = {
            "policy": ppo_surrogate(log_rho, advantage, prepared.clip),
            "value": total(list(value_losses.values())),
            "entropy": policy.entropy(),
        }  # [T, B] each
        value_coef, entropy_coef = self.config.value_coef, self.config.entropy_coef
        loss_t = losses["policy"] + value_coef * losses["value"] - entropy_coef * losses["entropy"]
        loss = masked_mean(loss_t, valid) + value_coef * loss_at_ends(value_losses, self._streams, valid)

        def metrics() -> dict[str, Tensor]:
            ratios = {"kl": kl_estimate(log_rho), "clipped": is_clipped(log_rho, prepared.clip)}
            off_policy = {} if prepared.total_variation is None else {"off_policy": prepared.total_variation}
            return masked_means({**losses, **ratios, **off_policy}, valid)

        return Loss(losses=dict.fromkeys(self._optimizers, loss), metrics=metrics)

    def _value_loss(self, v: Tensor, old_v: Tensor, target: Tensor) -> Tensor:
        clip = self.config.value_clip
        return value_loss(v, target) if clip is None else clipped_value_loss(v, old_v, target, clip)


def _normalize_and_update(model: Network, trajectory: Trajectory[Tensor]) -> Trajectory[Tensor]:
    """Normalize observations with the statistics that the behavior policy used, then update these with this batch.

    The order makes importance ratios start at 1.
    """
    if model.normalizer is None:
        return trajectory
    seen = Normalized(model.normalizer(trajectory.obs))
    model.normalizer.update(tree.map(lambda leaf: leaf[: trajectory.length], trajectory.obs), trajectory.valid)
    return replace(trajectory, obs=seen)


def _scale_and_update(model: Network, trajectory: Trajectory[Tensor]) -> Trajectory[Tensor]:
    """Update the reward scales with this batch, then scale its rewards.

    Use the result for returns only: a network that takes rewards as input gets the raw ones.
    """
    rewards = dict(trajectory.rewards)
    for name, scale in model.reward_scales.items():
        assert isinstance(scale, RewardScale)
        scale.update(rewards[name], trajectory.first, trajectory.valid)
        rewards[name] = scale(rewards[name])
    return replace(trajectory, rewards=rewards)


def _estimates(
    trajectory: Trajectory[Tensor], stream: StreamSpec, v: Tensor, log_rho: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets [T, B] of one stream from its values [T+1, B]: GAE, or V-trace if given log ratios.

    With V-trace's targets vs, the advantage is r + γ (v' + λ (vs' - v')) - v, where v' and vs' belong to the next step.
    It omits the ratio of its own step, because the surrogate multiplies by it. If all ratios are 1, it equals GAE.
    """
    terms = stream_terms(trajectory, stream)
    v_t, v_tp1 = v[:-1], v[1:]
    if log_rho is None:
        advantage = gae(terms.r_t, terms.discount_t, v_t, v_tp1, terms.lambda_t, terms.valid_t)
        return advantage, advantage + v_t
    what = (terms.r_t, terms.discount_t, v_t, v_tp1, terms.valid_t)
    vs_t = vtrace(log_rho, *what, lambda_t=terms.lambda_t, acted_t=terms.acted_t).vs
    error_tp1 = torch.cat([vs_t[1:] - v_t[1:], torch.zeros_like(v_t[:1])])
    advantage = terms.r_t + terms.discount_t * (v_tp1 + terms.lambda_t * error_tp1) - v_t
    return torch.where(terms.valid_t, advantage, 0.0), vs_t
