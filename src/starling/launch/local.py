"""The one file that knows the whole graph: which parts there are and how they are joined."""

from __future__ import annotations

from typing import Any

from torch import nn

from starling import tree
from starling.actor.core import PolicyCore
from starling.actor.env_loop import EnvLoop
from starling.actor.inference import Batcher, InferenceServer, LocalInferenceChannel
from starling.actor.usage import WAIT_IN, Usage
from starling.launch.builders import (
    build_env_loop,
    build_evaluator,
    build_learner,
    build_policy,
    build_stores,
    evaluation_seed,
)
from starling.launch.fitting import refuse
from starling.launch.plan import PREFETCH, RunPlan, build_model, layout_of, plan_threads
from starling.launch.ray import over_ray
from starling.launch.room import Room
from starling.launch.sizes import predict_sizes
from starling.launch.staffing import (
    Supervisor,
    acting_specs,
    evaluator_spec,
    learning_together,
    ranks_items,
    scoring_thread,
)
from starling.launch.workers import RunSpec
from starling.runtime.candidate_scorer import CandidateScorer, RankedSource
from starling.runtime.hub import Hub
from starling.runtime.inline import InlineRuntime, InlineSink
from starling.runtime.learners import LearnersRuntime
from starling.runtime.process_worker import processes
from starling.runtime.processes import HubSource, ProcessesRuntime
from starling.runtime.shared_weights import SharedWeights, WeightWriter, side_of
from starling.types import Layout

Runtime = InlineRuntime | ProcessesRuntime | LearnersRuntime


def build(run_plan: RunPlan, room: Room | None = None) -> Runtime:
    """The runtime that the configuration asks for; given the room there is, one that would not fit is refused."""
    model = build_model(run_plan)
    layout = layout_of(run_plan, model)
    if room is not None:
        refuse(run_plan, predict_sizes(run_plan, model, layout), room)
    if run_plan.config.runtime == "inline":
        return _inline(run_plan, model, layout)
    if run_plan.config.runtime == "ray":
        return over_ray(run_plan, model, layout)
    if run_plan.learners > 1:
        run = RunSpec.of(run_plan, layout)
        return learning_together(run_plan, model, run, lambda rank, board: _supervisor(run_plan, run, board, rank))
    return _processes(run_plan, model, layout)


def _inline(run_plan: RunPlan, model: nn.Module, layout: Layout) -> InlineRuntime:
    """All roles in this process: env loops, policies, one store, one learner, one shared model."""
    config = run_plan.config
    (store,) = build_stores(run_plan, layout)
    candidate_scorer = CandidateScorer(run_plan.algorithm, model, run_plan.tables) if ranks_items(run_plan) else None
    learner = build_learner(
        run_plan, model, store if candidate_scorer is None else RankedSource(store, candidate_scorer)
    )
    groups, shape = run_plan.groups(), run_plan.fragment_shape(layout)
    buffers = {index: tree.zeros(shape.buffer(len(group.rows))) for index, group in groups.items()}
    learning = Usage()
    learning.enter(WAIT_IN)
    sink = InlineSink(store, learner, buffers, learning)
    loops: list[EnvLoop] = []
    policies: list[PolicyCore | InferenceServer] = []
    desk = LocalInferenceChannel()
    if config.inference == "central":
        core = build_policy(run_plan, model, layout, sink, groups)
        policies.append(InferenceServer(core, desk, groups, Batcher(budget=0.0), Usage()))
    for index, group in groups.items():
        acting: Any = desk
        if config.inference == "local":
            acting = build_policy(run_plan, model, layout, sink, {index: group})
            policies.append(acting)
        loops.append(build_env_loop(config, acting, index, group, Usage(), threads=plan_threads(run_plan)))
    evaluator = None
    if config.eval.every is not None:
        evaluator = build_evaluator(run_plan, model, config.eval, evaluation_seed(config))
    return InlineRuntime(
        loops, policies, store, learner, learning, evaluator, candidate_scorer, config.checkpoint.exact
    )


def _processes(run_plan: RunPlan, model: nn.Module, layout: Layout) -> ProcessesRuntime:
    """Actors, inference and evaluation in processes of their own; store and learner in this one."""
    board = SharedWeights(side_of(model))
    hire, actor_slots = _supervisor(run_plan, RunSpec.of(run_plan, layout), board, 0)
    (store,) = build_stores(run_plan, layout)
    hub = Hub(store, hire, actor_slots, run_plan.config.supervision, PREFETCH, scoring_thread(run_plan, board))
    source = HubSource(hub)
    return ProcessesRuntime(hub, build_learner(run_plan, model, source), source, WeightWriter(board, model))


def _supervisor(run_plan: RunPlan, run: RunSpec, board: SharedWeights, learner: int) -> Supervisor:
    """Who acts for one learner, in processes of this machine; the first one's supervisor also has the evaluator."""
    config = run_plan.config
    server = "inference" if run_plan.learners == 1 else f"inference {learner}"
    workers, actor_slots = acting_specs(run_plan, run, board, run_plan.groups_by_learner()[learner], server)
    if config.eval.every is not None and learner == 0:
        workers.append(evaluator_spec(run, board))
    return lambda event_queue: processes(workers, config.supervision, event_queue.selector), actor_slots
