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
        # The loss is a sum over steps (`masked_sum` in `loss`), so gradients of several learners are summed too.
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
        return LearnSpec(optimizers=self._optimizers)

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        policy, action, state = choose(model, inputs)
        return ActOutput(action, {BEHAVIOR: policy.params()}, state)

    def loss(self, model: Network, target_net: None, batch: Batch) -> Loss:
        """Sum over steps of: policy gradient loss + value_coef * value loss - entropy_coef * entropy."""
        trajectory, config = batch.trajectory, self.config
        outputs = run_network(model, trajectory)
        losses = per_step_losses(outputs, trajectory, self._streams, config)
        policy_loss = masked_sum(losses.policy - config.entropy_coef * losses.entropy, trajectory.valid)
        # The value loss needs no mask: the target `vs` is the value itself at steps without a target.
        loss = policy_loss + config.value_coef * losses.value.sum()
        return Loss(
            losses=dict.fromkeys(self._optimizers, loss),
            metrics=lambda: {
                **masked_means(per_step_metrics(outputs, losses, config.clip_rho), trajectory.valid),
                "explained_variance": explained_variance_of(self._streams[0], outputs, losses, trajectory.valid),
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
class StepLosses:
    """Losses of single steps, [T, B] each, before masks and coefficients."""

    policy: Tensor
    value: Tensor  # sum over streams
    entropy: Tensor
    traces: dict[str, VTrace]  # value targets and advantages per stream


def run_network(model: Network, trajectory: Trajectory[Tensor]) -> PolicyOutputs:
    """Apply the network to all observations; the last of the T + 1 only bootstraps."""
    heads, _, _ = model.unroll_trajectory(trajectory)
    policy = first_steps(heads[POLICY], trajectory.length)
    behavior = behavior_policy(policy, trajectory)
    log_prob = policy.log_prob(trajectory.action)
    log_rho = log_ratio(log_prob, behavior.log_prob(trajectory.action))
    return PolicyOutputs(heads, policy, behavior, log_prob, log_rho)


def per_step_losses(
    outputs: PolicyOutputs,
    trajectory: Trajectory[Tensor],
    streams: tuple[StreamSpec, ...],
    config: IMPALAConfig,
    keep_t: Tensor | None = None,
) -> StepLosses:
    """Policy gradient, value loss, and entropy; value targets and advantages are V-trace's (sections 4.1 and 4.2).

    Args:
        outputs: Result of `run_network`.
        trajectory: The batch.
        streams: Reward streams; advantages are their weighted sum, value losses their sum.
        config: Settings, of which only `clip_rho` and `clip_c` are used.
        keep_t: Mask, bool [T, B], of states to learn from; None: all. `vtrace` tells how it combines with other masks.
    """
    traces = vtrace_by_stream(outputs.heads, outputs.log_rho, trajectory, streams, config, keep_t)
    advantage = weighted_total({name: trace.pg_advantage for name, trace in traces.items()}, streams)
    return StepLosses(
        policy=policy_gradient_loss(outputs.log_prob, advantage),
        value=total([value_loss(outputs.heads[s.name][:-1], traces[s.name].vs) for s in streams]),
        entropy=outputs.policy.entropy(),
        traces=traces,
    )


def per_step_metrics(outputs: PolicyOutputs, losses: StepLosses, clip_rho: float) -> dict[str, Tensor]:
    """Metrics [T, B] whose means are logged."""
    rho = outputs.log_rho.exp()
    return {
        "policy": losses.policy,
        "value": losses.value,
        "entropy": losses.entropy,
        "rho": rho,
        "clipped": (rho > 1.001 * clip_rho).float(),  # on-policy ratios are 1 up to rounding and do not count
        "off_policy": total_variation(outputs.log_rho),
    }


def explained_variance_of(stream: StreamSpec, outputs: PolicyOutputs, losses: StepLosses, valid_t: Tensor) -> Tensor:
    """Share [] of the variance of V-trace's value targets that the values of a stream explain.

    Only that of the first stream is logged, since it has the environment's rewards.
    """
    return explained_variance(outputs.heads[stream.name][:-1], losses.traces[stream.name].vs, valid_t)
