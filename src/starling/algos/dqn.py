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
from starling.ops.streams import stream_terms, total, weighted_total
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

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        q, _ = model.step(inputs.obs, inputs.first, inputs.carry)
        mixed = weighted_total(q, self._streams)
        return ActOutput(epsilon_greedy(mixed, self.epsilon(inputs), inputs.noise(2)), extras={})

    def epsilon(self, inputs: ActInput) -> float:
        """How likely a row acts at random."""
        if not inputs.explore:
            return self.config.eval_epsilon
        return self.config.epsilon.at(inputs.progress.env_steps, inputs.progress.fraction)

    def loss(self, model: Network, target: Network, batch: Batch) -> Loss:
        steps = batch.trajectory
        q_t, q_target = self._q(model, steps, 0), self._q(target, steps, -1)
        with torch.no_grad():
            chooser = self._q(model, steps, -1) if self.config.double else q_target
            best = weighted_total(chooser, self._streams).argmax(-1)  # [B]
        errors, values = {}, {}
        for stream in self._streams:
            terms = stream_terms(steps, stream)
            goal = window_return(terms.r_t, terms.discount_t, take(q_target[stream.name], best), terms.valid_t)
            values[stream.name] = take(q_t[stream.name], steps.action[0])
            errors[stream.name] = goal - values[stream.name]
        loss = (batch.weight * total([huber(error, self.config.huber) for error in errors.values()])).mean()
        sizes = {name: error.detach().abs() for name, error in errors.items()} if self.config.prioritized else None
        return Loss(
            losses={"q": loss},
            metrics=lambda: {"q": loss, "value": weighted_total(values, self._streams).mean()},
            priorities=None if sizes is None else weighted_total(sizes, self._streams),
        )

    @staticmethod
    def _q(network: Network, steps: Trajectory[Tensor], t: int) -> dict[str, Tensor]:
        """Q values [B, A] a stream at the observations of row `t`."""
        outputs, _ = network.step(tree.map(lambda leaf: leaf[t], steps.obs), steps.first[t], {})
        return outputs
