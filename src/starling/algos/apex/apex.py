"""Ape-X (1803.00933): DQN with a per-env epsilon and initial priorities computed by the actors."""

from __future__ import annotations

from starling import tree
from starling.algos.apex.config import ApeXConfig
from starling.algos.dqn.dqn import DQN
from starling.algos.q_learning import Q, Values, td_priority
from starling.ops.explore import ladder
from starling.ops.value import batched_index
from starling.types import NDArray, Progress, Tensor, Trajectory, Tree

TAKEN, BEST = "taken", "best"
"""Recorded Q values per stream: of the action taken, and of the greedy action."""


class ApeX(DQN):
    """Network, loss, and tables are those of DQN."""

    config: ApeXConfig

    def training_epsilon(self, progress: Progress, env_index: Tensor, num_envs: int) -> Tensor:
        return ladder_epsilon(self.config, progress, env_index, num_envs)

    def extra_outputs(self, q: Values, combined_q: Tensor, action: Tensor) -> dict[str, Tree]:
        if self.config.retrace is not None:
            return {Q: q}
        best = combined_q.argmax(-1)
        return {
            TAKEN: {name: batched_index(values, action) for name, values in q.items()},
            BEST: {name: batched_index(values, best) for name, values in q.items()},
        }

    def priority(self, sequence: Trajectory[NDArray]) -> NDArray:
        """Absolute TD errors [B] of the first steps, computed from the Q values recorded when acting (section 3)."""
        trajectory = tree.to_torch(sequence)
        if self.config.retrace is None:
            first = {name: q[0] for name, q in trajectory.extras[TAKEN].items()}
            targets = self.n_step_targets(trajectory, {name: q[-1] for name, q in trajectory.extras[BEST].items()})
        else:
            q = trajectory.extras[Q]
            first = {name: batched_index(values[0], trajectory.action[0]) for name, values in q.items()}
            targets = self.retrace_targets(trajectory, q, q)
        errors = {name: targets[name] - value for name, value in first.items()}
        return td_priority(errors, self._streams).numpy()


def ladder_epsilon(config: ApeXConfig, progress: Progress, index: Tensor, count: int) -> Tensor:
    """Epsilons [B] of the envs (or policies) with these indices [B] out of `count`: eps^(1 + ladder * i / (N - 1))."""
    return ladder(index, count, config.epsilon.at(progress), config.ladder)
