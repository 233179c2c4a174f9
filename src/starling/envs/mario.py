"""Super Mario Bros. on nes-py's emulator, preprocessed as Atari games are; rewards are raw.

The packages are of Gym's time. `_game` adapts them to NumPy 2, and `MarioEnv` gives Gymnasium's 5-tuples.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.envs.catalog import MARIO_STAGES, import_quietly, mario_games
from starling.envs.vector import GAME_OVER
from starling.errors import UserError, did_you_mean, quoted
from starling.types import NDArray, StackSpec

_A, _B, _UP, _DOWN, _LEFT, _RIGHT = 1, 2, 16, 32, 64, 128
_RIGHT_ONLY = (0, _RIGHT, _RIGHT | _A, _RIGHT | _B, _RIGHT | _A | _B)
_SIMPLE = (*_RIGHT_ONLY, _A, _LEFT)
_BUTTONS = {
    "right": _RIGHT_ONLY,
    "simple": _SIMPLE,
    "complex": (*_SIMPLE, _LEFT | _A, _LEFT | _B, _LEFT | _A | _B, _DOWN, _UP),
}
"""Buttons pressed by each action; those that the package calls RIGHT_ONLY, SIMPLE_MOVEMENT, and COMPLEX_MOVEMENT."""
_STAGE = re.compile(r"([1-8])-([1-4])")
_SKIP, _STACK = 4, 4  # defaults


def make(id: str, args: dict[str, Any], render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Make the game of `id`; `args` are the other arguments of `MarioEnv`."""
    game = mario_games()[id]
    if "stages" in args and game["stages"] != MARIO_STAGES:
        raise UserError(f"env.args.stages is for SuperMarioBrosRandomStages-v0; {id} has its own")
    if args.get("stages", game["stages"]) == []:
        raise UserError("env.args.stages is empty; give some, or leave it out for all")
    return MarioEnv(**{"render_mode": render_mode, **game, **args})


def frames_per_step(args: dict[str, Any]) -> int:
    return _number("frame_skip", args.get("frame_skip", _SKIP), 1)


def stack(args: dict[str, Any]) -> StackSpec | None:
    frames = _number("stack", args.get("stack", _STACK), 1)
    return StackSpec("", 0, frames) if frames > 1 else None


