"""The graph of a run over a Ray cluster: its parts, their placement, and the connections between them."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from starling.actor.core import GroupSpec
from starling.errors import UserError
from starling.launch.builders import build_learner, build_stores
from starling.launch.local import LEARNER_SLOTS, batch_port, build_scoring_thread
from starling.launch.plan import FRAGMENT_SLOTS, PREFETCH, RunPlan
from starling.launch.workers import LearnerArgs, RunSpec, acting_specs, evaluator_spec, learner_spec
from starling.replay.copying import set_loaders
from starling.replay.mixture import Mixture
from starling.replay.table import Table
from starling.runtime.batch_buffer import BatchBuffer
from starling.runtime.credits import ActorSlots
from starling.runtime.distributed_learners import LOOPBACK
from starling.runtime.event_queue import EventQueue
from starling.runtime.hub import Hub
from starling.runtime.learners_runtime import LatestState, LearnersRuntime
from starling.runtime.process_worker import make_process_workers
from starling.runtime.processes_runtime import ProcessesRuntime
from starling.runtime.rank_hub import Event, RankHub
from starling.runtime.shared_memory import SharedBytes, size_of
from starling.runtime.shared_weights import SharedWeights, WeightWriter, copy_size
from starling.runtime.worker import LEARNER, Worker, WorkerSpec
from starling.types import Layout

try:
    from starling.runtime.ray.check import check_versions
    from starling.runtime.ray.cluster import Cluster
    from starling.runtime.ray.cluster_lease import ClusterLease
    from starling.runtime.ray.placement import Need, Place, Reservation, check, need
    from starling.runtime.ray.rank_relay import RankWorker
    from starling.runtime.ray.relay import NodeWorkers
    from starling.runtime.ray.remote_node import RayWeights, RemoteNode
    from starling.runtime.ray.remote_rank import RemoteBatches, RemoteRank
    from starling.runtime.ray.remote_shard import RemoteShard
    from starling.runtime.ray.remote_store import ShardedStore
    from starling.runtime.ray.shard import Empty
except ModuleNotFoundError as error:
    raise UserError("runtime=ray needs Ray: pip install 'starling-rl[ray]'") from error

if TYPE_CHECKING:
    from starling.runtime.ray.messages import FragmentInfo, OnStored

MIN_OBJECT_STORE = 120 * 2**20
WEIGHTS_KEPT = 4
"""Versions of the weights that may be in use at once: the newest, and those that nodes still fetch."""


@dataclass(frozen=True)
class NodeArgs:
    """The workers of one node: env loops with their actor cores, or the evaluator."""

    run: RunSpec
    weights_bytes: int
    groups: dict[int, GroupSpec]  # empty: the evaluator

    def for_incarnations(self, incarnations: Mapping[int, int]) -> NodeArgs:
        groups = {index: replace(group, incarnation=incarnations[index]) for index, group in self.groups.items()}
        return replace(self, groups=groups)

    def build(self) -> NodeWorkers:
        weights = SharedWeights(self.weights_bytes)
        if not self.groups:
            return NodeWorkers([evaluator_spec(self.run, weights)], {}, weights)
        return NodeWorkers(*acting_specs(self.run.run_plan(), self.run, weights, self.groups), weights)


@dataclass(frozen=True)
class ShardArgs:
    """The tables of one replay shard; their capacity is proportional to the shard's share of the envs."""

    run: RunSpec
    index: int
    num_envs: int

    def build(self) -> Mixture:
        run_plan, layout = self.run.run_plan(), self.run.layout
        set_loaders(run_plan.config.loaders)
        share = Fraction(self.num_envs, run_plan.config.env.num)
        specs = [replace(spec, capacity=int(spec.capacity * share), min_size=1) for spec in run_plan.tables]
        shared = {"num_envs": self.num_envs, "seed": run_plan.config.seed, "shard": self.index}
        priority = run_plan.algorithm.priority
        return Mixture([Table(spec, layout, priority=priority, index=i, **shared) for i, spec in enumerate(specs)])


@dataclass(frozen=True)
class RankNodeArgs:
    """One of several learners on a node of the cluster."""

    run: RunSpec
    weights_bytes: int
    rank: int

    def build(self, state: bytes, address: str) -> RankWorker:
        weights, state_buffer, latest = SharedWeights(self.weights_bytes), SharedBytes(), LatestState()
        latest.write(state)
        batches = batch_port(self.run.run_plan(), self.run.layout, self.rank)
        args = LearnerArgs(self.run, weights, self.rank, batches, latest, state_buffer, address)
        return RankWorker(learner_spec(self.rank, args), batches.slots(), weights, state_buffer)


