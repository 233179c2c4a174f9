"""Evaluation: plays whole episodes without exploration and summarizes their returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch

from starling.actor import noise
from starling.actor.core import Policy
from starling.algos.base import Trials
from starling.config.schema import EvalConfig
from starling.envs.vector import VectorEnv
from starling.errors import did_you_mean

MAX_ENVS = 8
"""Maximum number of envs in an evaluation."""
LONGEST = 108_000
"""Maximum steps of a game, half an hour of Atari at one frame per step; longer games count with their score so far.

Without a limit, a game that never ends would block the evaluation, and a run that waits for it, indefinitely.
"""
TRIALS = 0x7121A1
"""Seed offset of the envs and the noise of trials, so that no trial repeats a scored episode."""


@dataclass(frozen=True)
class Played:
    """One whole game: its raw return, its length, the env's info at its end, the policy that played it, and its env."""

    total: float
    length: int
    info: dict[str, Any]
    arm: int
    env_index: int


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: a row of metrics, and the state for the next evaluation."""

    row: dict[str, float]
    state: dict[str, Any]


def play_episodes(
    policy: Policy,
    env: VectorEnv,
    *,
    episodes: int,
    seed: int,
    reward_clip: float | None,
    start: int = 0,
    choose: Callable[[list[int]], int] | None = None,
) -> Iterator[list[Played]]:
    """Play `episodes` games to their end; yields the games that ended, after every step of the envs.

    Every env plays a fixed share of the games: counting the first ones to end would favor short games.

    Args:
        reward_clip: Clips the rewards that are inputs of the network; returns stay raw.
        choose: Returns the policy of a new game, given those of the running games; default is always `policy.arm`.
    """
    env_index = np.arange(env.num)
    share = np.full(env.num, episodes // env.num) + (env_index < episodes % env.num)
    group = policy.new_group(env_index, seed, start)
    step = env.reset(noise.seeds(seed, env_index, start))
    totals, lengths = np.zeros(env.num), np.zeros(env.num, np.int64)
    begins = np.ones(env.num, np.bool_)  # envs whose next first observation begins a game, not just a life
    while share.any():
        if choose is not None:
            for i in np.flatnonzero(begins & step.first & (share > 0)):
                group.arm[i] = choose(group.arm[torch.from_numpy(~begins & (share > 0))].tolist())
                begins[i] = False
        group.latest = step
        _, (output,) = policy.step([group], reward_clip)
        group.advance(output)
        step = env.step(output.action)
        played: list[Played] = []
        totals += step.reward
        lengths += step.valid
        totals[env.dropped] = lengths[env.dropped] = 0  # a dropped game is played again from its beginning
        cut = lengths >= LONGEST
        if cut.any():
            _warn_of_cut(env)
        for i in np.flatnonzero(env.game_over | cut):
            if share[i] > 0:
                info = env.episode_infos().get(int(i), {})
                played.append(Played(float(totals[i]), int(lengths[i]), info, int(group.arm[i]), int(i)))
                share[i] -= 1
            begins[i] = True
            totals[i] = lengths[i] = 0
        yield played


def _warn_of_cut(env: VectorEnv) -> None:
    limit = "env.wrappers='[{name: TimeLimit, args: {max_episode_steps: 1000}}]'"
    logging.getLogger(__name__).warning(
        f"an evaluation episode of env {env.spec.id!r} had not ended after {LONGEST:,} steps and counts as it is:"
        f" if the env has no time limit, give it one, e.g. {limit}"
    )


def _number(value: Any) -> float | None:
    """Convert a value of an env's info to float, also from an array with one element; None if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


class Evaluator:
    """Evaluates on its own envs, with the same seed every time: a score is a function of the weights and the policy."""

    def __init__(
        self, policy: Policy, env: VectorEnv, config: EvalConfig, *, seed: int, reward_clip: float | None
    ) -> None:
        self.env = env
        self._policy, self._config, self._seed, self._reward_clip = policy, config, seed, reward_clip
        self._missing: set[str] = set()  # metrics that no episode had; a warning was logged

    def play(self) -> Iterator[list[Played]]:
        """Play all episodes with `policy.arm`; yields the games that ended, after every step of the envs."""
        return play_episodes(
            self._policy,
            self.env,
            episodes=self._config.episodes,
            seed=self._seed,
            reward_clip=self._reward_clip,
        )

    def evaluate(self, state: dict[str, Any]) -> Iterator[Evaluation | None]:
        """Play all episodes; yields None after every step of the envs, and finally the result.

        If the algorithm has several policies, trials come first, and the best policy by these is scored. `state` is the
        one of the last evaluation, or {}. If the caller stops iterating, the evaluation and its trials are discarded.
        """
        trials = self._policy.algorithm.trials()
        if trials is not None:
            trials.set_state(state)
            yield from self._try_policies(trials)
            self._policy.arm = trials.best
        played: list[Played] = []
        for ended in self.play():
            played += ended
            yield None
        row = self._summarize(played)
        if trials is None:
            yield Evaluation(row, state)
        else:
            told = {"eval/arm": trials.best, **{f"eval/{key}": value for key, value in trials.metrics().items()}}
            yield Evaluation({**row, **told}, trials.get_state())

    def _try_policies(self, trials: Trials) -> Iterator[None]:
        """Play the trials that are due, with other seeds than those of scored episodes and of earlier trials."""
        seed, start = self._seed ^ TRIALS, trials.played
        draws, chosen = noise.Noise(seed, np.zeros(1, np.int64)), 0

        def choose(under_way: list[int]) -> int:
            nonlocal chosen
            chosen += 1
            return trials.choose(under_way, torch.from_numpy(draws.uniform(start + chosen, 2)[0]))

        for ended in play_episodes(
            self._policy,
            self.env,
            episodes=trials.due,
            seed=seed,
            reward_clip=self._reward_clip,
            start=start,
            choose=choose,
        ):
            for game in ended:
                trials.learn(game.arm, game.total)
            yield None

    def _summarize(self, played: Sequence[Played]) -> dict[str, float]:
        """Mean and std of raw returns, mean length, and the mean of every configured metric."""
        totals = [game.total for game in played]
        row = {
            "eval/return": fmean(totals),
            "eval/return_std": pstdev(totals),
            "eval/length": fmean(game.length for game in played),
        }
        for name in self._config.metrics:
            found = [number for game in played if (number := _number(game.info.get(name))) is not None]
            if found:
                row[f"eval/{name}"] = fmean(found)
            else:
                self._warn_of_missing(name, played)
        return row

    def _warn_of_missing(self, name: str, played: Sequence[Played]) -> None:
        """Warn once that no episode had a configured metric, and list those that exist."""
        if name in self._missing:
            return
        self._missing.add(name)
        there = sorted({str(key) for game in played for key, value in game.info.items() if _number(value) is not None})
        logging.getLogger(__name__).warning(
            f"eval.metrics: no episode of env {self.env.spec.id!r} ended with a number called {name!r} in its info"
            f"{did_you_mean(name, there)} (found: {', '.join(there[:20]) or 'none'})"
        )
