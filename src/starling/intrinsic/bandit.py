"""Per-env bandits that choose the policy of the next episode (2003.13350, section 3.2).

Their state is a dict of tensors [B, ...] that are changed in place, so it is saved with the rest of an env's state.
"""

from __future__ import annotations

from typing import Literal

import torch

from starling.types import Tensor

State = dict[str, Tensor]


class Bandit:
    """Sliding-window bandit with N arms: only the last `window` episodes of an env count.

    `ucb`: with probability `epsilon` a random arm, else argmax of mean + bonus / sqrt(n), n the plays in the window.
    `ucb_tuned`: UCB1-tuned (Auer 2002), mean + sqrt(log(t) / n min(1/4, variance + sqrt(2 log(t) / n))), with returns
    scaled to [0, 1] by the extremes in the window. Both play arms without a play in the window first.
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

    def state(self, num_envs: int) -> State:
        """Initial state for `num_envs` envs, before any episode; the other methods take indices of these envs."""
        return {
            "arm": torch.full((num_envs, self.window), -1, dtype=torch.int64),  # of each episode; -1: none yet
            "value": torch.zeros(num_envs, self.window),
            "played": torch.zeros(num_envs, dtype=torch.int64),
        }

    def learn(self, state: State, env_index: Tensor, arms: Tensor, returns: Tensor) -> None:
        """Add the returns [n] of the arms [n] that the envs `env_index` [n] have played."""
        place = state["played"][env_index] % self.window
        state["arm"][env_index, place], state["value"][env_index, place] = arms, returns.to(state["value"])
        state["played"][env_index] += 1

    def choose(self, state: State, env_index: Tensor, noise: Tensor) -> Tensor:
        """Choose the next arms [n] of the envs `env_index` [n], given noise [n, 2] in (0, 1)."""
        count, mean, variance = self._statistics(state, env_index)
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

    def best(self, state: State, env_index: Tensor) -> Tensor:
        """The arms [n] with the largest mean returns for the envs `env_index` [n]; 0 if no arm was played."""
        count, mean, _ = self._statistics(state, env_index)
        return torch.where(count > 0, mean, -torch.inf).argmax(1)

    def _statistics(self, state: State, env_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Number of plays, mean, and variance [n, N] of every arm within the window."""
        arm, value = state["arm"][env_index], state["value"][env_index]  # [n, W]
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
    """Scale values [n, W] to [0, 1] by the extremes of the known [n, W] ones."""
    low = torch.where(known, value, torch.inf).amin(1, keepdim=True)
    high = torch.where(known, value, -torch.inf).amax(1, keepdim=True)
    return torch.where(known & (high > low), (value - low) / (high - low), 0.0)
