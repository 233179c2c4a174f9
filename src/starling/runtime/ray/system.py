"""A run over a Ray cluster, put together: hosts with their share of the groups, their places, the hub, the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from starling.config.schema import Config
from starling.errors import UserError
from starling.learner.learner import Learner, Source
from starling.replay.spec import TableSpec
from starling.replay.store import Store
from starling.runtime.credits import ActorSlots
from starling.runtime.event_queue import EventQueue, Post
from starling.runtime.hub import Hub
from starling.runtime.learners import LearnersRuntime
from starling.runtime.processes import HubSource, ProcessesRuntime
from starling.runtime.rank_hub import LEARNER
from starling.runtime.ray.check import check_versions
from starling.runtime.ray.cluster import Cluster
from starling.runtime.ray.node_status import FragmentInfo, OnStored
from starling.runtime.ray.placement import Need, Place, Reservation, check, need
from starling.runtime.ray.remote_host import Deposit, RemoteHost
from starling.runtime.ray.remote_rank import FarDesk, RemoteRank
from starling.runtime.ray.remote_shard import RemoteShard
from starling.runtime.ray.shard import Empty
from starling.runtime.ray.sharded import ShardedStore
from starling.runtime.ray.tenancy import Tenancy
from starling.runtime.ray.weights import RayWeights
from starling.runtime.scoring import ScoringThread
from starling.runtime.shared_weights import SharedWeights, WeightWriter
from starling.runtime.workers import Worker, WorkerSpec
from starling.types import NDArray

Supervisor = Callable[[int, SharedWeights], tuple[Callable[[EventQueue], list[Worker]], dict[int, ActorSlots]]]
"""Of a learner's rank and its weights: how its workers are made, and the slots that they fill."""
Far = Callable[[Any], tuple[Callable[[EventQueue], list[Worker]], FarDesk]]
"""Of what a rank has in this process: how its worker is made, and its batches."""
LEAST_STORE = 120 * 2**20
WEIGHTS_KEPT = 4
"""Versions of the weights that may be in use at once: the newest, and those that hosts still fetch."""


