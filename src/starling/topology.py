"""The one file that knows the whole graph: which parts there are and how they are joined."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from starling import tree
from starling.algos.base import ActInput, Algorithm
from starling.config.algo.base import algorithm_class
from starling.config.schema import Config, EvalConfig
from starling.envs.registry import env_spec, make_env
from starling.envs.spaces import check_spaces, observation_layout
from starling.errors import UserError
from starling.roles.env_loop import EnvLoop
from starling.roles.evaluator import MAX_ROWS, Evaluator
from starling.roles.learner import Learner
from starling.roles.policy import Policy, PolicyCore
from starling.runtime.inline import InlineRuntime, InlineUpstream
from starling.store.limiter import check as check_moves
from starling.store.spec import TableSpec
from starling.store.store import Store
from starling.types import ArraySpec, EnvSpec, Layout, Progress, StreamSpec


@dataclass(frozen=True)
class Blueprint:
    """What every part of one run agrees on."""

    config: Config
    env: EnvSpec
    algorithm: Algorithm
    streams: tuple[StreamSpec, ...]
    tables: tuple[TableSpec, ...]

    @property
    def planned_versions(self) -> int:
        """Versions the learner makes in `stop.env_steps`."""
        steps, table = self.config.stop.env_steps, self.tables[0]
        if table.updates_per_step is not None:
            return max(1, int((steps - table.min_size) * table.updates_per_step))
        return max(1, steps * table.max_uses // (table.batch * table.length))


def draw(config: Config) -> Blueprint:
    """The blueprint of a run; refuses what can be known to be wrong before anything is built."""
    env = env_spec(config.env)
    check_spaces(env)
    algorithm: Algorithm = algorithm_class(config.algo.name)(config.algo, config.net)
    tables = algorithm.tables(config.env.num)
    check_moves(tables, config.env.num, groups=[config.env.num])
    return Blueprint(config, env, algorithm, algorithm.streams(), tables)


def build_model(blueprint: Blueprint) -> nn.Module:
    """The network, its weights a function of the seed."""
    config = blueprint.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = blueprint.algorithm.build(blueprint.env, blueprint.streams)
    return model.to(device(config))


def load_weights(model: nn.Module, weights: dict[str, Any], source: str) -> None:
    """Put saved weights into `model`; says which do not fit it, where they are those of another env or network."""
    mine = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in weights.items()}
    if mine != theirs:
        odd = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        name = odd[0]
        raise UserError(
            f"the weights of {source} are those of another env or network: {len(odd)} of {len(mine)} parts differ, e.g."
            f" {name} is {theirs.get(name, 'missing')} there and {mine.get(name, 'missing')} in this configuration"
        )
    model.load_state_dict(weights)


def device(config: Config) -> torch.device:
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(config.device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={config.device} was asked for, but torch sees no GPU; use device=cpu")
    return chosen


def plan_threads(blueprint: Blueprint) -> int:
    """Torch threads for one process: images profit from every core, small networks only lose by more than one."""
    specs: list[ArraySpec] = tree.leaves(observation_layout(blueprint.env.observation))
    images = any(len(spec.shape) >= 3 and spec.shape[-1] >= 36 for spec in specs)
    return blueprint.config.threads or (len(os.sched_getaffinity(0)) if images else 1)


def set_up_torch(blueprint: Blueprint) -> None:
    """Settings of this whole process, for whoever owns it: threads, and no denormals.

    An optimizer's fading moments are full of denormals, and a CPU computes with them many times slower.
    """
    torch.set_num_threads(plan_threads(blueprint))
    torch.set_flush_denormal(True)


def layout_of(blueprint: Blueprint, model: Any) -> Layout:
    """One step of one row, from one dry `act()`."""
    where = next(model.parameters()).device
    obs = observation_layout(blueprint.env.observation)
    carry = model.initial_carry(1)
    inputs = ActInput(
        obs=tree.to_torch(tree.zeros(obs, (1,)), where),
        first=torch.ones(1, dtype=torch.bool, device=where),
        carry=carry,
        rows=torch.zeros(1, dtype=torch.int64, device=where),
        total_rows=blueprint.config.env.num,
        progress=Progress(),
        explore=True,
        noise=lambda n: torch.full((1, n), 0.5, device=where),
    )
    with torch.inference_mode():
        output = blueprint.algorithm.act(model, inputs)
    return Layout(
        obs=obs,
        action=tree.spec(output.action, lead=1),
        rewards=tuple(stream.name for stream in blueprint.streams),
        extras=tree.spec(output.extras, lead=1),
        carry=tree.spec(carry, lead=1),
        stack=blueprint.env.stack,
    )


EVALUATION_SEED = 1_000_003
"""Added to the seed for evaluations, whose envs must not be those of training."""


def build_evaluator(blueprint: Blueprint, model: nn.Module, settings: EvalConfig, seed: int) -> Evaluator:
    """An evaluator with envs of its own, for `model` as it is whenever it is asked."""
    config = blueprint.config
    rows = min(settings.episodes, MAX_ROWS)
    policy = Policy(blueprint.algorithm, model, total_rows=rows, explore=False)
    return Evaluator(policy, make_env(config.env, rows), settings, seed=seed, reward_clip=config.env.reward_clip)


def build_inline(blueprint: Blueprint) -> InlineRuntime:
    """All roles in this process: one env loop over all rows, one store, one learner, one shared model."""
    config, algorithm, tables = blueprint.config, blueprint.algorithm, blueprint.tables
    model = build_model(blueprint)
    layout = layout_of(blueprint, model)
    store = Store(tables, layout, rows=config.env.num, seed=config.seed, priority=algorithm.priority)
    learner = Learner(
        algorithm,
        model,
        store,
        seed=config.seed,
        planned_env_steps=config.stop.env_steps,
        planned_versions=blueprint.planned_versions,
    )
    rows = np.arange(config.env.num)
    policy = PolicyCore(
        Policy(algorithm, model, total_rows=config.env.num, explore=True),
        layout,
        InlineUpstream(store, learner),
        groups=[rows],
        seed=config.seed,
        fragment=tables[0].fragment,
        synchronous=any(table.max_lag == 0 for table in tables),
        keep_carries=any(table.storage == "ring" for table in tables),
        reward_clip=config.env.reward_clip,
    )
    loop = EnvLoop(make_env(config.env, config.env.num), policy, group=0, rows=rows, seed=config.seed)
    evaluator = None
    if config.eval.every is not None:
        evaluator = build_evaluator(blueprint, model, config.eval, config.seed + EVALUATION_SEED)
    return InlineRuntime([loop], store, learner, evaluator)
