"""Add intrinsic rewards to any algorithm; each is a stream with its own discount, value head, and weight.

Their networks are part of the model, so their weights are published with the policy's. Rewards are recorded when
acting; the learner divides them by the std of their discounted sum, as RND does (1810.12894).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.algos.actor_critic import POLICY
from starling.algos.base import ActInput, ActOutput, Algorithm, IntrinsicInput, LearnSpec, Loss, OptimizerSpec
from starling.config.curiosity import CuriosityConfig, OwnCuriosityConfig
from starling.errors import UserError
from starling.intrinsic.episodic import Episodic
from starling.intrinsic.icm import ICM
from starling.intrinsic.novelty import Novelty
from starling.intrinsic.rnd import RND
from starling.nets.network import SHARED
from starling.nets.normalizers import Moments
from starling.ops.policy import masked_mean
from starling.registry import Entry, Registry, check_kind
from starling.replay.spec import TableSpec
from starling.types import EXTRINSIC, Batch, EnvSpec, NDArray, Progress, StreamSpec, Tensor, Trajectory, Tree

RETURN = "/return"
"""Suffix of a stream's name: its running discounted sum of rewards, which continues across episodes."""


KINDS = Registry(
    "curiosity",
    {
        "rnd": Entry(RND, "random network distillation"),
        "icm": Entry(ICM, "intrinsic curiosity module"),
        "episodic": Entry(Episodic, "novelty within an episode"),
        "novelty": Entry(Novelty, "novelty within an episode times random network distillation"),
    },
)


class Curiosity(Protocol):
    """One intrinsic reward. Its `state` has one entry per env and is kept next to the policy that acts."""

    def build(self, env: EnvSpec) -> Any: ...

    def initial_state(self, num_envs: int) -> dict[str, Tensor]: ...

    def reward(self, module: Any, seen: IntrinsicInput, state: dict[str, Tensor]) -> Tensor:
        """Compute the rewards [B] of B envs; values at the first observation of an episode are ignored."""
        ...

    def prepare(self, module: Any, trajectory: Trajectory[Tensor]) -> None:
        """Update running statistics; called once per batch, without gradient."""
        ...

    def loss(self, module: Any, batch: Batch, next_obs: Tree) -> Tensor:
        """Compute the scalar loss of its optimizer; next_obs [T, B, ...] are the observations after each step."""
        ...


class CuriousModel(nn.Module):
    """The agent's network, the networks of its intrinsic rewards, and running moments of each intrinsic return."""

    agent: Any  # the module that the algorithm builds

    def __init__(self, agent: nn.Module, curiosity: dict[str, nn.Module]) -> None:
        super().__init__()
        self.agent = agent
        self.curiosity = nn.ModuleDict(curiosity)
        self.returns = nn.ModuleDict({name: Moments(()) for name in curiosity})

    def initial_carry(self, batch_size: int) -> dict[str, Tree]:
        carry: dict[str, Tree] = self.agent.initial_carry(batch_size)
        return carry

    def step(self, obs: Tree, first: Tensor, carry: Tree) -> Any:
        """Outputs of the agent's heads, for inspection."""
        return self.agent.step(obs, first, carry)

    def scale(self, name: str) -> Tensor:
        """The std of a stream's discounted sum of rewards."""
        moments = self.returns[name]
        assert isinstance(moments, Moments)
        return moments.std()


def make_curiosity(config: CuriosityConfig) -> Curiosity:
    """Create the intrinsic reward described by a section of the configuration."""
    args = config.args if isinstance(config, OwnCuriosityConfig) else {}
    factory = KINDS.load(config.kind)
    check_kind(factory, config.kind, "curiosity", methods=("build", "initial_state", "reward", "prepare", "loss"))
    made: Curiosity = factory(config, **args)
    return made