@dataclass(frozen=True)
class Plan:
    """What a run over a cluster is made of, as whoever knows the whole graph says."""

    config: Config
    rows: dict[int, NDArray]  # the env rows of every group
    learners: list[list[int]]  # the groups of every learner
    shard_rows: list[NDArray]  # the env rows of every shard of the replay
    slots: int  # fragments of one group that may be under way
    fragment_bytes: int  # of one fragment of every group
    weights_bytes: int
    prefetch: int
    builder: str  # import path of a function that turns a host's arguments into its staff
    arguments: Callable[[Sequence[int], Mapping[int, int]], Any]  # of a host with these groups; none: the evaluator's
    store: Callable[[], Store]
    scoring_thread: Callable[[SharedWeights], ScoringThread | None]
    tables: Sequence[TableSpec]
    shard_builder: str  # import path of a function that turns a shard's arguments into its tables
    shard: Callable[[int, int], Any]  # the arguments of a shard, by its number and how many env rows it has
    learner: Callable[[Source], Learner]
    together: Callable[[Supervisor, Callable[..., LearnersRuntime], Far | None], LearnersRuntime]  # several learners
    rank_builder: str  # import path of a function that turns a rank's arguments into what it is made of
    rank: Callable[[int], Any]  # the arguments of a rank
    rank_slots: int  # batches of a rank that may be out

    def hosts(self, nodes: int) -> list[list[int]]:
        """The groups of every host, all of one learner."""
        wanted = -(-(self.config.ray.hosts or nodes) // len(self.learners))
        parts = [np.array_split(np.array(mine), min(wanted, len(mine))) for mine in self.learners]
        return [part.tolist() for mine in parts for part in mine]

    def needs(self, nodes: int) -> list[Need]:
        """What hosts and evaluator ask for, in this order."""
        settings = self.config.ray
        servers = [(settings.inference, 1)] if self.config.inference == "central" else []
        needs = [
            need(f"host {i}", (settings.actor, len(groups)), *servers) for i, groups in enumerate(self.hosts(nodes))
        ]
        needs += [need(f"shard {i}", (settings.shard, 1)) for i in range(settings.shards)]
        if settings.learner is not None and len(self.learners) > 1:
            needs += [need(f"learner {i}", (settings.learner, 1)) for i in range(len(self.learners))]
        return needs + ([need("evaluator", (settings.evaluator, 1))] if self.config.eval.every is not None else [])

    def under_way(self) -> int:
        """Bytes that may lie in one node's object store at once, were all fragments there."""
        return self.slots * self.fragment_bytes + WEIGHTS_KEPT * self.weights_bytes

    def object_store(self) -> int:
        """The size of the object store where Ray is started for this run."""
        return LEAST_STORE + 2 * self.under_way()


def build(plan: Plan, model: nn.Module) -> ProcessesRuntime | LearnersRuntime:
    """Connect, find out whether there is room, and put the parts together; nothing is started yet."""
    config, several = plan.config, len(plan.learners) > 1
    if several and config.ray.shards:
        raise UserError(f"learners={config.learners} have a shard of the replay each beside them; leave out ray.shards")
    store = ShardedStore(plan.tables, sum(map(len, plan.rows.values()))) if config.ray.shards else None
    cluster = Cluster(config.ray, plan.needs(1), plan.object_store())
    try:
        nodes = cluster.nodes()
        if not cluster.own:
            check_versions(nodes)
        needs = plan.needs(len(nodes))
        check(needs, [node["Resources"] for node in nodes])
        reservation = Reservation(needs, config.ray.placement)
    except BaseException:
        cluster.close()
        raise
    tenancy = Tenancy(cluster, reservation, config.ray.timeout)
    places = {place.need.name: place for place in reservation.places}
    specs = _specs(plan, len(nodes))
    staff = {spec: places[spec.name] for spec in specs}
    if several:
        return _learners(plan, staff, places, tenancy)
    board = SharedWeights(plan.weights_bytes)
    sent = tenancy.sends(RayWeights(board))
    hub = Hub(
        store or plan.store(),
        lambda event_queue: _hire(plan, staff, sent, store, event_queue.post),
        _actor_slots(plan, specs),
        config.supervision,
        plan.prefetch,
        plan.scoring_thread(board),
    )
    source = HubSource(hub)
    runtime = ProcessesRuntime(hub, plan.learner(source), source, WeightWriter(board, model), tenancy)
    if store is not None:
        store.last_saved = lambda: runtime.last_saved()
    return runtime


def _learners(
    plan: Plan, staff: Mapping[WorkerSpec, Place], places: Mapping[str, Place], tenancy: Tenancy
) -> LearnersRuntime:
    """Several learners, each with its own of the hosts; the evaluator sees the first one's weights."""

    def supervisor(
        rank: int, board: SharedWeights
    ) -> tuple[Callable[[EventQueue], list[Worker]], dict[int, ActorSlots]]:
        sent = tenancy.sends(RayWeights(board))
        groups = set(plan.learners[rank])
        mine = {
            spec: place
            for spec, place in staff.items()
            if groups.issuperset(spec.groups) and (spec.groups or rank == 0)
        }
        return lambda event_queue: _hire(plan, mine, sent, None, event_queue.post), _actor_slots(plan, list(mine))

    far = None if plan.config.ray.learner is None else _far(plan, places)
    return plan.together(supervisor, partial(LearnersRuntime, premises=tenancy), far)


def _far(plan: Plan, places: Mapping[str, Place]) -> Far:
    """Learners in the cluster."""

    def far(seat: Any) -> tuple[Callable[[EventQueue], list[Worker]], FarDesk]:
        name, desk, rank = f"{LEARNER} {seat.rank}", FarDesk(plan.rank_slots), seat.rank
        spec = WorkerSpec(name, LEARNER, plan.rank_builder, lambda incarnations: plan.rank(rank))

        def hire(event_queue: EventQueue) -> list[Worker]:
            state = partial(getattr, seat.newest, "data")
            return [
                RemoteRank(
                    spec, plan.config, places[name], event_queue.post, desk, seat.board, seat.state_buffer, state
                )
            ]

        return hire, desk

    return far


def _hire(
    plan: Plan, staff: Mapping[WorkerSpec, Place], sent: RayWeights, store: ShardedStore | None, post: Post
) -> list[Worker]:
    """Whoever works in the cluster, none of them started."""
    workers: list[Worker] = []
    shards: list[RemoteShard] = []
    deposit = None if store is None else _deposit(plan, store)
    for spec, place in staff.items():
        if spec.kind == "shard":
            assert store is not None, "shards belong to a store"
            index = len(shards)
            saved = partial(store.saved_of, index)
            shards.append(RemoteShard(spec, plan.config, place, post, plan.shard_rows[index], saved))
            workers.append(shards[-1])
        else:
            workers.append(RemoteHost(spec, plan.config, place, post, sent, deposit))
    if store is not None:
        store.attach(shards)
    return workers


def _deposit(plan: Plan, store: ShardedStore) -> Deposit:
    def deposit(group: int, made: FragmentInfo, buffer: Any, settled: OnStored) -> None:
        store.deposit(Empty(plan.rows[group], made.actor, made.sequence), buffer, settled)

    return deposit


def _specs(plan: Plan, nodes: int) -> list[WorkerSpec]:
    def spec(name: str, kind: str, groups: Sequence[int]) -> WorkerSpec:
        return WorkerSpec(
            name, kind, plan.builder, lambda incarnations: plan.arguments(groups, incarnations), tuple(groups)
        )

    def shard(index: int, rows: int) -> WorkerSpec:
        return WorkerSpec(f"shard {index}", "shard", plan.shard_builder, lambda incarnations: plan.shard(index, rows))

    hosts = [spec(f"host {i}", "host", groups) for i, groups in enumerate(plan.hosts(nodes))]
    shards = [shard(i, len(rows)) for i, rows in enumerate(plan.shard_rows)]
    return hosts + shards + ([spec("evaluator", "evaluator", [])] if plan.config.eval.every is not None else [])


def _actor_slots(plan: Plan, specs: Sequence[WorkerSpec]) -> dict[int, ActorSlots]:
    """Slots that lie on the hosts."""
    return {
        group: ActorSlots(plan.rows[group], [None] * plan.slots, spec.name) for spec in specs for group in spec.groups
    }
