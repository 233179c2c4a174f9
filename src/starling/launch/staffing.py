"""Who works for a learner: its tables, worker processes as data and the slots they fill; and learners together."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from starling.actor.core import GroupSpec
from starling.launch.builders import build_learner, build_stores
from starling.launch.plan import PREFETCH, SLOTS, Blueprint, build_model
from starling.launch.workers import (
    ActorArguments,
    EnvArguments,
    EvaluatorArguments,
    InferenceArguments,
    RankArguments,
    RunSpec,
)
from starling.runtime.batches import BatchDesk, BatchPort, Desk, batch_spec
from starling.runtime.central import SharedDesk
from starling.runtime.collective import LOOPBACK
from starling.runtime.credits import Seat
from starling.runtime.inbox import Inbox
from starling.runtime.learners import LearnersRuntime, Newest, Total
from starling.runtime.loader import Loader
from starling.runtime.process_worker import processes
from starling.runtime.scoring import Scorer
from starling.runtime.shard import LEARNER, Event, ShardHub
from starling.runtime.slab import Parcel, Slab, size_of
from starling.runtime.upstream import FragmentPort
from starling.runtime.weights import WeightBoard, WeightReader, WeightWriter, side_of
from starling.runtime.workers import Worker, WorkerSpec
from starling.types import Layout

RANK_SLOTS = 1 + PREFETCH
"""Batches of one of several learners that may be out: the one it learns from, and those it learns from next."""
Crew = tuple[Callable[[Inbox], list[Worker]], dict[int, Seat]]
"""How the workers of one learner are made, and the slots that they fill."""


def ranks_items(blueprint: Blueprint) -> bool:
    """Whether a table picks items by how they score."""
    return any(table.sampler == "ranked" for table in blueprint.tables)


def scorer(blueprint: Blueprint, board: WeightBoard) -> Scorer | None:
    """Who scores what tables rank, with a model of its own; None where none does."""
    if not ranks_items(blueprint):
        return None
    model = build_model(blueprint)
    return Scorer(Loader(blueprint.algorithm, model, blueprint.tables), WeightReader(board, model))


def evaluator_spec(run: RunSpec, board: WeightBoard) -> WorkerSpec:
    arguments = EvaluatorArguments(run, board)
    return WorkerSpec("evaluator", "evaluator", "starling.launch.workers:build_evaluation", lambda births: arguments)


def acting_specs(
    blueprint: Blueprint,
    run: RunSpec,
    board: WeightBoard,
    groups: Mapping[int, GroupSpec],
    server: str = "inference",
) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """Whoever acts for these groups, and their slots; `server` is the name of central inference."""
    if blueprint.config.inference == "local":
        return _local_workers(blueprint, run, board, groups)
    return _central_workers(blueprint, run, board, groups, server)


def _seats(
    blueprint: Blueprint, layout: Layout, groups: Mapping[int, GroupSpec], writers: Mapping[str, Sequence[int]]
) -> tuple[dict[int, Seat], dict[str, FragmentPort]]:
    """Every group's slots in shared memory: as this process sees them, and as the worker that fills them does."""
    shape = blueprint.fragment_shape(layout)
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


def _local_workers(
    blueprint: Blueprint, run: RunSpec, board: WeightBoard, groups: Mapping[int, GroupSpec]
) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """An actor a group: env loop and policy in one process."""
    seats, ports = _seats(blueprint, run.layout, groups, {f"actor {index}": [index] for index in groups})

    def actor(index: int) -> WorkerSpec:
        name = f"actor {index}"
        return WorkerSpec(
            name,
            "actor",
            "starling.launch.workers:build_actor",
            lambda births: ActorArguments(run, board, index, replace(groups[index], birth=births[index]), ports[name]),
            (index,),
        )

    return [actor(index) for index in groups], seats


