"""The plan of a run: what its configuration leaves to be decided, and what its parts have to agree on.

`RunPlan.from_config` makes the algorithm, divides the envs into groups (one per env loop), the groups among learners
and Ray actors, and checks that the tables can be filled. `validated_plan` also checks the machine. The functions below
build the network of a plan, find the layout of its steps, and choose a learner's number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from starling import tree
from starling.actor.core import GroupSpec
from starling.actor.recorder import FragmentShape
from starling.algos.base import ActInput, Algorithm
from starling.algos.curious import Curious
from starling.config.algorithms import AlgoConfig, algorithm_class
from starling.config.parts import NetConfig
from starling.config.schema import Config
from starling.envs.registry import check_stagger, env_spec
from starling.envs.spaces import check_spaces, observation_layout
from starling.errors import UserError, printable
from starling.hardware import available_memory, check_compiler, check_devices, cores, device, settle_precision
from starling.learner.optimizer import check_optimizer
from starling.registry import check_kind
from starling.replay.limiter import check as check_no_deadlock
from starling.replay.limiter import pace, steps_per_update
from starling.replay.spec import TableSpec
from starling.replay.store import shard_envs, shard_specs
from starling.types import ArraySpec, EnvSpec, Layout, NDArray, Progress, RunLength, StreamSpec, Tensor

FRAGMENT_SLOTS = 2
"""Fragment buffers per env loop: one is recorded into while the other is inserted into the tables."""

ACTORS_TRIED = 256
"""Numbers of env loops above one per core to try if the tables refuse that; each try divides all envs again."""

WORTH_A_SECOND_THREAD = 6_000_000
"""Multiplications of one forward pass over a minibatch of vectors from which a learner uses two threads.

SAC with batches of 256 is slower with a second thread for hidden layers of 64 x 64 (3.4 million), and faster for
128 x 128 (13 million). More than two threads were not measured.
"""

SMALLEST_IMAGE = 36
"""Height and width in pixels of an observation from which a learner uses all free threads."""

PREFETCH = 2
"""Batches that are ready before the learner asks for them."""

_NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed", "numel: integer")
"""Texts of torch's out-of-memory errors; on CPU torch raises a plain RuntimeError."""


@dataclass(frozen=True)
class NetworkSize:
    """Number of parameters of a network, and the bytes of its parameters and buffers."""

    parameters: int
    nbytes: int


