"""DQN (Mnih 2015), with optional double Q-learning (1509.06461), dueling networks (1511.06581), n-step returns, and
prioritized replay (1511.05952).
"""

from __future__ import annotations

import torch

from starling import tree
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, OptimizerSpec, TargetSpec
from starling.algos.dqn.config import DQNConfig
from starling.algos.q_learning import (
    Values,
    add_reset_values,
    importance_exponent,
    n_step_table,
    q_heads,
    substitute_reset_values,
    td_priority,
    update_reset_values,
)
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import Network, build_network
from starling.ops.explore import epsilon_greedy, epsilon_metrics
from starling.ops.returns import window_return
from starling.ops.streams import stream_terms, total, weighted_total
from starling.ops.value import IDENTITY, huber, take
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, Progress, StreamSpec, Tensor, Trajectory, Tree


class DQN(Algorithm):
    """One Q head per stream; the policy is greedy in their weighted sum."""

    def __init__(self, config: DQNConfig, net: NetConfig) -> None:
        if net.core.kind != "none" or net.inputs:
            raise UserError(f"{config.name} learns from single transitions: set net.core.kind=none and net.inputs=[]")
        self.config, self.net = config, net
        self._streams = self.streams()

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        network = build_network(env, self.net, q_heads(env, streams, self.config))
        add_reset_values(network, streams)
        return network

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        return (n_step_table(self.config),)

    def learning(self) -> LearnSpec:
        """One optimizer; the learner copies the network to the target network every `target_every` updates."""
        return LearnSpec(
            optimizers={"q": OptimizerSpec(self.config.optimizer)},
            target=TargetSpec(every=self.config.target_every),
            importance_exponent=importance_exponent(self.config.prioritized),
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        q, _ = model.step(inputs.obs, inputs.first, inputs.carry)
        combined_q = weighted_total(q, self._streams)
        action = epsilon_greedy(combined_q, self.epsilon(inputs), inputs.noise(2))
        return ActOutput(action, self.record(q, combined_q, action))

    def epsilon(self, inputs: ActInput) -> Tensor | float:
        """The probability of a random action: one number, or one per env [B]."""
        if not inputs.explore:
            return self.config.eval_epsilon
        return self.training_epsilon(inputs.progress, inputs.env_index, inputs.num_envs)

    def training_epsilon(self, progress: Progress, env_index: Tensor, num_envs: int) -> Tensor | float:
        """Epsilon when training of the envs with indices `env_index` [B]: one number, or one per env [B].

        `progress` is that of the weights that act, so it changes when new weights are loaded, not at every step.
        """
        return self.config.epsilon.at(progress.env_steps, progress.fraction)

    def exploration(self, progress: Progress, num_envs: int) -> dict[str, float]:
        return epsilon_metrics(self.training_epsilon(progress, torch.arange(num_envs), num_envs))

    def record(self, q: Values, combined_q: Tensor, action: Tensor) -> dict[str, Tree]:
        """Extras to record with an action [B], given Q values [B, A] per stream and their weighted sum; here none."""
        return {}

    def prepare(self, model: Network, target_net: Network, batch: Batch) -> Batch:
        update_reset_values(model, target_net, batch, self._streams, IDENTITY)
        return batch

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        """Huber loss of the n-step TD errors, with importance weights; a batch has sequences of n steps."""
        steps = batch.trajectory
        q_0 = _q_values(model, steps, 0)  # Q(s_0, .) [B, A] per stream
        with torch.no_grad():
            ended = (steps.terminated | steps.truncated).any(0)  # [B]
            q_n = substitute_reset_values(model, _q_values(target_net, steps, -1), ended, IDENTITY)  # Q_target(s_n, .)
            selector = q_n
            if self.config.double:
                selector = substitute_reset_values(model, _q_values(model, steps, -1), ended, IDENTITY)
            best = weighted_total(selector, self._streams).argmax(-1)  # a* [B], greedy in s_n
        values = {name: take(q, steps.action[0]) for name, q in q_0.items()}
        errors = self.td_errors(steps, values, {name: take(q, best) for name, q in q_n.items()})
        loss = (batch.weight * total([huber(error, self.config.huber) for error in errors.values()])).mean()
        return Loss(
            losses={"q": loss},
            metrics=lambda: {"q": loss, "q_values": weighted_total(values, self._streams).mean()},
            priorities=td_priority(errors, self._streams) if self.config.prioritized else None,
        )

    def td_errors(self, steps: Trajectory[Tensor], values: Values, bootstrap: Values) -> Values:
        """n-step TD errors [B] per stream: r_0 + γ r_1 + ... + γ^(n-1) r_{n-1} + γ^n v(s_n) − Q(s_0, a_0).

        Args:
            steps: Sequences [n, B].
            values: Q(s_0, a_0) [B] per stream.
            bootstrap: v(s_n) [B] per stream. In the loss it is Q_target(s_n, a*), with a* = argmax_a Q_target(s_n, a),
                or argmax_a Q(s_n, a) with double Q-learning.
        """
        errors = {}
        for stream in self._streams:
            terms = stream_terms(steps, stream, whole=False)
            target = window_return(terms.r_t, terms.discount_t, bootstrap[stream.name], terms.valid_t)
            errors[stream.name] = target - values[stream.name]
        return errors


def _q_values(network: Network, steps: Trajectory[Tensor], t: int) -> Values:
    """Q values [B, A] per stream at obs[t]."""
    outputs, _ = network.step(tree.map(lambda leaf: leaf[t], steps.obs), steps.first[t], {})
    return outputs
