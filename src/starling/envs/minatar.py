"""MinAtar (Young and Tian 2019, arXiv:1903.03176): five Atari games on a 10x10 grid, with one channel per object."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.envs.catalog import minatar_games
from starling.matplotlib_import import import_matplotlib
from starling.types import NDArray

_CELL = 16  # pixels per cell in a rendered image
# One color per channel, at most ten; later channels are drawn over earlier ones.
_COLORS = np.array(
    [
        [86, 180, 233], [230, 159, 0], [90, 90, 90], [0, 158, 115], [213, 94, 0],
        [204, 121, 167], [240, 228, 66], [0, 114, 178], [170, 170, 170], [255, 255, 255],
    ],
    np.uint8,
)  # fmt: skip


def make(id: str, args: dict[str, Any], render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Make the game of `id`; `args` are the other arguments of `MinAtarEnv`."""
    game, minimal = minatar_games()[id]
    return MinAtarEnv(game, **{"minimal_actions": minimal, "render_mode": render_mode, **args})


class MinAtarEnv(gymnasium.Env[NDArray, Any]):
    """One game, with observations [channels, 10, 10] uint8 of 0 and 1, and raw rewards."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as in Gymnasium)

    def __init__(
        self,
        game: str,
        minimal_actions: bool = True,
        sticky: float = 0.1,
        ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        import_matplotlib()  # before MinAtar does
        from minatar import Environment

        self._game = Environment(game, sticky_action_prob=sticky, difficulty_ramping=ramping)
        actions = self._game.minimal_action_set() if minimal_actions else range(self._game.num_actions())
        self._actions = [int(action) for action in actions]
        height, width, channels = self._game.state_shape()
        self.observation_space = spaces.Box(0, 1, (channels, height, width), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))
        self.render_mode = render_mode
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None or not self._seeded:
            self._game.seed(int(self.np_random.integers(2**32)))
            self._seeded = True
        self._game.last_action = 0  # else the first sticky action would repeat one from before the reset
        self._game.reset()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        reward, terminal = self._game.act(self._actions[int(action)])
        return self._observe(), float(reward), bool(terminal), False, {}

    def render(self) -> NDArray:
        """Render the grid to an image [160, 160, 3]."""
        picture = np.zeros((*self._game.state().shape[:2], 3), np.uint8)
        for channel, color in zip(self._observe(), _COLORS, strict=False):
            picture[channel > 0] = color
        return picture.repeat(_CELL, axis=0).repeat(_CELL, axis=1)

    def _observe(self) -> NDArray:
        state: NDArray = self._game.state()  # [10, 10, C] bool
        return state.transpose(2, 0, 1).astype(np.uint8)