def _central_workers(
    blueprint: Blueprint, run: RunSpec, board: WeightBoard, groups: Mapping[int, GroupSpec], name: str
) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """An env loop a group, and one inference server for all of them."""
    seats, ports = _seats(blueprint, run.layout, groups, {name: list(groups)})
    desk = SharedDesk(run.layout, {index: len(group.rows) for index, group in groups.items()})

    def alive(births: Mapping[int, int]) -> dict[int, GroupSpec]:
        return {index: replace(group, birth=births[index]) for index, group in groups.items()}

    def loop(index: int) -> WorkerSpec:
        return WorkerSpec(
            f"env {index}",
            "env",
            "starling.launch.workers:build_env",
            lambda births: EnvArguments(run, index, alive(births)[index], desk.loop_port(index)),
            (index,),
        )

    server = WorkerSpec(
        name,
        "inference",
        "starling.launch.workers:build_inference",
        lambda births: InferenceArguments(run, board, alive(births), ports[name], desk.server_port()),
        tuple(groups),
        dependents=tuple(f"env {index}" for index in groups),
    )
    return [server, *(loop(index) for index in groups)], seats


@dataclass(frozen=True)
class RankSeat:
    """What a rank that learns with others has in this process, wherever it is itself."""

    rank: int
    board: WeightBoard  # its weights
    newest: Newest  # the state that it begins with
    outbox: Parcel  # where its state is left when it is asked for


Ranking = tuple[Callable[[Inbox], list[Worker]], Desk]
"""How the worker that is a rank is made, and the drawing side of its batches."""


def learning_together(
    blueprint: Blueprint,
    model: nn.Module,
    run: RunSpec,
    crew: Callable[[int, WeightBoard], Crew],
    made: Callable[..., LearnersRuntime] = LearnersRuntime,
    far: Callable[[RankSeat], Ranking] | None = None,
) -> LearnersRuntime:
    """Several learners, each with its shard, its weights and its own `crew`; on this machine, or as `far` says."""
    settings, events, newest = blueprint.config.supervision, queue.SimpleQueue[Event](), Newest()
    near = partial(_near, blueprint, run)
    hubs, boards, outboxes = [], [], []
    for rank, store in enumerate(build_stores(blueprint, run.layout)):
        seat = RankSeat(rank, WeightBoard(side_of(model)), newest, Parcel())
        learner, desk = (far or near)(seat)
        others, seats = crew(rank, seat.board)
        hire = _both(learner, others)
        hubs.append(ShardHub(rank, store, hire, seats, settings, desk, events, scorer(blueprint, seat.board)))
        boards.append(seat.board)
        outboxes.append(seat.outbox)
    main = build_learner(blueprint, model, Total(hubs))
    writers = [WeightWriter(board, model) for board in boards]  # now that the learner has moved the parameters
    return made(hubs, main, writers, outboxes, newest, events, settings)


def _both(
    first: Callable[[Inbox], list[Worker]], others: Callable[[Inbox], list[Worker]]
) -> Callable[[Inbox], list[Worker]]:
    return lambda inbox: [*first(inbox), *others(inbox)]


def _near(blueprint: Blueprint, run: RunSpec, seat: RankSeat) -> Ranking:
    """A rank in a process of this machine."""
    rank, batches = seat.rank, rank_batches(blueprint, run.layout, seat.rank)
    spec = rank_spec(
        rank,
        lambda births: RankArguments(run, seat.board, rank, batches, seat.newest.parcel(), seat.outbox, LOOPBACK),
    )
    settings = blueprint.config.supervision
    return lambda inbox: processes([spec], settings, inbox.selector), BatchDesk(batches)


def rank_batches(blueprint: Blueprint, layout: Layout, rank: int) -> BatchPort:
    """Room for the batches of one of several learners."""
    return BatchPort(batch_spec(blueprint.shards()[rank], layout), RANK_SLOTS)


def rank_spec(rank: int, arguments: Callable[[Mapping[int, int]], Any]) -> WorkerSpec:
    return WorkerSpec(f"{LEARNER} {rank}", LEARNER, "starling.launch.workers:build_rank", arguments)
