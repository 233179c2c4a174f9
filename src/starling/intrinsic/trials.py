"""An evaluator's choice among the policies of a family: a bandit of its own over trial episodes of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from starling.intrinsic.bandit import Bandit, State
from starling.types import Tensor


class BanditTrials:
    """`Trials` of N policies by a bandit over the undiscounted returns of the last `bandit.window` of them.

    In Agent57 (2003.13350) the evaluator has its own sliding-window UCB, and scores are those of its greedy policy, the
    one with the largest mean return. Here every evaluation begins with `episodes` trials that the bandit chooses, and
    those of its score follow, all with the greedy policy. They are kept apart: a policy that is taken for the best
    because its trials were lucky would score more than it is worth if these counted.
    """

    def __init__(self, bandit: Bandit, episodes: int) -> None:
        self._bandit, self._episodes = bandit, episodes
        self._arms: list[int] = []  # of the trials in the window, the oldest first
        self._returns: list[float] = []
        self.played = 0  # in all

    @property
    def due(self) -> int:
        """Trials of the next evaluation: `episodes`, or as many as there are policies that the window lacks."""
        return max(self._episodes, self._bandit.arms - len(set(self._arms)))

    @property
    def best(self) -> int:
        """The policy with the largest mean return, the first of equals; before any trial policy 0, which exploits."""
        return int(self._bandit.best(self._state(), torch.zeros(1, dtype=torch.int64)))

    def choose(self, under_way: Collection[int], noise: Tensor) -> int:
        """Choose a policy that the window lacks and that is not under way, or else as the bandit does."""
        unknown = [arm for arm in range(self._bandit.arms) if arm not in self._arms and arm not in under_way]
        if unknown:
            return unknown[0]
        return int(self._bandit.choose(self._state(), torch.zeros(1, dtype=torch.int64), noise[None]))

    def learn(self, arm: int, total: float) -> None:
        """Take in the return of a whole episode of policy `arm`."""
        window = self._bandit.window
        self._arms, self._returns = [*self._arms, arm][-window:], [*self._returns, total][-window:]
        self.played += 1

    def metrics(self) -> dict[str, float]:
        """Of every policy in the window its mean return and its share of the trials."""
        known = {
            arm: [r for a, r in zip(self._arms, self._returns, strict=True) if a == arm] for arm in set(self._arms)
        }
        means = {f"arm/{arm}/return": sum(returns) / len(returns) for arm, returns in known.items()}
        return {**means, **{f"arm/{arm}/share": len(returns) / len(self._arms) for arm, returns in known.items()}}

    def _state(self) -> State:
        """The window as the state of one row: a function of the trials alone, also after they were saved."""
        state, known = self._bandit.state(1), len(self._arms)
        state["arm"][0, :known] = torch.tensor(self._arms, dtype=torch.int64)
        state["value"][0, :known] = torch.tensor(self._returns)
        return state

    def get_state(self) -> dict[str, Any]:
        """Plain numbers and lists, as JSON has them."""
        return {"arms": list(self._arms), "returns": list(self._returns), "played": self.played}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state, or from none ({}); of one with other settings, keep what still has a meaning."""
        kept = [
            pair for pair in zip(state.get("arms", []), state.get("returns", []), strict=True) if self._knows(pair[0])
        ]
        kept = kept[-self._bandit.window :]
        self._arms, self._returns = [arm for arm, _ in kept], [total for _, total in kept]
        self.played = state.get("played", 0)

    def _knows(self, arm: int) -> bool:
        return arm < self._bandit.arms
