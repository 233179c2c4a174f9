"""Which of several policies (arms) each env plays: a fixed one, or for each episode the choice of a bandit."""

from __future__ import annotations

from typing import Any

import torch

from starling.config.bandits import BanditConfig
from starling.intrinsic.bandit import Bandit
from starling.types import Tensor


def make_bandit(arms: int, config: BanditConfig) -> Bandit:
    """Create a bandit over `arms` from its settings."""
    return Bandit(arms, config.window, kind=config.kind, epsilon=config.epsilon, bonus=config.bonus)


class Arms:
    """The arms of B envs; without a bandit, each env has a fixed one, and without exploration the one it is given."""

    def __init__(self, count: int, config: BanditConfig | None) -> None:
        self.count = count
        self.bandit = None if config is None else make_bandit(count, config)

    def initial_state(self, num_envs: int) -> dict[str, Any]:
        """State of B envs; the arm is part of the carry."""
        return {
            "carry": {"arm": torch.zeros(num_envs, dtype=torch.int64)},
            "total": torch.zeros(num_envs),  # extrinsic return of the current episode
            "bandit": {} if self.bandit is None else self.bandit.state(num_envs),
        }

    def change(self, seen: Any, state: dict[str, Any]) -> None:
        """Update the bandits with the returns of ended episodes, and choose the arms of new episodes.

        An episode that was interrupted (by a checkpoint, `env.stagger`, or a fault of the env) has no end: no bandit
        learns from it.

        Args:
            seen: The `IntrinsicInput` of the last step.
            state: As made by `initial_state`; changed in place.
        """
        arm, total = state["carry"]["arm"], state["total"]
        total += seen.reward.float().masked_fill(seen.first, 0.0)
        if self.bandit is not None and seen.explore:
            ended: Tensor = seen.ends
            self.bandit.learn(state["bandit"], ended, arm[ended], total[ended])
        begun: Tensor = seen.begins
        if len(begun) == 0:
            return
        if not seen.explore:
            arm[begun] = seen.arm[begun]
        elif self.bandit is None:
            arm[begun] = seen.env_index[begun] % self.count
        else:
            arm[begun] = self.bandit.choose(state["bandit"], begun, seen.noise(2)[begun])
        total[begun] = 0.0
