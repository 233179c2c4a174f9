"""Atari games with the ALE's own C++ vector env and its preprocessing; rewards are not clipped.

Mnih et al. 2015 (Nature 518, Methods): frame skip with a maximum over two frames, 84x84 gray, stack of 4, no-op starts.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from starling.config.env import AtariConfig, EnvConfig
from starling.envs.catalog import atari_games
from starling.envs.vector import GAME_OVER, infos_of, seeds_int32
from starling.errors import UserError, did_you_mean
from starling.types import NDArray, StackSpec

_EXTRA_ARGS = ("maxpool", "continuous", "continuous_action_threshold", "thread_affinity_offset")


def make_vector(config: EnvConfig, num_envs: int, threads: int) -> VectorEnv[Any, Any, Any]:
    """Make the ALE's vector env with the preprocessing of `config.atari`; convert its seeds with `seeds_int32`."""
    for name in config.args:
        if name not in _EXTRA_ARGS:
            raise UserError(
                f"env.args.{name} is not for ALE games (they take {', '.join(_EXTRA_ARGS)});"
                f" preprocessing is set in env.atari{did_you_mean(name, AtariConfig.model_fields)}"
            )
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv(
        atari_games()[config.id],
        num_envs,
        num_threads=threads,
        reward_clipping=False,
        **_switches(config.atari),
        **config.args,
    )
    # The ALE writes its mode into the metadata of Gymnasium's base class, where all other vector envs would inherit it.
    env.metadata = dict(env.metadata)
    VectorEnv.metadata.pop("autoreset_mode", None)
    return LifeEpisodes(env) if config.atari.episodic_life else env


def stack(config: AtariConfig) -> StackSpec | None:
    return StackSpec("", 0, config.stack) if config.stack > 1 else None


class LifeEpisodes(VectorWrapper[Any, Any, Any]):
    """One episode per life while the game continues: the step after a lost life is a no-op.

    The ALE's own `episodic_life` restarts the game instead, so that the agent would never see later lives.
    """

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.env.reset(seed=seed, options=options)
        self._lives = infos["lives"]
        begun = (options or {}).get("reset_mask")
        none: NDArray = np.zeros(self.num_envs, np.bool_)
        self._lost: NDArray = none if begun is None else self._lost & ~begun
        return obs, infos

    def step(self, actions: NDArray) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any]]:
        resumed = self._lost
        actions = actions.copy()
        actions[resumed] = 0
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        over = terminated | truncated
        lives = infos["lives"]
        # Some games continue for a few frames with 0 lives: only the end of the game ends the episode then.
        self._lost = (lives < self._lives) & (lives > 0) & ~over & ~resumed
        self._lives = lives
        return obs, reward, terminated | self._lost, truncated, {**infos, GAME_OVER: over}


class SingleAtari(gymnasium.Env[NDArray, Any]):
    """One game of the vector env as a single Gymnasium env, for wrappers and rendering."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 (as in Gymnasium; fps of the console)

    def __init__(self, config: EnvConfig, render_mode: str | None = None) -> None:
        self._envs = make_vector(config, num_envs=1, threads=1)
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.render_mode = render_mode
        self._ended = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is None and self._ended:  # the vector env knows if the game or only a life is over
            obs, _, _, _, info = self._step(np.zeros((1, *(self.action_space.shape or ())), self.action_space.dtype))
            return obs, info
        seeds: Any = None if seed is None else seeds_int32(np.array([seed]))
        obs, infos = self._envs.reset(seed=seeds)
        self._ended, self._frame = False, obs[0, -1]
        return obs[0], infos_of(infos, 0)

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        return self._step(np.asarray(action)[None])

    def _step(self, actions: NDArray) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self._envs.step(actions)
        self._ended, self._frame = bool(terminated[0] or truncated[0]), obs[0, -1]
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos_of(infos, 0)

    def render(self) -> NDArray:
        """Return the newest preprocessed frame [size, size, 3]."""
        return self._frame if self._frame.ndim == 3 else np.repeat(self._frame[..., None], 3, axis=-1)

    def close(self) -> None:
        self._envs.close()


def _switches(config: AtariConfig) -> dict[str, Any]:
    return {
        "frameskip": config.frame_skip,
        "stack_num": config.stack,
        "img_height": config.size,
        "img_width": config.size,
        "grayscale": config.grayscale,
        "noop_max": config.noop_max,
        "repeat_action_probability": config.sticky,
        "use_fire_reset": config.fire_reset,
        "full_action_space": config.full_actions,
        "max_num_frames_per_episode": config.max_frames,
    }
