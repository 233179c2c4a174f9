"""Views of observations for intrinsic rewards: the newest frame, and spaces of normalized values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from starling import tree
from starling.nets.torsos import Path, space_leaves
from starling.types import EnvSpec, Tensor, Tree


class Newest:
    """Reduces a stack of frames in an observation to its newest frame."""

    def __init__(self, env: EnvSpec) -> None:
        self._stack = env.stack

    def __call__(self, obs: Tree, lead: int) -> Tree:
        """Apply to obs [..., *shape] with `lead` leading axes."""
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
    """The observation space after `Newest`."""

    def newest(path: Path, leaf: spaces.Box) -> spaces.Box:
        stack = env.stack
        if stack is None or "/".join(map(str, path)) != stack.path:
            return leaf
        size = leaf.shape[stack.axis] // stack.n
        low, high = (np.split(bound, [-size], axis=stack.axis)[1] for bound in (leaf.low, leaf.high))
        return spaces.Box(low, high, dtype=leaf.dtype.type)

    return _rebuilt(env.observation, newest, ())


def as_floats(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space with every Box as unbounded float32, since its values will be normalized."""
    return _rebuilt(space, lambda _, leaf: spaces.Box(-np.inf, np.inf, leaf.shape, np.float32), ())


def _rebuilt(
    space: spaces.Space[Any], change: Callable[[Path, spaces.Box], spaces.Box], path: Path
) -> spaces.Space[Any]:
    """Apply `change` to every Box of a space."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _rebuilt(part, change, (*path, key)) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(_rebuilt(part, change, (*path, i)) for i, part in enumerate(space.spaces)))
    return change(path, space) if isinstance(space, spaces.Box) else space


def boxes(space: spaces.Space[Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every Box leaf by its path."""
    return {
        "/".join(map(str, path)): tuple(leaf.shape)
        for path, leaf in space_leaves(space)
        if isinstance(leaf, spaces.Box)
    }
