"""R2D2 (Kapturowski 2019): recurrent Ape-X, trained on replayed sequences with stored states and burn-in.

A sequence has `burn_in` steps, followed by `unroll` steps with a loss. If a sequence starts an episode, its initial
state is known to be zero and needs no burn-in: all its steps have a loss, so no episode is too short to learn from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from starling import tree
from starling.algos.apex.apex import ladder_epsilon
from starling.algos.base import (
    ActInput,
    ActOutput,
    Algorithm,
    IntrinsicInput,
    LearnSpec,
    Loss,
    TargetSpec,
    network_optimizers,
)
from starling.algos.q_learning import (
    MU,
    Q,
    Values,
    add_reset_values,
    beta_schedule,
    make_epsilon_bandit,
    n_step_table,
    q_heads,
    retrace_target,
    substitute_reset_values,
    td_priority,
    update_reset_values,
)
from starling.algos.r2d2.config import R2D2Config
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import Network, build_network
from starling.nets.burn_in import unroll_burnt_in
from starling.ops.devices import mean_of, select_rows
from starling.ops.explore import epsilon_greedy, epsilon_greedy_probability, epsilon_metrics
from starling.ops.policy import masked_mean
from starling.ops.priority import delta_q, sequence_priority
from starling.ops.streams import StreamTerms, stream_terms, total, weighted_total
from starling.ops.value import IDENTITY, RESCALED, batched_index, huber, n_step_target, td_error
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, NDArray, Progress, StreamSpec, Tensor, Trajectory, Tree

FEATURES = "features"
"""Extras beside Q and MU: the features (output of the core)."""


class R2D2(Algorithm):
    """One Q head per stream; exploration is that of Ape-X, and tables, acting, and loss work on sequences."""

    def __init__(self, config: R2D2Config, net: NetConfig) -> None:
        if not net.recurrent:
            raise UserError(f"{config.name} is recurrent: set net.core.kind=lstm or gru")
        self.config, self.net = config, net
        self._streams = self.streams()
        self._optimizers = network_optimizers(net, "q", config.optimizer)
        self._bandit = make_epsilon_bandit(config)
        self._transform = RESCALED if config.rescale else IDENTITY  # networks predict transform.apply(value)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Any:
        self._streams = streams
        network = build_network(env, self.net, q_heads(env, streams, self.config, self.net))
        add_reset_values(network, streams)
        if self._bandit is not None:
            network.extra_carry["arm"] = torch.int64
        return network

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        """A replay of overlapping sequences, each with at least one step that has a loss."""
        burn_in, unroll, period = self.config.burn_in, self.config.unroll, self.config.period
        return (replace(n_step_table(self.config), length=burn_in + unroll, period=period, burn_in=burn_in),)

    def learning(self) -> LearnSpec:
        return LearnSpec(
            optimizers=self._optimizers,
            target=TargetSpec(every=self.config.target_every),
            importance_beta=beta_schedule(self.config.prioritized),
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        features, state = model.encode(inputs.obs, inputs.first, inputs.carry)
        q = model.decode(features)
        combined_q, epsilon = self.combine_q(q, inputs.carry), self.epsilon(inputs)
        action = epsilon_greedy(combined_q, epsilon, inputs.noise(2))
        extras: dict[str, Tree] = {Q: q}
        if self.config.retrace is not None:
            extras[MU] = epsilon_greedy_probability(combined_q, epsilon, action)
        if self.config.delta_q:
            extras[FEATURES] = features
        return ActOutput(action, extras, state)

    def epsilon(self, inputs: ActInput) -> Tensor | float:
        """The probability of a random action: one number, or one per env [B]."""
        if not inputs.explore:
            return self.config.eval_epsilon
        if self._bandit is not None:
            return self._bandit.epsilon(inputs.progress, inputs.carry["arm"])
        return ladder_epsilon(self.config, inputs.progress, inputs.env_index, inputs.num_envs)

    def exploration_metrics(self, progress: Progress, num_envs: int) -> dict[str, float]:
        if self._bandit is not None:
            return self._bandit.exploration_metrics(progress)
        return epsilon_metrics(ladder_epsilon(self.config, progress, torch.arange(num_envs), num_envs))

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        return {} if self._bandit is None else self._bandit.arms.initial_state(num_envs)

    def after_step(self, seen: IntrinsicInput, state: dict[str, Any]) -> None:
        if self._bandit is not None:
            self._bandit.arms.change(seen, state)

    def prepare(self, model: Any, target_net: Any, batch: Batch) -> Batch:
        update_reset_values(model, target_net, batch, self._streams, self._transform)
        return batch

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        """Huber loss of TD errors, summed over the unmasked steps of each sequence; weighted mean over sequences."""
        trajectory = self._with_initial_state(model, batch.trajectory)
        q = unroll_burnt_in(model, trajectory, self.config.burn_in)
        with torch.no_grad():
            q_target, _, _ = target_net.unroll_trajectory(trajectory)
        mask_t, ended_t = self._loss_mask(trajectory), trajectory.terminated | trajectory.truncated
        q = substitute_reset_values(model.reset_values, q, ended_t, self._transform)
        q_target = substitute_reset_values(model.reset_values, q_target, ended_t, self._transform)
        errors = self._td_errors(trajectory, q, q_target, mask_t)
        losses_t = {name: huber(error, self.config.huber) for name, error in errors.items()}  # [T, B] per stream
        losses = self.reduce_losses(losses_t, batch.weight)
        with torch.no_grad():
            combined_q = self.combine_q(q, trajectory.carry)
            delta_q = self._delta_q(model, trajectory, combined_q, mask_t) if self.config.delta_q else {}
        # NGU's separate networks have a loss each, by the name of their optimizer; all other optimizers get the sum.
        loss = total([*losses.values()])
        return Loss(
            losses={name: losses.get(name, loss) for name in self._optimizers},
            metrics=lambda: {
                **losses,
                "q_values": masked_mean(batched_index(combined_q[:-1], trajectory.action), mask_t),
                **delta_q,
            },
            priorities=sequence_priority(td_priority(errors, self._streams), mask_t, self.config.eta),
        )

    def combine_q(self, q: Values, carry: dict[str, Tree]) -> Tensor:
        """Combine the Q values of all streams into those that the policy is greedy in [..., B, A]; carry [B, ...]."""
        return weighted_total(q, self._streams)

    def stream_terms(self, trajectory: Trajectory[Tensor], stream: StreamSpec) -> StreamTerms:
        """Rewards, discounts, and masks of one stream."""
        return stream_terms(trajectory, stream, crosses_episodes=False)

    def reduce_losses(self, losses_t: Values, weight: Tensor) -> Values:
        """Reduce per-step losses [T, B] per stream to scalars, with importance weights [B].

        An optimizer minimizes the one of its name, or else their sum.
        """
        return {"q": (weight * total([*losses_t.values()]).sum(0)).mean()}

    def priority(self, sequence: Trajectory[NDArray]) -> NDArray:
        """Initial priorities [B], computed like the learner's from the Q values recorded when acting."""
        trajectory = tree.to_torch(sequence)
        mask_t, q = self._loss_mask(trajectory), trajectory.extras[Q]
        errors = self._td_errors(trajectory, q, q, mask_t)  # actors have no target network
        return sequence_priority(td_priority(errors, self._streams), mask_t, self.config.eta).numpy()

    def _loss_mask(self, trajectory: Trajectory[Tensor]) -> Tensor:
        """Loss mask, bool [T, B]: valid steps after burn-in, or all valid ones if the sequence starts an episode."""
        after = torch.arange(trajectory.length, device=trajectory.valid.device) >= self.config.burn_in  # [T]
        return trajectory.valid & (after.unsqueeze(1) | trajectory.first[0])

    def _td_errors(self, trajectory: Trajectory[Tensor], q: Values, q_target: Values, mask_t: Tensor) -> Values:
        """TD errors target - Q(s_t, a_t) [T, B] per stream, 0 on masked steps; q, q_target: [T+1, B, A]."""
        selector = self.combine_q(q if self.config.double else q_target, trajectory.carry)
        errors = {}
        for stream in self._streams:
            target = self._td_target(trajectory, stream, selector, q_target[stream.name])
            errors[stream.name] = td_error(batched_index(q[stream.name][:-1], trajectory.action), target, mask_t)
        return errors

    def _td_target(
        self, trajectory: Trajectory[Tensor], stream: StreamSpec, selector: Tensor, q_target: Tensor
    ) -> Tensor:
        """Rescaled targets h(G_t) [T, B] for the policy that is greedy in `selector` [T+1, B, A]: n-step or Retrace."""
        terms, transform = self.stream_terms(trajectory, stream), self._transform
        if self.config.retrace is None:
            v = batched_index(q_target, selector.argmax(-1))  # [T+1, B]
            n = self.config.n_step
            return n_step_target(terms.r_t, terms.discount_t, v[:-1], v[1:], n, terms.valid_t, transform)
        lambda_, epsilon = self.config.retrace, self.config.eval_epsilon  # learn the policy that evaluations score
        return retrace_target(trajectory, terms, selector, q_target, lambda_, epsilon, transform)

    def _with_initial_state(self, model: Network, trajectory: Trajectory[Tensor]) -> Trajectory[Tensor]:
        """The trajectory, with a zero initial state unless stored states are used."""
        if self.config.state == "stored":
            return trajectory
        zero = model.initial_carry(trajectory.batch_size)["state"]
        return replace(trajectory, carry={**trajectory.carry, "state": zero})

    def _delta_q(self, model: Network, trajectory: Trajectory[Tensor], q: Tensor, mask_t: Tensor) -> Values:
        """Delta-Q at the first step after burn-in and at the last step, over sequences that reach beyond burn-in.

        Both states are evaluated with the current weights, so this measures stale states and not learning progress.
        q: [T+1, B, A].
        """
        num_valid, burn_in = trajectory.valid.sum(0), self.config.burn_in  # [B]
        all_rows = torch.arange(len(num_valid), device=num_valid.device)
        rows, counted = select_rows(all_rows, num_valid > burn_in)  # [b]
        if len(rows) == 0:
            return {}
        last = (num_valid[rows] - 1).clamp(min=0)
        t = torch.stack([torch.full_like(last, burn_in), last])  # [2, b]
        features, carry = (
            tree.map(lambda leaf: leaf[t, rows], trajectory.extras[FEATURES]),
            tree.map(lambda leaf: leaf[rows], trajectory.carry),
        )
        q_recorded = self.combine_q(model.decode(features), carry)  # [2, b, A]
        first, end = delta_q(q[t, rows], q_recorded, q[:-1, rows], mask_t[:, rows])  # [b] each
        return {"delta_q_first": mean_of(first, counted), "delta_q_last": mean_of(end, counted)}
