"""A wrapper that hides observations at random, so that the agent needs memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.types import NDArray


class HideFrames(gymnasium.ObservationWrapper[NDArray, Any, NDArray]):
    """Replaces each observation by zeros with probability `chance`, independently of the others."""

    def __init__(self, env: gymnasium.Env[NDArray, Any], chance: float = 0.5) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, spaces.Box):
            raise TypeError(f"only a Box can be hidden, not {env.observation_space}")
        if not 0 <= chance <= 1:
            raise ValueError(f"chance must be between 0 and 1, not {chance}")
        self._chance = chance
        self._random = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng([seed, 1])  # independent of the env's own random numbers
        return super().reset(seed=seed, options=options)

    def observation(self, observation: NDArray) -> NDArray:
        """Return the observation, or zeros of the same shape and dtype."""
        return np.zeros_like(observation) if self._random.random() < self._chance else observation
