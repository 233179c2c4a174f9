"""A run over a Ray cluster as data, and its parts as they are built where they will run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import nn

from starling.blueprint import PREFETCH, SLOTS, Blueprint
from starling.config.load import to_dict
from starling.errors import UserError
from starling.nodes import RankArguments, Shared, build_learner
from starling.portable import Part, parts_of
from starling.roles.policy import GroupSpec
from starling.runtime.learners import LearnersRuntime
from starling.runtime.meetings import Port
from starling.runtime.processes import ProcessesRuntime
from starling.runtime.ray.rank_relay import RankStaff
from starling.runtime.ray.relay import Staff
from starling.runtime.slab import Parcel, size_of
from starling.runtime.weights import WeightBoard, side_of
from starling.staffing import (
    RANK_SLOTS,
    acting,
    build_stores,
    evaluator,
    learning_together,
    rank_batches,
    rank_spec,
    scorer,
)
from starling.store.mixture import Mixture
from starling.store.table import Table
from starling.types import EnvSpec, Layout

if TYPE_CHECKING:
    from starling.runtime.ray.system import Plan


@dataclass(frozen=True)
class Sent:
    """What every Ray actor of a run gets."""

    settings: dict[str, Any]  # the configuration as plain values
    parts: tuple[Part, ...]  # the user's own that it names
    env: EnvSpec
    layout: Layout
    side: int  # bytes of the weights

    def shared(self, board: WeightBoard) -> Shared:
        """For the workers that read this board."""
        return Shared(self.settings, self.parts, self.env, self.layout, board)


@dataclass(frozen=True)
class HostArguments:
    """What a Ray actor that holds workers gets."""

    sent: Sent
    groups: dict[int, GroupSpec]  # none: it is the evaluator's


@dataclass(frozen=True)
class ShardArguments:
    """What a Ray actor that holds a part of the replay gets."""

    sent: Sent
    index: int
    rows: int


@dataclass(frozen=True)
class RankHostArguments:
    """What a Ray actor that holds one of several learners gets."""

    sent: Sent
    rank: int
    host: str  # where the ranks meet
    port: int


def over_ray(blueprint: Blueprint, model: nn.Module, layout: Layout) -> ProcessesRuntime | LearnersRuntime:
    """Actors, inference, evaluation and replay in a Ray cluster as it is asked for; who learns is on this machine."""
    plan = cluster_plan(blueprint, model, layout)
    from starling.runtime.ray import system

    return system.build(plan, model)


def cluster_plan(blueprint: Blueprint, model: nn.Module, layout: Layout) -> Plan:
    """A run over a Ray cluster as data."""
    try:
        from starling.runtime.ray import system
    except ModuleNotFoundError as error:
        raise UserError("runtime=ray needs Ray: pip install 'starling-rl[ray]'") from error
    settings, groups, shape = to_dict(blueprint.config), blueprint.groups(), blueprint.fragment_shape(layout)
    parts, side = parts_of(settings), side_of(model)
    for part in parts:
        if getattr(part.target, "__module__", None) == "__main__":
            raise UserError(f"{part.kind} {part.name!r} is in your script: runtime=ray needs it in a module of its own")

    sent = Sent(settings, parts, blueprint.env, layout, side)

    def host(indices: Sequence[int], births: Mapping[int, int]) -> HostArguments:
        mine = {index: replace(groups[index], birth=births[index]) for index in indices}
        return HostArguments(sent, mine)

    return system.Plan(
        config=blueprint.config,
        rows={index: group.rows for index, group in groups.items()},
        learners=[list(mine) for mine in blueprint.groups_by_learner()],
        shard_rows=blueprint.far_shards(),
        slots=SLOTS,
        fragment_bytes=sum(size_of(shape.buffer(len(group.rows))) for group in groups.values()),
        weights_bytes=side,
        prefetch=PREFETCH,
        builder="starling.clusters:staff_host",
        arguments=host,
        store=lambda: build_stores(blueprint, layout)[0],
        scorer=lambda board: scorer(blueprint, board),
        tables=blueprint.tables,
        shard_builder="starling.clusters:build_shard",
        shard=lambda index, rows: ShardArguments(sent, index, rows),
        learner=lambda source: build_learner(blueprint, model, source),
        together=lambda crew, made, far: learning_together(blueprint, model, layout, crew, made, far),
        rank_builder="starling.clusters:staff_rank",
        rank=lambda rank, host, port: RankHostArguments(sent, rank, host, port),
        rank_slots=RANK_SLOTS,
    )


def staff_host(arguments: HostArguments) -> Staff:
    """The workers of one host, built where they will run."""
    board = WeightBoard(arguments.sent.side)
    shared = arguments.sent.shared(board)
    if not arguments.groups:
        return Staff([evaluator(shared)], {}, board)
    blueprint = replace(shared).blueprint()  # a copy reads the configuration: what was read cannot be sent on
    return Staff(*acting(blueprint, shared, arguments.groups), board)


def staff_rank(arguments: RankHostArguments, state: bytes, address: str) -> RankStaff:
    """One learner, built where it will learn; `address` is that of its node."""
    board, outbox, begin = WeightBoard(arguments.sent.side), Parcel(), Parcel(state)
    shared, rank = arguments.sent.shared(board), arguments.rank
    batches = rank_batches(replace(shared).blueprint(), shared.layout, rank)
    place = Port(arguments.host, arguments.port, address)
    spec = rank_spec(rank, lambda births: RankArguments(shared, rank, batches, begin, outbox, place))
    return RankStaff(spec, batches.slots(), board, outbox)


def build_shard(arguments: ShardArguments) -> Mixture:
    """The tables of one shard: as much of their size as it has of the env rows."""
    blueprint = arguments.sent.shared(WeightBoard(0)).blueprint()
    share = Fraction(arguments.rows, blueprint.config.env.num)
    specs = [replace(spec, capacity=int(spec.capacity * share), min_size=1) for spec in blueprint.tables]
    where = {"rows": arguments.rows, "seed": blueprint.config.seed, "shard": arguments.index}
    priority = blueprint.algorithm.priority
    tables = [Table(spec, arguments.sent.layout, priority=priority, index=i, **where) for i, spec in enumerate(specs)]
    return Mixture(tables, [spec.share for spec in specs])
