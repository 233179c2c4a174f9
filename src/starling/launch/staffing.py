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
from starling.launch.plan import PREFETCH, SLOTS, RunPlan, build_model
from starling.launch.workers import (
    ActorArguments,
    EnvArguments,
    EvaluatorArguments,
    InferenceArguments,
    RankArguments,
    RunSpec,
)
from starling.runtime.batch_buffer import BatchBuffer, BatchPort, Desk, batch_spec
from starling.runtime.candidate_scorer import CandidateScorer
from starling.runtime.credits import ActorSlots
from starling.runtime.distributed_learners import LOOPBACK
from starling.runtime.event_queue import EventQueue
from starling.runtime.experience_sink import FragmentPort
from starling.runtime.inference_channel import SharedInferenceChannel
from starling.runtime.learners import LearnersRuntime, Newest, Total
from starling.runtime.process_worker import processes
from starling.runtime.rank_hub import LEARNER, Event, ShardHub
from starling.runtime.scoring import ScoringThread
from starling.runtime.shared_memory import AnonymousSharedMemory, SharedBytes, size_of
from starling.runtime.shared_weights import SharedWeights, WeightReader, WeightWriter, side_of
from starling.runtime.workers import Worker, WorkerSpec
from starling.types import Layout

RANK_SLOTS = 1 + PREFETCH
"""Batches of one of several learners that may be out: the one it learns from, and those it learns from next."""
Supervisor = tuple[Callable[[EventQueue], list[Worker]], dict[int, ActorSlots]]
"""How the workers of one learner are made, and the slots that they fill."""


def ranks_items(run_plan: RunPlan) -> bool:
    """Whether a table picks items by how they score."""
    return any(table.sampler == "ranked" for table in run_plan.tables)


def scoring_thread(run_plan: RunPlan, board: SharedWeights) -> ScoringThread | None:
    """Who scores what tables rank, with a model of its own; None where none does."""
    if not ranks_items(run_plan):
        return None
    model = build_model(run_plan)
    return ScoringThread(CandidateScorer(run_plan.algorithm, model, run_plan.tables), WeightReader(board, model))


def evaluator_spec(run: RunSpec, board: SharedWeights) -> WorkerSpec:
    arguments = EvaluatorArguments(run, board)
    return WorkerSpec(
        "evaluator", "evaluator", "starling.launch.workers:build_evaluation", lambda incarnations: arguments
    )


def acting_specs(
    run_plan: RunPlan,
    run: RunSpec,
    board: SharedWeights,
    groups: Mapping[int, GroupSpec],
    server: str = "inference",
) -> tuple[list[WorkerSpec], dict[int, ActorSlots]]:
    """Whoever acts for these groups, and their slots; `server` is the name of central inference."""
    if run_plan.config.inference == "local":
        return _local_workers(run_plan, run, board, groups)
    return _central_workers(run_plan, run, board, groups, server)


def _actor_slots(
    run_plan: RunPlan, layout: Layout, groups: Mapping[int, GroupSpec], writers: Mapping[str, Sequence[int]]
) -> tuple[dict[int, ActorSlots], dict[str, FragmentPort]]:
    """Every group's slots in shared memory: as this process sees them, and as the worker that fills them does."""
    shape = run_plan.fragment_shape(layout)
    actor_slots: dict[int, ActorSlots] = {}
    ports: dict[str, FragmentPort] = {}
    for worker, indices in writers.items():
        specs = {index: shape.buffer(len(groups[index].rows)) for index in indices}
        offsets: dict[int, list[int]] = {}
        end = 0
        for index, spec in specs.items():
            offsets[index] = [end + slot * size_of(spec) for slot in range(SLOTS)]
            end += SLOTS * size_of(spec)
        ports[worker] = port = FragmentPort(AnonymousSharedMemory(end), specs, offsets)
        actor_slots |= {index: ActorSlots(groups[index].rows, slots, worker) for index, slots in port.buffers().items()}
    return actor_slots, ports


def _local_workers(
    run_plan: RunPlan, run: RunSpec, board: SharedWeights, groups: Mapping[int, GroupSpec]
) -> tuple[list[WorkerSpec], dict[int, ActorSlots]]:
    """An actor a group: env loop and policy in one process."""
    actor_slots, ports = _actor_slots(run_plan, run.layout, groups, {f"actor {index}": [index] for index in groups})

    def actor(index: int) -> WorkerSpec:
        name = f"actor {index}"
        return WorkerSpec(
            name,
            "actor",
            "starling.launch.workers:build_actor",
            lambda incarnations: ActorArguments(
                run, board, index, replace(groups[index], incarnation=incarnations[index]), ports[name]
            ),
            (index,),
        )

    return [actor(index) for index in groups], actor_slots


