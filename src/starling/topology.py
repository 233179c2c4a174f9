"""The one file that knows the whole graph: which parts there are and how they are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import nn

from starling import tree
from starling.blueprint import PREFETCH, SLOTS, Blueprint, build_model, layout_of, plan_threads
from starling.capacity.fitting import refuse
from starling.capacity.room import Room
from starling.capacity.sizes import predict_sizes
from starling.config.load import to_dict
from starling.envs.registry import make_env
from starling.errors import UserError
from starling.nodes import (
    ActorArguments,
    EnvLoopArguments,
    InferenceArguments,
    Shared,
    build_evaluator,
    env_loop,
    evaluation_seed,
    policy_core,
)
from starling.portable import Part, parts_of
from starling.roles.env_loop import EnvLoop
from starling.roles.inference import Batcher, InferenceServer, LocalDesk
from starling.roles.learner import Learner, Source
from starling.roles.policy import GroupSpec, PolicyCore
from starling.roles.usage import WAIT_IN, Usage
from starling.runtime.central import SharedDesk
from starling.runtime.credits import Seat
from starling.runtime.hub import Hub
from starling.runtime.inline import InlineRuntime, InlineUpstream
from starling.runtime.process_worker import processes
from starling.runtime.processes import HubSource, ProcessesRuntime
from starling.runtime.ray.relay import Staff
from starling.runtime.slab import Slab, size_of
from starling.runtime.upstream import FragmentPort
from starling.runtime.weights import WeightBoard, WeightWriter, side_of
from starling.runtime.workers import WorkerSpec
from starling.store.mixture import Mixture
from starling.store.store import Store
from starling.store.table import Table
from starling.types import EnvSpec, Layout

if TYPE_CHECKING:
    from starling.runtime.ray.system import Plan

Runtime = InlineRuntime | ProcessesRuntime


def build(blueprint: Blueprint, room: Room | None = None) -> Runtime:
    """The runtime that the configuration asks for; given the room there is, one that would not fit is refused."""
    model = build_model(blueprint)
    layout = layout_of(blueprint, model)
    if room is not None:
        refuse(blueprint, predict_sizes(blueprint, model, layout), room)
    if blueprint.config.runtime == "inline":
        return _inline(blueprint, model, layout)
    return (_processes if blueprint.config.runtime == "processes" else _ray)(blueprint, model, layout)


def build_store(blueprint: Blueprint, layout: Layout) -> Store:
    """All tables that the algorithm asks for, empty."""
    config, algorithm = blueprint.config, blueprint.algorithm
    return Store(blueprint.tables, layout, rows=config.env.num, seed=config.seed, priority=algorithm.priority)


def _learner(blueprint: Blueprint, model: nn.Module, source: Source) -> Learner:
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


def _inline(blueprint: Blueprint, model: nn.Module, layout: Layout) -> InlineRuntime:
    """All roles in this process: env loops, policies, one store, one learner, one shared model."""
    config = blueprint.config
    store = build_store(blueprint, layout)
    learner = _learner(blueprint, model, store)
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
    return InlineRuntime(loops, policies, store, learner, learning, evaluator)


def _processes(blueprint: Blueprint, model: nn.Module, layout: Layout) -> ProcessesRuntime:
    """Actors, inference and evaluation in processes of their own; store and learner in this one."""
    config = blueprint.config
    board = WeightBoard(side_of(model))
    settings = to_dict(config)
    shared = Shared(settings, parts_of(settings), blueprint.env, layout, board)
    workers, seats = _acting(blueprint, shared, blueprint.groups())
    if config.eval.every is not None:
        workers.append(_evaluating(shared))
    hub = Hub(
        build_store(blueprint, layout),
        lambda inbox: processes(workers, config.supervision, inbox.selector),
        seats,
        config.supervision,
        PREFETCH,
    )
    source = HubSource(hub)
    return ProcessesRuntime(hub, _learner(blueprint, model, source), source, WeightWriter(board, model))


@dataclass(frozen=True)
class HostArguments:
    """What a Ray actor that holds workers gets."""

    settings: dict[str, Any]
    parts: tuple[Part, ...]
    env: EnvSpec
    layout: Layout
    side: int  # bytes of the weights
    groups: dict[int, GroupSpec]  # none: it is the evaluator's


def _ray(blueprint: Blueprint, model: nn.Module, layout: Layout) -> ProcessesRuntime:
    """Actors, inference, evaluation and replay in a Ray cluster as it is asked for; the learner in this process."""
    plan = cluster_plan(blueprint, model, layout)
    from starling.runtime.ray import system

    return system.build(plan, model)


def cluster_plan(blueprint: Blueprint, model: nn.Module, layout: Layout) -> Plan:
    """A run over a Ray cluster as data."""
    try:
        from starling.runtime.ray import system
    except ModuleNotFoundError as error:
        raise UserError("runtime=ray needs Ray: pip install 'starling-rl[ray]'") from error
    settings, groups, shape = to_dict(blueprint.config), blueprint.groups(), blueprint.fragment_shape(layout)
    parts, side = parts_of(settings), side_of(model)
    for part in parts:
        if getattr(part.target, "__module__", None) == "__main__":
            raise UserError(f"{part.kind} {part.name!r} is in your script: runtime=ray needs it in a module of its own")

    def host(indices: Sequence[int], births: Mapping[int, int]) -> HostArguments:
        mine = {index: replace(groups[index], birth=births[index]) for index in indices}
        return HostArguments(settings, parts, blueprint.env, layout, side, mine)

    return system.Plan(
        config=blueprint.config,
        rows={index: group.rows for index, group in groups.items()},
        slots=SLOTS,
        fragment_bytes=sum(size_of(shape.buffer(len(group.rows))) for group in groups.values()),
        weights_bytes=side,
        prefetch=PREFETCH,
        builder="starling.topology:staff_host",
        arguments=host,
        store=lambda: build_store(blueprint, layout),
        tables=blueprint.tables,
        shard_builder="starling.topology:build_shard",
        shard=lambda index, rows: ShardArguments(settings, parts, blueprint.env, layout, index, rows),
        learner=lambda source: _learner(blueprint, model, source),
    )


def staff_host(arguments: HostArguments) -> Staff:
    """The workers of one host, built where they will run."""
    board = WeightBoard(arguments.side)
    shared = Shared(arguments.settings, arguments.parts, arguments.env, arguments.layout, board)
    if not arguments.groups:
        return Staff([_evaluating(shared)], {}, board)
    blueprint = replace(shared).blueprint()  # a copy reads the configuration: what was read cannot be sent on
    return Staff(*_acting(blueprint, shared, arguments.groups), board)


@dataclass(frozen=True)
class ShardArguments:
    """What a Ray actor that holds a part of the replay gets."""

    settings: dict[str, Any]
    parts: tuple[Part, ...]
    env: EnvSpec
    layout: Layout
    index: int
    rows: int


def build_shard(arguments: ShardArguments) -> Mixture:
    """The tables of one shard: as much of their size as it has of the env rows."""
    shared = Shared(arguments.settings, arguments.parts, arguments.env, arguments.layout, WeightBoard(0))
    blueprint = shared.blueprint()
    share = Fraction(arguments.rows, blueprint.config.env.num)
    specs = [replace(spec, capacity=int(spec.capacity * share), min_size=1) for spec in blueprint.tables]
    where = {"rows": arguments.rows, "seed": blueprint.config.seed, "shard": arguments.index}
    priority = blueprint.algorithm.priority
    tables = [Table(spec, arguments.layout, priority=priority, index=i, **where) for i, spec in enumerate(specs)]
    return Mixture(tables, [spec.share for spec in specs])


def _acting(
    blueprint: Blueprint, shared: Shared, groups: Mapping[int, GroupSpec]
) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """Whoever acts for these groups on one machine, and their slots."""
    return (_local_workers if blueprint.config.inference == "local" else _central_workers)(blueprint, shared, groups)


def _evaluating(shared: Shared) -> WorkerSpec:
    return WorkerSpec("evaluator", "evaluator", "starling.nodes:build_evaluation", lambda births: shared)


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
    blueprint: Blueprint, shared: Shared, groups: Mapping[int, GroupSpec]
) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """An actor a group: env loop and policy in one process."""
    seats, ports = _seats(blueprint, shared.layout, groups, {f"actor {index}": [index] for index in groups})

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


def _central_workers(
    blueprint: Blueprint, shared: Shared, groups: Mapping[int, GroupSpec]
) -> tuple[list[WorkerSpec], dict[int, Seat]]:
    """An env loop a group, and one inference server for all of them."""
    seats, ports = _seats(blueprint, shared.layout, groups, {"inference": list(groups)})
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
        "inference",
        "inference",
        "starling.nodes:build_inference",
        lambda births: InferenceArguments(shared, alive(births), ports["inference"], desk.server_port()),
        tuple(groups),
        dependents=tuple(f"env {index}" for index in groups),
    )
    return [server, *(loop(index) for index in groups)], seats
