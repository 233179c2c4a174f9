"""The Pong env of all peers: uint8 [4, 84, 84], an action for 4 frames, none of them sticky, and up to 30 no-ops first.

Gymnasium's preprocessing gets gray images from the emulator, and only those that it needs, which is faster than the
peers' own wrappers. Pong's rewards are -1, 0, and 1 and it has no lives, so no further wrapper is needed.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

NDArray = np.ndarray[Any, Any]
STACK = 4


class Stacked(gymnasium.Wrapper[NDArray, Any, NDArray, Any]):
    """The last four images in one array; Gymnasium's own wrapper has different names in different versions."""

    def __init__(self, env: gymnasium.Env[NDArray, Any]) -> None:
        super().__init__(env)
        shape = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 255, (STACK, *shape), np.uint8)

    def reset(self, **kwargs: Any) -> tuple[NDArray, dict[str, Any]]:
        frame, info = self.env.reset(**kwargs)
        self._frames = np.stack([frame] * STACK)
        return self._frames, info

    def step(self, action: Any) -> tuple[NDArray, Any, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._frames = np.concatenate([self._frames[1:], frame[None]])
        return self._frames, reward, terminated, truncated, info


def make_pong(render_mode: str | None = None) -> gymnasium.Env[NDArray, Any]:
    """One game; the emulator is imported here so that every process of a peer has its games registered."""
    assert ale_py
    game = gymnasium.make("PongNoFrameskip-v4", render_mode=render_mode, disable_env_checker=True)
    return Stacked(AtariPreprocessing(game, noop_max=30, frame_skip=4, screen_size=84))
