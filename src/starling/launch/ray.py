"""A run over a Ray cluster as data, and its parts as they are built where they will run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from torch import nn

from starling.actor.core import GroupSpec
from starling.errors import UserError
from starling.launch.builders import build_learner, build_stores
from starling.launch.plan import PREFETCH, SLOTS, RunPlan
from starling.launch.staffing import (
    RANK_SLOTS,
    acting_specs,
    evaluator_spec,
    learning_together,
    rank_batches,
    rank_spec,
    scoring_thread,
)
from starling.launch.workers import RankArguments, RunSpec
from starling.replay.mixture import Mixture
from starling.replay.table import Table
from starling.runtime.learners import LearnersRuntime
from starling.runtime.processes import ProcessesRuntime
from starling.runtime.ray.rank_relay import RankStaff
from starling.runtime.ray.relay import Staff
from starling.runtime.shared_memory import SharedBytes, size_of
from starling.runtime.shared_weights import SharedWeights, side_of
from starling.types import Layout

if TYPE_CHECKING:
    from starling.runtime.ray.system import Plan


@dataclass(frozen=True)
class HostArguments:
    """What a Ray actor that holds workers gets."""

    run: RunSpec
    weights_bytes: int
    groups: dict[int, GroupSpec]  # none: it is the evaluator's


@dataclass(frozen=True)
class ShardArguments:
    """What a Ray actor that holds a part of the replay gets."""

    run: RunSpec
    index: int
    rows: int


@dataclass(frozen=True)
class RankHostArguments:
    """What a Ray actor that holds one of several learners gets."""

    run: RunSpec
    weights_bytes: int
    rank: int


def over_ray(run_plan: RunPlan, model: nn.Module, layout: Layout) -> ProcessesRuntime | LearnersRuntime:
    """Actors, inference, evaluation, replay and learners, as far as it is asked for, in a Ray cluster."""
    plan = cluster_plan(run_plan, model, layout)
    from starling.runtime.ray import system

    return system.build(plan, model)


def cluster_plan(run_plan: RunPlan, model: nn.Module, layout: Layout) -> Plan:
    """A run over a Ray cluster as data."""
    try:
        from starling.runtime.ray import system
    except ModuleNotFoundError as error:
        raise UserError("runtime=ray needs Ray: pip install 'starling-rl[ray]'") from error
    run, groups, shape = RunSpec.of(run_plan, layout), run_plan.groups(), run_plan.fragment_shape(layout)
    weights_bytes = side_of(model)
    for part in run.parts:
        if getattr(part.target, "__module__", None) == "__main__":
            raise UserError(f"{part.kind} {part.name!r} is in your script: runtime=ray needs it in a module of its own")

    def host(indices: Sequence[int], incarnations: Mapping[int, int]) -> HostArguments:
        mine = {index: replace(groups[index], incarnation=incarnations[index]) for index in indices}
        return HostArguments(run, weights_bytes, mine)

    return system.Plan(
        config=run_plan.config,
        rows={index: group.rows for index, group in groups.items()},
        learners=[list(mine) for mine in run_plan.groups_by_learner()],
        shard_rows=run_plan.far_shards(),
        slots=SLOTS,
        fragment_bytes=sum(size_of(shape.buffer(len(group.rows))) for group in groups.values()),
        weights_bytes=weights_bytes,
        prefetch=PREFETCH,
        builder="starling.launch.ray:staff_host",
        arguments=host,
        store=lambda: build_stores(run_plan, layout)[0],
        scoring_thread=lambda board: scoring_thread(run_plan, board),
        tables=run_plan.tables,
        shard_builder="starling.launch.ray:build_shard",
        shard=lambda index, rows: ShardArguments(run, index, rows),
        learner=lambda source: build_learner(run_plan, model, source),
        together=lambda supervisor, made, far: learning_together(run_plan, model, run, supervisor, made, far),
        rank_builder="starling.launch.ray:staff_rank",
        rank=lambda rank: RankHostArguments(run, weights_bytes, rank),
        rank_slots=RANK_SLOTS,
    )


def staff_host(arguments: HostArguments) -> Staff:
    """The workers of one host, built where they will run."""
    run, board = arguments.run, SharedWeights(arguments.weights_bytes)
    if not arguments.groups:
        return Staff([evaluator_spec(run, board)], {}, board)
    return Staff(*acting_specs(run.run_plan(), run, board, arguments.groups), board)


def staff_rank(arguments: RankHostArguments, state: bytes, address: str) -> RankStaff:
    """One learner, built where it will learn; `address` is that of its node."""
    board, state_buffer, begin = SharedWeights(arguments.weights_bytes), SharedBytes(), SharedBytes(state)
    run, rank = arguments.run, arguments.rank
    batches = rank_batches(run.run_plan(), run.layout, rank)
    spec = rank_spec(rank, lambda incarnations: RankArguments(run, board, rank, batches, begin, state_buffer, address))
    return RankStaff(spec, batches.slots(), board, state_buffer)


def build_shard(arguments: ShardArguments) -> Mixture:
    """The tables of one shard: as much of their size as it has of the env rows."""
    run_plan, layout = arguments.run.run_plan(), arguments.run.layout
    share = Fraction(arguments.rows, run_plan.config.env.num)
    specs = [replace(spec, capacity=int(spec.capacity * share), min_size=1) for spec in run_plan.tables]
    where = {"rows": arguments.rows, "seed": run_plan.config.seed, "shard": arguments.index}
    priority = run_plan.algorithm.priority
    tables = [Table(spec, layout, priority=priority, index=i, **where) for i, spec in enumerate(specs)]
    return Mixture(tables)