@dataclass(frozen=True)
class ClusterPlan:
    """The resources that a run asks of a cluster."""

    run_plan: RunPlan
    fragment_bytes: int  # of one fragment of every group
    weights_bytes: int

    @classmethod
    def of(cls, run_plan: RunPlan, model: nn.Module, layout: Layout) -> ClusterPlan:
        shape = run_plan.fragment_shape(layout)
        fragments = sum(size_of(shape.buffer(len(group.env_index))) for group in run_plan.groups().values())
        return cls(run_plan, fragments, copy_size(model))

    def node_groups(self, nodes: int) -> list[list[int]]:
        """The groups of envs of every Ray actor that holds env loops; those of one actor belong to one learner."""
        learners = [list(mine) for mine in self.run_plan.groups_by_learner()]
        wanted = -(-(self.run_plan.config.ray.nodes or nodes) // len(learners))
        parts = [np.array_split(np.array(mine), min(wanted, len(mine))) for mine in learners]
        return [part.tolist() for mine in parts for part in mine]

    def needs(self, nodes: int) -> list[Need]:
        """Resources of every Ray actor."""
        config = self.run_plan.config
        settings = config.ray
        servers = [(settings.inference, 1)] if config.inference == "central" else []
        needs = [
            need(f"node {i}", (settings.actor, len(groups)), *servers)
            for i, groups in enumerate(self.node_groups(nodes))
        ]
        needs += [need(f"shard {i}", (settings.shard, 1)) for i in range(settings.shards)]
        if settings.learner is not None and config.learners > 1:
            needs += [need(f"{LEARNER} {i}", (settings.learner, 1)) for i in range(config.learners)]
        return needs + ([need("evaluator", (settings.evaluator, 1))] if config.eval.every is not None else [])

    @property
    def bytes_under_way(self) -> int:
        """Bytes that may lie in the object store of one node at once, if all fragments are there."""
        return FRAGMENT_SLOTS * self.fragment_bytes + WEIGHTS_KEPT * self.weights_bytes

    @property
    def object_store(self) -> int:
        """Size of the object store if Ray is started for this run."""
        return MIN_OBJECT_STORE + 2 * self.bytes_under_way


def build_cluster(run_plan: RunPlan, model: nn.Module, layout: Layout) -> ProcessesRuntime | LearnersRuntime:
    """Build a runtime with actors, inference, evaluation, and optionally replay and learners in a Ray cluster."""
    config = run_plan.config
    run = check_cluster_run(run_plan, layout)
    plan = ClusterPlan.of(run_plan, model, layout)
    cluster, reservation, nodes = _reserve(plan)
    places = {place.need.name: place for place in reservation.places}
    specs = _node_specs(plan, run, nodes)
    if config.learners > 1:
        return _build_learners(plan, run, model, specs, places, cluster, reservation)
    weights, events = SharedWeights(plan.weights_bytes), EventQueue()
    sent = RayWeights(weights)
    store: Any
    shards: list[RemoteShard] = []
    deposit = None
    if config.ray.shards:
        store = ShardedStore(run_plan.tables, config.env.num)
        shards = _build_shards(run_plan, run, store, places, events)
        deposit = partial(_deposit, store, run_plan.groups())
    else:
        (store,) = build_stores(run_plan, layout)
    actors = [RemoteNode(spec, config, places[spec.name], events.post, sent, deposit) for spec in specs]
    workers: list[Worker] = [*actors, *shards]
    scoring_thread = build_scoring_thread(run_plan, weights)
    hub = Hub(store, events, workers, _remote_slots(specs), config.supervision, PREFETCH, scoring_thread)
    learner = build_learner(run_plan, model)
    lease = ClusterLease(cluster, reservation, [hub], [sent], config.ray.timeout)
    runtime = ProcessesRuntime(hub, learner, WeightWriter(weights, model), lease)
    if config.ray.shards:
        store.last_saved = lambda: runtime.last_saved()
    return runtime


def check_cluster_run(run_plan: RunPlan, layout: Layout) -> RunSpec:
    """Return the settings for all workers; raise `UserError` if they cannot run in a cluster."""
    config, run = run_plan.config, RunSpec.of(run_plan, layout)
    for part in run.parts:
        if getattr(part.target, "__module__", None) == "__main__":
            raise UserError(f"{part.kind} {part.name!r} is in your script: runtime=ray needs it in a separate module")
    if config.learners > 1 and config.ray.shards:
        raise UserError(f"each of learners={config.learners} has its own shard of the replay; leave out ray.shards")
    return run


def _reserve(plan: ClusterPlan) -> tuple[Cluster, Reservation, int]:
    """Connect to the cluster and reserve the resources of all parts; also returns the number of its nodes."""
    settings = plan.run_plan.config.ray
    cluster = Cluster(settings, plan.needs(1), plan.object_store)
    try:
        nodes = cluster.nodes()
        if not cluster.own:
            check_versions(nodes)
        needs = plan.needs(len(nodes))
        check(needs, [node["Resources"] for node in nodes])
        return cluster, Reservation(needs, settings.placement), len(nodes)
    except BaseException:
        cluster.close()
        raise


def _build_learners(
    plan: ClusterPlan,
    run: RunSpec,
    model: nn.Module,
    specs: Sequence[WorkerSpec[NodeArgs]],
    places: Mapping[str, Place],
    cluster: Cluster,
    reservation: Reservation,
) -> LearnersRuntime:
    """Build several learners, on this machine or in the cluster, each with its own nodes."""
    run_plan = plan.run_plan
    config, groups_by_learner = run_plan.config, run_plan.groups_by_learner()
    group_events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    latest = LatestState()
    weights = [SharedWeights(plan.weights_bytes) for _ in groups_by_learner]
    sent = [RayWeights(mine) for mine in weights]
    state_buffers = [SharedBytes() for _ in groups_by_learner]
    hubs: list[RankHub] = []
    for rank, store in enumerate(build_stores(run_plan, run.layout)):
        events = EventQueue()
        workers: list[Worker] = []
        batches: BatchBuffer | RemoteBatches
        if config.ray.learner is None:
            port = batch_port(run_plan, run.layout, rank)
            batches = BatchBuffer(port)
            args = LearnerArgs(run, weights[rank], rank, port, latest, state_buffers[rank], LOOPBACK)
            workers += make_process_workers([learner_spec(rank, args)], config.supervision, events.selector)
        else:
            name, batches = f"{LEARNER} {rank}", RemoteBatches(LEARNER_SLOTS)
            spec = WorkerSpec(name, LEARNER, RankNodeArgs(run, plan.weights_bytes, rank))
            workers.append(
                RemoteRank(spec, config, places[name], events.post, batches, weights[rank], state_buffers[rank], latest)
            )
        mine = [
            spec
            for spec in specs
            if groups_by_learner[rank].keys() >= set(spec.groups) and (spec.groups or rank == 0)  # or the evaluator
        ]
        workers += [RemoteNode(spec, config, places[spec.name], events.post, sent[rank], None) for spec in mine]
        scoring_thread = build_scoring_thread(run_plan, weights[rank], rank)
        slots = _remote_slots(mine)
        hubs.append(
            RankHub(
                rank, store, events, workers, slots, config.supervision, batches, group_events, scoring_thread, hubs
            )
        )
    learner = build_learner(run_plan, model)
    writers = [WeightWriter(mine, model) for mine in weights]
    lease = ClusterLease(cluster, reservation, hubs, sent, config.ray.timeout)
    return LearnersRuntime(hubs, learner, writers, state_buffers, latest, group_events, config.supervision, lease)


def _node_specs(plan: ClusterPlan, run: RunSpec, nodes: int) -> list[WorkerSpec[NodeArgs]]:
    """Specs of the Ray actors that hold env loops, and of the evaluator."""
    groups = plan.run_plan.groups()
    specs = [
        WorkerSpec(f"node {i}", "node", NodeArgs(run, plan.weights_bytes, {j: groups[j] for j in mine}), tuple(mine))
        for i, mine in enumerate(plan.node_groups(nodes))
    ]
    if plan.run_plan.config.eval.every is not None:
        specs.append(WorkerSpec("evaluator", "evaluator", NodeArgs(run, plan.weights_bytes, {})))
    return specs


def _remote_slots(specs: Sequence[WorkerSpec[NodeArgs]]) -> dict[int, ActorSlots]:
    """Slots of all groups; their buffers are on the nodes."""
    return {
        index: ActorSlots(group.env_index, [None] * FRAGMENT_SLOTS, spec.name)
        for spec in specs
        for index, group in spec.args.groups.items()
    }


def _build_shards(
    run_plan: RunPlan, run: RunSpec, store: ShardedStore, places: Mapping[str, Place], events: EventQueue
) -> list[RemoteShard]:
    shards = []
    for index, env_index in enumerate(run_plan.remote_shard_envs()):
        spec = WorkerSpec(f"shard {index}", "shard", ShardArgs(run, index, len(env_index)))
        saved = partial(store.saved_of, index)
        shards.append(RemoteShard(spec, run_plan.config, places[spec.name], events.post, env_index, saved))
    store.attach(shards)
    return shards


def _deposit(
    store: ShardedStore,
    groups: Mapping[int, GroupSpec],
    group: int,
    made: FragmentInfo,
    buffer: Any,
    on_stored: OnStored,
) -> None:
    """Send a fragment from its node to its shard."""
    store.deposit(Empty(groups[group].env_index, made.actor_id, made.sequence), buffer, on_stored)
