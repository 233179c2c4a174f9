"""What an intrinsic reward looks at of an observation."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from starling import tree
from starling.nets.torsos import space_leaves
from starling.types import EnvSpec, Tensor, Tree


class Newest:
    """Observations with a stack of frames cut down to its newest."""

    def __init__(self, env: EnvSpec) -> None:
        self._stack = env.stack

    def __call__(self, obs: Tree, lead: int) -> Tree:
        """obs [..., *shape] with `lead` axes in front."""
        stack = self._stack
        if stack is None:
            return obs
        parts = iter(
            self._cut(leaf, stack.axis + lead) if path == stack.path else leaf for path, leaf in tree.items(obs)
        )
        return tree.map(lambda _: next(parts), obs)

    def _cut(self, leaf: Tensor, axis: int) -> Tensor:
        assert self._stack is not None
        size = leaf.shape[axis] // self._stack.n
        return leaf.narrow(axis, leaf.shape[axis] - size, size)


def newest_space(env: EnvSpec) -> spaces.Space[Any]:
    """The space of what `Newest` leaves, as floats wherever there are numbers, since they will be normalised."""
    return _rebuilt(env, env.observation, ())


def _rebuilt(env: EnvSpec, space: spaces.Space[Any], path: tuple[str | int, ...]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _rebuilt(env, part, (*path, key)) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(_rebuilt(env, part, (*path, i)) for i, part in enumerate(space.spaces)))
    if not isinstance(space, spaces.Box):
        return space
    shape = list(space.shape)
    if env.stack is not None and "/".join(map(str, path)) == env.stack.path:
        shape[env.stack.axis] //= env.stack.n
    return spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)


def boxes(space: spaces.Space[Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every leaf of numbers, by its path."""
    return {
        "/".join(map(str, path)): tuple(leaf.shape)
        for path, leaf in space_leaves(space)
        if isinstance(leaf, spaces.Box)
    }
