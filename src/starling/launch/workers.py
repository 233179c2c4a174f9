"""Worker processes: the settings that are sent to each, and the role that is built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starling.actor.core import GroupSpec
from starling.actor.inference import Batcher, InferenceServer
from starling.actor.usage import WAIT_IN, WAIT_OUT, Usage
from starling.config.load import from_dict, to_dict
from starling.config.schema import Config
from starling.hardware import actors_device, device, evaluator_device, inference_device, set_up_torch, use_device
from starling.launch.builders import build_env_loop, build_evaluator, build_learner, build_policy, evaluation_seed
from starling.launch.plan import FRAGMENT_SLOTS, RunPlan, build_model, plan_threads
from starling.launch.user_code import Part, parts_of
from starling.runtime.batch_buffer import BatchPort
from starling.runtime.credits import ActorSlots
from starling.runtime.experience_sink import FragmentPort, LinkSink
from starling.runtime.inference_channel import LoopPort, LoopSide, ServerPort, ServerSide, SharedInferenceChannel
from starling.runtime.learners_runtime import LatestState
from starling.runtime.link import Link
from starling.runtime.rank import LearnerRank, RankSpec
from starling.runtime.rendezvous import RankLine
from starling.runtime.shared_memory import AnonymousSharedMemory, SharedBytes, size_of
from starling.runtime.shared_weights import SharedWeights, WeightReader, WeightWriter
from starling.runtime.worker import LEARNER, WorkerSpec
from starling.runtime.worker_main import WorkerArgs
from starling.runtime.worker_roles import EnvLoopWorker, EvaluatorWorker, InferenceWorker
from starling.state_io import unpack
from starling.types import EnvSpec, Layout


@dataclass(frozen=True)
class RunSpec:
    """The settings that every worker of a run gets, wherever it runs."""

    settings: dict[str, Any]  # the configuration as plain values
    parts: tuple[Part, ...]  # registered user code that it names
    env: EnvSpec
    layout: Layout

    @classmethod
    def of(cls, run_plan: RunPlan, layout: Layout) -> RunSpec:
        settings = to_dict(run_plan.config)
        return cls(settings, parts_of(settings), run_plan.env, layout)

    def config(self) -> Config:
        for part in self.parts:
            part.register()
        return from_dict(self.settings)

    def run_plan(self) -> RunPlan:
        """The same plan as in the main process; also sets up torch in this process."""
        set_up_torch(1)
        return RunPlan.from_config(self.config(), self.env)


@dataclass(frozen=True)
class ActorArgs:
    """An env loop and its actor core in one process."""

    run: RunSpec
    weights: SharedWeights
    index: int
    group: GroupSpec
    fragments: FragmentPort

    def for_incarnations(self, incarnations: Mapping[int, int]) -> ActorArgs:
        return replace(self, group=replace(self.group, incarnation=incarnations[self.index]))

    def build(self, link: Link, usage: Usage) -> EnvLoopWorker:
        run_plan = self.run.run_plan()
        use_device(where := actors_device(run_plan.config), run_plan.config)
        model = build_model(run_plan, where)
        sink = LinkSink(link, self.fragments, self.weights, model, usage, run_plan.config.fetch_every)
        core = build_policy(run_plan, model, self.run.layout, sink, {self.index: self.group})
        core.policy.progress = sink.refresh()  # so that the first action uses trained weights
        loop = build_env_loop(run_plan.config, core, self.index, self.group, usage)
        return EnvLoopWorker(loop, link, WAIT_OUT, [link])


@dataclass(frozen=True)
class EnvLoopArgs:
    """An env loop whose actor core is in the inference server."""

    run: RunSpec
    index: int
    group: GroupSpec
    channel: LoopPort

    def for_incarnations(self, incarnations: Mapping[int, int]) -> EnvLoopArgs:
        return replace(self, group=replace(self.group, incarnation=incarnations[self.index]))

    def build(self, link: Link, usage: Usage) -> EnvLoopWorker:
        channel = LoopSide(self.channel, self.index, self.group.incarnation)
        loop = build_env_loop(self.run.config(), channel, self.index, self.group, usage)
        return EnvLoopWorker(loop, link, WAIT_IN, [channel, link])


@dataclass(frozen=True)
class InferenceArgs:
    """One actor core for the env loops of several groups."""

    run: RunSpec
    weights: SharedWeights
    groups: dict[int, GroupSpec]
    fragments: FragmentPort
    channel: ServerPort
    rank: int  # of the learner whose actors they are

    def for_incarnations(self, incarnations: Mapping[int, int]) -> InferenceArgs:
        groups = {index: replace(group, incarnation=incarnations[index]) for index, group in self.groups.items()}
        return replace(self, groups=groups)

    def build(self, link: Link, usage: Usage) -> InferenceWorker:
        run_plan = self.run.run_plan()
        use_device(where := inference_device(run_plan.config, self.rank), run_plan.config)
        model = build_model(run_plan, where)
        sink = LinkSink(link, self.fragments, self.weights, model, usage, run_plan.config.fetch_every)
        core = build_policy(run_plan, model, self.run.layout, sink, self.groups)
        core.policy.progress = sink.refresh()
        channel, settings = ServerSide(self.channel), run_plan.config.batching
        batcher = Batcher(settings.batch_envs, None if settings.wait_ms is None else settings.wait_ms / 1000)
        server = InferenceServer(core, channel, self.groups, batcher, usage)
        return InferenceWorker(server, sink, [channel, link])


@dataclass(frozen=True)
class EvaluatorArgs:
    """An evaluator that reads the weights as actors do."""

    run: RunSpec
    weights: SharedWeights

    def for_incarnations(self, incarnations: Mapping[int, int]) -> EvaluatorArgs:
        return self

    def build(self, link: Link, usage: Usage) -> EvaluatorWorker:
        run_plan = self.run.run_plan()
        config = run_plan.config
        use_device(where := evaluator_device(config), config)
        model = build_model(run_plan, where)
        evaluator = build_evaluator(run_plan, model, config.eval, evaluation_seed(config))
        return EvaluatorWorker(evaluator, WeightReader(self.weights, model), link)


@dataclass(frozen=True)
class LearnerArgs:
    """One of several learners."""

    run: RunSpec
    weights: SharedWeights  # where this rank publishes
    rank: int
    batches: BatchPort
    latest: LatestState  # the learner state that it starts with
    state_buffer: SharedBytes  # where this rank writes its own state
    address: str  # on which it listens for the other ranks

    def for_incarnations(self, incarnations: Mapping[int, int]) -> LearnerArgs:
        return self

    def build(self, link: Link, usage: Usage) -> LearnerRank:
        run_plan = self.run.run_plan()
        set_up_torch(plan_threads(run_plan))
        use_device(where := device(run_plan.config, self.rank), run_plan.config)
        model = build_model(run_plan, where)
        learner = build_learner(run_plan, model)
        learner.set_state(unpack(self.latest.read()))
        nccl = where.type == "cuda" and run_plan.config.device.backend == "auto"
        spec = RankSpec(self.rank, run_plan.learners, run_plan.config.supervision.reduction, self.address, nccl)
        weights = WeightWriter(self.weights, model)
        return LearnerRank(spec, learner, self.batches.slots(), RankLine(link), weights, self.state_buffer, usage)


Specs = list[WorkerSpec[WorkerArgs]]


def evaluator_spec(run: RunSpec, weights: SharedWeights) -> WorkerSpec[WorkerArgs]:
    return WorkerSpec("evaluator", "evaluator", EvaluatorArgs(run, weights))


def learner_spec(rank: int, args: WorkerArgs) -> WorkerSpec[WorkerArgs]:
    return WorkerSpec(f"{LEARNER} {rank}", LEARNER, args)


def acting_specs(
    run_plan: RunPlan,
    run: RunSpec,
    weights: SharedWeights,
    groups: Mapping[int, GroupSpec],
    server: str = "inference",
    rank: int = 0,
) -> tuple[Specs, dict[int, ActorSlots]]:
    """Workers that act for these groups, and the slots for their fragments; `server` names the inference server."""
    if run_plan.config.inference == "local":
        return _actor_specs(run_plan, run, weights, groups)
    return _central_specs(run_plan, run, weights, groups, server, rank)


def _actor_specs(
    run_plan: RunPlan, run: RunSpec, weights: SharedWeights, groups: Mapping[int, GroupSpec]
) -> tuple[Specs, dict[int, ActorSlots]]:
    """One actor per group."""
    names = {index: f"actor {index}" for index in groups}
    slots, ports = _actor_slots(run_plan, run.layout, groups, {names[index]: [index] for index in groups})
    specs: Specs = [
        WorkerSpec(names[index], "actor", ActorArgs(run, weights, index, group, ports[names[index]]), (index,))
        for index, group in groups.items()
    ]
    return specs, slots


def _central_specs(
    run_plan: RunPlan, run: RunSpec, weights: SharedWeights, groups: Mapping[int, GroupSpec], name: str, rank: int
) -> tuple[Specs, dict[int, ActorSlots]]:
    """One env loop per group, and one inference server for all of them."""
    slots, ports = _actor_slots(run_plan, run.layout, groups, {name: list(groups)})
    channel = SharedInferenceChannel(run.layout, {index: len(group.env_index) for index, group in groups.items()})
    server: WorkerSpec[WorkerArgs] = WorkerSpec(
        name,
        "inference",
        InferenceArgs(run, weights, dict(groups), ports[name], channel.server_port(), rank),
        tuple(groups),
        dependents=tuple(f"env {index}" for index in groups),
    )
    loops: Specs = [
        WorkerSpec(f"env {index}", "env", EnvLoopArgs(run, index, group, channel.loop_port(index)), (index,))
        for index, group in groups.items()
    ]
    return [server, *loops], slots


def _actor_slots(
    run_plan: RunPlan, layout: Layout, groups: Mapping[int, GroupSpec], writers: Mapping[str, Sequence[int]]
) -> tuple[dict[int, ActorSlots], dict[str, FragmentPort]]:
    """Allocate the slots of every group in shared memory: views for the hub, and ports for the workers that write."""
    shape = run_plan.fragment_shape(layout)
    slots: dict[int, ActorSlots] = {}
    ports: dict[str, FragmentPort] = {}
    for worker, indices in writers.items():
        specs = {index: shape.buffer(len(groups[index].env_index)) for index in indices}
        offsets: dict[int, list[int]] = {}
        end = 0
        for index, spec in specs.items():
            offsets[index] = [end + slot * size_of(spec) for slot in range(FRAGMENT_SLOTS)]
            end += FRAGMENT_SLOTS * size_of(spec)
        ports[worker] = port = FragmentPort(AnonymousSharedMemory(end), specs, offsets)
        slots |= {
            index: ActorSlots(groups[index].env_index, buffers, worker) for index, buffers in port.buffers().items()
        }
    return slots, ports
