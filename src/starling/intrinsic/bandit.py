"""A bandit an env row that chooses which of several policies plays the next episode (2003.13350, section 3.2).

Its state is tensors [B, ...] that are changed in place, so it is saved and moved with everything else a row has.
"""

from __future__ import annotations

from typing import Literal

import torch

from starling.types import Tensor

State = dict[str, Tensor]


class Bandit:
    """N arms; only the last `window` episodes of a row count.

    `ucb`: with chance `epsilon` any arm, else the largest mean + bonus / sqrt(n), n the plays within the window.
    `ucb_tuned`: UCB1-tuned (Auer 2002), mean + sqrt(log(t) / n min(1/4, variance + sqrt(2 log(t) / n))), for which
    returns are scaled to [0, 1] by the extremes in the window. An arm without a play comes first in both.
    """

    def __init__(
        self,
        arms: int,
        window: int,
        *,
        kind: Literal["ucb", "ucb_tuned"] = "ucb",
        epsilon: float = 0.5,
        bonus: float = 1.0,
    ) -> None:
        self.arms, self.window = arms, window
        self._kind, self._epsilon, self._bonus = kind, epsilon, bonus

    def state(self, rows: int) -> State:
        """No episode was played yet."""
        return {
            "arm": torch.full((rows, self.window), -1, dtype=torch.int64),  # of an episode, -1: there was none
            "value": torch.zeros(rows, self.window),
            "played": torch.zeros(rows, dtype=torch.int64),
        }

    def learn(self, state: State, rows: Tensor, arms: Tensor, returns: Tensor) -> None:
        """Take in the returns [n] of the arms [n] that `rows` [n] have played."""
        place = state["played"][rows] % self.window
        state["arm"][rows, place], state["value"][rows, place] = arms, returns.to(state["value"])
        state["played"][rows] += 1

    def choose(self, state: State, rows: Tensor, noise: Tensor) -> Tensor:
        """The arms [n] that `rows` [n] play next, given noise [n, 2] in (0, 1)."""
        count, mean, variance = self._statistics(state, rows)
        log_played = count.sum(1, keepdim=True).clamp(min=1.0).log()
        bonus = self._bonus / count.sqrt() if self._kind == "ucb" else _tuned_bonus(count, variance, log_played)
        unplayed = count == 0
        score = torch.where(unplayed, torch.inf, mean + torch.where(unplayed, 0.0, bonus))
        best = score.argmax(1)
        if self._kind == "ucb_tuned":
            return best
        at_random = (noise[:, 1] * self.arms).long().clamp(max=self.arms - 1)
        explores = (noise[:, 0] < self._epsilon) & ~unplayed.any(1)
        return torch.where(explores, at_random, best)

    def best(self, state: State, rows: Tensor) -> Tensor:
        """The arms [n] with the largest means in the windows of `rows` [n]; 0 where no arm has a play."""
        count, mean, _ = self._statistics(state, rows)
        return torch.where(count > 0, mean, -torch.inf).argmax(1)

    def _statistics(self, state: State, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Plays, mean and variance [n, N] of every arm within the window."""
        arm, value = state["arm"][rows], state["value"][rows]  # [n, W]
        if self._kind == "ucb_tuned":
            value = _scaled(value, arm >= 0)
        chosen = (arm.unsqueeze(2) == torch.arange(self.arms, device=arm.device)).to(value.dtype)  # [n, W, N]
        count = chosen.sum(1)
        plays = count.clamp(min=1.0)
        mean = (chosen * value.unsqueeze(2)).sum(1) / plays
        variance = (chosen * (value.unsqueeze(2) - mean.unsqueeze(1)).square()).sum(1) / plays
        return count, mean, variance


def _tuned_bonus(count: Tensor, variance: Tensor, log_played: Tensor) -> Tensor:
    per_play = log_played / count.clamp(min=1.0)
    return (per_play * (variance + (2.0 * per_play).sqrt()).clamp(max=0.25)).sqrt()


def _scaled(value: Tensor, known: Tensor) -> Tensor:
    """Values [n, W] to [0, 1] by the extremes of those that are known [n, W]."""
    low = torch.where(known, value, torch.inf).amin(1, keepdim=True)
    high = torch.where(known, value, -torch.inf).amax(1, keepdim=True)
    return torch.where(known & (high > low), (value - low) / (high - low), 0.0)
