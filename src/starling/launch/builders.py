"""Builds single parts of a run from its plan: tables, policies, learners, env loops, evaluators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from starling.actor.core import ExperienceSink, GroupSpec, Policy, PolicyCore
from starling.actor.env_loop import Acting, EnvLoop
from starling.actor.evaluator import MAX_ENVS, Evaluator
from starling.actor.usage import Usage
from starling.config.schema import Config, EvalConfig
from starling.envs.registry import make_env
from starling.hardware import autocast_dtype, compiles
from starling.launch.plan import RunPlan
from starling.learner.learner import Learner
from starling.replay.copying import set_loaders
from starling.replay.store import Store, shard_envs
from starling.types import Layout, RunLength

EVALUATION_SEED = 1_000_003
"""Added to the seed for evaluation, so that its envs differ from those of training."""


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's parameters."""
    return next(model.parameters()).device


def build_stores(run_plan: RunPlan, layout: Layout) -> list[Store]:
    """Build empty tables as the algorithm asks for them: one store per learner, with its shard of the envs."""
    config = run_plan.config
    set_loaders(config.loaders)
    num_envs = [len(mine) for mine in shard_envs(config.env.num, run_plan.learners)]
    return [
        Store(
            tables,
            layout,
            num_envs=num_envs[shard],
            seed=config.seed,
            priority=run_plan.algorithm.priority,
            length=_share(run_plan.length, run_plan.learners),
            shard=shard,
        )
        for shard, tables in enumerate(run_plan.shards())
    ]


def _share(length: RunLength, learners: int) -> RunLength:
    """The length of the run, counted at one of several learners: it gets its share of the env steps."""
    return length if length.env_steps is None else replace(length, env_steps=-(-length.env_steps // learners))


def build_policy(
    run_plan: RunPlan, model: nn.Module, layout: Layout, sink: ExperienceSink, groups: Mapping[int, GroupSpec]
) -> PolicyCore:
    """Build a policy that explores and records for these groups."""
    config = run_plan.config
    return PolicyCore(
        Policy(
            run_plan.algorithm,
            model,
            num_envs=config.env.num,
            explore=True,
            autocast=autocast_dtype(config, device_of(model)),
        ),
        run_plan.fragment_shape(layout),
        sink,
        groups=groups,
        seed=config.seed,
        synchronous=run_plan.synchronous,
        reward_clip=config.env.reward_clip,
    )


def build_learner(run_plan: RunPlan, model: nn.Module) -> Learner:
    """Build the learner that trains `model`."""
    return Learner(
        run_plan.algorithm,
        model,
        seed=run_plan.config.seed,
        length=run_plan.length,
        autocast=autocast_dtype(run_plan.config, device_of(model)),
        compile_loss=compiles(run_plan.config),
        graphs=run_plan.config.compile == "reduce-overhead",
    )


def build_env_loop(
    config: Config, acting: Acting, index: int, group: GroupSpec, usage: Usage, threads: int = 1
) -> EnvLoop:
    """Build the env loop of one group, with its own envs."""
    return EnvLoop(
        make_env(config.env, len(group.env_index), threads=threads),
        acting,
        group=index,
        env_index=group.env_index,
        seed=config.seed,
        start=group.noise_start,
        stagger=config.env.stagger,
        usage=usage,
    )


def build_evaluator(
    run_plan: RunPlan,
    model: nn.Module,
    settings: EvalConfig,
    seed: int,
) -> Evaluator:
    """Build an evaluator with its own envs; each evaluation uses the current weights of `model`."""
    config = run_plan.config
    num_envs = min(settings.episodes, MAX_ENVS)
    policy = Policy(run_plan.algorithm, model, num_envs=num_envs, explore=False)
    return Evaluator(policy, make_env(config.env, num_envs), settings, seed=seed, reward_clip=config.env.reward_clip)


def evaluation_seed(config: Config) -> int:
    return config.seed + EVALUATION_SEED
