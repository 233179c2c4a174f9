"""Plays whole episodes with a policy that does not explore, and says what came of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from starling.config.schema import EvalConfig
from starling.envs.vector import VectorEnv
from starling.roles import noise
from starling.roles.policy import Policy

MAX_ROWS = 8
"""Envs that are stepped at once in an evaluation."""
LONGEST = 108_000
"""Steps after which a game counts as it stands: half an hour of Atari at a frame per step. Else one that never ends,
as those of an env without a time limit may, would keep the evaluation, and a run that waits for it, for ever."""


@dataclass(frozen=True)
class Played:
    """One whole game: its raw return, its length, and what the env said at its end."""

    total: float
    length: int
    info: dict[str, Any]


def play_episodes(
    policy: Policy,
    env: VectorEnv,
    *,
    episodes: int,
    seed: int,
    reward_clip: float | None,
) -> Iterator[list[Played]]:
    """Play `episodes` games to their end; yields the games that ended, after every step of the envs.

    Every row plays its own share: taking whichever end first would favour short games. `reward_clip` only concerns what
    a network that takes rewards as input is shown.
    """
    rows = np.arange(env.num)
    share = np.full(env.num, episodes // env.num) + (rows < episodes % env.num)
    group = policy.group(rows, seed)
    step = env.reset(noise.seeds(seed, rows, 0))
    totals, lengths = np.zeros(env.num), np.zeros(env.num, np.int64)
    while share.any():
        group.seen = step
        policy.reward(group, reward_clip)
        (output,) = policy.infer([group])
        group.settle(output)
        step = env.step(output.action)
        played: list[Played] = []
        totals += step.reward
        lengths += step.valid
        totals[env.dropped] = lengths[env.dropped] = 0  # played again from its beginning
        cut = lengths >= LONGEST
        if cut.any():
            _warn_of_cut(env)
        for i in np.flatnonzero(env.game_over | cut):
            if share[i] > 0:
                info = env.episode_infos().get(int(i), {})
                played.append(Played(float(totals[i]), int(lengths[i]), info))
                share[i] -= 1
            totals[i] = lengths[i] = 0
        yield played


def _warn_of_cut(env: VectorEnv) -> None:
    limit = "env.wrappers='[{name: TimeLimit, args: {max_episode_steps: 1000}}]'"
    logging.getLogger(__name__).warning(
        f"an evaluation episode of env {env.spec.id!r} had not ended after {LONGEST:,} steps and counts as it stands:"
        f" if the env has no time limit, give it one, e.g. {limit}"
    )


class Evaluator:
    """Evaluates on envs of its own. The same seed every time: the result is a function of the weights alone."""

    def __init__(
        self, policy: Policy, env: VectorEnv, config: EvalConfig, *, seed: int, reward_clip: float | None
    ) -> None:
        self.env = env
        self._policy, self._config, self._seed, self._reward_clip = policy, config, seed, reward_clip

    def play(self) -> Iterator[list[Played]]:
        """Play all episodes; yields the games that ended, after every step of the envs."""
        return play_episodes(
            self._policy,
            self.env,
            episodes=self._config.episodes,
            seed=self._seed,
            reward_clip=self._reward_clip,
        )

    def evaluate(self) -> Iterator[dict[str, float] | None]:
        """Play all episodes; yields None after every step of the envs, and the result last."""
        played: list[Played] = []
        for ended in self.play():
            played += ended
            yield None
        yield self._summarize(played)

    def _summarize(self, played: Sequence[Played]) -> dict[str, float]:
        """Mean and standard deviation of raw returns, mean length, and the mean of every metric asked for."""
        totals = [game.total for game in played]
        row = {
            "eval/return": fmean(totals),
            "eval/return_std": pstdev(totals),
            "eval/length": fmean(game.length for game in played),
        }
        for name in self._config.metrics:
            found = [float(game.info[name]) for game in played if name in game.info]
            if found:
                row[f"eval/{name}"] = fmean(found)
        return row
