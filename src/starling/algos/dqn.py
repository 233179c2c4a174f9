"""Deep Q-learning (Mnih 2015), with double (1509.06461), dueling (1511.06581), n-step and prioritized replay
(1511.05952), each by one switch.
"""

from __future__ import annotations

import torch
from gymnasium import spaces

from starling import tree
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, OptimizerSpec, TargetSpec
from starling.config.algo.dqn import DQNConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.ops.explore import epsilon_greedy
from starling.ops.returns import window_return
from starling.ops.streams import stream_terms, total
from starling.ops.value import huber, take
from starling.store.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor, Trajectory


class DQN(Algorithm):
    """A Q head a stream; the policy is greedy in their weighted sum."""

    def __init__(self, config: DQNConfig, net: NetConfig) -> None:
        if net.core.kind != "none" or net.inputs:
            raise UserError("dqn learns from single transitions: set net.core.kind=none and net.inputs=[]")
        self.config, self.net = config, net
        self._streams = self.streams()

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        if not isinstance(env.action, spaces.Discrete):
            raise UserError(f"dqn needs a Discrete action space; {env.id} has {env.action}")
        self._streams = streams
        kind = "dueling" if self.config.dueling else "q"
        return build_network(env, self.net, {stream.name: HeadSpec(kind) for stream in streams})

    def tables(self, rows: int) -> tuple[TableSpec, ...]:
        config, prioritized = self.config, self.config.prioritized
        return (
            TableSpec(
                name="replay",
                storage="ring",
                length=config.n_step,
                batch=config.batch,
                capacity=config.capacity,
                sampler="prioritized" if prioritized else "uniform",
                priority_exponent=prioritized.alpha if prioritized else 0.0,
                fragment=config.fragment,
                min_size=max(config.learning_starts, config.batch),
                updates_per_step=config.updates_per_step,
            ),
        )

    def learning(self) -> LearnSpec:
        prioritized = self.config.prioritized
        return LearnSpec(
            optimizers={"q": OptimizerSpec(self.config.optimizer)},
            target=TargetSpec(every=self.config.target_every),
            importance_exponent=None if prioritized is None else lambda p: prioritized.beta.at(p.env_steps, p.fraction),
        )

    def epsilon(self, inputs: ActInput) -> Tensor:
        """How likely each row acts at random, [B]."""
        progress = inputs.progress
        value = self.config.epsilon.at(progress.env_steps, progress.fraction) if inputs.explore else None
        return torch.full_like(inputs.rows, self.config.eval_epsilon if value is None else value, dtype=torch.float32)

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        q, _ = model.step(inputs.obs, inputs.first, inputs.carry)
        return ActOutput(epsilon_greedy(self._mixed(q), self.epsilon(inputs), inputs.noise(2)), extras={})

    def loss(self, model: Network, target: Network, batch: Batch) -> Loss:
        steps = batch.trajectory
        q_t, first = self._q(model, steps, 0), steps.action[0]
        q_target = self._q(target, steps, -1)
        with torch.no_grad():
            chooser = self._q(model, steps, -1) if self.config.double else q_target
            best = self._mixed(chooser).argmax(-1)  # [B]
        losses, errors, values = [], [], []
        for stream in self._streams:
            terms = stream_terms(steps, stream)
            goal = window_return(terms.r_t, terms.discount_t, take(q_target[stream.name], best), terms.valid_t)
            value = take(q_t[stream.name], first)
            error = goal - value
            losses.append((batch.weight * huber(error, self.config.huber)).mean())
            errors.append(stream.weight * error.detach().abs())
            values.append(stream.weight * value.detach())
        loss = total(losses)
        return Loss(
            losses={"q": loss},
            metrics={"q": loss, "value": total(values).mean()},
            priorities=total(errors) if self.config.prioritized else None,
        )

    def _mixed(self, q: dict[str, Tensor]) -> Tensor:
        """The Q values that are acted on: the streams by weight, [B, A]."""
        return total([stream.weight * q[stream.name] for stream in self._streams])

    @staticmethod
    def _q(network: Network, steps: Trajectory[Tensor], t: int) -> dict[str, Tensor]:
        """Q values [B, A] a stream at the observations of row `t`."""
        outputs, _ = network.step(tree.map(lambda leaf: leaf[t], steps.obs), steps.first[t], {})
        return outputs
