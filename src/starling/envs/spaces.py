"""Checks Gymnasium spaces and converts their values to and from trees of plain arrays.

`plain_space` defines the observations that the policy sees: float64 becomes float32, bool becomes uint8, and Discrete
and MultiDiscrete are int64 that count from 0, whatever their `start`. Actions are converted the other way round, except
that the policy's Box is always [-1, 1] in every dimension, whatever the bounds of the env.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from starling.errors import UserError
from starling.types import ArraySpec, EnvSpec, NDArray, Tree

Space = spaces.Space[Any]
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_REPLACED: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.bool_): np.dtype(np.uint8),
}
LARGEST = 2**30
"""Upper bound on the bytes of one observation; a batch has hundreds of them."""
_NO_BOUND = float(np.finfo(np.float32).max)
"""Bounds at least this large count as unbounded."""


def check_spaces(spec: EnvSpec) -> None:
    """Reject an env with a space that cannot be converted to plain arrays; the error names the leaf."""
    found = list(leaves(spec.observation))
    if not found:
        raise UserError(f"env {spec.id!r}: its observation space {spec.observation} contains no arrays")
    for path, leaf in found:
        if not isinstance(leaf, LEAVES):
            raise UserError(
                f"env {spec.id!r}: observation {path or 'space'!r} is a {type(leaf).__name__}, which is not supported;"
                " wrap the env so that it gives Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of them"
            )
    size = sum(math.prod(leaf.shape or ()) * np.dtype(leaf.dtype).itemsize for _, leaf in found)
    if size > LARGEST:
        raise UserError(
            f"env {spec.id!r}: an observation takes {size / 2**30:,.1f} GiB, and more than {LARGEST / 2**30:g} GiB"
            " cannot be used; lower env.args or wrappers"
        )
    if not isinstance(spec.action, LEAVES):
        raise UserError(
            f"env {spec.id!r}: the action space is a {type(spec.action).__name__}, which is not supported;"
            " wrap the env so that it takes Discrete, MultiDiscrete, MultiBinary or Box"
        )
    if isinstance(spec.action, spaces.Box):
        _check_bounds(spec.id, spec.action)


def _check_bounds(id: str, space: spaces.Box) -> None:
    """Reject unbounded actions: the policy's [-1, 1] cannot be rescaled to them."""
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    for i in np.flatnonzero((low <= -_NO_BOUND) | (high >= _NO_BOUND)):
        raise UserError(
            f"env {id!r}: action {i} of {len(low)} has no bounds ({low[i]:g} to {high[i]:g}) to rescale it"
            " to; wrap the env so that its action space is a Box with finite low and high"
        )


def observation_layout(space: Space) -> Tree:
    """Shape and dtype of every observation leaf, as `VectorEnv` returns it."""
    return _build(plain_space(space), lambda leaf: ArraySpec(tuple(leaf.shape or ()), np.dtype(leaf.dtype)))


def policy_space(space: Space) -> Space:
    """The space of the policy's actions: plain, and [-1, 1] in every dimension of a Box."""
    return spaces.Box(-1.0, 1.0, space.shape, np.float32) if isinstance(space, spaces.Box) else plain_space(space)


def plain_space(space: Space) -> Space:
    """The space of converted values; a plain space is returned as it is."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: plain_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([plain_space(part) for part in space.spaces])
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.astype(np.int64))
    if isinstance(space, spaces.Box) and np.dtype(space.dtype) in _REPLACED:
        dtype = _REPLACED[np.dtype(space.dtype)]
        with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite
            return spaces.Box(space.low.astype(dtype), space.high.astype(dtype), dtype=dtype.type)
    return space


def observation_converter(space: Space) -> Callable[[Any], Tree]:
    """Build a converter from a batch of observations to a tree of [B, ...]; copies only if dtype or layout changes."""
    if isinstance(space, spaces.Dict):
        named = {key: observation_converter(part) for key, part in space.spaces.items()}
        return lambda batch: {key: convert(batch[key]) for key, convert in named.items()}
    if isinstance(space, spaces.Tuple):
        parts = [observation_converter(part) for part in space.spaces]
        return lambda batch: tuple(convert(value) for convert, value in zip(parts, batch, strict=True))
    dtype = np.dtype(plain_space(space).dtype)
    start = _start(space)
    if start is not None:
        return lambda batch: np.asarray(batch, dtype) - start
    return lambda batch: np.ascontiguousarray(batch, dtype)


def action_converter(space: Space) -> Callable[[NDArray], NDArray]:
    """Build a converter from a batch of the policy's actions [B, ...] to the env's actions."""
    if isinstance(space, spaces.Box):
        return _rescaler(space)
    dtype = np.dtype(space.dtype)
    start = _start(space)
    if start is not None:
        return lambda batch: (batch + start).astype(dtype)
    return lambda batch: np.ascontiguousarray(batch, dtype)


def _rescaler(space: spaces.Box) -> Callable[[NDArray], NDArray]:
    """Build a converter from [-1, 1] to the bounds of a Box, exact at both ends; clips, and rounds to integers."""
    dtype = np.dtype(space.dtype)
    half_low, half_high = 0.5 * space.low.astype(np.float64), 0.5 * space.high.astype(np.float64)

    def rescale(batch: NDArray) -> NDArray:
        inside = np.clip(batch, -1.0, 1.0)
        scaled = half_low * (1.0 - inside) + half_high * (1.0 + inside)
        return (scaled if dtype.kind == "f" else np.rint(scaled)).astype(dtype)

    return rescale


def leaves(space: Space, path: str = "") -> Iterator[tuple[str, Space]]:
    """Yield every leaf of nested Dict and Tuple spaces with its path, e.g. `a/b/0`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from leaves(part, f"{path}/{key}" if path else str(key))
    else:
        yield path, space


def _build(space: Space, leaf: Callable[[Space], Any]) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _build(part, leaf) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_build(part, leaf) for part in space.spaces)
    return leaf(space)


def _start(space: Space) -> NDArray | None:
    """The `start` of a Discrete or MultiDiscrete space; None if it is 0, and for other spaces."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        start = np.asarray(space.start, np.int64)
        return start if start.any() else None
    return None
