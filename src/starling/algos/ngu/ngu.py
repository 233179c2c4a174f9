"""NGU (2002.06038): R2D2 with a family of policies, each with its own weight of the novelty reward.

Agent57 (2003.13350) is the variant with separate networks and a bandit that chooses the policy of each episode. Every
env has a bandit over its own episodes. The evaluator has one over trial episodes (`intrinsic/trials.py`) and scores the
policy with the largest mean return in these trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.algos.base import (
    ActInput,
    ActOutput,
    IntrinsicInput,
    LearnSpec,
    Loss,
    OptimizerSpec,
    Trials,
    network_optimizers,
)
from starling.algos.ngu.config import NGUConfig
from starling.algos.q_learning import Values, q_heads
from starling.algos.r2d2.r2d2 import R2D2
from starling.config.nets import NamedNets
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.intrinsic.arms import Arms, make_bandit
from starling.intrinsic.episodic import Episodic
from starling.intrinsic.inverse import InverseModel
from starling.intrinsic.novelty import NoveltyModel
from starling.intrinsic.rnd import RND, Distillation
from starling.intrinsic.trials import BanditTrials
from starling.nets.build import Network, build_network
from starling.ops.devices import Constant, mean_of, on_cpu, select_rows
from starling.ops.explore import discounts, long_discounts, novelty_weights
from starling.ops.streams import StreamTerms
from starling.types import EXTRINSIC, Batch, EnvSpec, StreamSpec, Tensor, Trajectory, Tree

NOVELTY = "novelty"
"""Name of the intrinsic reward, and of its Q head if networks are separate."""


class NGUModel(NoveltyModel):
    """The agent's network beside the modules of novelty."""

    def __init__(self, agent: Network, lifelong: Distillation, embedding: InverseModel) -> None:
        super().__init__(lifelong, embedding)
        self.agent = agent

    def initial_carry(self, batch_size: int) -> dict[str, Tree]:
        carry = self.agent.initial_carry(batch_size)
        return {**carry, "arm": torch.zeros(batch_size, dtype=torch.int64, device=next(self.parameters()).device)}

    def beside(self, obs: Tree, arm: Tensor) -> dict[str, Tree]:
        """Network input: obs [..., B, *shape] and the index of the policy [..., B]."""
        return {"obs": obs, "arm": arm}

    def step(self, obs: Tree, first: Tensor, carry: dict[str, Tree]) -> Any:
        """Outputs of the agent's heads, for inspection."""
        return self.agent.step(self.beside(obs, carry["arm"]), first, carry)


