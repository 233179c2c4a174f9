"""IMPALA (1802.01561): actors run ahead of the learner, and V-trace corrects for the lag; recurrent or not.

Batches may mix new and replayed unrolls. CLEAR (1811.11682) and LASER (1909.11583) are optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from gymnasium import spaces

from starling.algos.actor_critic import (
    BEHAVIOUR,
    POLICY,
    behaviour_policy,
    build_actor_critic,
    choose_from,
    first_steps,
    fragment_queue,
    policy_features,
    stream_traces,
)
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, OptimizerSpec
from starling.algos.sources import FEATURES, Sources, means_by_source
from starling.config.algo.impala import IMPALAConfig, LaserConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import Network
from starling.ops.distributions import Categorical, MultiCategorical
from starling.ops.policy import (
    log_ratio,
    masked_mean,
    masked_means,
    masked_sum,
    policy_gradient_loss,
    total_variation,
    value_loss,
)
from starling.ops.relevance import implied_policy, relevant
from starling.ops.streams import total, weighted_total
from starling.ops.vtrace import VTrace
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor, Trajectory

D = TypeVar("D", Categorical, MultiCategorical)

VALUES = "values"
"""Values recorded when acting, per stream; CLEAR clones them."""


@dataclass(frozen=True)
class _Present:
    """Outputs of the current network for a batch of shape [T, B]."""

    outputs: dict[str, Any]  # [T+1, B, ...] of every head
    policy: Any  # [T, B] distribution
    behaviour: Any  # [T, B] distribution of the same class
    log_rho: Tensor  # [T, B]
    keep: Tensor | None  # [T, B] bool: states to learn from (LASER); None: all


class IMPALA(Algorithm):
    """One policy head, and one value head per stream."""

    def __init__(self, config: IMPALAConfig, net: NetConfig) -> None:
        self.config, self.net = config, net
        self._streams = self.streams()
        self._sources = None if config.sources is None else Sources(config.sources, net)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount, lambda_=self.config.trace_lambda),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        model = build_actor_critic("impala", env, self.net, streams)
        laser = self.config.laser
        if laser is not None and laser.reference == "implied" and not isinstance(env.action, spaces.Discrete):
            raise UserError(
                "algo.laser: the implied policy is of one choice a step; use algo.laser.reference=behaviour"
            )
        if self._sources is not None:
            self._sources.meet(env)
        return model

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        config = self.config
        if self._sources is None:
            return (fragment_queue("unrolls", config.unroll, config.batch, num_envs, config.max_lag),)
        return self._sources.tables(config.unroll, config.batch, num_envs, config.max_lag)

    def learning(self) -> LearnSpec:
        beta = None if self._sources is None else self._sources.importance_exponent
        return LearnSpec(
            optimizers={"impala": OptimizerSpec(self.config.optimizer, summed=True)},
            importance_exponent=None if beta is None else lambda progress: beta,
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        cloned = () if self.config.clear is None else tuple(stream.name for stream in self._streams)
        features, state = model.encode(inputs.obs, inputs.first, inputs.carry, (POLICY, *cloned))
        outputs = model.decode(features, (POLICY, *cloned))
        policy = outputs[POLICY]
        extras = {BEHAVIOUR: policy.params()}
        if cloned:
            extras[VALUES] = {name: outputs[name] for name in cloned}
        if self._sources is not None and self._sources.records_features:
            extras[FEATURES] = policy_features(features)
        return ActOutput(choose_from(policy, inputs), extras, state)

    def score(self, model: Network, table: int, candidates: Trajectory[Tensor], recent: Trajectory[Tensor]) -> Tensor:
        assert self._sources is not None, "only sources rank what they hold"
        return self._sources.distances(model, table, candidates, recent)

    def loss(self, model: Network, target_net: None, batch: Batch) -> Loss:
        """Sum over steps of: policy gradient loss + value_coef * value loss - entropy_coef * entropy.

        Targets and advantages are V-trace's; the last of the T + 1 observations only bootstraps.
        """
        steps, streams, config = batch.trajectory, self._streams, self.config
        outputs, _, _ = model.unroll_trajectory(steps)
        policy = first_steps(outputs[POLICY], steps.length)
        behaviour = behaviour_policy(policy, steps)
        log_prob = policy.log_prob(steps.action)  # [T, B]
        log_rho = log_ratio(log_prob, behaviour.log_prob(steps.action))
        keep = None if config.laser is None else relevance(policy, behaviour, config.clip_rho, config.laser)
        traces = stream_traces(outputs, log_rho, steps, streams, config, keep)
        advantage = weighted_total({name: trace.pg_advantage for name, trace in traces.items()}, streams)
        value = total([value_loss(outputs[s.name][:-1], traces[s.name].vs) for s in streams])
        parts = {
            "policy": policy_gradient_loss(log_prob, advantage),
            "value": value,
            "entropy": policy.entropy(),
        }  # [T, B] each
        now = _Present(outputs, policy, behaviour, log_rho, keep)
        cost, clones = self._policy_cost(now, parts, batch)
        if self._prioritized:
            cost, value = cost * batch.weight, value * batch.weight
        # The value loss needs no mask: vs equals the value at steps without a target.
        loss = masked_sum(cost, steps.valid) + config.value_coef * value.sum()

        def metrics() -> dict[str, Tensor]:
            main = streams[0].name
            explained = explained_variance(outputs[main][:-1], traces[main].vs, steps.valid)
            return {**self._means({**parts, **clones}, now, batch), "explained_variance": explained}

        priorities = self._priorities(outputs, traces, steps.valid) if self._prioritized else None
        return Loss(losses={"impala": loss}, metrics=metrics, priorities=priorities)

    def _policy_cost(self, now: _Present, parts: dict[str, Tensor], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Per-step policy loss [T, B] with entropy and CLEAR terms, and the CLEAR terms themselves before weighting."""
        entropy, keep, clear = parts["entropy"], now.keep, self.config.clear
        if keep is not None:
            entropy = torch.where(keep & ~self._replayed(batch), entropy, 0.0)
        cost = parts["policy"] - self.config.entropy_coef * entropy
        if clear is None:
            return cost, {}
        clones = self._clones(now, batch)
        return cost + clear.policy_cost * clones["policy_clone"] + clear.value_cost * clones["value_clone"], clones

    def _clones(self, now: _Present, batch: Batch) -> dict[str, Tensor]:
        """CLEAR's cloning losses [T, B] (1811.11682, section 3.2); 0 on new rows and on states that LASER rejects."""
        steps = batch.trajectory
        cloned = self._replayed(batch) & (steps.valid if now.keep is None else steps.valid & now.keep)
        errors = [
            (now.outputs[s.name][:-1] - steps.extras[VALUES][s.name][: steps.length]).square() for s in self._streams
        ]
        losses = {"policy_clone": now.behaviour.kl(now.policy), "value_clone": total(errors)}
        return {name: torch.where(cloned, loss, 0.0) for name, loss in losses.items()}

    def _replayed(self, batch: Batch) -> Tensor:
        """Mask [B] of rows that come from replay."""
        return batch.source != (0 if self._sources is None else self._sources.queue)

    @property
    def _prioritized(self) -> bool:
        return self._sources is not None and self._sources.importance_exponent is not None

    def _priorities(self, outputs: dict[str, Tensor], traces: dict[str, VTrace], valid: Tensor) -> Tensor:
        """Priorities [B]: the mean absolute value error of each row."""
        errors = total([(traces[s.name].vs - outputs[s.name][:-1]).detach().abs() for s in self._streams])
        return torch.where(valid, errors, 0.0).sum(0) / valid.sum(0).clamp(min=1)

    def _means(self, parts: dict[str, Tensor], now: _Present, batch: Batch) -> dict[str, Tensor]:
        """Metrics: means over all valid steps, and also per source if `sources` is set."""
        steps, rho = batch.trajectory, now.log_rho.exp()
        # On-policy ratios are 1 up to rounding, which should not count as clipped.
        clipped = (rho > 1.001 * self.config.clip_rho).float()
        named = {**parts, "rho": rho, "clipped": clipped, "off_policy": total_variation(now.log_rho)}
        if now.keep is not None:
            named["relevant"] = now.keep.float()
        means = masked_means(named, steps.valid)
        if self._sources is None:
            return means
        named["lag"] = (batch.progress.updates - steps.policy_version).float().expand_as(rho)
        return means | means_by_source(named, steps.valid, batch.source, self._sources.names)


def relevance(policy: D, behaviour: D, clip_rho: float, laser: LaserConfig) -> Tensor:
    """LASER's relevance mask, bool [T, B]: states whose recorded policy is close enough to the current one."""
    if laser.reference == "behaviour" or not isinstance(policy, Categorical):
        return relevant(policy, behaviour, laser.threshold)
    return relevant(policy, implied_policy(policy, behaviour, clip_rho), laser.threshold)


def explained_variance(v_t: Tensor, goal_t: Tensor, valid_t: Tensor) -> Tensor:
    """1 - Var(target - v) / Var(target) [] over valid steps: at best 1, and 0 for constant values; inputs [T, B]."""
    error_t = goal_t - v_t

    def variance(x: Tensor) -> Tensor:
        return masked_mean((x - masked_mean(x, valid_t)).square(), valid_t)

    return 1.0 - variance(error_t) / variance(goal_t).clamp(min=1e-8)
