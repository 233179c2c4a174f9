"""IMPACT (1912.00167): PPO's surrogate relative to a target policy, on a circular buffer of batches that are reused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from starling.algos.actor_critic import (
    BEHAVIOR,
    POLICY,
    behavior_policy,
    build_actor_critic,
    choose,
    first_steps,
    vtrace_by_stream,
)
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, TargetSpec, network_optimizers
from starling.algos.impact.config import IMPACTConfig
from starling.algos.tables import rollout_table
from starling.config.parts import NetConfig
from starling.nets.build import Network
from starling.ops.policy import (
    is_clipped,
    log_ratio,
    masked_mean,
    masked_means,
    ppo_surrogate,
    total_variation,
    value_loss,
)
from starling.ops.streams import loss_at_ends, total, weighted_total
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor


@dataclass(frozen=True)
class LogProbs:
    """Results of `IMPACT.prepare` for all epochs, each [T, B]: log-probabilities of the actions, and the clip."""

    target: Tensor  # under the target network's policy
    behavior: Tensor  # under the policy of the worker that acted
    clip: Tensor  # epsilon of the clipped surrogate, the same number at all steps; see `ppo_surrogate`


class IMPACT(Algorithm):
    """One policy head and one value head per stream; importance ratios are relative to the target network's policy."""

    def __init__(self, config: IMPACTConfig, net: NetConfig) -> None:
        self.config, self.net = config, net
        self._streams = self.streams()
        self._optimizers = network_optimizers(net, "impact", config.optimizer)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount, lambda_=self.config.trace_lambda),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        return build_actor_critic("impact", env, self.net, streams)

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        config = self.config
        queue = rollout_table(
            name="unrolls", length=config.unroll, num_envs=num_envs, batch=config.batch, max_lag=config.queue_batches
        )
        # Batches in the buffer do not block actors, so only the capacity of the queue limits how far they run ahead.
        capacity = max((config.buffer + config.queue_batches) * config.batch, config.batch + num_envs)
        return (
            replace(
                queue, capacity=capacity, max_lag=None, max_times_sampled=config.max_times_sampled, buffer=config.buffer
            ),
        )

    def learning(self) -> LearnSpec:
        return LearnSpec(optimizers=self._optimizers, target=TargetSpec(every=self.config.target_every))

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        policy, action, state = choose(model, inputs)
        return ActOutput(action, extras={BEHAVIOR: policy.params()}, state=state)

    def prepare(self, model: Network, target_net: Network, batch: Batch) -> Batch:
        """Compute log-probabilities [T, B] of the actions under the target and behavior policies, and add the clip."""
        trajectory = batch.trajectory
        outputs, _, _ = target_net.unroll_trajectory(trajectory, only=(POLICY,))
        policy = first_steps(outputs[POLICY], trajectory.length)
        acted = behavior_policy(policy, trajectory)
        target = policy.log_prob(trajectory.action)
        clip = self.config.clip.at(batch.progress)
        prepared = LogProbs(target, acted.log_prob(trajectory.action), torch.full_like(target, clip))
        return replace(batch, prepared=prepared)

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        """Algorithm 1: V-trace with ratios target / worker; surrogate with ratios pi / max(target, worker / rho)."""
        trajectory, streams, config = batch.trajectory, self._streams, self.config
        prepared: LogProbs = batch.prepared
        outputs, _, _ = model.unroll_trajectory(trajectory)
        policy = first_steps(outputs[POLICY], trajectory.length)
        log_rho = log_ratio(prepared.target, prepared.behavior)  # [T, B]
        traces = vtrace_by_stream(outputs, log_rho, trajectory, streams, config)
        advantage = weighted_total({name: trace.pg_advantage for name, trace in traces.items()}, streams)
        reference = torch.maximum(prepared.target, prepared.behavior - math.log(config.target_ratio_clip))
        log_pi = policy.log_prob(trajectory.action)
        ratio = log_ratio(log_pi, reference)
        value_losses = {s.name: value_loss(outputs[s.name][:-1], traces[s.name].vs) for s in streams}
        losses = {
            "policy": ppo_surrogate(ratio, advantage, prepared.clip),
            "value": total(list(value_losses.values())),
            "entropy": policy.entropy(),
        }  # [T, B] each
        valid = trajectory.valid
        loss_t = losses["policy"] + config.value_coef * losses["value"] - config.entropy_coef * losses["entropy"]
        loss = masked_mean(loss_t, valid) + config.value_coef * loss_at_ends(value_losses, streams, valid)

        def metrics() -> dict[str, Tensor]:
            ratios = {
                "rho": log_rho.exp(),
                "clipped": is_clipped(ratio, prepared.clip),
                "off_policy": total_variation(log_pi - prepared.behavior),
            }
            return masked_means({**losses, **ratios}, valid)

        return Loss(losses=dict.fromkeys(self._optimizers, loss), metrics=metrics)
