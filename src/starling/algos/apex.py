"""Ape-X (1803.00933): DQN with a per-env epsilon and initial priorities computed by the actors."""

from __future__ import annotations

from starling import tree
from starling.algos.dqn import DQN
from starling.config.algo.apex import ApeXConfig
from starling.config.parts import NetConfig
from starling.ops.explore import ladder
from starling.ops.value import take
from starling.types import NDArray, Progress, Tensor, Trajectory, Tree

TAKEN, BEST = "taken", "best"
"""Recorded Q values per stream: of the action taken, and of the greedy action."""


class ApeX(DQN):
    """Network, loss, and tables are those of DQN."""

    def __init__(self, config: ApeXConfig, net: NetConfig) -> None:
        super().__init__(config, net)
        self._ladder = config.ladder

    def training_epsilon(self, progress: Progress, rows: Tensor, num_envs: int) -> Tensor | float:
        base = self.config.epsilon.at(progress.env_steps, progress.fraction)
        return ladder(rows, num_envs, base, self._ladder)

    def record(self, q: dict[str, Tensor], combined_q: Tensor, action: Tensor) -> dict[str, Tree]:
        best = combined_q.argmax(-1)
        return {
            TAKEN: {name: take(values, action) for name, values in q.items()},
            BEST: {name: take(values, best) for name, values in q.items()},
        }

    def priority(self, window: Trajectory[NDArray]) -> NDArray:
        """Absolute n-step TD errors [B], computed from the Q values recorded when acting (section 3)."""
        steps = tree.to_torch(window)
        first = {name: q[0] for name, q in steps.extras[TAKEN].items()}
        last = {name: q[-1] for name, q in steps.extras[BEST].items()}
        return self.td_priority(self.td_errors(steps, first, last)).numpy()
