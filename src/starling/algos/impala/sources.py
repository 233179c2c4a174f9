"""Batches that mix a queue with replays: their tables, recorded features, and distances for ranking."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import one_hot

from starling import tree
from starling.algos.actor_critic import BEHAVIOR, POLICY
from starling.algos.impala.config import SourceConfig
from starling.algos.tables import rollout_table
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import Network
from starling.nets.states import StateFeatures
from starling.ops.relevance import cosine_distance, lp_distance, nearest_cosine, nearest_lp, sequence_mean
from starling.replay.spec import TableSpec
from starling.types import EnvSpec, Tensor, Trajectory

FEATURES = "features"
"""Features of the policy head, recorded when acting."""
SAMPLERS = {"attentive": "ranked", "elite": "ranked"}
"""Samplers of the kinds whose sampler has another name."""


class Sources:
    """One queue of new unrolls and any number of replays of old ones."""

    def __init__(self, sources: Sequence[SourceConfig], net: NetConfig) -> None:
        self._sources = tuple(sources)
        self.names = _names([source.kind for source in sources])
        self.queue = next(i for i, source in enumerate(sources) if source.kind == "queue")
        self._states: StateFeatures | None = None  # built in `meet`, once the env is known
        encoded = [i for i, source in enumerate(sources) if source.kind == "elite" or source.features == "network"]
        if net.has_memory and any(sources[i].every > 1 for i in encoded):
            raise UserError("sources: every above 1 skips states, which net.core and net.inputs need; set every=1")

    @property
    def records_features(self) -> bool:
        """True if actors must record the features of the policy head."""
        return any(source.kind == "elite" and source.distance != "kl" for source in self._sources)

    @property
    def beta(self) -> float | None:
        """The beta of prioritized replay, or None without one."""
        return next((source.beta for source in self._sources if source.kind == "prioritized"), None)

    def tables(self, length: int, batch: int, num_envs: int, max_lag: int) -> tuple[TableSpec, ...]:
        """One table of unrolls of `length` steps per source, for batches of `batch`; the run has `num_envs` envs."""

        def table(name: str, source: SourceConfig) -> TableSpec:
            if source.kind == "queue":
                return rollout_table(
                    name=name, length=length, num_envs=num_envs, batch=batch, max_lag=max_lag, share=source.share
                )
            return TableSpec(
                name=name,
                storage="slots",
                length=length,
                fragment=length,
                batch=batch,
                capacity=source.capacity,
                sampler=SAMPLERS.get(source.kind, source.kind),
                min_size=min(source.capacity, math.ceil(batch * source.share)),
                priority_exponent=source.alpha,
                candidate_factor=source.lambda_ if source.kind in SAMPLERS else 1.0,
                anneal=source.anneal,
                selection=source.selection,
                contest=source.contest,
                share=source.share,
            )

        return tuple(table(name, source) for name, source in zip(self.names, self._sources, strict=True))

    def meet(self, env: EnvSpec) -> None:
        """Prepare for the observations of this env."""
        if any(source.kind == "attentive" and source.features == "state" for source in self._sources):
            self._states = StateFeatures(env.observation)

    def distances(
        self, model: Network, table: int, candidates: Trajectory[Tensor], recent: Trajectory[Tensor]
    ) -> Tensor:
        """Distances [B] of the candidates of a table; `recent` are the newest unrolls."""
        source = self._sources[table]
        seen = _every(candidates, source.every)
        if source.kind == "elite":
            distance_t = self._elite(model, source, seen)
        else:
            distance_t = self._attentive(model, source, seen, recent)
        return sequence_mean(distance_t, seen.valid)

    def _elite(self, model: Network, source: SourceConfig, seen: Trajectory[Tensor]) -> Tensor:
        """Distance [T, B] between the current and the recorded policies or features."""
        outputs, features, _ = model.unroll_trajectory(seen, only=(POLICY,))
        if source.distance == "kl":
            policy = outputs[POLICY]
            divergence: Tensor = type(policy).from_params(seen.extras[BEHAVIOR]).kl(policy)
            return divergence
        now, then = model.features_of(POLICY, features), seen.extras[FEATURES]
        return lp_distance(now, then, source.p) if source.distance == "lp" else cosine_distance(now, then)

    def _attentive(
        self, model: Network, source: SourceConfig, seen: Trajectory[Tensor], recent: Trajectory[Tensor]
    ) -> Tensor:
        """Distance [T, B] to the nearest of the last states in `recent`."""
        if self._states is None or source.features == "network":
            x, now = _features(model, seen), _features(model, recent)[-1]
        else:
            states = self._states.to(seen.valid.device)
            x = states(seen.obs, seen.valid.shape)
            now = states(tree.map(lambda leaf: leaf[-1], recent.obs), recent.valid.shape[1:])
        return nearest_lp(x, now, source.p) if source.distance == "lp" else nearest_cosine(x, now)


def _features(model: Network, trajectory: Trajectory[Tensor]) -> Tensor:
    """Features of the policy head at all observations of a trajectory: [T, B, F], or [T+1, B, F] with the last one."""
    _, features, _ = model.unroll_trajectory(trajectory, only=(POLICY,))
    return model.features_of(POLICY, features)


def _every(trajectory: Trajectory[Tensor], stride: int) -> Trajectory[Tensor]:
    """Every `stride`-th state; the last observation, which only bootstraps, is dropped."""
    length = trajectory.length
    return tree.map_trajectory(trajectory, lambda leaf: leaf[:length:stride], lambda leaf: leaf)


def means_by_source(
    named: Mapping[str, Tensor], valid: Tensor, source: Tensor, names: Sequence[str]
) -> dict[str, Tensor]:
    """Mean of every tensor [T, B] over the valid steps [T, B] of each source's rows, named `source/name`."""
    rows = one_hot(source, len(names)).float()  # [B, S]
    sums = torch.where(valid, torch.stack(list(named.values())), 0.0).sum(1) @ rows  # [M, S]
    means = sums / (valid.sum(0).float() @ rows).clamp(min=1)
    return {f"{names[s]}/{name}": means[m, s] for m, name in enumerate(named) for s in range(len(names))}


def _names(kinds: Sequence[str]) -> tuple[str, ...]:
    """Unique names: the kind, with a number appended from its second occurrence on."""
    before = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
    return tuple(f"{kind}-{n + 1}" if n else kind for kind, n in zip(kinds, before, strict=True))
