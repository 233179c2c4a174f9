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


def make_vector(
    config: EnvConfig, num_envs: int, threads: int, screen: tuple[int, int] | None = None
) -> VectorEnv[Any, Any, Any]:
    """Make the ALE's vector env with the preprocessing of `config.atari`; convert its seeds with `seeds_int32`.

    With `screen`, height and width, the observations are the console's images in color instead.
    """
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
        **(_switches(config.atari) | ({} if screen is None else _in_color(screen))),
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
    """One game of the vector env as a single Gymnasium env, for wrappers and rendering.

    The ALE's vector env has no images but its observations. To be rendered, the game is therefore played a second time,
    with the same seeds and actions, and the console's images as observations.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 (as in Gymnasium; fps of the console)

    def __init__(self, config: EnvConfig, render_mode: str | None = None) -> None:
        self._envs = make_vector(config, num_envs=1, threads=1)
        self._screen = make_vector(config, 1, 1, _screen_size(config.id)) if render_mode == "rgb_array" else None
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
        if self._screen is not None:
            self._image = self._screen.reset(seed=seeds)[0][0, -1]
        self._ended = False
        return obs[0], infos_of(infos, 0)

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        return self._step(np.asarray(action)[None])

    def _step(self, actions: NDArray) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self._envs.step(actions)
        if self._screen is not None:
            self._image = self._screen.step(actions)[0][0, -1]
        self._ended = bool(terminated[0] or truncated[0])
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos_of(infos, 0)

    def render(self) -> NDArray | None:
        """Return the console's image [210, 160, 3], the maximum of the last two frames; None without a render mode."""
        return None if self._screen is None else self._image

    def close(self) -> None:
        self._envs.close()
        if self._screen is not None:
            self._screen.close()


def _screen_size(id: str) -> tuple[int, int]:
    """Return height and width of a game's images, which differ in some games."""
    from ale_py import ALEInterface, LoggerMode
    from ale_py.roms import get_rom_path

    ALEInterface.setLoggerMode(LoggerMode.Error)
    console = ALEInterface()
    rom: Any = get_rom_path(atari_games()[id])
    console.loadROM(rom)
    height, width = console.getScreenDims()
    return height, width


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


def _in_color(screen: tuple[int, int]) -> dict[str, Any]:
    return {"img_height": screen[0], "img_width": screen[1], "grayscale": False, "stack_num": 1}
