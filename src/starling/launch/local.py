"""The one file that knows the whole graph: which parts there are and how they are joined."""

from __future__ import annotations

from typing import Any

from torch import nn

from starling import tree
from starling.actor.core import PolicyCore
from starling.actor.env_loop import EnvLoop
from starling.actor.inference import Batcher, InferenceServer, LocalDesk
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
from starling.launch.plan import PREFETCH, Blueprint, build_model, layout_of, plan_threads
from starling.launch.ray import over_ray
from starling.launch.room import Room
from starling.launch.sizes import predict_sizes
from starling.launch.staffing import (
    Crew,
    acting_specs,
    evaluator_spec,
    learning_together,
    ranks_items,
    scorer,
)
from starling.launch.workers import RunSpec
from starling.runtime.hub import Hub
from starling.runtime.inline import InlineRuntime, InlineUpstream
from starling.runtime.learners import LearnersRuntime
from starling.runtime.loader import Loader, RankedSource
from starling.runtime.process_worker import processes
from starling.runtime.processes import HubSource, ProcessesRuntime
from starling.runtime.weights import WeightBoard, WeightWriter, side_of
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
    if blueprint.config.runtime == "ray":
        return over_ray(blueprint, model, layout)
    if blueprint.learners > 1:
        run = RunSpec.of(blueprint, layout)
        return learning_together(blueprint, model, run, lambda rank, board: _crew(blueprint, run, board, rank))
    return _processes(blueprint, model, layout)


def _inline(blueprint: Blueprint, model: nn.Module, layout: Layout) -> InlineRuntime:
    """All roles in this process: env loops, policies, one store, one learner, one shared model."""
    config = blueprint.config
    (store,) = build_stores(blueprint, layout)
    loader = Loader(blueprint.algorithm, model, blueprint.tables) if ranks_items(blueprint) else None
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
        core = build_policy(blueprint, model, layout, upstream, groups)
        policies.append(InferenceServer(core, desk, groups, Batcher(budget=0.0), Usage()))
    for index, group in groups.items():
        acting: Any = desk
        if config.inference == "local":
            acting = build_policy(blueprint, model, layout, upstream, {index: group})
            policies.append(acting)
        loops.append(build_env_loop(config, acting, index, group, Usage(), threads=plan_threads(blueprint)))
    evaluator = None
    if config.eval.every is not None:
        evaluator = build_evaluator(blueprint, model, config.eval, evaluation_seed(config))
    return InlineRuntime(loops, policies, store, learner, learning, evaluator, loader, config.checkpoint.exact)


def _processes(blueprint: Blueprint, model: nn.Module, layout: Layout) -> ProcessesRuntime:
    """Actors, inference and evaluation in processes of their own; store and learner in this one."""
    board = WeightBoard(side_of(model))
    hire, seats = _crew(blueprint, RunSpec.of(blueprint, layout), board, 0)
    (store,) = build_stores(blueprint, layout)
    hub = Hub(store, hire, seats, blueprint.config.supervision, PREFETCH, scorer(blueprint, board))
    source = HubSource(hub)
    return ProcessesRuntime(hub, build_learner(blueprint, model, source), source, WeightWriter(board, model))


def _crew(blueprint: Blueprint, run: RunSpec, board: WeightBoard, learner: int) -> Crew:
    """Who acts for one learner, in processes of this machine; the first one's crew also has the evaluator."""
    config = blueprint.config
    server = "inference" if blueprint.learners == 1 else f"inference {learner}"
    workers, seats = acting_specs(blueprint, run, board, blueprint.groups_by_learner()[learner], server)
    if config.eval.every is not None and learner == 0:
        workers.append(evaluator_spec(run, board))
    return lambda inbox: processes(workers, config.supervision, inbox.selector), seats
