"""Tiny exploration problems: random actions almost never find the reward."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from starling.errors import UserError, quoted
from starling.types import NDArray

Info = dict[str, Any]
Outcome = tuple[NDArray, float, bool, bool, Info]


class DeepSea(gymnasium.Env[NDArray, Any]):
    """Deep sea (Osband et al. 2020, bsuite, arXiv:1908.03568): only `size` consecutive moves right reach the treasure.

    Every step moves down one row. In each cell, `mapping_seed` determines which of the two actions is "right", as in
    bsuite, which uses 42. A move right costs 0.01 / size, and the treasure in the last corner is worth 1: the best
    return is 0.99, and random actions find the treasure once in 2^size episodes. The observation [size * size] is
    one-hot for the current cell, and zero after the last row.
    """

    def __init__(self, size: int = 8, mapping_seed: int = 0) -> None:
        _check("toy/deep-sea", 1000, size=size)
        self.observation_space = spaces.Box(0, 1, (size * size,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._size = size
        # bsuite's legacy generator, so that the same seed gives the same mapping as there.
        self._right = np.random.RandomState(mapping_seed).binomial(1, 0.5, (size, size))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        self._row = self._column = 0
        return self._observe(), {}

    def step(self, action: Any) -> Outcome:
        right = bool(action == self._right[self._row, self._column])
        found = right and self._row == self._column == self._size - 1
        reward = float(found) - (0.01 / self._size if right else 0.0)
        self._column = min(self._column + 1, self._size - 1) if right else max(self._column - 1, 0)
        self._row += 1
        return self._observe(), reward, self._row == self._size, False, {"treasure": found}

    def _observe(self) -> NDArray:
        obs = np.zeros(self._size * self._size, np.float32)
        if self._row < self._size:
            obs[self._row * self._size + self._column] = 1
        return obs


class Rooms(gymnasium.Env[NDArray, Any]):
    """A grid of `rooms` x `rooms` rooms with doors between neighbors; the goal is in the corner opposite the start.

    Actions are up, right, down, left; a move into a wall has no effect. The goal gives reward 1 and terminates the
    episode; it is truncated after `limit` steps. The observation is one-hot for the current cell [side * side],
    followed by the noisy TV [tv]: unpredictable noise in the first room, zeros elsewhere. `info["rooms"]` is the
    number of rooms visited in this episode.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as in Gymnasium)
    _MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))

    def __init__(
        self, rooms: int = 3, size: int = 3, limit: int = 200, tv: int = 0, render_mode: str | None = None
    ) -> None:
        _check("toy/rooms", 30, rooms=rooms, size=size)
        self._pitch = size + 1
        side = rooms * self._pitch + 1
        self._free = _floor_plan(rooms, size)
        self._start = (1 + size // 2,) * 2
        self._goal = (side - 2 - (size - 1) // 2,) * 2
        self._limit = limit
        self._tv = tv
        self.observation_space = spaces.Box(0, 1, (side * side + tv,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        self._at = self._start
        self._seen = {self._room()}
        return self._observe(), {"rooms": 1}

    def step(self, action: Any) -> Outcome:
        down, right = self._MOVES[int(action)]
        to = (self._at[0] + down, self._at[1] + right)
        if self._free[to]:
            self._at = to
            self._seen.add(self._room())
        self._step += 1
        found = self._at == self._goal
        return self._observe(), float(found), found, self._step >= self._limit, {"rooms": len(self._seen)}

    def render(self) -> NDArray:
        """Render the floor plan: floor white, goal green, agent red."""
        picture = np.where(self._free[..., None], 255, 60).repeat(3, axis=-1).astype(np.uint8)
        picture[self._goal] = (0, 158, 115)
        picture[self._at] = (213, 94, 0)
        return picture.repeat(8, axis=0).repeat(8, axis=1)

    def _room(self) -> tuple[int, int]:
        """The room of the current cell; a door belongs to the room above or to the left of it."""
        return (self._at[0] - 1) // self._pitch, (self._at[1] - 1) // self._pitch

    def _observe(self) -> NDArray:
        obs = np.zeros(self._free.shape, np.float32)
        obs[self._at] = 1
        watching = self._room() == (0, 0)
        picture = self.np_random.random(self._tv, np.float32) if watching else np.zeros(self._tv, np.float32)
        return np.concatenate([obs.ravel(), picture])


def _check(env: str, longest: int, **lengths: Any) -> None:
    """Reject lengths other than integers from 1 to `longest`, to limit observations to about a million numbers."""
    for name, length in lengths.items():
        if type(length) is not int or not 1 <= length <= longest:
            raise UserError(f"{env}: {name} must be an integer from 1 to {longest:,}, not {quoted(length)}")


def _floor_plan(rooms: int, size: int) -> NDArray:
    """Mask [side, side] of free cells: rooms of `size` x `size`, and a door in the middle of every wall."""
    pitch = size + 1
    side = rooms * pitch + 1
    inside = np.arange(side) % pitch != 0
    free = np.outer(inside, inside)
    doors = np.arange(rooms) * pitch + 1 + size // 2
    walls = np.arange(1, rooms) * pitch
    free[np.ix_(walls, doors)] = True
    free[np.ix_(doors, walls)] = True
    return free
