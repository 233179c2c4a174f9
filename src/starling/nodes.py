"""The roles of worker processes, built from what travels to them: the configuration, their rows, their lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from starling.blueprint import Blueprint, build_model, draw, plan_threads, set_up_torch
from starling.config.load import from_dict
from starling.config.schema import Config, EvalConfig
from starling.envs.registry import make_env
from starling.envs.vector import VectorEnv
from starling.frozen import unpack
from starling.portable import Part
from starling.roles.env_loop import Acting, EnvLoop
from starling.roles.evaluator import MAX_ROWS, Evaluator
from starling.roles.inference import Batcher, InferenceServer
from starling.roles.learner import Learner, Source
from starling.roles.policy import GroupSpec, Policy, PolicyCore, Upstream
from starling.roles.usage import WAIT_IN, WAIT_OUT, Usage
from starling.runtime.batches import BatchPort
from starling.runtime.central import LoopPort, LoopSide, ServerPort, ServerSide
from starling.runtime.collective import Meeting
from starling.runtime.link import Link
from starling.runtime.meetings import MeetingPlace
from starling.runtime.rank import LearnerRank, RankSource
from starling.runtime.slab import Parcel
from starling.runtime.upstream import FragmentPort, LinkedUpstream
from starling.runtime.weights import WeightBoard, WeightReader, WeightWriter
from starling.types import EnvSpec, Layout

EVALUATION_SEED = 1_000_003
"""Added to the seed for evaluations, whose envs must not be those of training."""


@dataclass(frozen=True)
class Shared:
    """What every worker gets."""

    settings: dict[str, Any]  # the configuration as plain values
    parts: tuple[Part, ...]  # the user's own that it names
    env: EnvSpec
    layout: Layout
    board: WeightBoard

    @cached_property
    def config(self) -> Config:
        for part in self.parts:
            part.register()
        return from_dict(self.settings)

    def blueprint(self) -> Blueprint:
        """The same blueprint as the main process's; also settles this process's torch."""
        set_up_torch(1)
        return draw(self.config, self.env)


@dataclass(frozen=True)
class ActorArguments:
    shared: Shared
    index: int
    group: GroupSpec
    fragments: FragmentPort


@dataclass(frozen=True)
class EnvLoopArguments:
    shared: Shared
    index: int
    group: GroupSpec
    desk: LoopPort


@dataclass(frozen=True)
class InferenceArguments:
    shared: Shared
    groups: dict[int, GroupSpec]
    fragments: FragmentPort
    desk: ServerPort


@dataclass(frozen=True)
class RankArguments:
    shared: Shared  # the board is this rank's own
    rank: int
    batches: BatchPort
    state: Parcel  # of the learner, to begin with
    outbox: Parcel
    meetings: MeetingPlace  # where the ranks find each other


def evaluation_seed(config: Config) -> int:
    return config.seed + EVALUATION_SEED


def policy_core(
    blueprint: Blueprint, model: nn.Module, layout: Layout, upstream: Upstream, groups: Mapping[int, GroupSpec]
) -> PolicyCore:
    """A policy that explores and records for these groups."""
    config = blueprint.config
    return PolicyCore(
        Policy(blueprint.algorithm, model, total_rows=config.env.num, explore=True),
        blueprint.fragment_shape(layout),
        upstream,
        groups=groups,
        seed=config.seed,
        synchronous=blueprint.synchronous,
        reward_clip=config.env.reward_clip,
    )


def build_learner(blueprint: Blueprint, model: nn.Module, source: Source) -> Learner:
    """The learner of `model`, as the configuration wants it."""
    return Learner(
        blueprint.algorithm,
        model,
        source,
        seed=blueprint.config.seed,
        planned_env_steps=blueprint.config.stop.env_steps,
        planned_versions=blueprint.planned_versions,
        mixed=blueprint.config.precision == "bfloat16",
        compiled=blueprint.config.compile,
    )


def build_evaluator(blueprint: Blueprint, model: nn.Module, settings: EvalConfig, seed: int) -> Evaluator:
    """An evaluator with envs of its own, for `model` as it is whenever it is asked."""
    config = blueprint.config
    rows = min(settings.episodes, MAX_ROWS)
    policy = Policy(blueprint.algorithm, model, total_rows=rows, explore=False)
    return Evaluator(policy, make_env(config.env, rows), settings, seed=seed, reward_clip=config.env.reward_clip)


class LoopWorker:
    """An env loop in a process of its own; its policy is beside it, or in a server elsewhere."""

    def __init__(self, loop: EnvLoop, link: Link, phase: str, watched: list[Any]) -> None:
        self._loop, self._link = loop, link
        self._dropped = 0  # told so far
        self._phase, self._watched = phase, watched

    def step(self) -> bool:
        moved = self._loop.step()
        finished = self._loop.finished()
        if finished:
            self._link.send({"episodes": [[e.row, e.total, e.length] for e in finished]})
        if self._loop.dropped > self._dropped:
            self._link.send({"dropped": self._loop.dropped - self._dropped, "notices": self._loop.notices()})
            self._dropped = self._loop.dropped
        return moved

    def wait(self) -> tuple[str, list[Any], float | None]:
        return self._phase, self._watched, None

    def close(self) -> None:
        self._loop.env.close()


class InferenceWorker:
    """An inference server in a process of its own."""

    def __init__(self, server: InferenceServer, upstream: LinkedUpstream, watched: list[Any]) -> None:
        self._server, self._upstream, self._watched = server, upstream, watched

    def step(self) -> bool:
        for group in self._upstream.lost_groups():
            self._server.forget(group)
            self._upstream.give_back(group)
        return self._server.step()

    def wait(self) -> tuple[str, list[Any], float | None]:
        return (WAIT_OUT if self._server.blocked else WAIT_IN), self._watched, self._server.patience

    def close(self) -> None: ...


class EvaluationWorker:
    """An evaluator in a process of its own: evaluates the newest weights whenever it is told to."""

    def __init__(self, evaluator: Evaluator, weights: WeightReader, link: Link) -> None:
        self._evaluator, self._weights, self._link = evaluator, weights, link

    def step(self) -> bool:
        if not self._link.receive():
            if self._link.ended:
                raise EOFError("the main process is gone")
            return False
        header = self._weights.refresh()
        row = self._evaluator.evaluate()
        self._link.send({"evaluation": {**row, "eval/env_steps": header.progress.env_steps}})
        return True

    def wait(self) -> tuple[str, list[Any], float | None]:
        return WAIT_IN, [self._link], None

    def close(self) -> None:
        self._evaluator.env.close()


def env_loop(config: Config, env: VectorEnv, acting: Acting, index: int, group: GroupSpec, usage: Usage) -> EnvLoop:
    """The loop of a group's rows, as the configuration wants it."""
    return EnvLoop(
        env,
        acting,
        group=index,
        rows=group.rows,
        seed=config.seed,
        start=group.start,
        stagger=config.env.stagger,
        usage=usage,
    )


