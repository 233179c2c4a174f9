"""DQN (Mnih 2015), with optional double Q-learning (1509.06461), dueling networks (1511.06581), n-step returns, and
prioritized replay (1511.05952), or Retrace (1606.02647).
"""

from __future__ import annotations

from typing import Any

import torch

from starling import tree
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
from starling.algos.dqn.config import DQNConfig
from starling.algos.q_learning import (
    MU,
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
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import Network, build_network
from starling.ops.explore import epsilon_greedy, epsilon_greedy_probability, epsilon_metrics
from starling.ops.returns import window_return
from starling.ops.streams import stream_terms, total, weighted_total
from starling.ops.value import IDENTITY, batched_index, huber
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, Progress, StreamSpec, Tensor, Trajectory, Tree


class DQN(Algorithm):
    """One Q head per stream; the policy is greedy in their weighted sum."""

    def __init__(self, config: DQNConfig, net: NetConfig) -> None:
        if net.has_memory:
            raise UserError(f"{config.name} learns from single transitions: set net.core.kind=none and net.inputs=[]")
        self.config, self.net = config, net
        self._streams = self.streams()
        self._optimizers = network_optimizers(net, "q", config.optimizer)
        self._bandit = make_epsilon_bandit(config)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        network = build_network(env, self.net, q_heads(env, streams, self.config, self.net))
        add_reset_values(network, streams)
        if self._bandit is not None:
            network.extra_carry["arm"] = torch.int64
        return network

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        return (n_step_table(self.config),)

    def learning(self) -> LearnSpec:
        """Optimizers of the Q network; it is copied to the target network every `target_every` updates."""
        return LearnSpec(
            optimizers=self._optimizers,
            target=TargetSpec(every=self.config.target_every),
            importance_beta=beta_schedule(self.config.prioritized),
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        q, _ = model.step(inputs.obs, inputs.first, inputs.carry)
        combined_q = weighted_total(q, self._streams)
        epsilon = self.epsilon(inputs)
        action = epsilon_greedy(combined_q, epsilon, inputs.noise(2))
        extras = self.extra_outputs(q, combined_q, action)
        if self.config.retrace is not None:
            extras[MU] = epsilon_greedy_probability(combined_q, epsilon, action)
        return ActOutput(action, extras)

    def epsilon(self, inputs: ActInput) -> Tensor | float:
        """The probability of a random action: one number, or one per env [B]."""
        if not inputs.explore:
            return self.config.eval_epsilon
        if self._bandit is not None:
            return self._bandit.epsilon(inputs.progress, inputs.carry["arm"])
        return self.training_epsilon(inputs.progress, inputs.env_index, inputs.num_envs)

    def training_epsilon(self, progress: Progress, env_index: Tensor, num_envs: int) -> Tensor | float:
        """Epsilon when training of the envs with indices `env_index` [B]: one number, or one per env [B].

        `progress` is that of the weights that act, so it changes when new weights are loaded, not at every step.
        """
        return self.config.epsilon.at(progress)

    def exploration_metrics(self, progress: Progress, num_envs: int) -> dict[str, float]:
        if self._bandit is not None:
            return self._bandit.exploration_metrics(progress)
        return epsilon_metrics(self.training_epsilon(progress, torch.arange(num_envs), num_envs))

    def extra_outputs(self, q: Values, combined_q: Tensor, action: Tensor) -> dict[str, Tree]:
        """More to record with an action [B], given Q values [B, A] per stream and their weighted sum; here nothing."""
        return {}

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        return {} if self._bandit is None else self._bandit.arms.initial_state(num_envs)

    def after_step(self, seen: IntrinsicInput, state: dict[str, Any]) -> None:
        if self._bandit is not None:
            self._bandit.arms.change(seen, state)

    def prepare(self, model: Network, target_net: Network, batch: Batch) -> Batch:
        update_reset_values(model, target_net, batch, self._streams, IDENTITY)
        return batch

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        """Huber loss of the n-step TD errors, with importance weights; a batch has sequences of n steps."""
        trajectory = batch.trajectory
        q_0 = _q_values(model, trajectory, 0)  # Q(s_0, .) [B, A] per stream
        values = {name: batched_index(q, trajectory.action[0]) for name, q in q_0.items()}
        with torch.no_grad():
            if self.config.retrace is None:
                targets = self.n_step_targets(trajectory, self._bootstrap(model, target_net, trajectory))
            else:
                targets = self.retrace_targets(trajectory, *self._q_at_all_steps(model, target_net, trajectory))
        errors = {name: targets[name] - value for name, value in values.items()}
        loss = (batch.weight * total([huber(error, self.config.huber) for error in errors.values()])).mean()
        return Loss(
            losses=dict.fromkeys(self._optimizers, loss),
            metrics=lambda: {"q": loss, "q_values": weighted_total(values, self._streams).mean()},
            priorities=td_priority(errors, self._streams) if self.config.prioritized else None,
        )

    def _bootstrap(self, model: Network, target_net: Network, trajectory: Trajectory[Tensor]) -> Values:
        """Q_target(s_n, a*) [B] per stream; a* = argmax_a Q(s_n, a) with double, else argmax_a Q_target(s_n, a)."""
        ended = (trajectory.terminated | trajectory.truncated).any(0)  # [B]

        def q_n(network: Network) -> Values:
            return substitute_reset_values(model.reset_values, _q_values(network, trajectory, -1), ended, IDENTITY)

        q_target = q_n(target_net)
        q_selector = q_n(model) if self.config.double else q_target
        best = weighted_total(q_selector, self._streams).argmax(-1)  # [B]
        return {name: batched_index(q, best) for name, q in q_target.items()}

    def n_step_targets(self, trajectory: Trajectory[Tensor], bootstrap: Values) -> Values:
        """r_0 + γ r_1 + ... + γ^(n-1) r_{n-1} + γ^n v(s_n) [B] per stream, with `bootstrap` v(s_n) [B]."""
        targets = {}
        for stream in self._streams:
            terms = stream_terms(trajectory, stream, crosses_episodes=False)
            targets[stream.name] = window_return(terms.r_t, terms.discount_t, bootstrap[stream.name], terms.valid_t)
        return targets

    def _q_at_all_steps(
        self, model: Network, target_net: Network, trajectory: Trajectory[Tensor]
    ) -> tuple[Values, Values]:
        """Q values [n+1, B, A] per stream at all observations: those that the policy is greedy in, and the target's."""
        ended_t = trajectory.terminated | trajectory.truncated

        def q_t(network: Network) -> Values:
            q, _, _ = network.unroll_trajectory(trajectory)
            return substitute_reset_values(model.reset_values, q, ended_t, IDENTITY)

        q_target = q_t(target_net)
        q_selector = q_t(model) if self.config.double else q_target
        return q_selector, q_target

    def retrace_targets(self, trajectory: Trajectory[Tensor], q_selector: Values, q_target: Values) -> Values:
        """Retrace's targets [B] of the first step per stream, for the policy that is epsilon-greedy in `q_selector`.

        Its epsilon is that of evaluations: the policy that is scored is the one to learn.
        """
        selector = weighted_total(q_selector, self._streams)
        lambda_, epsilon = self.config.retrace, self.config.eval_epsilon
        assert lambda_ is not None, "called only with algo.retrace"
        targets = {}
        for stream in self._streams:
            terms = stream_terms(trajectory, stream, crosses_episodes=False)
            target_t = retrace_target(trajectory, terms, selector, q_target[stream.name], lambda_, epsilon)
            targets[stream.name] = target_t[0]
        return targets


def _q_values(network: Network, trajectory: Trajectory[Tensor], t: int) -> Values:
    """Q values [B, A] per stream at obs[t]; t = -1 is the last observation."""
    obs = tree.map(lambda leaf: leaf[t], trajectory.obs)
    outputs, _ = network.step(obs, trajectory.first[t], {})  # no carry: the network has no memory
    return outputs