@dataclass(frozen=True)
class RunPlan:
    """A resolved configuration, shared by every part of a run."""

    config: Config
    env: EnvSpec
    algorithm: Algorithm
    streams: tuple[StreamSpec, ...]
    tables: tuple[TableSpec, ...]

    @classmethod
    def from_config(cls, config: Config, env: EnvSpec | None = None) -> RunPlan:
        """Resolve a configuration into a plan; raises `UserError` if it cannot work, before anything is built."""
        env = env or env_spec(config.env)
        check_spaces(env)
        config.algo.check_actions(env.id, env.action)
        algorithm = _algorithm_with_curiosity(config)
        run_plan = cls(config, env, algorithm, algorithm.streams(), algorithm.tables(config.env.num))
        if config.learners > config.env.num:
            raise UserError(f"learners={config.learners} are more than the env.num={config.env.num} envs they share")
        if run_plan.actors > config.env.num:
            raise UserError(f"actors={run_plan.actors} is more than the env.num={config.env.num} envs they share")
        if run_plan.actors < config.learners:
            raise UserError(f"actors={run_plan.actors} is less than learners={config.learners}, which need one each")
        run_plan.check_tables(run_plan.actors)
        check_stagger(config.env, max(len(group.env_index) for group in run_plan.groups().values()))
        _check_minibatches(run_plan)
        run_plan.remote_shard_envs()  # raises if the replay cannot be divided as asked
        for spec in algorithm.learning().optimizers.values():
            check_optimizer(spec.config, run_plan.length)
        _check_limits(run_plan)
        _check_fetching(run_plan)
        return run_plan

    @cached_property
    def actors(self) -> int:
        """Number of env loops, which share the envs.

        By default one if inline, else one per core. If the tables refuse that number (a synchronous table needs equal
        groups that fill a batch exactly), the nearest smaller number that they accept, or else the nearest larger.
        """
        if self.config.actors is not None:
            return self.config.actors
        fewest, most = max(self.learners, self._num_remote_shards), self.config.env.num
        preferred = 1 if self.config.runtime == "inline" else min(max(fewest, cores()), most)
        more = range(preferred + 1, min(most, preferred + ACTORS_TRIED) + 1)
        fitting = filter(self._actors_fit, [*range(preferred, fewest - 1, -1), *more])
        return next(fitting, preferred)

    def _actors_fit(self, actors: int) -> bool:
        try:
            self.check_tables(actors)
        except UserError:
            return False
        return True

    def check_tables(self, actors: int) -> None:
        """Raise `UserError` if tables could never be filled or sampled with so many env loops."""
        for tables, groups in zip(self.shards(), self._deal_envs(actors), strict=True):
            sizes = [len(group.env_index) for group in groups.values()]
            check_no_deadlock(tables, sum(sizes), groups=sizes)

    @cached_property
    def network_size(self) -> NetworkSize | None:
        """The size of the network, counted on the meta device; None if a custom network cannot be built there."""
        try:
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                # By another instance, since `Algorithm.build` may keep parts of what it builds.
                model = _algorithm_with_curiosity(self.config).build(self.env, self.streams)
        except Exception:  # a real mistake is reported when the model is built
            return None
        tensors = [*model.state_dict().values()]
        return NetworkSize(
            sum(parameter.numel() for parameter in model.parameters()),
            sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        )

    @property
    def learners(self) -> int:
        """Number of learners that train the agent together."""
        return self.config.learners

    def groups(self) -> dict[int, GroupSpec]:
        """The group of envs of every env loop, by the index of the group."""
        return {index: group for mine in self.groups_by_learner() for index, group in mine.items()}

    def groups_by_learner(self) -> list[dict[int, GroupSpec]]:
        """The groups that each learner gets experience from, by index."""
        return self._deal_envs(self.actors)

    def _deal_envs(self, actors: int) -> list[dict[int, GroupSpec]]:
        """Divide the envs among the learners, and each learner's among its env loops, `actors` in total."""
        numbers = np.array_split(np.arange(actors), self.learners)
        shards = shard_envs(self.config.env.num, self.learners)
        return [
            {int(i): GroupSpec(env_index) for i, env_index in zip(mine, np.array_split(shard, len(mine)), strict=True)}
            for mine, shard in zip(numbers, shards, strict=True)
        ]

    def shards(self) -> list[tuple[TableSpec, ...]]:
        """The tables of every learner, which hold the experience of its groups; with one learner, `tables`."""
        return shard_specs(self.tables, self.config.env.num, self.learners)

    def remote_shard_envs(self) -> list[NDArray]:
        """Indices of the envs in each replay shard that is a process of a Ray cluster; groups are never split.

        Raises `UserError` if the tables cannot be in such shards. The list is empty without `ray.shards`.
        """
        shards, groups = self._num_remote_shards, self.groups()
        if shards and any(table.sampler == "fifo" for table in self.tables):
            raise UserError("ray.shards is for replay; this algorithm reads a queue, which stays beside the learner")
        if shards and any(table.sampler == "ranked" for table in self.tables):
            raise UserError("ray.shards cannot rank what is in replay: use uniform or prioritized, or leave it out")
        if shards > len(groups):
            raise UserError(f"ray.shards={shards} is more than the {len(groups)} actors whose experience they share")
        dealt = np.array_split(np.array(list(groups)), max(1, shards))[:shards]
        return [np.concatenate([groups[group].env_index for group in mine.tolist()]) for mine in dealt]

    @property
    def _num_remote_shards(self) -> int:
        """Number of replay shards in processes of their own ("actors" in Ray's sense, not env loops)."""
        return self.config.ray.shards if self.config.runtime == "ray" else 0

    @property
    def has_ranked_table(self) -> bool:
        """True if a table selects its items among candidates by `Algorithm.score` (attentive, elite)."""
        return any(table.sampler == "ranked" for table in self.tables)

    @property
    def synchronous(self) -> bool:
        """True if a queue has `max_lag` 0, so that actors wait for the weights of each update."""
        return any(table.max_lag == 0 for table in self.tables)

    def fragment_shape(self, layout: Layout) -> FragmentShape:
        keep_carries = any(table.storage == "ring" for table in self.tables)
        return FragmentShape(layout, self.tables[0].fragment, keep_carries)

    def progress(self, env_steps: int, updates: int) -> Progress:
        """The training progress after so many env steps and updates."""
        return self.length.progress(env_steps, updates)

    def exploration_metrics(self, env_steps: int, updates: int) -> dict[str, float]:
        """Exploration metrics of the training envs after so many env steps and updates."""
        found = self.algorithm.exploration_metrics(self.progress(env_steps, updates), self.config.env.num)
        return {f"explore/{name}": value for name, value in found.items()}

    @cached_property
    def length(self) -> RunLength:
        """The planned length of the run."""
        stop, per_update = self.config.stop, steps_per_update(self.tables)
        steps = stop.env_steps if stop.frames is None else -(-stop.frames // self.env.frames_per_step)
        if steps is None:
            return RunLength(None, stop.updates, stop.updates or 1, 1 / per_update)
        return RunLength(steps, None, self._updates_in(steps), 1 / per_update)

    def _updates_in(self, steps: int) -> int:
        """Planned number of updates in a run of so many env steps."""
        table, take = pace(self.tables)
        if table.updates_per_step is not None:
            return max(1, int((steps - table.min_size) * table.updates_per_step))
        # A queue of items with `length` steps each: an update takes `take` of them, and each is used so many times.
        return max(1, steps * table.max_times_sampled // (take * table.length))

    @property
    def expected_env_steps(self) -> int | None:
        """Roughly the number of env steps of the whole run; None if neither env steps nor updates end it."""
        if self.length.updates is None:
            return self.length.env_steps
        (table, _), waiting = pace(self.tables), 0
        if table.sampler != "fifo":
            waiting = table.min_size
        return waiting + int(self.length.updates / self.length.updates_per_step)


def _algorithm_with_curiosity(config: Config) -> Algorithm:
    algorithm = make_algorithm(config.algo, config.networks)
    return Curious(algorithm, config.curiosity, config.env.reward_weight) if config.curiosity else algorithm


def validated_plan(config: Config) -> RunPlan:
    """Return the plan of a run that is about to train on this machine; raise `UserError` if it cannot run here.

    In its `config`, `precision=auto` is resolved for this machine.
    """
    check_devices(config)
    settled = settle_precision(config)
    check_compiler(settled)
    run_plan = RunPlan.from_config(settled)
    target = run_plan.algorithm.learning().target is not None
    check_network(run_plan, copies=3 if target else 2)
    return run_plan


def check_network(run_plan: RunPlan, copies: int = 1) -> None:
    """Raise `UserError` if so many copies of the network (weights, gradients, target) exceed the free memory."""
    size, free = run_plan.network_size, available_memory()
    if size is not None and size.nbytes * copies > free:
        also = f", {copies} times with gradients{' and target' if copies > 2 else ''}" if copies > 1 else ""
        raise UserError(
            f"the network has {size.parameters:,} parameters, which take {size.nbytes / 1e9:,.1f} GB{also}, and"
            f" {free / 1e9:,.1f} GB of memory is free: use a smaller network (net) or a larger machine"
        )


def _check_minibatches(run_plan: RunPlan) -> None:
    """Raise `UserError` if there are more minibatches than a learner's batch has parts."""
    learning, table = run_plan.algorithm.learning(), run_plan.shards()[0][0]
    parts = table.batch * (table.length if learning.split == "step" else 1)
    if run_plan.learners > 1 and learning.minibatches > parts:
        raise UserError(
            f"{learning.minibatches} minibatches are more than the {parts} parts of a batch that each of"
            f" learners={run_plan.learners} has: lower algo.minibatches"
        )


def _check_limits(run_plan: RunPlan) -> None:
    """Raise `UserError` if a limit can never be reached, or a schedule over the run has no end."""
    stop, steps, (table, _) = run_plan.config.stop, run_plan.length.env_steps, pace(run_plan.tables)
    if not stop.has_length and any(spec.anneal is not None for spec in run_plan.tables):
        raise UserError(
            "lambda of algo.sources falls over the run, which has no end that it could count to: set stop.updates or"
            " stop.env_steps, or anneal=null in the source"
        )
    most = most_updates(run_plan)
    if stop.updates is not None and most is not None and stop.updates > most:
        key = "stop.env_steps" if stop.frames is None else "stop.frames"
        why = f", and learning starts after {table.min_size:,} of them" if most == 0 else ""
        raise UserError(
            f"stop.updates={stop.updates:,} can never be reached: {key} ends the run after {steps:,} env steps and at"
            f" most {most:,} updates{why}; raise {key}, set it to null, or leave stop.updates out"
        )


def most_updates(run_plan: RunPlan) -> int | None:
    """An upper bound on the updates until the run ends by its env steps; None if there is none."""
    steps, (table, take) = run_plan.length.env_steps, pace(run_plan.tables)
    if steps is None:
        return None
    steps += run_plan.config.env.num * table.fragment  # the fragments that are open when the limit is reached
    if table.sampler != "fifo":
        ratio, fresh = table.updates_per_step, steps - table.min_size
        return None if ratio is None else int(1 + fresh * ratio) if fresh >= 0 else 0
    return 2 * steps * table.max_times_sampled // (take * table.length)  # at most every second step is a reset


def _check_fetching(run_plan: RunPlan) -> None:
    """Raise `UserError` if actors must have the weights of every update, but fetch them less often."""
    if run_plan.config.fetch_every > 1 and run_plan.synchronous:
        raise UserError(
            f"fetch_every={run_plan.config.fetch_every} is for algorithms whose actors do not wait for the learner:"
            f" {run_plan.config.algo.name} acts with the weights of the last update; leave it out"
        )


def build_model(run_plan: RunPlan, where: torch.device | None = None) -> nn.Module:
    """Build the network, initialized from the seed, on a device, by default the first learner's.

    It also lets the plan's algorithm set what depends on the envs: `act` and `loss` work only afterwards.
    """
    config = run_plan.config
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = run_plan.algorithm.build(run_plan.env, run_plan.streams)
        return model.to(device(config) if where is None else where)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
            raise UserError(
                "the network does not fit into memory: use a smaller one (net) or a larger machine"
            ) from None
        raise


def check_finite(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError if saved weights would not be finite in `model`, whose own are."""
    for name, mine in model.state_dict().items():
        if name in weights and not _is_finite(weights[name].to(mine)) and _is_finite(mine):
            raise ValueError(f"its weights {printable(name)} are not finite")


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def load_weights(model: nn.Module, weights: dict[str, Any], source: str) -> None:
    """Load saved weights into `model`; the error names a mismatch if they belong to another env or network."""
    mine = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in weights.items()}
    if mine != theirs:
        odd = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        name, shown = odd[0], printable(odd[0])
        raise UserError(
            f"the weights of {source} are those of another env or network: {len(odd)} of {len(mine)} parts differ, e.g."
            f" {shown} is {theirs.get(name, 'missing')} there and {mine.get(name, 'missing')} in this configuration"
        )
    model.load_state_dict(weights)


def plan_threads(run_plan: RunPlan) -> int:
    """torch's intra-op threads of a learner: the cores that no actor uses, as far as its updates can keep them busy."""
    config = run_plan.config
    if config.threads is not None:
        return config.threads
    actors_idle_during_updates = config.runtime == "inline" or run_plan.synchronous
    taken = 0 if actors_idle_during_updates else run_plan.actors
    free = max(1, (cores() - taken) // run_plan.learners)
    specs: list[ArraySpec] = tree.leaves(observation_layout(run_plan.env.observation))
    if any(len(spec.shape) >= 3 and sorted(spec.shape)[-2] >= SMALLEST_IMAGE for spec in specs):
        return free
    if _products(run_plan) >= WORTH_A_SECOND_THREAD:
        return min(free, 2)
    return 1


def _products(run_plan: RunPlan) -> int:
    """Estimate the multiplications of one forward pass over a minibatch of vectors: parameters times sequences."""
    size, table = run_plan.network_size, run_plan.shards()[0][0]
    return 0 if size is None else size.parameters * table.batch // run_plan.algorithm.learning().minibatches


def layout_of(run_plan: RunPlan, model: Any) -> Layout:
    """Find the layout of one step of one env by a dry run of `act()`."""
    where = next(model.parameters()).device
    obs = observation_layout(run_plan.env.observation)
    carry = model.initial_carry(1)
    inputs = ActInput(
        obs=tree.to_torch(tree.zeros(obs, (1,)), where),
        first=torch.ones(1, dtype=torch.bool, device=where),
        carry=carry,
        env_index=torch.zeros(1, dtype=torch.int64, device=where),
        num_envs=run_plan.config.env.num,
        progress=Progress(),
        explore=True,
        noise=lambda n: torch.full((1, n), 0.5, device=where),
    )
    with torch.inference_mode():
        output = run_plan.algorithm.act(model, inputs)
    return Layout(
        obs=obs,
        action=tree.spec(output.action, lead=1),
        rewards=tuple(dict.fromkeys([s.name for s in run_plan.streams] + [*run_plan.algorithm.recorded_rewards()])),
        extras=tree.spec(output.extras, lead=1),
        carry=tree.spec(carry, lead=1),
        stack=run_plan.env.stack,
    )


def make_algorithm(config: AlgoConfig, net: NetConfig) -> Algorithm:
    """Create the algorithm with these settings."""
    found = algorithm_class(config)
    check_kind(found, config.name, "algorithm", (Algorithm,), functions=False)
    algorithm: Algorithm = found(config, net)
    return algorithm