def build_actor(arguments: ActorArguments, link: Link, usage: Usage) -> LoopWorker:
    """An env loop with its policy beside it."""
    shared, index, group = arguments.shared, arguments.index, arguments.group
    blueprint = shared.blueprint()
    model = build_model(blueprint)
    upstream = LinkedUpstream(link, arguments.fragments, shared.board, model)
    core = policy_core(blueprint, model, shared.layout, upstream, {index: group})
    core.policy.header = upstream.refresh()  # not even the first action follows weights that nobody trained
    env = make_env(shared.config.env, len(group.rows))
    loop = env_loop(shared.config, env, core, index, group, usage)
    return LoopWorker(loop, link, WAIT_OUT, [link])


def build_env_loop(arguments: EnvLoopArguments, link: Link, usage: Usage) -> LoopWorker:
    """An env loop whose policy is in the inference server."""
    config, index, group = arguments.shared.config, arguments.index, arguments.group
    desk = LoopSide(arguments.desk, index, group.birth)
    env = make_env(config.env, len(group.rows))
    loop = env_loop(config, env, desk, index, group, usage)
    return LoopWorker(loop, link, WAIT_IN, [desk, link])


def build_inference(arguments: InferenceArguments, link: Link, usage: Usage) -> InferenceWorker:
    """A policy for all env loops."""
    shared, settings = arguments.shared, arguments.shared.config.batching
    blueprint = shared.blueprint()
    model = build_model(blueprint)
    upstream = LinkedUpstream(link, arguments.fragments, shared.board, model)
    core = policy_core(blueprint, model, shared.layout, upstream, arguments.groups)
    core.policy.header = upstream.refresh()
    desk = ServerSide(arguments.desk)
    batcher = Batcher(settings.rows, None if settings.wait_ms is None else settings.wait_ms / 1000)
    server = InferenceServer(core, desk, arguments.groups, batcher, usage)
    return InferenceWorker(server, upstream, [desk, link])


def build_evaluation(shared: Shared, link: Link, usage: Usage) -> EvaluationWorker:
    """An evaluator that reads the weights as actors do."""
    blueprint = shared.blueprint()
    model = build_model(blueprint)
    evaluator = build_evaluator(blueprint, model, shared.config.eval, evaluation_seed(shared.config))
    evaluator.beat = usage.beat
    return EvaluationWorker(evaluator, WeightReader(shared.board, model), link)


def build_rank(arguments: RankArguments, link: Link, usage: Usage) -> LearnerRank:
    """One learner of several."""
    shared, rank = arguments.shared, arguments.rank
    blueprint = shared.blueprint()
    set_up_torch(plan_threads(blueprint))
    model = build_model(blueprint, rank)
    source = RankSource(arguments.batches.slots())
    learner = build_learner(blueprint, model, source)
    learner.set_state(unpack(arguments.state.read()))
    size, patience = blueprint.learners, shared.config.supervision.reduction

    def meet(time: int) -> Meeting:
        return arguments.meetings.meet(time, rank, size, patience)

    publish = WeightWriter(shared.board, model).publish
    return LearnerRank(rank, learner, source, link, arguments.outbox, usage, meet, publish)
