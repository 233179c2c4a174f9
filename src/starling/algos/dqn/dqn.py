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
    importance_exponent,
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
        """One optimizer; the learner copies the network to the target network every `target_every` updates."""
        return LearnSpec(
            optimizers=self._optimizers,
            target=TargetSpec(every=self.config.target_every),
            importance_exponent=importance_exponent(self.config.prioritized),
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        q, _ = model.step(inputs.obs, inputs.first, inputs.carry)
        combined_q = weighted_total(q, self._streams)
        epsilon = self.epsilon(inputs)
        action = epsilon_greedy(combined_q, epsilon, inputs.noise(2))
        extras = self.record(q, combined_q, action)
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
        return self.config.epsilon.at(progress.env_steps, progress.fraction)

    def exploration(self, progress: Progress, num_envs: int) -> dict[str, float]:
        if self._bandit is not None:
            return self._bandit.exploration(progress)
        return epsilon_metrics(self.training_epsilon(progress, torch.arange(num_envs), num_envs))

    def record(self, q: Values, combined_q: Tensor, action: Tensor) -> dict[str, Tree]:
        """Extras to record with an action [B], given Q values [B, A] per stream and their weighted sum; here none."""
        return {}

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        return {} if self._bandit is None else self._bandit.arms.initial_state(num_envs)

    def intrinsic_rewards(self, model: Any, seen: IntrinsicInput, state: dict[str, Any]) -> dict[str, Tensor]:
        """Let the bandits choose; there are no rewards."""
        if self._bandit is not None:
            self._bandit.arms.change(seen, state)
        return {}

    def prepare(self, model: Network, target_net: Network, batch: Batch) -> Batch:
        update_reset_values(model, target_net, batch, self._streams, IDENTITY)
        return batch

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        """Huber loss of the n-step TD errors, with importance weights; a batch has sequences of n steps."""
        steps = batch.trajectory
        q_0 = _q_values(model, steps, 0)  # Q(s_0, .) [B, A] per stream
        values = {name: batched_index(q, steps.action[0]) for name, q in q_0.items()}
        with torch.no_grad():
            if self.config.retrace is None:
                targets = self.n_step_targets(steps, self._bootstrap(model, target_net, steps))
            else:
                targets = self.retrace_targets(steps, *self._whole(model, target_net, steps))
        errors = {name: targets[name] - value for name, value in values.items()}
        loss = (batch.weight * total([huber(error, self.config.huber) for error in errors.values()])).mean()
        return Loss(
            losses=dict.fromkeys(self._optimizers, loss),
            metrics=lambda: {"q": loss, "q_values": weighted_total(values, self._streams).mean()},
            priorities=td_priority(errors, self._streams) if self.config.prioritized else None,
        )

    def _bootstrap(self, model: Network, target_net: Network, steps: Trajectory[Tensor]) -> Values:
        """Q_target(s_n, a*) [B] per stream: a* = argmax_a Q_target(s_n, a), or argmax_a Q(s_n, a) with double."""
        ended = (steps.terminated | steps.truncated).any(0)  # [B]
        selector = q_n = substitute_reset_values(model, _q_values(target_net, steps, -1), ended, IDENTITY)
        if self.config.double:
            selector = substitute_reset_values(model, _q_values(model, steps, -1), ended, IDENTITY)
        best = weighted_total(selector, self._streams).argmax(-1)  # [B]
        return {name: batched_index(q, best) for name, q in q_n.items()}

    def n_step_targets(self, steps: Trajectory[Tensor], bootstrap: Values) -> Values:
        """r_0 + γ r_1 + ... + γ^(n-1) r_{n-1} + γ^n v(s_n) [B] per stream, with `bootstrap` v(s_n) [B]."""
        targets = {}
        for stream in self._streams:
            terms = stream_terms(steps, stream, crosses_episodes=False)
            targets[stream.name] = window_return(terms.r_t, terms.discount_t, bootstrap[stream.name], terms.valid_t)
        return targets

    def _whole(self, model: Network, target_net: Network, steps: Trajectory[Tensor]) -> tuple[Values, Values]:
        """Q values [n+1, B, A] per stream at all observations: those that the policy is greedy in, and the target's."""
        ended_t = steps.terminated | steps.truncated
        q_target = substitute_reset_values(model, target_net.unroll_trajectory(steps)[0], ended_t, IDENTITY)
        if not self.config.double:
            return q_target, q_target
        return substitute_reset_values(model, model.unroll_trajectory(steps)[0], ended_t, IDENTITY), q_target

    def retrace_targets(self, steps: Trajectory[Tensor], q: Values, q_target: Values) -> Values:
        """Retrace's targets [B] of the first step per stream, for the policy that is epsilon-greedy in `q`."""
        selector, lambda_, epsilon = weighted_total(q, self._streams), self.config.retrace, self.config.eval_epsilon
        assert lambda_ is not None, "called only with algo.retrace"
        targets = {}
        for stream in self._streams:
            terms = stream_terms(steps, stream, crosses_episodes=False)
            targets[stream.name] = retrace_target(steps, terms, selector, q_target[stream.name], lambda_, epsilon)[0]
        return targets


def _q_values(network: Network, steps: Trajectory[Tensor], t: int) -> Values:
    """Q values [B, A] per stream at obs[t]."""
    outputs, _ = network.step(tree.map(lambda leaf: leaf[t], steps.obs), steps.first[t], {})
    return outputs
