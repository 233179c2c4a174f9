"""DQN (Mnih 2015), with optional double Q-learning (1509.06461), dueling networks (1511.06581), n-step returns, and
prioritized replay (1511.05952).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gymnasium import spaces

from starling import tree
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, OptimizerSpec, TargetSpec
from starling.algos.transitions import importance_exponent, replay
from starling.config.algo.dqn import DQNConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.nets.normalisers import MovingMean
from starling.ops.explore import epsilon_greedy, epsilon_metrics
from starling.ops.returns import window_return
from starling.ops.streams import bootstrap_from_reset, stream_terms, total, weighted_total
from starling.ops.transforms import IDENTITY, Transform
from starling.ops.value import huber, take
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, Progress, StreamSpec, Tensor, Trajectory, Tree


class DQN(Algorithm):
    """One Q head per stream; the policy is greedy in their weighted sum."""

    _transform: Transform = IDENTITY  # networks predict transform.apply(value)

    def __init__(self, config: DQNConfig, net: NetConfig) -> None:
        if net.core.kind != "none" or net.inputs:
            raise UserError(f"{config.name} learns from single transitions: set net.core.kind=none and net.inputs=[]")
        self.config, self.net = config, net
        self._streams = self.streams()

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        network = build_network(env, self.net, self.heads(env))
        network.reset_values.update({stream.name: MovingMean() for stream in streams if not stream.episodic})
        return network

    def heads(self, env: EnvSpec) -> dict[str, HeadSpec]:
        """One Q head per stream; the action space must be Discrete."""
        if not isinstance(env.action, spaces.Discrete):
            raise UserError(f"{self.config.name} needs a Discrete action space; {env.id} has {env.action}")
        head = HeadSpec("dueling", hidden=tuple(self.config.dueling_hidden)) if self.config.dueling else HeadSpec("q")
        return dict.fromkeys((stream.name for stream in self._streams), head)

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        return (replay(self.config),)

    def learning(self) -> LearnSpec:
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

    def training_epsilon(self, progress: Progress, rows: Tensor, num_envs: int) -> Tensor | float:
        """Training epsilon of the envs with indices `rows` [B] out of `num_envs`: one number, or one per env [B]."""
        return self.config.epsilon.at(progress.env_steps, progress.fraction)

    def exploration(self, progress: Progress, num_envs: int) -> dict[str, float]:
        return epsilon_metrics(self.training_epsilon(progress, torch.arange(num_envs), num_envs))

    def record(self, q: dict[str, Tensor], combined_q: Tensor, action: Tensor) -> dict[str, Tree]:
        """Extras to record with an action [B], given Q values [B, A] per stream and their weighted sum; here none."""
        return {}

    def prepare(self, model: Network, target_net: Network, batch: Batch) -> Batch:
        """Keep the mean of max_a Q_target(s_0, a) over first observations: non-episodic streams bootstrap from it."""
        steps = batch.trajectory
        starts = steps.first[0].nonzero().flatten() if model.reset_values else ()  # [n]
        if len(starts):
            obs, first, carry = tree.map(
                lambda leaf: leaf[starts], (tree.map(lambda leaf: leaf[0], steps.obs), steps.first[0], steps.carry)
            )
            q, _ = target_net.step(obs, first, carry)
            best = weighted_total(q, self._streams).argmax(-1)
            for name, mean in _reset_values(model):
                mean.update(self._transform.inverse(take(q[name], best)), batch.weight[starts])
        return batch

    def _at_ends(self, model: Network, q: dict[str, Tensor], ended_t: Tensor) -> dict[str, Tensor]:
        """For non-episodic streams, replace Q after the end of an episode by the mean value of a first observation."""
        values = {name: self._transform.apply(mean.value()) for name, mean in _reset_values(model)}
        return q | {name: bootstrap_from_reset(q[name], ended_t, value) for name, value in values.items()}

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        steps = batch.trajectory
        q_first = self._q(model, steps, 0)
        with torch.no_grad():
            ended = (steps.terminated | steps.truncated).any(0)  # [B]
            q_last = self._at_ends(model, self._q(target_net, steps, -1), ended)
            selector = self._at_ends(model, self._q(model, steps, -1), ended) if self.config.double else q_last
            best = weighted_total(selector, self._streams).argmax(-1)  # [B]
        values = {name: take(q, steps.action[0]) for name, q in q_first.items()}
        errors = self.td_errors(steps, values, {name: take(q, best) for name, q in q_last.items()})
        loss = (batch.weight * total([huber(error, self.config.huber) for error in errors.values()])).mean()
        return Loss(
            losses={"q": loss},
            metrics=lambda: {"q": loss, "value": weighted_total(values, self._streams).mean()},
            priorities=self.td_priority(errors) if self.config.prioritized else None,
        )

    def td_errors(
        self, steps: Trajectory[Tensor], values: dict[str, Tensor], bootstrap: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """n-step TD errors [B] per stream: r_1 + γ r_2 + ... + γ^n V(s_n) − Q(s_0, a_0); `bootstrap` is V(s_n)."""
        errors = {}
        for stream in self._streams:
            terms = stream_terms(steps, stream, whole=False)
            target = window_return(terms.r_t, terms.discount_t, bootstrap[stream.name], terms.valid_t)
            errors[stream.name] = target - values[stream.name]
        return errors

    def td_priority(self, errors: dict[str, Tensor]) -> Tensor:
        """Priorities [B]: absolute TD errors, weighted over streams."""
        return weighted_total({name: error.detach().abs() for name, error in errors.items()}, self._streams)

    @staticmethod
    def _q(network: Network, steps: Trajectory[Tensor], t: int) -> dict[str, Tensor]:
        """Q values [B, A] per stream at obs[t]."""
        outputs, _ = network.step(tree.map(lambda leaf: leaf[t], steps.obs), steps.first[t], {})
        return outputs


def _reset_values(model: Network) -> Iterator[tuple[str, MovingMean]]:
    """Yield the name of each non-episodic stream and the mean value of first observations."""
    for name, mean in model.reset_values.items():
        assert isinstance(mean, MovingMean)
        yield name, mean