def _central_workers(
    run_plan: RunPlan, run: RunSpec, board: SharedWeights, groups: Mapping[int, GroupSpec], name: str
) -> tuple[list[WorkerSpec], dict[int, ActorSlots]]:
    """An env loop a group, and one inference server for all of them."""
    actor_slots, ports = _actor_slots(run_plan, run.layout, groups, {name: list(groups)})
    desk = SharedInferenceChannel(run.layout, {index: len(group.rows) for index, group in groups.items()})

    def alive(incarnations: Mapping[int, int]) -> dict[int, GroupSpec]:
        return {index: replace(group, incarnation=incarnations[index]) for index, group in groups.items()}

    def loop(index: int) -> WorkerSpec:
        return WorkerSpec(
            f"env {index}",
            "env",
            "starling.launch.workers:build_env",
            lambda incarnations: EnvArguments(run, index, alive(incarnations)[index], desk.loop_port(index)),
            (index,),
        )

    server = WorkerSpec(
        name,
        "inference",
        "starling.launch.workers:build_inference",
        lambda incarnations: InferenceArguments(run, board, alive(incarnations), ports[name], desk.server_port()),
        tuple(groups),
        dependents=tuple(f"env {index}" for index in groups),
    )
    return [server, *(loop(index) for index in groups)], actor_slots


@dataclass(frozen=True)
class RankSeat:
    """What a rank that learns with others has in this process, wherever it is itself."""

    rank: int
    board: SharedWeights  # its weights
    newest: Newest  # the state that it begins with
    state_buffer: SharedBytes  # where its state is left when it is asked for


Ranking = tuple[Callable[[EventQueue], list[Worker]], Desk]
"""How the worker that is a rank is made, and the drawing side of its batches."""


def learning_together(
    run_plan: RunPlan,
    model: nn.Module,
    run: RunSpec,
    supervisor: Callable[[int, SharedWeights], Supervisor],
    made: Callable[..., LearnersRuntime] = LearnersRuntime,
    far: Callable[[RankSeat], Ranking] | None = None,
) -> LearnersRuntime:
    """Several learners, each with its own shard, weights, and `supervisor`; on this machine, or as `far` says."""
    settings, events, newest = run_plan.config.supervision, queue.SimpleQueue[Event](), Newest()
    near = partial(_near, run_plan, run)
    hubs, boards, outboxes = [], [], []
    for rank, store in enumerate(build_stores(run_plan, run.layout)):
        seat = RankSeat(rank, SharedWeights(side_of(model)), newest, SharedBytes())
        learner, desk = (far or near)(seat)
        others, actor_slots = supervisor(rank, seat.board)
        hire = _both(learner, others)
        hubs.append(
            ShardHub(rank, store, hire, actor_slots, settings, desk, events, scoring_thread(run_plan, seat.board))
        )
        boards.append(seat.board)
        outboxes.append(seat.state_buffer)
    main = build_learner(run_plan, model, Total(hubs))
    writers = [WeightWriter(board, model) for board in boards]  # now that the learner has moved the parameters
    return made(hubs, main, writers, outboxes, newest, events, settings)


def _both(
    first: Callable[[EventQueue], list[Worker]], others: Callable[[EventQueue], list[Worker]]
) -> Callable[[EventQueue], list[Worker]]:
    return lambda event_queue: [*first(event_queue), *others(event_queue)]


def _near(run_plan: RunPlan, run: RunSpec, seat: RankSeat) -> Ranking:
    """A rank in a process of this machine."""
    rank, batches = seat.rank, rank_batches(run_plan, run.layout, seat.rank)
    spec = rank_spec(
        rank,
        lambda incarnations: RankArguments(
            run, seat.board, rank, batches, seat.newest.shared_bytes(), seat.state_buffer, LOOPBACK
        ),
    )
    settings = run_plan.config.supervision
    return lambda event_queue: processes([spec], settings, event_queue.selector), BatchBuffer(batches)


def rank_batches(run_plan: RunPlan, layout: Layout, rank: int) -> BatchPort:
    """Room for the batches of one of several learners."""
    return BatchPort(batch_spec(run_plan.shards()[rank], layout), RANK_SLOTS)


def rank_spec(rank: int, arguments: Callable[[Mapping[int, int]], Any]) -> WorkerSpec:
    return WorkerSpec(f"{LEARNER} {rank}", LEARNER, "starling.launch.workers:build_rank", arguments)