class NGU(R2D2):
    """R2D2 conditioned on the index of a policy, whose reward is extrinsic + beta_i * novelty with discount gamma_i."""

    config: NGUConfig

    def __init__(self, config: NGUConfig, net: NetConfig) -> None:
        super().__init__(config, net.model_copy(update={"shared": net.shared and not config.separate_networks}))
        self.config = config
        self._beta = Constant(novelty_weights(config.policies, config.novelty))  # [N]
        self._gamma = Constant(self._discounts())  # [N]
        self._lifelong, self._episodic = RND(config.lifelong), Episodic(config.episodic)
        self._optimizers = self._network_optimizers()
        self._arms = Arms(config.policies, config.meta)

    def _network_optimizers(self) -> dict[str, OptimizerSpec]:
        """One optimizer per network."""
        config = self.config
        if config.separate_networks and not isinstance(self.net, NamedNets):
            return {name: OptimizerSpec(config.optimizer, _of_head(name)) for name in (EXTRINSIC, NOVELTY)}
        return network_optimizers(self.net, "q", config.optimizer, network=lambda model: _part(model).agent)

    def _discounts(self) -> Tensor:
        config = self.config
        if config.family == "ngu":
            return discounts(config.policies, config.discount, config.min_discount)
        try:
            return long_discounts(config.policies)
        except ValueError as error:
            raise UserError(f"algo.family=agent57: {error}") from None

    def streams(self) -> tuple[StreamSpec, ...]:
        novelty = (StreamSpec(NOVELTY, self.config.discount),) if self.config.separate_networks else ()
        return (StreamSpec(discount=self.config.discount), *novelty)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Any:
        self._streams = streams
        seen = spaces.Dict({"obs": env.observation, "arm": spaces.Discrete(self.config.policies)})
        agent = build_network(
            replace(env, observation=seen), self.net, q_heads(env, streams, self.config, self.net), (EXTRINSIC, NOVELTY)
        )
        return NGUModel(agent, self._lifelong.build(env), self._episodic.build(env))

    def learning(self) -> LearnSpec:
        config, spec = self.config, super().learning()
        optimizers = dict(self._optimizers)
        optimizers["lifelong"] = OptimizerSpec(
            config.lifelong.optimizer, lambda model: _part(model).lifelong.predictor.parameters()
        )
        optimizers["embedding"] = OptimizerSpec(
            config.episodic.optimizer, lambda model: _part(model).embedding.parameters()
        )
        return replace(spec, optimizers=optimizers)

    # Acting.

    def recorded_rewards(self) -> tuple[str, ...]:
        return (NOVELTY,)

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        return {**self._arms.initial_state(num_envs), "episode": self._episodic.initial_state(num_envs)}

    def after_step(self, seen: IntrinsicInput, state: dict[str, Any]) -> None:
        self._arms.change(seen, state)

    def intrinsic_rewards(self, model: NGUModel, seen: IntrinsicInput, state: dict[str, Any]) -> dict[str, Tensor]:
        """Episodic novelty * min(max(alpha, 1), L), with the lifelong modulator alpha (eq. 1)."""
        episodic = self._episodic.reward(model.embedding, seen, state["episode"])
        error = model.lifelong(seen.obs)
        novelty = episodic * model.modulation(error).clamp(1.0, self.config.lifelong_limit)
        return {NOVELTY: novelty.masked_fill(seen.first, 0.0)}

    def trials(self) -> Trials | None:
        """The evaluator's bandit if there is a meta-controller, else None."""
        meta = self.config.meta
        return None if meta is None else BanditTrials(make_bandit(self.config.policies, meta), meta.trials)

    def act(self, model: Any, inputs: ActInput) -> ActOutput:
        return super().act(model.agent, replace(inputs, obs=model.beside(inputs.obs, inputs.carry["arm"])))

    # Learning.

    def prepare(self, model: Any, target_net: Any, batch: Batch) -> Batch:
        """Update the statistics of the predictor's observations and of its errors."""
        pick, learned, mask = self._curious(batch.trajectory)
        after = tree.map(lambda leaf: pick(leaf[1:]), batch.trajectory.obs)
        model.lifelong.update(tree.map(lambda leaf: leaf.unsqueeze(0), after), learned.unsqueeze(0))
        model.update(model.lifelong(after), mask)
        return batch

    def loss(self, model: Any, target_net: Any, batch: Batch) -> Loss:
        trajectory = batch.trajectory
        arm = trajectory.carry["arm"].expand(trajectory.length + 1, -1)  # [T+1, B]
        seen = replace(batch, trajectory=replace(trajectory, obs=model.beside(trajectory.obs, arm)))
        loss = super().loss(model.agent, target_net.agent, seen)
        pick, learned, mask = self._curious(trajectory)
        before = tree.map(lambda leaf: pick(leaf[:-1]), trajectory.obs)  # [n, ...]
        after = tree.map(lambda leaf: pick(leaf[1:]), trajectory.obs)
        curious = {
            "lifelong": mean_of(model.lifelong(after), mask),
            "embedding": model.embedding.loss(
                model.embedding.encode(before)[None],
                model.embedding.encode(after)[None],
                pick(trajectory.action)[None],
                learned[None],
            ),
        }

        def metrics() -> dict[str, Tensor]:
            earned = mean_of(*select_rows(trajectory.rewards[NOVELTY].flatten(), trajectory.valid.flatten()))
            return {**loss.metrics(), **curious, f"reward/{NOVELTY}": earned}

        return Loss({**loss.losses, **curious}, metrics, loss.priorities)

    def _curious(self, trajectory: Trajectory[Tensor]) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor | None]:
        """The steps that train the novelty modules: the last `predictor_steps` of each sequence.

        Returns:
            A function that picks them, [n, ...], from a tensor [T, B, ...], a mask [n] of those that count, and this
            mask again, or None if all count.
        """
        count, most = trajectory.valid.sum(0), self.config.predictor_steps  # [B]: steps after these are padding
        if on_cpu(count):
            learned_t = trajectory.valid & (torch.arange(trajectory.length)[:, None] >= count - most)
            return lambda leaf: leaf[learned_t], learned_t[learned_t], None
        back = torch.arange(1, min(most, trajectory.length) + 1, device=count.device)[:, None]
        step, row = (count - back).clamp(min=0), torch.arange(trajectory.batch_size, device=count.device)
        mask = (count >= back).flatten()
        return lambda leaf: leaf[step, row].flatten(0, 1), mask, mask

    def combine_q(self, q: Values, carry: dict[str, Tree]) -> Tensor:
        """Q_extrinsic, plus beta * Q_novelty if networks are separate; beta belongs to the policy of each row."""
        if not self.config.separate_networks:
            return q[EXTRINSIC]
        return q[EXTRINSIC] + self._of_arm(self._beta, carry)[:, None] * q[NOVELTY]

    def stream_terms(self, trajectory: Trajectory[Tensor], stream: StreamSpec) -> StreamTerms:
        terms = super().stream_terms(trajectory, stream)
        gamma = self._of_arm(self._gamma, trajectory.carry)  # [B]
        discount_t = torch.where(trajectory.terminated, 0.0, gamma)
        if self.config.separate_networks:
            return replace(terms, discount_t=discount_t)
        r_t = terms.r_t + self._of_arm(self._beta, trajectory.carry) * trajectory.rewards[NOVELTY]
        return replace(terms, r_t=r_t, discount_t=discount_t)

    def reduce_losses(self, losses_t: Values, weight: Tensor) -> Values:
        if not self.config.separate_networks:
            return super().reduce_losses(losses_t, weight)
        return {name: (weight * loss_t.sum(0)).mean() for name, loss_t in losses_t.items()}

    def _of_arm(self, values: Constant, carry: dict[str, Tree]) -> Tensor:
        """Look up `values` [N] by the policy of each row: [B]."""
        return values.on(carry["arm"].device)[carry["arm"]]


def _part(model: nn.Module) -> NGUModel:
    assert isinstance(model, NGUModel), "the model that build() made"
    return model


def _of_head(name: str) -> Any:
    """Return a function that collects the parameters of one of two separate networks."""

    def parameters(model: nn.Module) -> Any:
        agent = _part(model).agent
        return [*agent.trunks[name].parameters(), *agent.heads[name].parameters()]

    return parameters
