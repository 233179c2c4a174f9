"""Tables and roles as the configuration wants them, wherever they are to be."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from starling.actor.core import GroupSpec, Header, Policy, PolicyCore, Upstream
from starling.actor.env_loop import Acting, EnvLoop
from starling.actor.evaluator import MAX_ROWS, Evaluator
from starling.actor.usage import Usage
from starling.config.schema import Config, EvalConfig
from starling.envs.registry import make_env
from starling.hardware import compiles
from starling.launch.plan import Blueprint, parts_abreast
from starling.learner.learner import Learner, Source
from starling.replay.shards import shard_rows
from starling.replay.store import Store
from starling.types import Layout

EVALUATION_SEED = 1_000_003
"""Added to the seed for evaluations, whose envs must not be those of training."""


def build_stores(blueprint: Blueprint, layout: Layout) -> list[Store]:
    """All tables that the algorithm asks for, empty: a shard each learner."""
    config = blueprint.config
    rows = [len(mine) for mine in shard_rows(config.env.num, blueprint.learners)]
    return [
        Store(
            tables,
            layout,
            rows=rows[shard],
            seed=config.seed,
            priority=blueprint.algorithm.priority,
            planned_env_steps=-(-config.stop.env_steps // blueprint.learners),
            shard=shard,
        )
        for shard, tables in enumerate(blueprint.shards())
    ]


def build_policy(
    blueprint: Blueprint, model: nn.Module, layout: Layout, upstream: Upstream, groups: Mapping[int, GroupSpec]
) -> PolicyCore:
    """A policy that explores and records for these groups."""
    config = blueprint.config
    return PolicyCore(
        Policy(
            blueprint.algorithm,
            model,
            total_rows=config.env.num,
            explore=True,
            mixed=config.precision == "bfloat16",
        ),
        blueprint.fragment_shape(layout),
        upstream,
        groups=groups,
        seed=config.seed,
        synchronous=blueprint.synchronous,
        reward_clip=config.env.reward_clip,
    )


def build_learner(blueprint: Blueprint, model: nn.Module, source: Source) -> Learner:
    """The learner of `model`."""
    return Learner(
        blueprint.algorithm,
        model,
        source,
        seed=blueprint.config.seed,
        planned_env_steps=blueprint.config.stop.env_steps,
        planned_versions=blueprint.planned_versions,
        mixed=blueprint.config.precision == "bfloat16",
        compiled=compiles(blueprint.config),
        abreast=parts_abreast(blueprint),
    )


def build_env_loop(
    config: Config, acting: Acting, index: int, group: GroupSpec, usage: Usage, threads: int = 1
) -> EnvLoop:
    """The loop of a group's rows, with envs of its own."""
    return EnvLoop(
        make_env(config.env, len(group.rows), threads=threads),
        acting,
        group=index,
        rows=group.rows,
        seed=config.seed,
        start=group.start,
        stagger=config.env.stagger,
        usage=usage,
    )


def build_evaluator(
    blueprint: Blueprint,
    model: nn.Module,
    settings: EvalConfig,
    seed: int,
    header: Header | None = None,
    explore: bool = False,
    arm: int = 0,
) -> Evaluator:
    """An evaluator with envs of its own, for `model` as it is whenever it is asked."""
    config = blueprint.config
    rows = min(settings.episodes, MAX_ROWS)
    policy = Policy(blueprint.algorithm, model, total_rows=rows, explore=explore)
    policy.header, policy.arm = header or policy.header, arm
    return Evaluator(policy, make_env(config.env, rows), settings, seed=seed, reward_clip=config.env.reward_clip)


def evaluation_seed(config: Config) -> int:
    return config.seed + EVALUATION_SEED
