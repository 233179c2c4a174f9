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
    importance_exponent,
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
        return (replace(n_step_table(self.config), length=burn_in + unroll, period=period, prefix=burn_in),)

    def learning(self) -> LearnSpec:
        return LearnSpec(
            optimizers=self._optimizers,
            target=TargetSpec(every=self.config.target_every),
            importance_exponent=importance_exponent(self.config.prioritized),
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

    def exploration(self, progress: Progress, num_envs: int) -> dict[str, float]:
        if self._bandit is not None:
            return self._bandit.exploration(progress)
        return epsilon_metrics(ladder_epsilon(self.config, progress, torch.arange(num_envs), num_envs))

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        return {} if self._bandit is None else self._bandit.arms.initial_state(num_envs)

    def intrinsic_rewards(self, model: Any, seen: IntrinsicInput, state: dict[str, Any]) -> dict[str, Tensor]:
        """Let the bandits choose; there are no rewards."""
        if self._bandit is not None:
            self._bandit.arms.change(seen, state)
        return {}

    def prepare(self, model: Any, target_net: Any, batch: Batch) -> Batch:
        update_reset_values(model, target_net, batch, self._streams, self._transform)
        return batch

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        """Huber loss of TD errors, summed over the unmasked steps of each sequence; weighted mean over sequences."""
        steps = self._begun(model, batch.trajectory)
        q = unroll_burnt_in(model, steps, self.config.burn_in)
        with torch.no_grad():
            q_target, _, _ = target_net.unroll_trajectory(steps)
        trained_t, ended_t = self._trained(steps), steps.terminated | steps.truncated
        q, q_target = (substitute_reset_values(model, values, ended_t, self._transform) for values in (q, q_target))
        errors = self._td_errors(steps, q, q_target, trained_t)
        losses = self.losses({name: huber(error, self.config.huber) for name, error in errors.items()}, batch.weight)
        with torch.no_grad():
            combined_q = self.combine_q(q, steps.carry)
            drift = self._drift(model, steps, combined_q, trained_t) if self.config.delta_q else {}
        whole = total([*losses.values()])
        return Loss(
            losses={name: losses.get(name, whole) for name in self._optimizers},
            metrics=lambda: {
                **losses,
                "q_values": masked_mean(batched_index(combined_q[:-1], steps.action), trained_t),
                **drift,
            },
            priorities=sequence_priority(td_priority(errors, self._streams), trained_t, self.config.eta),
        )

    def combine_q(self, q: Values, carry: dict[str, Tree]) -> Tensor:
        """Combine the Q values of all streams into those that the policy is greedy in [..., B, A]; carry [B, ...]."""
        return weighted_total(q, self._streams)

    def terms(self, steps: Trajectory[Tensor], stream: StreamSpec) -> StreamTerms:
        """Rewards and discounts of one stream."""
        return stream_terms(steps, stream, crosses_episodes=False)

    def losses(self, errors_t: Values, weight: Tensor) -> Values:
        """Reduce per-step losses [T, B] per stream to scalars, with importance weights [B].

        An optimizer minimizes the one of its name, or else their sum.
        """
        return {"q": (weight * total([*errors_t.values()]).sum(0)).mean()}

    def priority(self, window: Trajectory[NDArray]) -> NDArray:
        """Initial priorities [B], computed like the learner's from the Q values recorded when acting."""
        steps = tree.to_torch(window)
        trained_t = self._trained(steps)
        errors = self._td_errors(steps, steps.extras[Q], steps.extras[Q], trained_t)
        return sequence_priority(td_priority(errors, self._streams), trained_t, self.config.eta).numpy()

    def _trained(self, steps: Trajectory[Tensor]) -> Tensor:
        """Loss mask, bool [T, B]: valid steps after burn-in, or all valid ones if the sequence starts an episode."""
        after = torch.arange(steps.length, device=steps.valid.device) >= self.config.burn_in  # [T]
        return steps.valid & (after.unsqueeze(1) | steps.first[0])

    def _td_errors(self, steps: Trajectory[Tensor], q: Values, q_target: Values, trained_t: Tensor) -> Values:
        """TD errors target - Q(s_t, a_t) [T, B] per stream, 0 on masked steps; q, q_target: [T+1, B, A]."""
        selector = self.combine_q(q if self.config.double else q_target, steps.carry)
        errors = {}
        for stream in self._streams:
            target = self._td_target(steps, stream, selector, q_target[stream.name])
            errors[stream.name] = td_error(batched_index(q[stream.name][:-1], steps.action), target, trained_t)
        return errors

    def _td_target(self, steps: Trajectory[Tensor], stream: StreamSpec, selector: Tensor, q_target: Tensor) -> Tensor:
        """Rescaled targets h(G_t) [T, B] for the policy that is greedy in `selector` [T+1, B, A]: n-step or Retrace."""
        terms, transform = self.terms(steps, stream), self._transform
        if self.config.retrace is None:
            v = batched_index(q_target, selector.argmax(-1))  # [T+1, B]
            n = self.config.n_step
            return n_step_target(terms.r_t, terms.discount_t, v[:-1], v[1:], n, terms.valid_t, transform)
        lambda_, epsilon = self.config.retrace, self.config.eval_epsilon
        return retrace_target(steps, terms, selector, q_target, lambda_, epsilon, transform)

    def _begun(self, model: Network, steps: Trajectory[Tensor]) -> Trajectory[Tensor]:
        """The steps, with a zero initial state unless stored states are used."""
        if self.config.state == "stored":
            return steps
        return replace(steps, carry={**steps.carry, "state": model.initial_carry(steps.batch_size)["state"]})

    def _drift(self, model: Network, steps: Trajectory[Tensor], q: Tensor, trained_t: Tensor) -> Values:
        """Delta-Q at the first step after burn-in and at the last step, over sequences that are long enough.

        Both states are evaluated with the current weights, so this measures stale states and not learning progress.
        q: [T+1, B, A].
        """
        count = steps.valid.sum(0)  # [B]
        each = torch.arange(len(count), device=count.device)
        reaches, counts = select_rows(each, count > self.config.burn_in)  # [b]
        if len(reaches) == 0:
            return {}
        last = (count[reaches] - 1).clamp(min=0)
        where = torch.stack([torch.full_like(last, self.config.burn_in), last]), reaches
        recorded = model.decode(tree.map(lambda leaf: leaf[where], steps.extras[FEATURES]))
        combined_q = self.combine_q(recorded, tree.map(lambda leaf: leaf[reaches], steps.carry))  # [2, b, A]
        first, end = delta_q(q[where], combined_q, q[:-1, reaches], trained_t[:, reaches])  # [b] each
        return {"delta_q_first": mean_of(first, counts), "delta_q_last": mean_of(end, counts)}
