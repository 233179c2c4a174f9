"""An evaluator's choice among a family of policies: its own bandit over its own trial episodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from starling.intrinsic.bandit import Bandit, State
from starling.types import Tensor


class BanditTrials:
    """`Trials` of N policies, chosen by a bandit over the undiscounted returns of the last `bandit.window` trials.

    In Agent57 (2003.13350) the evaluator has its own sliding-window UCB and reports the score of its greedy policy, the
    one with the largest mean return. Here, every evaluation begins with `episodes` trials that the bandit chooses; the
    scored episodes follow, all with the greedy policy. Trials do not count in the score: a policy that was selected
    because of lucky trials would be overestimated.
    """

    def __init__(self, bandit: Bandit, episodes: int) -> None:
        self._bandit, self._episodes = bandit, episodes
        self._arms: list[int] = []  # of the trials in the window, oldest first
        self._returns: list[float] = []
        self.played = 0  # in total

    @property
    def due(self) -> int:
        """Number of trials of the next evaluation: `episodes`, or more if more policies have no trial in the window."""
        return max(self._episodes, self._bandit.arms - len(set(self._arms)))

    @property
    def best(self) -> int:
        """The policy with the largest mean return, the first of ties; policy 0, which exploits, before any trial."""
        return int(self._bandit.best(self._state(), torch.zeros(1, dtype=torch.int64)))

    def choose(self, under_way: Collection[int], noise: Tensor) -> int:
        """Choose a policy without a finished or running trial if there is one, else ask the bandit."""
        unknown = [arm for arm in range(self._bandit.arms) if arm not in self._arms and arm not in under_way]
        if unknown:
            return unknown[0]
        return int(self._bandit.choose(self._state(), torch.zeros(1, dtype=torch.int64), noise[None]))

    def learn(self, arm: int, total: float) -> None:
        """Add the return of a whole episode of policy `arm`."""
        window = self._bandit.window
        self._arms, self._returns = [*self._arms, arm][-window:], [*self._returns, total][-window:]
        self.played += 1

    def metrics(self) -> dict[str, float]:
        """Mean return and share of the trials of every policy in the window."""
        known = {
            arm: [r for a, r in zip(self._arms, self._returns, strict=True) if a == arm] for arm in set(self._arms)
        }
        means = {f"arm/{arm}/return": sum(returns) / len(returns) for arm, returns in known.items()}
        return {**means, **{f"arm/{arm}/share": len(returns) / len(self._arms) for arm, returns in known.items()}}

    def _state(self) -> State:
        """The window as a bandit state of one env; it depends only on the trials, also after a restore."""
        state, known = self._bandit.state(1), len(self._arms)
        state["arm"][0, :known] = torch.tensor(self._arms, dtype=torch.int64)
        state["value"][0, :known] = torch.tensor(self._returns)
        return state

    def get_state(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"arms": list(self._arms), "returns": list(self._returns), "played": self.played}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state; {} starts anew. Trials of policies that no longer exist are dropped."""
        kept = [
            pair for pair in zip(state.get("arms", []), state.get("returns", []), strict=True) if self._knows(pair[0])
        ]
        kept = kept[-self._bandit.window :]
        self._arms, self._returns = [arm for arm, _ in kept], [total for _, total in kept]
        self.played = state.get("played", 0)

    def _knows(self, arm: int) -> bool:
        return arm < self._bandit.arms
