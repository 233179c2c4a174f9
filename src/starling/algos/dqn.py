"""Deep Q-learning (Mnih 2015), with double (1509.06461), dueling (1511.06581), n-step and prioritized replay
(1511.05952), each by one switch.
"""

from __future__ import annotations

import torch
from gymnasium import spaces

from starling import tree
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, OptimizerSpec, TargetSpec
from starling.algos.transitions import importance_exponent, replay
from starling.config.algo.dqn import DQNConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.ops.explore import epsilon_greedy, epsilon_metrics
from starling.ops.returns import window_return
from starling.ops.streams import stream_terms, total, weighted_total
from starling.ops.value import huber, take
from starling.store.spec import TableSpec
from starling.types import Batch, EnvSpec, Progress, StreamSpec, Tensor, Trajectory, Tree


class DQN(Algorithm):
    """A Q head a stream; the policy is greedy in their weighted sum."""

    def __init__(self, config: DQNConfig, net: NetConfig) -> None:
        if net.core.kind != "none" or net.inputs:
            raise UserError(f"{config.name} learns from single transitions: set net.core.kind=none and net.inputs=[]")
        self.config, self.net = config, net
        self._streams = self.streams()

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        self._streams = streams
        return build_network(env, self.net, self.heads(env))

    def heads(self, env: EnvSpec) -> dict[str, HeadSpec]:
        """A Q head a stream, for one choice out of finitely many."""
        if not isinstance(env.action, spaces.Discrete):
            raise UserError(f"{self.config.name} needs a Discrete action space; {env.id} has {env.action}")
        kind = "dueling" if self.config.dueling else "q"
        return {stream.name: HeadSpec(kind) for stream in self._streams}

    def tables(self, rows: int) -> tuple[TableSpec, ...]:
        return (replay(self.config),)

    def learning(self) -> LearnSpec:
        return LearnSpec(
            optimizers={"q": OptimizerSpec(self.config.optimizer)},
            target=TargetSpec(every=self.config.target_every),
            importance_exponent=importance_exponent(self.config.prioritized),
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        q, _ = model.step(inputs.obs, inputs.first, inputs.carry)
        mixed = weighted_total(q, self._streams)
        action = epsilon_greedy(mixed, self.epsilon(inputs), inputs.noise(2))
        return ActOutput(action, self.record(q, mixed, action))

    def epsilon(self, inputs: ActInput) -> Tensor | float:
        """How likely a row acts at random: a number, or one a row [B]."""
        if not inputs.explore:
            return self.config.eval_epsilon
        return self.training_epsilon(inputs.progress, inputs.rows, inputs.total_rows)

    def training_epsilon(self, progress: Progress, rows: Tensor, total_rows: int) -> Tensor | float:
        """Epsilon of env rows [B] out of `total_rows` in training: one number for all, or one per row [B]."""
        return self.config.epsilon.at(progress.env_steps, progress.fraction)

    def exploration(self, progress: Progress, total_rows: int) -> dict[str, float]:
        return epsilon_metrics(self.training_epsilon(progress, torch.arange(total_rows), total_rows))

    def record(self, q: dict[str, Tensor], mixed: Tensor, action: Tensor) -> dict[str, Tree]:
        """What to keep beside an action [B]: of its Q values [B, A] a stream and their weighted sum [B, A], nothing."""
        return {}

    def loss(self, model: Network, target: Network, batch: Batch) -> Loss:
        steps = batch.trajectory
        q_first = self._q(model, steps, 0)
        with torch.no_grad():
            q_last = self._q(target, steps, -1)
            selector = self._q(model, steps, -1) if self.config.double else q_last
            best = weighted_total(selector, self._streams).argmax(-1)  # [B]
        values = {name: take(q, steps.action[0]) for name, q in q_first.items()}
        errors = self.errors(steps, values, {name: take(q, best) for name, q in q_last.items()})
        loss = (batch.weight * total([huber(error, self.config.huber) for error in errors.values()])).mean()
        return Loss(
            losses={"q": loss},
            metrics=lambda: {"q": loss, "value": weighted_total(values, self._streams).mean()},
            priorities=self.surprise(errors) if self.config.prioritized else None,
        )

    def errors(
        self, steps: Trajectory[Tensor], values: dict[str, Tensor], bootstrap: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Goals less Q of the first action [B] a stream; a goal is n rewards, then the last observation's value [B]."""
        errors = {}
        for stream in self._streams:
            terms = stream_terms(steps, stream, whole=False)
            goal = window_return(terms.r_t, terms.discount_t, bootstrap[stream.name], terms.valid_t)
            errors[stream.name] = goal - values[stream.name]
        return errors

    def surprise(self, errors: dict[str, Tensor]) -> Tensor:
        """A window's priority [B]: the size of its errors [B] a stream, by the streams' weight."""
        return weighted_total({name: error.detach().abs() for name, error in errors.items()}, self._streams)

    @staticmethod
    def _q(network: Network, steps: Trajectory[Tensor], t: int) -> dict[str, Tensor]:
        """Q values [B, A] a stream at the observations of row `t`."""
        outputs, _ = network.step(tree.map(lambda leaf: leaf[t], steps.obs), steps.first[t], {})
        return outputs
