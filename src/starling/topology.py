"""The one file that knows the whole graph: which parts there are and how they are joined."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from starling import tree
from starling.blueprint import PREFETCH, SLOTS, Blueprint, build_model, layout_of, plan_threads
from starling.capacity.fitting import refuse
from starling.capacity.room import Room
from starling.capacity.sizes import predict_sizes
from starling.config.load import to_dict
from starling.envs.registry import make_env
from starling.nodes import (
    ActorArguments,
    EnvLoopArguments,
    InferenceArguments,
    RankArguments,
    Shared,
    build_evaluator,
    build_learner,
    env_loop,
    evaluation_seed,
    policy_core,
)
from starling.portable import parts_of
from starling.roles.env_loop import EnvLoop
from starling.roles.inference import Batcher, InferenceServer, LocalDesk
from starling.roles.loader import Loader, RankedSource
from starling.roles.policy import GroupSpec, PolicyCore
from starling.roles.usage import WAIT_IN, Usage
from starling.runtime.batches import BatchDesk, BatchPort, batch_spec
from starling.runtime.central import SharedDesk
from starling.runtime.credits import Seat
from starling.runtime.hub import Hub
from starling.runtime.inline import InlineRuntime, InlineUpstream
from starling.runtime.learners import LearnersRuntime, Newest, Total
from starling.runtime.processes import HubSource, ProcessesRuntime
from starling.runtime.scoring import Scorer
from starling.runtime.shard import LEARNER, Event, ShardHub
from starling.runtime.slab import Parcel, Slab, size_of
from starling.runtime.upstream import FragmentPort
from starling.runtime.weights import WeightBoard, WeightReader, WeightWriter
from starling.runtime.workers import WorkerSpec
from starling.store.shards import shard_rows
from starling.store.store import Store
from starling.types import Layout

Runtime = InlineRuntime | ProcessesRuntime | LearnersRuntime


def build(blueprint: Blueprint, room: Room | None = None) -> Runtime:
    """The runtime that the configuration asks for; given the room there is, one that would not fit is refused."""
    model = build_model(blueprint)
    layout = layout_of(blueprint, model)
    if room is not None:
        refuse(blueprint, predict_sizes(blueprint, model, layout), room)
    if blueprint.config.runtime == "inline":
        return _inline(blueprint, model, layout)
    return (_processes if blueprint.learners == 1 else _learners)(blueprint, model, layout)


def build_stores(blueprint: Blueprint, layout: Layout) -> list[Store]:
    """All tables that the algorithm asks for, empty: a shard each learner."""
    config = blueprint.config
    rows = [len(mine) for mine in shard_rows(config.env.num, blueprint.learners)]
    return [
        Store(
            tables,
            layout,
            rows=rows[shard],
            seed=config.seed,
            priority=blueprint.algorithm.priority,
            planned_env_steps=-(-config.stop.env_steps // blueprint.learners),
            shard=shard,
        )
        for shard, tables in enumerate(blueprint.shards())
    ]


def _ranks(blueprint: Blueprint) -> bool:
    return any(table.sampler == "ranked" for table in blueprint.tables)


def _scorer(blueprint: Blueprint, board: WeightBoard) -> Scorer | None:
    """Who scores what tables rank, with a model of its own; None where none does."""
    if not _ranks(blueprint):
        return None
    model = build_model(blueprint)
    return Scorer(Loader(blueprint.algorithm, model, blueprint.tables), WeightReader(board, model))


def _inline(blueprint: Blueprint, model: nn.Module, layout: Layout) -> InlineRuntime:
    """All roles in this process: env loops, policies, one store, one learner, one shared model."""
    config = blueprint.config
    (store,) = build_stores(blueprint, layout)
    loader = Loader(blueprint.algorithm, model, blueprint.tables) if _ranks(blueprint) else None
    learner = build_learner(blueprint, model, store if loader is None else RankedSource(store, loader))
    groups, shape = blueprint.groups(), blueprint.fragment_shape(layout)
    buffers = {index: tree.zeros(shape.buffer(len(group.rows))) for index, group in groups.items()}
    learning = Usage()
    learning.enter(WAIT_IN)
    upstream = InlineUpstream(store, learner, buffers, learning)
    loops: list[EnvLoop] = []
    policies: list[PolicyCore | InferenceServer] = []
    desk = LocalDesk()
    if config.inference == "central":
        core = policy_core(blueprint, model, layout, upstream, groups)
        policies.append(InferenceServer(core, desk, groups, Batcher(budget=0.0), Usage()))
    for index, group in groups.items():
        acting: Any = desk
        if config.inference == "local":
            acting = policy_core(blueprint, model, layout, upstream, {index: group})
            policies.append(acting)
        env = make_env(config.env, len(group.rows), threads=plan_threads(blueprint))
        loops.append(env_loop(config, env, acting, index, group, Usage()))
    evaluator = None
    if config.eval.every is not None:
        evaluator = build_evaluator(blueprint, model, config.eval, evaluation_seed(config))
    return InlineRuntime(loops, policies, store, learner, learning, evaluator, loader)


def _processes(blueprint: Blueprint, model: nn.Module, layout: Layout) -> ProcessesRuntime:
    """Actors, inference and evaluation in processes of their own; store and learner in this one."""
    board = WeightBoard(model)
    workers, seats = _workers(blueprint, _shared(blueprint, layout, board), 0)
    (store,) = build_stores(blueprint, layout)
    hub = Hub(store, workers, seats, blueprint.config.supervision, PREFETCH, _scorer(blueprint, board))
    source = HubSource(hub)
    return ProcessesRuntime(hub, build_learner(blueprint, model, source), source, WeightWriter(board, model))


def _learners(blueprint: Blueprint, model: nn.Module, layout: Layout) -> LearnersRuntime:
    """Several learners in processes of their own, each with its shard, its actors and a board for its weights."""
    settings, events, newest = blueprint.config.supervision, queue.SimpleQueue[Event](), Newest()
    meetings = TemporaryDirectory(prefix="starling-")
    hubs, writers, outboxes = [], [], []
    for rank, store in enumerate(build_stores(blueprint, layout)):
        board, outbox = WeightBoard(model), Parcel()
        shared = _shared(blueprint, layout, board)
        batches = BatchPort(batch_spec(blueprint.shards()[rank], layout), 1 + PREFETCH)
        workers, seats = _workers(blueprint, shared, rank)
        crew = [_rank(rank, shared, batches, newest, outbox, Path(meetings.name)), *workers]
        scorer = _scorer(blueprint, board)
        hubs.append(ShardHub(rank, store, crew, seats, settings, BatchDesk(batches), events, scorer))
        writers.append(WeightWriter(board, model))
        outboxes.append(outbox)
    learner = build_learner(blueprint, model, Total(hubs))
    return LearnersRuntime(hubs, learner, writers, outboxes, newest, events, meetings, settings)


def _rank(rank: int, shared: Shared, batches: BatchPort, newest: Newest, outbox: Parcel, meetings: Path) -> WorkerSpec:
    return WorkerSpec(
        f"{LEARNER} {rank}",
        LEARNER,
        "starling.nodes:build_rank",
        lambda births: RankArguments(shared, rank, batches, newest.parcel(), outbox, meetings),
    )


def _shared(blueprint: Blueprint, layout: Layout, board: WeightBoard) -> Shared:
    settings = to_dict(blueprint.config)
    return Shared(settings, parts_of(settings), blueprint.env, layout, board)


def _workers(blueprint: Blueprint, shared: Shared, learner: int) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """Who acts for one learner; the first one's crew also has the evaluator."""
    local = blueprint.config.inference == "local"
    workers, seats = (_local_workers if local else _central_workers)(blueprint, shared, learner)
    if blueprint.config.eval.every is not None and learner == 0:
        workers.append(WorkerSpec("evaluator", "evaluator", "starling.nodes:build_evaluation", lambda births: shared))
    return workers, seats


