"""Predicts the memory and disk that a run needs before anything is built."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from starling import tree
from starling.actor.evaluator import MAX_ENVS
from starling.algos.base import OptimizerSpec
from starling.config.limits import MAX_STEPS
from starling.config.quantities import Quantity
from starling.launch.plan import FRAGMENT_SLOTS, PREFETCH, RunPlan, layout_of
from starling.learner.optimizer import FlatOptimizer
from starling.replay.batching import split
from starling.replay.store import shard_envs
from starling.replay.table_bytes import TableBytes, most_saved, table_bytes
from starling.runtime.batch_buffer import batch_spec
from starling.runtime.shared_memory import size_of
from starling.types import Layout, RunLength, Tensor

MIB = 2**20
MAIN, SERVER, WORKER, RANK = 400 * MIB, 170 * MIB, 100 * MIB, 170 * MIB
"""Base memory (Python, torch, and their imports) of the main process, the fork server, an acting worker, and one of
several learners. Measured on Linux with torch 2.13."""
RAY = 1000 * MIB
"""Memory of Ray's own processes on one machine, and of a node."""
SMALL = 64 * MIB
"""Bytes that a part of a checkpoint may have beyond the counted arrays."""
UNKNOWN_ROWS = 10_000
"""Rows of metrics that a run is taken to write if neither its env steps nor its updates tell."""
ROW = 2048
"""Bytes per row of metrics, as JSON and for TensorBoard."""


@dataclass(frozen=True)
class Sizes:
    """Upper bounds on the bytes that a run needs, by part."""

    programs: int  # interpreters and libraries of all processes
    learning: int  # weights, target, gradients, moments, and the actors' copies of the weights
    batches: int  # the current batch, prefetched batches, fragments in flight
    tables: int
    saving: int  # parts of the tables that are copied while a checkpoint is written
    memories: int  # intrinsic state of all envs
    shared: int  # shared memory: fragments, weights, and batches of several learners
    checkpoint: int  # on disk: a complete one; segments shared with others are counted each time
    checkpoints: int  # number that exist at once
    metrics: int  # on disk

    @property
    def memory(self) -> int:
        return self.programs + self.learning + self.batches + self.tables + self.saving + self.memories + self.shared

    @property
    def disk(self) -> int:
        return self.checkpoint * self.checkpoints + self.metrics


def predict_sizes(run_plan: RunPlan, model: nn.Module, layout: Layout) -> Sizes:
    """Predict what the run needs by counting; nothing is allocated or measured."""
    config, first, learners = run_plan.config, run_plan.tables[0], run_plan.learners
    tables = _tables(run_plan, layout)
    weights, learning = _bytes_of(model.state_dict().values()), learning_bytes(run_plan, model)
    saved = sum(table.saved for table in tables) if config.checkpoint.replay else 0
    takes = split(first.batch, [table.share for table in run_plan.tables])
    items = sum(table.candidates_for(take, 0.0) for table, take in zip(run_plan.tables, takes, strict=True))
    batch = items * tree.nbytes(layout.trajectory(first.length, 1))
    shape = run_plan.fragment_shape(layout)
    fragments = sum(size_of(shape.buffer(len(group.env_index))) for group in run_plan.groups().values())
    workers, ranks = _workers(run_plan), learners if learners > 1 else 0
    handed = sum((1 + PREFETCH) * size_of(batch_spec(mine, layout)) for mine in run_plan.shards()) if ranks else 0
    states = 2 + 2 * ranks if ranks else 1  # the initial state, also packed; each rank's own, and the copy it sent
    cluster, inline = config.runtime == "ray", config.runtime == "inline"
    per_env = memory_bytes(run_plan)
    memories = config.env.num * per_env * (2 if inline else 1)  # inline, a checkpoint copies them
    if config.eval.every is not None:
        memories += min(MAX_ENVS, config.eval.episodes) * per_env
    tables_here = not (cluster and config.ray.address is not None and config.ray.shards)
    return Sizes(
        programs=MAIN + (SERVER + workers * WORKER + ranks * RANK if workers or ranks else 0) + (RAY if cluster else 0),
        learning=states * learning + workers * weights,
        batches=batch + fragments if inline else (1 if ranks else 1 + PREFETCH) * batch,
        tables=sum(table.held for table in tables) if tables_here else 0,
        saving=sum(table.copied for table in tables) if tables_here and config.checkpoint.replay else 0,
        memories=0 if cluster and config.ray.address is not None else memories,
        shared=0 if inline else FRAGMENT_SLOTS * fragments + 2 * learners * weights + handed,
        checkpoint=learning + saved + (config.env.num * per_env if inline else 0),
        checkpoints=_kept(run_plan),
        metrics=ROW * (_times(run_plan, config.log_every, UNKNOWN_ROWS) + 1),
    )


