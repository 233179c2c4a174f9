"""IMPALA (1802.01561): actors run ahead of the learner, and V-trace corrects for the lag; recurrent or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starling.algos.actor_critic import (
    BEHAVIOR,
    POLICY,
    behavior_policy,
    build_actor_critic,
    choose,
    first_steps,
    vtrace_by_stream,
)
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, network_optimizers
from starling.algos.impala.config import IMPALAConfig
from starling.algos.tables import rollout_table
from starling.config.parts import NetConfig
from starling.nets.build import Network
from starling.ops.policy import (
    explained_variance,
    log_ratio,
    masked_means,
    masked_sum,
    policy_gradient_loss,
    total_variation,
    value_loss,
)
from starling.ops.streams import total, weighted_total
from starling.ops.vtrace import VTrace
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor, Trajectory


class IMPALA(Algorithm):
    """One policy head, and one value head per stream."""

    def __init__(self, config: IMPALAConfig, net: NetConfig) -> None:
        self.config, self.net = config, net
        self._streams = self.streams()
        self._optimizers = network_optimizers(net, "impala", config.optimizer, summed=True)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount, lambda_=self.config.trace_lambda),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        return build_actor_critic("impala", env, self.net, streams)

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        config = self.config
        return (
            rollout_table(
                name="unrolls", length=config.unroll, num_envs=num_envs, batch=config.batch, max_lag=config.max_lag
            ),
        )

    def learning(self) -> LearnSpec:
        return LearnSpec(self._optimizers)

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        policy, action, state = choose(model, inputs)
        return ActOutput(action, {BEHAVIOR: policy.params()}, state)

    def loss(self, model: Network, target_net: None, batch: Batch) -> Loss:
        """Sum over steps of: policy gradient loss + value_coef * value loss - entropy_coef * entropy."""
        steps, config = batch.trajectory, self.config
        outputs = run_network(model, steps)
        terms = loss_terms(outputs, steps, self._streams, config)
        policy_loss = masked_sum(terms.policy_loss - config.entropy_coef * terms.entropy, steps.valid)
        # The value loss needs no mask: the target `vs` is the value itself at steps without a target.
        loss = policy_loss + config.value_coef * terms.value_loss.sum()
        return Loss(
            losses=dict.fromkeys(self._optimizers, loss),
            metrics=lambda: {
                **masked_means(per_step_metrics(outputs, terms, config.clip_rho), steps.valid),
                "explained_variance": explained_value(outputs, terms, self._streams[0], steps.valid),
            },
        )


@dataclass(frozen=True)
class PolicyOutputs:
    """Outputs of the current network for a batch of shape [T, B], and the importance ratios of the actions."""

    heads: dict[str, Any]  # [T+1, B, ...] the policy, and the values of each stream
    policy: Any  # [T, B] distribution
    behavior: Any  # [T, B] distribution of the same class: the policy that acted
    log_prob: Tensor  # [T, B]
    log_rho: Tensor  # [T, B]


@dataclass(frozen=True)
class LossTerms:
    """Terms of the loss, [T, B] each, before masks and coefficients."""

    policy_loss: Tensor
    value_loss: Tensor  # sum over streams
    entropy: Tensor
    traces: dict[str, VTrace]  # value targets and advantages per stream


def run_network(model: Network, steps: Trajectory[Tensor]) -> PolicyOutputs:
    """Apply the network to all observations; the last of the T + 1 only bootstraps."""
    heads, _, _ = model.unroll_trajectory(steps)
    policy = first_steps(heads[POLICY], steps.length)
    behavior = behavior_policy(policy, steps)
    log_prob = policy.log_prob(steps.action)
    log_rho = log_ratio(log_prob, behavior.log_prob(steps.action))
    return PolicyOutputs(heads, policy, behavior, log_prob, log_rho)


def loss_terms(
    outputs: PolicyOutputs,
    steps: Trajectory[Tensor],
    streams: tuple[StreamSpec, ...],
    config: IMPALAConfig,
    keep_t: Tensor | None = None,
) -> LossTerms:
    """Policy gradient, value loss, and entropy; value targets and advantages are V-trace's (sections 4.1 and 4.2).

    Args:
        outputs: Result of `run_network`.
        steps: The batch.
        streams: Reward streams; advantages are their weighted sum, value losses their sum.
        config: Clipping thresholds.
        keep_t: Mask, bool [T, B], of states to learn from; None: all. `vtrace` tells how it combines with other masks.
    """
    traces = vtrace_by_stream(outputs.heads, outputs.log_rho, steps, streams, config, keep_t)
    advantage = weighted_total({name: trace.pg_advantage for name, trace in traces.items()}, streams)
    return LossTerms(
        policy_loss=policy_gradient_loss(outputs.log_prob, advantage),
        value_loss=total([value_loss(outputs.heads[s.name][:-1], traces[s.name].vs) for s in streams]),
        entropy=outputs.policy.entropy(),
        traces=traces,
    )


def per_step_metrics(outputs: PolicyOutputs, terms: LossTerms, clip_rho: float) -> dict[str, Tensor]:
    """Metrics [T, B] whose means are logged."""
    rho = outputs.log_rho.exp()
    return {
        "policy": terms.policy_loss,
        "value": terms.value_loss,
        "entropy": terms.entropy,
        "rho": rho,
        "clipped": (rho > 1.001 * clip_rho).float(),  # on-policy ratios are 1 up to rounding and do not count
        "off_policy": total_variation(outputs.log_rho),
    }


def explained_value(outputs: PolicyOutputs, terms: LossTerms, stream: StreamSpec, valid_t: Tensor) -> Tensor:
    """Share [] of the variance of V-trace's value targets that the values of a stream explain.

    Only that of the first stream is logged, since it has the environment's rewards.
    """
    return explained_variance(outputs.heads[stream.name][:-1], terms.traces[stream.name].vs, valid_t)