def _seats(
    blueprint: Blueprint, layout: Layout, writers: Mapping[str, Sequence[int]]
) -> tuple[dict[int, Seat], dict[str, FragmentPort]]:
    """Every group's slots in shared memory: as this process sees them, and as the worker that fills them does."""
    shape, groups = blueprint.fragment_shape(layout), blueprint.groups()
    seats: dict[int, Seat] = {}
    ports: dict[str, FragmentPort] = {}
    for worker, indices in writers.items():
        specs = {index: shape.buffer(len(groups[index].rows)) for index in indices}
        offsets: dict[int, list[int]] = {}
        end = 0
        for index, spec in specs.items():
            offsets[index] = [end + slot * size_of(spec) for slot in range(SLOTS)]
            end += SLOTS * size_of(spec)
        ports[worker] = port = FragmentPort(Slab(end), specs, offsets)
        seats |= {index: Seat(groups[index].rows, slots, worker) for index, slots in port.buffers().items()}
    return seats, ports


def _local_workers(blueprint: Blueprint, shared: Shared, learner: int) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """An actor a group: env loop and policy in one process."""
    groups = blueprint.groups_by_learner()[learner]
    seats, ports = _seats(blueprint, shared.layout, {f"actor {index}": [index] for index in groups})

    def actor(index: int) -> WorkerSpec:
        name = f"actor {index}"
        return WorkerSpec(
            name,
            "actor",
            "starling.nodes:build_actor",
            lambda births: ActorArguments(shared, index, replace(groups[index], birth=births[index]), ports[name]),
            (index,),
        )

    return [actor(index) for index in groups], seats


def _central_workers(blueprint: Blueprint, shared: Shared, learner: int) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """An env loop a group, and one inference server for all of them."""
    groups = blueprint.groups_by_learner()[learner]
    name = "inference" if blueprint.learners == 1 else f"inference {learner}"
    seats, ports = _seats(blueprint, shared.layout, {name: list(groups)})
    desk = SharedDesk(shared.layout, {index: len(group.rows) for index, group in groups.items()})

    def alive(births: Mapping[int, int]) -> dict[int, GroupSpec]:
        return {index: replace(group, birth=births[index]) for index, group in groups.items()}

    def loop(index: int) -> WorkerSpec:
        return WorkerSpec(
            f"env {index}",
            "env",
            "starling.nodes:build_env_loop",
            lambda births: EnvLoopArguments(shared, index, alive(births)[index], desk.loop_port(index)),
            (index,),
        )

    server = WorkerSpec(
        name,
        "inference",
        "starling.nodes:build_inference",
        lambda births: InferenceArguments(shared, alive(births), ports[name], desk.server_port()),
        tuple(groups),
        dependents=tuple(f"env {index}" for index in groups),
    )
    return [server, *(loop(index) for index in groups)], seats
