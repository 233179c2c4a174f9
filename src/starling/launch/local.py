"""The graph of a run on this machine: its parts and the connections between them."""

from __future__ import annotations

import copy
import queue
from typing import Any

import torch
from torch import nn

from starling import tree
from starling.actor.core import PolicyCore
from starling.actor.env_loop import EnvLoop
from starling.actor.inference import Batcher, InferenceServer, LocalInferenceChannel
from starling.actor.usage import WAIT_IN, Usage
from starling.hardware import device, learns_elsewhere
from starling.launch.builders import (
    build_env_loop,
    build_evaluator,
    build_learner,
    build_policy,
    build_stores,
    evaluation_seed,
)
from starling.launch.plan import PREFETCH, RunPlan, build_model, plan_threads
from starling.launch.workers import LearnerArgs, RunSpec, Specs, acting_specs, evaluator_spec, learner_spec
from starling.runtime.acting_weights import ActingWeights
from starling.runtime.batch_buffer import BatchBuffer, BatchPort, batch_spec
from starling.runtime.candidate_scorer import CandidateScorer, ScoringThread
from starling.runtime.credits import ActorSlots
from starling.runtime.distributed_learners import LOOPBACK
from starling.runtime.event_queue import EventQueue
from starling.runtime.hub import Hub
from starling.runtime.inline_runtime import InlineRuntime, InlineSink
from starling.runtime.learners_runtime import LatestState, LearnersRuntime
from starling.runtime.process_worker import make_process_workers
from starling.runtime.processes_runtime import ProcessesRuntime
from starling.runtime.rank_hub import Event, RankHub
from starling.runtime.shared_memory import SharedBytes
from starling.runtime.shared_weights import SharedWeights, WeightReader, WeightWriter, copy_size
from starling.types import Layout

LEARNER_SLOTS = 1 + PREFETCH
"""Batches that one of several learners may hold: the one it learns from, and the prefetched ones."""


def build_inline(run_plan: RunPlan, model: nn.Module, layout: Layout) -> InlineRuntime:
    """Build a runtime with all roles in one thread and one shared model."""
    config = run_plan.config
    (store,) = build_stores(run_plan, layout)
    candidate_scorer = (
        CandidateScorer(run_plan.algorithm, model, run_plan.tables) if run_plan.has_ranked_table else None
    )
    learner = build_learner(run_plan, model)
    groups, shape = run_plan.groups(), run_plan.fragment_shape(layout)
    buffers = {index: tree.zeros(shape.buffer(len(group.env_index))) for index, group in groups.items()}
    learner_usage = Usage()
    learner_usage.enter(WAIT_IN)
    acting_weights = None
    if config.fetch_every > 1:
        acting_weights = ActingWeights(model, copy.deepcopy(model), config.fetch_every)
    actors_model = model if acting_weights is None else acting_weights.model
    sink = InlineSink(store, learner, buffers, learner_usage, candidate_scorer, acting_weights)
    loops: list[EnvLoop] = []
    policies: list[PolicyCore | InferenceServer] = []
    channel = LocalInferenceChannel()
    if config.inference == "central":
        core = build_policy(run_plan, actors_model, layout, sink, groups)
        policies.append(InferenceServer(core, channel, groups, Batcher(budget=0.0), Usage()))
    for index, group in groups.items():
        acting: Any = channel
        if config.inference == "local":
            acting = build_policy(run_plan, actors_model, layout, sink, {index: group})
            policies.append(acting)
        loops.append(build_env_loop(config, acting, index, group, Usage(), threads=plan_threads(run_plan)))
    evaluator = None
    if config.eval.every is not None:
        evaluator = build_evaluator(run_plan, model, config.eval, evaluation_seed(config))
    return InlineRuntime(
        loops,
        policies,
        store,
        learner,
        learner_usage,
        evaluator,
        candidate_scorer,
        config.checkpoint.exact,
        acting_weights,
    )


def build_processes(run_plan: RunPlan, model: nn.Module, layout: Layout) -> ProcessesRuntime:
    """Actors and evaluator in worker processes; the hub in a thread, the learner in the main thread.

    With `inference=central`, env loops and an inference server take the place of actors. The hub's supervisor starts
    all workers.
    """
    settings, run = run_plan.config.supervision, RunSpec.of(run_plan, layout)
    weights = SharedWeights(copy_size(model))
    specs, slots = worker_specs(run_plan, run, weights, 0)
    events = EventQueue()
    workers = make_process_workers(specs, settings, events.selector)
    (store,) = build_stores(run_plan, layout)
    hub = Hub(store, events, workers, slots, settings, PREFETCH, build_scoring_thread(run_plan, weights))
    learner = build_learner(run_plan, model)
    return ProcessesRuntime(hub, learner, WeightWriter(weights, model))


def build_learners(run_plan: RunPlan, model: nn.Module, layout: Layout) -> LearnersRuntime:
    """Several learners in processes, each with its own hub: a shard of the tables, actors, and published weights."""
    settings, run = run_plan.config.supervision, RunSpec.of(run_plan, layout)
    group_events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    latest = LatestState()
    weights = [SharedWeights(copy_size(model)) for _ in range(run_plan.learners)]
    state_buffers = [SharedBytes() for _ in range(run_plan.learners)]
    hubs: list[RankHub] = []
    for rank, store in enumerate(build_stores(run_plan, layout)):
        batches = batch_port(run_plan, layout, rank)
        args = LearnerArgs(run, weights[rank], rank, batches, latest, state_buffers[rank], LOOPBACK)
        specs, slots = worker_specs(run_plan, run, weights[rank], rank)
        events = EventQueue()
        workers = make_process_workers([learner_spec(rank, args)], settings, events.selector)
        workers += make_process_workers(specs, settings, events.selector)
        scoring_thread = build_scoring_thread(run_plan, weights[rank], rank)
        hubs.append(
            RankHub(
                rank, store, events, workers, slots, settings, BatchBuffer(batches), group_events, scoring_thread, hubs
            )
        )
    learner = build_learner(run_plan, model)
    writers = [WeightWriter(mine, model) for mine in weights]
    return LearnersRuntime(hubs, learner, writers, state_buffers, latest, group_events, settings)


def worker_specs(
    run_plan: RunPlan, run: RunSpec, weights: SharedWeights, rank: int
) -> tuple[Specs, dict[int, ActorSlots]]:
    """Specs of one learner's workers on this machine, and their slots; rank 0 also has the evaluator."""
    server = "inference" if run_plan.learners == 1 else f"inference {rank}"
    specs, slots = acting_specs(run_plan, run, weights, run_plan.groups_by_learner()[rank], server, rank)
    if run_plan.config.eval.every is not None and rank == 0:
        specs.append(evaluator_spec(run, weights))
    return specs, slots


def build_scoring_thread(run_plan: RunPlan, weights: SharedWeights, rank: int = 0) -> ScoringThread | None:
    """A thread that scores candidates with its own copy of the model, if a table selects among candidates.

    It computes on the device of its learner if that is on this machine.
    """
    if not run_plan.has_ranked_table:
        return None
    config = run_plan.config
    model = build_model(run_plan, torch.device("cpu") if learns_elsewhere(config) else device(config, rank))
    return ScoringThread(CandidateScorer(run_plan.algorithm, model, run_plan.tables), WeightReader(weights, model))


def batch_port(run_plan: RunPlan, layout: Layout, rank: int) -> BatchPort:
    """Shared memory for the batches of one of several learners."""
    return BatchPort(batch_spec(run_plan.shards()[rank], layout), LEARNER_SLOTS)
