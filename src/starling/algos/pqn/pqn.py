"""PQN (2407.04811): on-policy Q(lambda) with parallel envs, without replay or target network.

Layer normalization in the network (net.torso.norm=layer) stabilizes training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from gymnasium import spaces

from starling import tree
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, network_optimizers
from starling.algos.pqn.config import PQNConfig
from starling.algos.q_learning import MU, retrace_target
from starling.algos.tables import rollout_table
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.nets.normalizers import MovingMean
from starling.ops.devices import select_rows
from starling.ops.explore import epsilon_greedy, epsilon_greedy_probability, epsilon_metrics
from starling.ops.policy import masked_mean
from starling.ops.returns import lambda_return
from starling.ops.streams import bootstrap_from_reset, stream_terms, total, weighted_total
from starling.ops.value import batched_index, huber
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, Progress, StreamSpec, Tensor, Trajectory


class PQN(Algorithm):
    """One Q head per stream; the policy is epsilon-greedy in their weighted sum."""

    def __init__(self, config: PQNConfig, net: NetConfig) -> None:
        self.config, self.net = config, net
        self._streams = self.streams()
        self._has_memory = net.has_memory
        self._optimizers = network_optimizers(net, "q", config.optimizer)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount, lambda_=self.config.q_lambda),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        if not isinstance(env.action, spaces.Discrete):
            raise UserError(f"{self.config.name} needs a Discrete action space; {env.id} has {env.action}")
        self._streams = streams
        heads = {s.name: HeadSpec("q", network=self.net.network_of("q", s.name)) for s in streams}
        network = build_network(env, self.net, heads, tuple(stream.name for stream in streams))
        network.reset_values.update({stream.name: MovingMean() for stream in streams if not stream.episodic})
        return network

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        most = num_envs if self._has_memory else num_envs * self.config.rollout
        if self.config.minibatches > most:
            what = "envs (a recurrent batch is split by env)" if self._has_memory else "steps"
            raise UserError(f"algo.minibatches={self.config.minibatches} is more than the batch's {most} {what}")
        return (rollout_table(length=self.config.rollout, num_envs=num_envs),)

    def learning(self) -> LearnSpec:
        return LearnSpec(
            optimizers=self._optimizers,
            epochs=self.config.epochs,
            minibatches=self.config.minibatches,
            split="env" if self._has_memory else "step",
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        q, state = model.step(inputs.obs, inputs.first, inputs.carry)
        epsilon = self._epsilon(inputs.progress) if inputs.explore else self.config.eval_epsilon
        combined_q = weighted_total(q, self._streams)
        action = epsilon_greedy(combined_q, epsilon, inputs.noise(2))
        extras = {} if self.config.retrace is None else {MU: epsilon_greedy_probability(combined_q, epsilon, action)}
        return ActOutput(action, extras, state)

    def exploration_metrics(self, progress: Progress, num_envs: int) -> dict[str, float]:
        return epsilon_metrics(self._epsilon(progress))

    def _epsilon(self, progress: Progress) -> float:
        return self.config.epsilon.at(progress)

    def prepare(self, model: Network, target_net: None, batch: Batch) -> Batch:
        """Compute targets [T, B] per stream with the current network, once for all epochs.

        G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1}), or Retrace's.
        """
        trajectory = batch.trajectory
        q, _, _ = model.unroll_trajectory(trajectory)
        combined_q = weighted_total(q, self._streams)  # [T+1, B, A]
        greedy = combined_q.argmax(-1)  # [T+1, B]
        targets = {}
        for stream in self._streams:
            if self.config.retrace is not None:
                targets[stream.name] = self._retrace(model, trajectory, stream, combined_q, q[stream.name])
                continue
            v, terms = batched_index(q[stream.name], greedy), stream_terms(trajectory, stream)
            v_tp1 = v[1:] if stream.episodic else self._next_values(model.reset_values[stream.name], trajectory, v)
            targets[stream.name] = lambda_return(
                terms.r_t, terms.discount_t, v[:-1], v_tp1, terms.lambda_t, terms.valid_t
            )
        return replace(batch, prepared=targets)

    @staticmethod
    def _next_values(reset_value: Any, trajectory: Trajectory[Tensor], v: Tensor) -> Tensor:
        """Values [T, B] of the next observations for a non-episodic stream, from values [T+1, B] of all observations.

        The value of a final observation, which never gets a target, is replaced by the mean value at reset.
        """
        firsts, counts = select_rows(v.flatten(), trajectory.first.flatten())
        reset_value.update(firsts, torch.ones_like(firsts), counts)
        return torch.where(trajectory.terminated | trajectory.truncated, reset_value.value().to(v), v[1:])

    def _retrace(
        self, model: Network, trajectory: Trajectory[Tensor], stream: StreamSpec, selector: Tensor, q: Tensor
    ) -> Tensor:
        """Retrace's targets [T, B] for the policy that is epsilon-greedy in `selector` [T+1, B, A]; no trace crosses
        episodes, so a non-episodic stream continues with the mean value at reset.
        """
        assert self.config.retrace is not None, "called only with algo.retrace"
        if not stream.episodic:
            reset_value: Any = model.reset_values[stream.name]
            firsts, counts = select_rows(batched_index(q, selector.argmax(-1)).flatten(), trajectory.first.flatten())
            reset_value.update(firsts, torch.ones_like(firsts), counts)
            q = bootstrap_from_reset(q, trajectory.terminated | trajectory.truncated, reset_value.value())
        terms = stream_terms(trajectory, stream, crosses_episodes=False)
        return retrace_target(trajectory, terms, selector, q, self.config.retrace, self.config.eval_epsilon)

    def loss(self, model: Network, target_net: None, batch: Batch) -> Loss:
        """Mean over valid steps of 1/2 (G_t - Q(s_t, a_t))^2, or the Huber loss, summed over streams."""
        trajectory, length = batch.trajectory, batch.trajectory.length
        obs = tree.map(lambda leaf: leaf[:length], trajectory.obs)
        q, _, _ = model.unroll(
            obs,
            trajectory.first[:length],
            trajectory.action,
            trajectory.rewards,
            trajectory.carry,
            resets=trajectory.resets,
        )
        values = {stream.name: batched_index(q[stream.name], trajectory.action) for stream in self._streams}  # [T, B]
        errors = [batch.prepared[name] - value for name, value in values.items()]
        delta = self.config.huber
        penalty = total([error.square() / 2 if delta is None else huber(error, delta) for error in errors])
        loss = masked_mean(penalty, trajectory.valid)
        return Loss(
            losses=dict.fromkeys(self._optimizers, loss),
            metrics=lambda: {
                "q": loss,
                "q_values": masked_mean(weighted_total(values, self._streams), trajectory.valid),
            },
        )
