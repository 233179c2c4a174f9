"""Tiny environments that only a correct implementation solves; the optimal values are known in closed form."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.errors import UserError
from starling.types import NDArray, Tree

Info = dict[str, Any]
Outcome = tuple[Tree, float, bool, bool, Info]


class Identity(gymnasium.Env[NDArray, Any]):
    """A one-hot observation [n] shows the action with reward 1; an episode has `length` independent steps."""

    def __init__(self, n: int = 4, length: int = 16) -> None:
        self.observation_space = spaces.Box(0, 1, (n,), np.float32)
        self.action_space = spaces.Discrete(n)
        self._n, self._length = n, length

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Any) -> Outcome:
        reward = float(action == self._answer)
        self._step += 1
        return self._draw(), reward, self._step == self._length, False, {}

    def _draw(self) -> NDArray:
        self._answer = int(self.np_random.integers(self._n))
        obs = np.zeros(self._n, np.float32)
        obs[self._answer] = 1
        return obs


class Match(gymnasium.Env[NDArray, Any]):
    """An observation [2] in [-1, 1] is the best action, relative to the bounds of each dimension.

    The reward is 1 minus the mean distance in units of half the range: at best 1, and 1/3 for random actions. The
    bounds are uneven, so that actions must be rescaled exactly once.
    """

    LOW, HIGH = np.array([-3.0, 0.5], np.float32), np.array([1.0, 8.5], np.float32)

    def __init__(self, length: int = 16) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Box(self.LOW, self.HIGH, dtype=np.float32)
        self._length = length

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Any) -> Outcome:
        place = 2.0 * (np.asarray(action) - self.LOW) / (self.HIGH - self.LOW) - 1.0  # [2] in [-1, 1]
        reward = 1.0 - float(np.abs(place - self._wanted).mean())
        self._step += 1
        return self._draw(), reward, self._step == self._length, False, {}

    def _draw(self) -> NDArray:
        self._wanted: NDArray = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._wanted


class Memory(gymnasium.Env[NDArray, Any]):
    """A cue at the first step, `delay` blank steps, then GO: reward +1 for the cued action, -1 for the other.

    The observation [3] is (cue 0, cue 1, GO). The mean return is 0 without memory and 1 with it.
    """

    def __init__(self, delay: int = 4) -> None:
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._delay = delay

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        self._cue = int(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> Outcome:
        asked = self._step == self._delay + 1
        reward = (1.0 if action == self._cue else -1.0) if asked else 0.0
        self._step += 1
        return self._observe(), reward, asked, False, {}

    def _observe(self) -> NDArray:
        obs = np.zeros(3, np.float32)
        if self._step == 0:
            obs[self._cue] = 1
        obs[2] = self._step == self._delay + 1
        return obs


class Truncation(gymnasium.Env[NDArray, Any]):
    """Reward 1 at every step and a constant observation; every step ends the episode with probability 1 / `limit`.

    Actions have no effect. With discount g, the value is exactly 1 / (1 - g) if episodes are truncated, and
    1 / (1 - g (1 - 1 / limit)) if they are terminated: 10 and 4.7 for g = 0.9 and limit 8.
    """

    def __init__(
        self, ends: Literal["truncated", "terminated"] = "truncated", limit: int = 8, continuous: bool = False
    ) -> None:
        if ends not in ("truncated", "terminated"):
            raise UserError(f"toy/truncation: ends must be truncated or terminated, not {ends!r}")
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self._ends, self._limit = ends, limit

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Outcome:
        end = int(self.np_random.integers(self._limit)) == 0
        return np.ones(1, np.float32), 1.0, end and self._ends == "terminated", end and self._ends == "truncated", {}


TAGS = 1024
"""The tag of a `toy/counting` env is its seed modulo this."""


def counting_reward(tag: int, episode: int, step: int, action: int) -> float:
    """Reward of `action` in the observation (tag, episode, step): a multiple of 1/8, so exact in float32."""
    return ((31 * tag + 17 * episode + 5 * step + 3 * action) % 64) / 8


def counting_length(tag: int, episode: int) -> int:
    """Number of steps in an episode: 1 to 7."""
    return 1 + (tag + 3 * episode) % 7


def counting_terminates(tag: int, episode: int) -> bool:
    """Return True if an episode is terminated, False if it is truncated; the two alternate."""
    return (tag + episode) % 2 == 0


class Counting(gymnasium.Env[NDArray, Any]):
    """The observation [3] is (tag, episode, step): it identifies its env and time, so that tests can check alignment.

    The tag is derived from the last seed, and episodes are counted since then; actions affect only the reward.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 2**24, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._tag, self._episode, self._step = 0, -1, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._tag, self._episode = seed % TAGS, -1
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> Outcome:
        reward = counting_reward(self._tag, self._episode, self._step, int(action))
        self._step += 1
        end = self._step == counting_length(self._tag, self._episode)
        terminates = counting_terminates(self._tag, self._episode)
        return self._observe(), reward, end and terminates, end and not terminates, {"episode": self._episode}

    def _observe(self) -> NDArray:
        return np.array([self._tag, self._episode, self._step], np.float32)


class Mixed(gymnasium.Env[dict[str, Any], Any]):
    """A Dict of vector [4] float32, image [1, 8, 8] uint8, and index; the leaf `answer` shows the action with reward 1.

    The other leaves are noise of the same form, so that only a network that reads the right leaf gets a mean reward
    above 1/4. If `continuous`, the answers are four points in [-1, 1], and the reward is 1 minus the distance to the
    right one.
    """

    def __init__(
        self, answer: Literal["vector", "image", "index"] = "index", length: int = 8, continuous: bool = False
    ) -> None:
        if answer not in ("vector", "image", "index"):
            raise UserError(f"toy/dict: answer must be vector, image or index, not {answer!r}")
        self.observation_space = spaces.Dict(
            {
                "vector": spaces.Box(0, 1, (4,), np.float32),
                "image": spaces.Box(0, 255, (1, 8, 8), np.uint8),
                "index": spaces.Discrete(4),
            }
        )
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(4)
        self._leaf, self._length, self._continuous = ("vector", "image", "index").index(answer), length, continuous

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Any], Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Any) -> Outcome:
        place = self._answer / 2 - 0.75  # one of four points in [-1, 1]
        reward = 1.0 - abs(float(action[0]) - place) if self._continuous else float(action == self._answer)
        self._step += 1
        return self._draw(), reward, self._step == self._length, False, {}

    def _draw(self) -> dict[str, Any]:
        vector, image, index = drawn = self.np_random.integers(4, size=3)
        self._answer = int(drawn[self._leaf])
        picture = np.zeros((1, 8, 8), np.uint8)
        row, column = 4 * (image // 2), 4 * (image % 2)
        picture[0, row : row + 4, column : column + 4] = 255  # one quarter is lit
        return {"vector": np.eye(4, dtype=np.float32)[vector], "image": picture, "index": index}
