"""IMPALA (1802.01561): actors run ahead of the learner and V-trace corrects for it, recurrent or not."""

from __future__ import annotations

from typing import TypeVar

from starling.algos.actor_critic import POLICY, build_actor_critic, choose, first_steps, fragment_queue
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, OptimizerSpec
from starling.config.algo.impala import IMPALAConfig
from starling.config.parts import NetConfig
from starling.nets.build import Network
from starling.ops.distributions import Categorical, MultiCategorical
from starling.ops.policy import (
    disagreement,
    log_ratio,
    masked_mean,
    masked_means,
    masked_sum,
    policy_gradient_loss,
    value_loss,
)
from starling.ops.streams import StreamTerms, stream_terms, total, weighted_total
from starling.ops.vtrace import VTrace, vtrace
from starling.store.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor, Trajectory

D = TypeVar("D", Categorical, MultiCategorical)

BEHAVIOUR = "behaviour"
"""The recorded parameters of the policy that acted: the whole distribution, not only the action's probability."""


class IMPALA(Algorithm):
    """A policy head and a value head a stream."""

    def __init__(self, config: IMPALAConfig, net: NetConfig) -> None:
        self.config, self.net = config, net
        self._streams = self.streams()

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount, lambda_=self.config.trace_lambda),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        return build_actor_critic("impala", env, self.net, streams)

    def tables(self, rows: int) -> tuple[TableSpec, ...]:
        config = self.config
        return (fragment_queue("unrolls", config.unroll, config.batch, rows, config.max_lag),)

    def learning(self) -> LearnSpec:
        return LearnSpec(optimizers={"impala": OptimizerSpec(self.config.optimizer)})

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        policy, action, state = choose(model, inputs)
        return ActOutput(action, extras={BEHAVIOUR: policy.params()}, state=state)

    def loss(self, model: Network, target: None, batch: Batch) -> Loss:
        """Policy, value and entropy in one pass over T + 1 observations; the last one only bootstraps."""
        steps, streams = batch.trajectory, self._streams
        outputs, _, _ = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
        policy = first_steps(outputs[POLICY], steps.length)
        log_prob = policy.log_prob(steps.action)  # [T, B]
        log_rho = log_ratio(log_prob, behaviour_policy(policy, steps).log_prob(steps.action))
        traces = {s.name: self._trace(outputs[s.name], log_rho, stream_terms(steps, s)) for s in streams}
        advantage = weighted_total({name: trace.pg_advantage for name, trace in traces.items()}, streams)
        value = total([value_loss(outputs[s.name][:-1], traces[s.name].vs) for s in streams])
        parts = {
            "policy": policy_gradient_loss(log_prob, advantage),
            "value": value,
            "entropy": policy.entropy(),
        }  # [T, B] each
        loss = masked_sum(parts["policy"] - self.config.entropy_coef * parts["entropy"], steps.valid)

        def metrics() -> dict[str, Tensor]:
            rho = log_rho.exp()
            # The same policy's ratios are 1 but for rounding, which is no clipping.
            clipped = (rho > 1.001 * self.config.clip_rho).float()
            weights = {"rho": rho, "clipped": clipped, "off_policy": disagreement(log_rho)}
            main = streams[0].name
            explained = explained_variance(outputs[main][:-1], traces[main].vs, steps.valid)
            return {**masked_means({**parts, **weights}, steps.valid), "explained_variance": explained}

        # Values need no mask: where a stream has no target, vs is the value itself.
        return Loss(losses={"impala": loss + self.config.value_coef * value.sum()}, metrics=metrics)

    def _trace(self, v: Tensor, log_rho: Tensor, terms: StreamTerms) -> VTrace:
        """Targets and advantages [T, B] of one stream, from its values [T+1, B] and the log ratios [T, B]."""
        return vtrace(
            log_rho,
            terms.r_t,
            terms.discount_t,
            v[:-1],
            v[1:],
            terms.valid_t,
            lambda_t=terms.lambda_t,
            clip_rho=self.config.clip_rho,
            clip_c=self.config.clip_c,
            acted_t=terms.acted_t,
        )


def behaviour_policy(policy: D, steps: Trajectory[Tensor]) -> D:
    """The distribution [T, B] that chose the recorded actions, of the same kind as `policy`."""
    return first_steps(type(policy).from_params(steps.extras[BEHAVIOUR]), steps.length)


def explained_variance(v_t: Tensor, target_t: Tensor, valid_t: Tensor) -> Tensor:
    """The share of the targets' variance that the values account for []: 1 at best, 0 for any constant; all [T, B]."""
    error_t = target_t - v_t

    def variance(x: Tensor) -> Tensor:
        return masked_mean((x - masked_mean(x, valid_t)).square(), valid_t)

    return 1.0 - variance(error_t) / variance(target_t).clamp(min=1e-8)