def checkpoint_limits(run_plan: RunPlan, model: nn.Module) -> dict[str, int]:
    """Upper bounds on the bytes of arrays and segments in each part of this run's checkpoints."""
    config, layout = run_plan.config, layout_of(run_plan, model)
    num_envs = [len(mine) for mine in shard_envs(config.env.num, run_plan.learners)]
    tables = [
        most_saved(table, layout, num_envs[shard]) for shard, tables in enumerate(run_plan.shards()) for table in tables
    ]
    shape = run_plan.fragment_shape(layout)
    fragments = sum(size_of(shape.buffer(len(group.env_index))) for group in run_plan.groups().values())
    return {
        "learner": SMALL + 2 * learning_bytes(run_plan, model),
        "store": SMALL + sum(tables),
        "policies": SMALL + 2 * fragments + config.env.num * memory_bytes(run_plan),
    }


def initial_limits(run_plan: RunPlan, model: nn.Module) -> dict[str, int]:
    """Upper bounds like `checkpoint_limits` for another run, whose weights this one may start from."""
    return {"learner": SMALL + 16 * learning_bytes(run_plan, model)}


def _tables(run_plan: RunPlan, layout: Layout) -> list[TableBytes]:
    """Sizes of every table in every shard."""
    config, learners = run_plan.config, run_plan.learners
    steps = run_plan.expected_env_steps or sum(table.capacity for table in run_plan.tables)
    num_envs = [len(mine) for mine in shard_envs(config.env.num, learners)]
    return [
        table_bytes(table, layout, num_envs[shard], steps * num_envs[shard] // config.env.num)
        for shard, tables in enumerate(run_plan.shards())
        for table in tables
    ]


def _workers(run_plan: RunPlan) -> int:
    """Number of acting processes on this machine: actors, inference servers, the evaluator."""
    config = run_plan.config
    if config.runtime == "inline" or (config.runtime == "ray" and config.ray.address is not None):
        return 0
    servers = run_plan.learners if config.inference == "central" else 0
    return run_plan.actors + servers + (config.eval.every is not None)


def learning_bytes(run_plan: RunPlan, model: nn.Module) -> int:
    """Bytes of weights, target network, gradients, and optimizer moments."""
    learning = run_plan.algorithm.learning()
    weights = _bytes_of(model.state_dict().values())
    moving = [_bytes_of(spec.parameters(model)) * (1 + _moments(spec)) for spec in learning.optimizers.values()]
    return weights * (2 if learning.target else 1) + int(sum(moving))


def memory_bytes(run_plan: RunPlan) -> int:
    """Bytes of the intrinsic state of one env, counted on the meta device."""
    with torch.device("meta"):
        return _bytes_of(tree.leaves(run_plan.algorithm.intrinsic_state(1)))


def _moments(spec: OptimizerSpec) -> float:
    """Size of an optimizer's state relative to its parameters, measured by one step on a small matrix."""
    small = nn.Parameter(torch.zeros(16, 16))
    optimizer = FlatOptimizer(spec.config, [small], RunLength())
    optimizer.set_gradients([torch.ones_like(small)])
    optimizer.apply(float(optimizer.gradient_norm()))
    return _bytes_of(tree.leaves(optimizer.get_state()["moments"])) / _bytes_of([small])


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _kept(run_plan: RunPlan) -> int:
    """Number of checkpoints on disk at once, including the newest before the oldest is removed."""
    settings, config = run_plan.config.checkpoint, run_plan.config
    for_ever = 0 if settings.keep_every is None else (run_plan.expected_env_steps or 0) // settings.keep_every
    made = _times(run_plan, config.checkpoint_every, MAX_STEPS)
    return min(made, settings.keep + settings.best + 1 + for_ever)


def _times(run_plan: RunPlan, every: Quantity, unknown: int) -> int:
    """How many times `every` passes before the run ends, rounded up; `unknown` if that is not known beforehand."""
    steps, length = run_plan.expected_env_steps, run_plan.config.stop.length
    if length is not None and length.unit == every.unit:
        return math.ceil(length.amount / every.amount)
    if steps is None or every.unit in ("episodes", "minutes"):
        return unknown
    per_step = {"frames": run_plan.env.frames_per_step, "updates": run_plan.length.updates_per_step}
    return math.ceil(steps * per_step.get(every.unit, 1) / every.amount)