class MarioEnv(gymnasium.Env[NDArray, Any]):
    """One stage, one of several stages chosen at random for each episode, or the whole game with three lives.

    Args:
        stages: Stages such as "1-1"; empty: the whole game.
        rom: Graphics of the game: vanilla, downsample, pixel, or rectangle.
        lost_levels: Play The Lost Levels (Super Mario Bros. 2 in Japan); vanilla or downsample, the whole game only.
        actions: Set of actions: right, simple, or complex.
        frame_skip: Frames per action; their rewards are added up.
        stack: Frames stacked in an observation.
        size: Height and width of a frame in pixels.
        grayscale: Gray frames; False: RGB on the last axis.
        noop_max: Largest random number of frames without a button at the start of a game.
        episodic_life: A lost life ends the episode while the game goes on; it makes a difference in the whole game.
        render_mode: "rgb_array" or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 (as in Gymnasium; fps of the console)

    def __init__(
        self,
        stages: tuple[str, ...] | list[str] = (),
        rom: str = "vanilla",
        lost_levels: bool = False,
        actions: str = "simple",
        frame_skip: int = _SKIP,
        stack: int = _STACK,
        size: int = 84,
        grayscale: bool = True,
        noop_max: int = 30,
        episodic_life: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if actions not in _BUTTONS:
            named = ", ".join(_BUTTONS)
            raise UserError(f"env.args.actions is {quoted(actions)}; use {named}{did_you_mean(actions, _BUTTONS)}")
        self._targets: list[tuple[int, int] | None] = [_target(stage) for stage in stages] or [None]
        self._rom, self._lost_levels, self._buttons = rom, lost_levels, _BUTTONS[actions]
        self._skip, self._noop_max = _number("frame_skip", frame_skip, 1), _number("noop_max", noop_max, 0)
        self._size, self._grayscale, self._episodic_life = _number("size", size, 1), grayscale, episodic_life
        frames = (_number("stack", stack, 1), size, size, *(() if grayscale else (3,)))
        self.observation_space = spaces.Box(0, 255, frames, np.uint8)
        self.action_space = spaces.Discrete(len(self._buttons))
        self.render_mode = render_mode
        self._games: dict[tuple[int, int] | None, Any] = {}  # started when they are first played, which takes a second
        self._life_lost = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._frames: NDArray = np.zeros(self.observation_space.shape, np.uint8)
        frames = 1 if seed is None and self._life_lost else self._begin()
        self._life_lost = False
        _, _, info = self._advance(0, frames)
        return self._observe(), {**info, GAME_OVER: False}

    def _begin(self) -> int:
        """Begin a game; returns the number of frames without a button."""
        target = self._targets[self.np_random.integers(len(self._targets))]
        if target not in self._games:
            self._games[target] = _game()(self._rom, self._lost_levels, target)
        self._game = self._games[target]
        self._game.reset()
        self._lives = int(self._game._life)
        return int(self.np_random.integers(self._noop_max + 1)) + 1

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        reward, over, info = self._advance(self._buttons[int(action)], self._skip)
        self._life_lost = self._episodic_life and not over and info["life"] < self._lives
        self._lives = info["life"]
        return self._observe(), reward, over or self._life_lost, False, {**info, GAME_OVER: over}

    def _advance(self, buttons: int, frames: int) -> tuple[float, bool, dict[str, Any]]:
        """Press buttons for some frames, at most to the end of the game: sum of the rewards, game over, info."""
        total = 0.0
        for _ in range(frames):
            _, reward, over, info = self._game.step(buttons)
            total += reward
            if over:
                break
        return total, over, {name: int(value) for name, value in info.items() if name != "status"}

    def _observe(self) -> NDArray:
        """Slide the newest frame into the stack."""
        import cv2

        self._screen: NDArray = np.ascontiguousarray(self._game.screen)  # a copy: the emulator draws into its own
        frame = cv2.cvtColor(self._screen, cv2.COLOR_RGB2GRAY) if self._grayscale else self._screen
        frame = cv2.resize(frame, (self._size, self._size), interpolation=cv2.INTER_AREA)
        self._frames = np.concatenate([self._frames[1:], frame[None]])
        return self._frames

    def render(self) -> NDArray:
        """Return the newest frame [240, 256, 3], in color."""
        return self._screen

    def close(self) -> None:
        for game in self._games.values():
            game.close()
        self._games = {}


def _number(name: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise UserError(f"env.args.{name} is {value!r}; use an integer of at least {least}")
    return value


def _target(stage: Any) -> tuple[int, int]:
    found = _STAGE.fullmatch(str(stage))
    if found is None:
        raise UserError(f"env.args.stages has {quoted(str(stage))}; stages are 1-1 (world 1, stage 1) to 8-4")
    return int(found[1]), int(found[2])


@cache
def _game() -> Any:
    """The class of a game, whose arguments are ROM, lost levels, and (world, stage) or None.

    gym-super-mario-bros 7.4.0 and nes-py 8.2.1 calculate with elements of uint8 arrays, which overflow in NumPy 2.
    """
    package, nes_env = import_quietly("gym_super_mario_bros"), import_quietly("nes_py.nes_env")

    class Rom(nes_env.ROM):  # type: ignore[misc, name-defined]
        """A ROM whose sizes are calculated in int64."""

        @property
        def header(self) -> NDArray:
            return self.raw_data[:16].astype(np.int64)  # type: ignore[no-any-return]

    class Game(package.SuperMarioBrosEnv):  # type: ignore[misc, name-defined]
        """The game; its memory is read as Python's integers."""

        def _ram_buffer(self) -> memoryview:
            return memoryview(super()._ram_buffer())

    nes_env.ROM = Rom
    return Game
