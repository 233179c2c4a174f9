"""Worker processes: what travels to each, and how its role is built of that on the other side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starling.actor.core import GroupSpec
from starling.actor.inference import Batcher, InferenceServer
from starling.actor.usage import WAIT_IN, WAIT_OUT, Usage
from starling.config.load import from_dict, to_dict
from starling.config.schema import Config
from starling.hardware import set_up_torch
from starling.launch.builders import build_env_loop, build_evaluator, build_learner, build_policy, evaluation_seed
from starling.launch.plan import RunPlan, build_model, torch_threads
from starling.launch.user_code import Part, parts_of
from starling.runtime.batch_buffer import BatchPort
from starling.runtime.distributed_learners import Meeting
from starling.runtime.experience_sink import FragmentPort, LinkSink
from starling.runtime.inference_channel import LoopPort, LoopSide, ServerPort, ServerSide
from starling.runtime.link import Link
from starling.runtime.rank import LearnerRank, RankSource
from starling.runtime.rendezvous import RankLine
from starling.runtime.shared_memory import SharedBytes
from starling.runtime.shared_weights import SharedWeights, WeightReader, WeightWriter
from starling.runtime.worker_roles import EvaluatorWorker, InferenceWorker, LoopWorker
from starling.state_io import unpack
from starling.types import EnvSpec, Layout


@dataclass(frozen=True)
class RunSpec:
    """What every worker of a run gets, wherever it is."""

    settings: dict[str, Any]  # the configuration as plain values
    parts: tuple[Part, ...]  # the user's own that it names
    env: EnvSpec
    layout: Layout

    @classmethod
    def of(cls, run_plan: RunPlan, layout: Layout) -> RunSpec:
        settings = to_dict(run_plan.config)
        return cls(settings, parts_of(settings), run_plan.env, layout)

    def config(self) -> Config:
        """The configuration, read anew."""
        for part in self.parts:
            part.register()
        return from_dict(self.settings)

    def run_plan(self) -> RunPlan:
        """The same plan as the main process's; also settles this process's torch."""
        set_up_torch(1)
        return RunPlan.from_config(self.config(), self.env)


@dataclass(frozen=True)
class ActorArguments:
    run: RunSpec
    board: SharedWeights
    index: int
    group: GroupSpec
    fragments: FragmentPort


@dataclass(frozen=True)
class EnvArguments:
    run: RunSpec
    index: int
    group: GroupSpec
    desk: LoopPort


@dataclass(frozen=True)
class InferenceArguments:
    run: RunSpec
    board: SharedWeights
    groups: dict[int, GroupSpec]
    fragments: FragmentPort
    desk: ServerPort


@dataclass(frozen=True)
class EvaluatorArguments:
    run: RunSpec
    board: SharedWeights


@dataclass(frozen=True)
class RankArguments:
    run: RunSpec
    board: SharedWeights  # this rank's own
    rank: int
    batches: BatchPort
    state: SharedBytes  # of the learner, to begin with
    state_buffer: SharedBytes
    address: str  # on which it listens for the other ranks


def build_actor(arguments: ActorArguments, link: Link, usage: Usage) -> LoopWorker:
    """An env loop with its policy beside it."""
    index, group = arguments.index, arguments.group
    run_plan = arguments.run.run_plan()
    model = build_model(run_plan)
    sink = LinkSink(link, arguments.fragments, arguments.board, model)
    core = build_policy(run_plan, model, arguments.run.layout, sink, {index: group})
    core.policy.progress = sink.refresh()  # not even the first action follows weights that nobody trained
    loop = build_env_loop(run_plan.config, core, index, group, usage)
    return LoopWorker(loop, link, WAIT_OUT, [link])


def build_env(arguments: EnvArguments, link: Link, usage: Usage) -> LoopWorker:
    """An env loop whose policy is in the inference server."""
    index, group = arguments.index, arguments.group
    desk = LoopSide(arguments.desk, index, group.incarnation)
    loop = build_env_loop(arguments.run.config(), desk, index, group, usage)
    return LoopWorker(loop, link, WAIT_IN, [desk, link])


def build_inference(arguments: InferenceArguments, link: Link, usage: Usage) -> InferenceWorker:
    """A policy for all env loops."""
    run_plan = arguments.run.run_plan()
    model = build_model(run_plan)
    sink = LinkSink(link, arguments.fragments, arguments.board, model)
    core = build_policy(run_plan, model, arguments.run.layout, sink, arguments.groups)
    core.policy.progress = sink.refresh()
    desk, settings = ServerSide(arguments.desk), run_plan.config.batching
    batcher = Batcher(settings.rows, None if settings.wait_ms is None else settings.wait_ms / 1000)
    server = InferenceServer(core, desk, arguments.groups, batcher, usage)
    return InferenceWorker(server, sink, [desk, link])


def build_evaluation(arguments: EvaluatorArguments, link: Link, usage: Usage) -> EvaluatorWorker:
    """An evaluator that reads the weights as actors do."""
    run_plan = arguments.run.run_plan()
    model, config = build_model(run_plan), run_plan.config
    evaluator = build_evaluator(run_plan, model, config.eval, evaluation_seed(config))
    return EvaluatorWorker(evaluator, WeightReader(arguments.board, model), link)


def build_rank(arguments: RankArguments, link: Link, usage: Usage) -> LearnerRank:
    """One learner of several."""
    run_plan, rank = arguments.run.run_plan(), arguments.rank
    set_up_torch(torch_threads(run_plan))
    model = build_model(run_plan, rank)
    source = RankSource(arguments.batches.slots())
    learner = build_learner(run_plan, model, source)
    learner.set_state(unpack(arguments.state.read()))
    size, patience = run_plan.learners, run_plan.config.supervision.reduction

    line = RankLine(link)

    def meet(time: int) -> Meeting:
        return Meeting(line.rendezvous(time, patience), rank, size, patience, arguments.address)

    publish = WeightWriter(arguments.board, model).publish
    return LearnerRank(rank, learner, source, line, arguments.state_buffer, usage, meet, publish)
