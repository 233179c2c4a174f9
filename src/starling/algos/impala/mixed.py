"""IMPALA on batches that mix new and replayed unrolls, optionally with CLEAR and LASER."""

from __future__ import annotations

import torch

from starling.algos.actor_critic import BEHAVIOR, POLICY, choose_from
from starling.algos.base import ActInput, ActOutput, LearnSpec, Loss
from starling.algos.impala.clear import VALUES, cloning_losses
from starling.algos.impala.config import IMPALAConfig, SourceConfig
from starling.algos.impala.impala import (
    IMPALA,
    PolicyOutputs,
    StepLosses,
    explained_variance_of,
    per_step_losses,
    per_step_metrics,
    run_network,
)
from starling.algos.impala.laser import check_actions, relevance
from starling.algos.impala.sources import FEATURES, Sources, means_by_source
from starling.config.parts import NetConfig
from starling.nets.build import Network
from starling.ops.policy import masked_means, masked_sum
from starling.ops.streams import total
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor, Trajectory


class MixedIMPALA(IMPALA):
    """IMPALA whose batches come from several sources; replayed rows may have a different loss."""

    def __init__(self, config: IMPALAConfig, net: NetConfig) -> None:
        super().__init__(config, net)
        self._sources = Sources(config.sources or [SourceConfig(kind="queue", share=1.0)], net)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        if self.config.laser is not None:
            check_actions(self.config.laser, env)
        self._sources.meet(env)
        return super().build(env, streams)

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        return self._sources.tables(self.config.unroll, self.config.batch, num_envs, self.config.max_lag)

    def learning(self) -> LearnSpec:
        beta = self._sources.beta
        return LearnSpec(
            optimizers=self._optimizers,
            importance_beta=None if beta is None else lambda progress: beta,
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        """Record also what CLEAR and elite replay compare later: values, and features of the policy head."""
        cloned = () if self.config.clear is None else tuple(stream.name for stream in self._streams)
        features, state = model.encode(inputs.obs, inputs.first, inputs.carry, (POLICY, *cloned))
        outputs = model.decode(features, (POLICY, *cloned))
        extras = {BEHAVIOR: outputs[POLICY].params()}
        if cloned:
            extras[VALUES] = {name: outputs[name] for name in cloned}
        if self._sources.records_features:
            extras[FEATURES] = model.features_of(POLICY, features)
        return ActOutput(choose_from(outputs[POLICY], inputs), extras, state)

    def score(self, model: Network, table: int, candidates: Trajectory[Tensor], recent: Trajectory[Tensor]) -> Tensor:
        return self._sources.distances(model, table, candidates, recent)

    def loss(self, model: Network, target_net: None, batch: Batch) -> Loss:
        """IMPALA's loss with LASER's mask, CLEAR's cloning losses, and importance weights, each where asked for."""
        trajectory, config = batch.trajectory, self.config
        outputs = run_network(model, trajectory)
        keep: Tensor | None = None
        if config.laser is not None:
            keep = relevance(outputs.policy, outputs.behavior, config.clip_rho, config.laser)
        losses = per_step_losses(outputs, trajectory, self._streams, config, keep)
        replayed = batch.source != self._sources.queue  # [B]
        entropy, value = losses.entropy, losses.value
        if keep is not None:
            entropy = torch.where(keep & ~replayed, entropy, 0.0)
        policy = losses.policy - config.entropy_coef * entropy
        clones: dict[str, Tensor] = {}
        if config.clear is not None:
            cloned = replayed & (trajectory.valid if keep is None else trajectory.valid & keep)
            clones = cloning_losses(outputs, trajectory, self._streams, cloned)
            policy = policy + config.clear.policy_cost * clones["policy_clone"]
            policy = policy + config.clear.value_cost * clones["value_clone"]
        prioritized = self._sources.beta is not None
        if prioritized:
            policy, value = policy * batch.weight, value * batch.weight
        loss = masked_sum(policy, trajectory.valid) + config.value_coef * value.sum()
        return Loss(
            losses=dict.fromkeys(self._optimizers, loss),
            metrics=lambda: self._metrics(outputs, losses, clones, keep, batch),
            priorities=self._priorities(outputs, losses, trajectory.valid) if prioritized else None,
        )

    def _priorities(self, outputs: PolicyOutputs, losses: StepLosses, valid: Tensor) -> Tensor:
        """Priorities [B]: the mean absolute value error of each row."""
        errors = total([(losses.traces[s.name].vs - outputs.heads[s.name][:-1]).detach().abs() for s in self._streams])
        return torch.where(valid, errors, 0.0).sum(0) / valid.sum(0).clamp(min=1)

    def _metrics(
        self, outputs: PolicyOutputs, losses: StepLosses, clones: dict[str, Tensor], keep: Tensor | None, batch: Batch
    ) -> dict[str, Tensor]:
        """Means over all valid steps, and per source."""
        trajectory = batch.trajectory
        named = {**per_step_metrics(outputs, losses, self.config.clip_rho), **clones}
        if keep is not None:
            named["relevant"] = keep.float()
        means = masked_means(named, trajectory.valid)
        named["lag"] = (batch.progress.updates - trajectory.policy_version).float().expand_as(outputs.log_rho)
        return {
            **means,
            **means_by_source(named, trajectory.valid, batch.source, self._sources.names),
            "explained_variance": explained_variance_of(self._streams[0], outputs, losses, trajectory.valid),
        }