class Curious(Algorithm):
    """Wraps an algorithm and adds intrinsic rewards to it."""

    def __init__(self, agent: Algorithm, curiosity: Sequence[CuriosityConfig], reward_weight: float = 1.0) -> None:
        if agent.recorded_rewards():
            raise UserError(f"{type(agent).__name__} has intrinsic rewards of its own: leave out curiosity")
        if agent.learning().sequential:
            raise UserError(f"{type(agent).__name__} updates its networks one after another: leave out curiosity")
        self._agent, self._reward_weight = agent, reward_weight  # of the environment's own reward
        self._configs = {config.stream: config for config in curiosity}
        for name in {*agent.learning().optimizers, POLICY, SHARED} & self._configs.keys():
            raise UserError(f"curiosity: {name!r} is a name that the algorithm uses itself; give the stream another")
        self._parts = {name: make_curiosity(config) for name, config in self._configs.items()}
        self._model: CuriousModel | None = None
        self._action: tuple[tuple[int, ...], torch.dtype] = ((), torch.int64)  # replaced in `build`

    def streams(self) -> tuple[StreamSpec, ...]:
        mine = (
            StreamSpec(name, config.discount, config.lambda_, config.episodic, config.weight)
            for name, config in self._configs.items()
        )
        agents = (
            replace(stream, weight=self._reward_weight) if stream.name == EXTRINSIC else stream
            for stream in self._agent.streams()
        )
        return (*agents, *mine)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> CuriousModel:
        agent = self._agent.build(env, streams)
        self._action = env.action.shape or (), torch.float32 if isinstance(env.action, spaces.Box) else torch.int64
        self._model = CuriousModel(agent, {name: part.build(env) for name, part in self._parts.items()})
        return self._model

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        endless = not all(config.episodic for config in self._configs.values())
        specs = self._agent.tables(num_envs)
        return tuple(replace(spec, reads_past_end=spec.reads_past_end or endless) for spec in specs)

    def learning(self) -> LearnSpec:
        spec = self._agent.learning()
        optimizers = {
            name: replace(optimizer, parameters=_of_agent(optimizer.parameters))
            for name, optimizer in spec.optimizers.items()
        }
        for name, config in self._configs.items():
            optimizers[name] = OptimizerSpec(config.optimizer, _of_curiosity(name))
        return replace(spec, optimizers=optimizers)

    def act(self, model: CuriousModel, inputs: ActInput) -> ActOutput:
        return self._agent.act(model.agent, inputs)

    def exploration_metrics(self, progress: Progress, num_envs: int) -> dict[str, float]:
        return self._agent.exploration_metrics(progress, num_envs)

    def recorded_rewards(self) -> tuple[str, ...]:
        return tuple(name + suffix for name in self._parts for suffix in ("", RETURN))

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        own = {name: part.initial_state(num_envs) for name, part in self._parts.items()}
        returns = {name: torch.zeros(num_envs) for name in self._parts}
        return {**self._agent.intrinsic_state(num_envs), "own": own, "returns": returns}

    def after_step(self, seen: IntrinsicInput, state: dict[str, Any]) -> None:
        self._agent.after_step(seen, state)

    def intrinsic_rewards(self, model: CuriousModel, seen: IntrinsicInput, state: dict[str, Any]) -> dict[str, Tensor]:
        if seen.action is None:  # no action has been taken yet
            shape, dtype = self._action
            seen = replace(seen, action=seen.first.new_zeros((len(seen.first), *shape), dtype=dtype))
        rewards = {}
        for name, part in self._parts.items():
            earned = part.reward(model.curiosity[name], seen, state["own"][name])
            rewards[name] = earned.float().masked_fill(seen.first, 0.0)
            so_far = state["returns"][name]
            going_on = torch.where(seen.first, 1.0, self._configs[name].discount)
            so_far.mul_(going_on).add_(rewards[name])
            rewards[name + RETURN] = so_far.clone()
        return rewards

    def prepare(self, model: CuriousModel, target_net: CuriousModel | None, batch: Batch) -> Batch:
        trajectory = batch.trajectory
        for name, part in self._parts.items():
            moments: Any = model.returns[name]
            moments.update(trajectory.rewards[name + RETURN], trajectory.valid)
            part.prepare(model.curiosity[name], trajectory)
        scaled = replace(batch, trajectory=self._scaled(model, trajectory))
        ready = self._agent.prepare(model.agent, None if target_net is None else target_net.agent, scaled)
        prepared = {"agent": ready.prepared, "next_obs": tree.map(lambda leaf: leaf[1:], trajectory.obs)}
        if ready.trajectory.obs is not trajectory.obs:  # the agent has transformed them
            prepared["obs"] = tree.map(lambda leaf: leaf[: trajectory.length], trajectory.obs)
        return replace(ready, prepared=prepared)

    def _scaled(self, model: CuriousModel, trajectory: Trajectory[Any]) -> Trajectory[Any]:
        """The trajectory with intrinsic rewards divided by `CuriousModel.scale`."""
        rewards = dict(trajectory.rewards)
        for name in self._parts:
            rewards[name] = rewards[name] / model.scale(name).to(rewards[name])
        return replace(trajectory, rewards=rewards)

    def loss(self, model: CuriousModel, target_net: CuriousModel | None, batch: Batch) -> Loss:
        agents = replace(batch, prepared=batch.prepared["agent"])
        loss = self._agent.loss(model.agent, None if target_net is None else target_net.agent, agents)
        trajectory, next_obs = batch.trajectory, batch.prepared["next_obs"]
        raw = replace(batch, trajectory=replace(trajectory, obs=batch.prepared.get("obs", trajectory.obs)))
        mine = {name: part.loss(model.curiosity[name], raw, next_obs) for name, part in self._parts.items()}

        def metrics() -> dict[str, Tensor]:
            said = {f"curiosity/{name}": value for name, value in mine.items()}
            earned = {f"reward/{name}": masked_mean(trajectory.rewards[name], trajectory.valid) for name in self._parts}
            return {**loss.metrics(), **said, **earned}

        return Loss({**loss.losses, **mine}, metrics, loss.priorities)

    def score(
        self, model: CuriousModel, table: int, candidates: Trajectory[Tensor], recent: Trajectory[Tensor]
    ) -> Tensor:
        return self._agent.score(model.agent, table, candidates, recent)

    def priority(self, sequence: Trajectory[NDArray]) -> NDArray | None:
        """The agent's priorities, from scaled rewards, or from recorded ones if this process has no model."""
        if self._model is not None:
            scales = tree.to_numpy({name: self._model.scale(name) for name in self._parts})
            rewards = {name: sequence.rewards[name] / np.float32(scale) for name, scale in scales.items()}
            sequence = replace(sequence, rewards={**sequence.rewards, **rewards})
        return self._agent.priority(sequence)


def _of_agent(parameters: Callable[[nn.Module], Iterable[nn.Parameter]]) -> Callable[[Any], Iterable[nn.Parameter]]:
    return lambda model: parameters(model.agent)


def _of_curiosity(name: str) -> Callable[[Any], Iterable[nn.Parameter]]:
    return lambda model: model.curiosity[name].parameters()
