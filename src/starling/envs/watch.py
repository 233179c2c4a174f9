"""Checks the outputs of an env: values that do not fit its spaces or are not finite never reach the policy."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from starling import tree
from starling.envs.faults import EnvFault, in_one_line, own_frames, raised
from starling.envs.spaces import Space, leaves
from starling.types import NDArray, Tree

Check = Callable[[Any], None]
"""Raises an `EnvFault` if a value is invalid."""

_NEAR = 1e76  # if a sum of squares is below this, every value is finite, also as float32
_TURNS = (SyncVectorEnv.reset.__code__, SyncVectorEnv.step.__code__)


def observation_check(env: str, space: Space, num_envs: int | None = None, path: str = "") -> Check:
    """Build a check of a batch [B, ...] of observations, or of a single observation if `num_envs` is None."""
    if isinstance(space, spaces.Dict):
        named = {key: observation_check(env, part, num_envs, f"{path}/{key}") for key, part in space.spaces.items()}
        return lambda batch: _check_dict(env, named, batch)
    if isinstance(space, spaces.Tuple):
        parts = [observation_check(env, part, num_envs, f"{path}/{i}") for i, part in enumerate(space.spaces)]
        return lambda batch: _check_tuple(env, parts, batch)
    name = f"observation {path[1:]!r}" if path else "observation"
    return _leaf_check(_Leaf(env, name, space, num_envs))


@dataclass(frozen=True)
class _Leaf:
    """One array of an observation: its env, name, and space; `num_envs` is None for a single env."""

    env: str
    name: str
    space: Space
    num_envs: int | None


def _check_dict(env: str, named: dict[str, Check], batch: Any) -> None:
    if not isinstance(batch, dict) or not batch.keys() >= named.keys():
        raise EnvFault(env, f"gave an observation that is not a dict of {', '.join(named)} as its space says")
    for key, check in named.items():
        check(batch[key])


def _check_tuple(env: str, parts: list[Check], batch: Any) -> None:
    if not isinstance(batch, tuple) or len(batch) != len(parts):
        raise EnvFault(env, f"gave an observation that is not a tuple of {len(parts)} as its space says")
    for check, part in zip(parts, batch, strict=True):
        check(part)


def _leaf_check(leaf: _Leaf) -> Check:
    """Build a check of the shape and dtype; floats must also be finite, and indices in range."""
    space = leaf.space
    shape = (*(() if leaf.num_envs is None else (leaf.num_envs,)), *(space.shape or ()))
    dtype = np.dtype(space.dtype)
    floats, indices = dtype.kind == "f", isinstance(space, spaces.Discrete | spaces.MultiDiscrete)

    def check(batch: Any) -> None:
        array = _array(leaf, batch)
        if array.shape != shape or array.dtype != dtype:
            _check_layout(leaf, array, shape, dtype)
        if floats and not _squares(array) < _NEAR:
            _refuse_infinite(leaf.env, leaf.name, array, leaf.num_envs)
        elif indices:
            _check_range(leaf, array)

    return check


def _squares(array: NDArray) -> float:
    """Sum of squares, which is NaN or inf if any value is: the cheapest check of all values, without warnings."""
    flat = array.ravel("K")  # in memory order, so that nothing is copied
    return float(np.vdot(flat, flat))


def _array(leaf: _Leaf, batch: Any) -> NDArray:
    try:
        return np.asarray(batch)
    except ValueError:
        raise EnvFault(leaf.env, f"gave an {leaf.name} that is not an array") from None


def _check_layout(leaf: _Leaf, array: NDArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if array.shape != shape:
        raise EnvFault(leaf.env, f"gave an {leaf.name} of shape {array.shape}, not {shape} as its space says")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvFault(leaf.env, f"gave an {leaf.name} of dtype {array.dtype}, not {dtype} as its space says")


def _check_range(leaf: _Leaf, array: NDArray) -> None:
    space: Any = leaf.space
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    bad = (array < space.start) | (array >= space.start + count)
    if bad.any():
        text = f"gave {array[bad].flat[0]} in its {leaf.name}, which is not in its space"
        raise EnvFault(leaf.env, text, _first_env(bad, leaf.num_envs))


def _refuse_infinite(env: str, name: str, array: NDArray, num_envs: int | None) -> None:
    """Raise an `EnvFault` if `array` [B, ...] has NaN or inf; its sum of squares may be large without them."""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(array.astype(np.float32))
    if bad.any():
        found = "NaN" if np.isnan(array[bad]).any() else "inf"
        raise EnvFault(env, f"gave {found} in its {name}", _first_env(bad, num_envs), finite=False)


def broken_envs(obs: Tree, reward: NDArray) -> NDArray:
    """Mask [B] of the envs whose observation [B, ...] or reward [B] is not finite as float32."""
    broken = np.zeros(len(reward), np.bool_)
    for leaf in (reward, *tree.leaves(obs)):
        if leaf.dtype.kind == "f":
            broken |= ~np.isfinite(leaf).reshape(len(reward), -1).all(axis=1)
    return broken


def _first_env(bad: NDArray, num_envs: int | None) -> int | None:
    return None if num_envs is None else int(bad.reshape(num_envs, -1).any(axis=1).argmax())


def check_outcome(env: str, num_envs: int, reward: NDArray, terminated: NDArray, truncated: NDArray) -> None:
    """Reject rewards, terminated, and truncated that are not of shape [B], and rewards that are not finite."""
    if not reward.shape == terminated.shape == truncated.shape == (num_envs,):
        shapes = f"{reward.shape}, {terminated.shape} and {truncated.shape}"
        raise EnvFault(env, f"gave rewards, terminated and truncated of shapes {shapes}, not ({num_envs},)")
    if not _squares(reward) < _NEAR:
        _refuse_infinite(env, "reward", reward, num_envs)


class RewardCheck(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rejects rewards of a single env that are not numbers: NumPy would parse strings and convert None to NaN."""

    def __init__(self, name: str, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._name = name

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        outcome = self.env.step(action)
        if len(outcome) == 5 and type(outcome[1]) is not float:
            check_reward(self._name, outcome[1])
        return outcome


def check_reward(env: str, reward: Any, index: int | None = None) -> None:
    """Reject a reward that is not a single number."""
    found = np.asarray(reward)
    if found.dtype.kind not in "biuf" or found.size != 1:
        what = f"gave the reward {reprlib.repr(reward)}, a {type(reward).__name__}, which is not a number"
        raise EnvFault(env, what, index)


def check_rewards(env: str, rewards: Any) -> None:
    """Reject rewards of a vector env if one is not a number."""
    found = np.asarray(rewards)
    if found.dtype.kind not in "biuf":
        for index, reward in enumerate(found.ravel().tolist()):
            check_reward(env, reward, index)


LOOKS, LOOK_EVERY = 256, 64
"""Observations are checked at the first `LOOKS` steps, then at every `LOOK_EVERY`-th step."""
MARGIN = 0.01
"""Tolerance as a fraction of the range (absolute if it is infinite): bounds are often rounded."""


class BoundsWatch:
    """Checks at some steps that observations [B, ...] lie within the bounds of their space; reports once."""

    def __init__(self, env: str, space: Space) -> None:
        bounded = [(path, leaf) for path, leaf in leaves(space) if isinstance(leaf, spaces.Box) and _says_more(leaf)]
        self._env, self._bounds = env, {path: _bounds(leaf) for path, leaf in bounded}
        self._steps = 0

    def look(self, obs: Tree) -> tuple[str, int] | None:
        """Describe the first value out of bounds, with its env; None if there is none, or one was reported before."""
        self._steps += 1
        if not self._bounds or (self._steps > LOOKS and self._steps % LOOK_EVERY):
            return None
        for path, leaf in tree.items(obs):
            if path in self._bounds and (found := self._outside(path, leaf)):
                self._bounds = {}
                return found
        return None

    def _outside(self, path: str, leaf: NDArray) -> tuple[str, int] | None:
        low, high, margin_low, margin_high = self._bounds[path]
        outside = (leaf < margin_low) | (leaf > margin_high)
        if not outside.any():
            return None
        first = tuple(np.argwhere(outside)[0])
        name = f"observation {path!r}" if path else "observation"
        bounds = f"{low[first[1:]]:g} to {high[first[1:]]:g}"
        return f"gave {leaf[first]:g} in its {name}, where its space has {bounds}", int(first[0])


def _says_more(space: spaces.Box) -> bool:
    """Return True if the bounds of a Box are tighter than those of its dtype."""
    dtype: Any = space.dtype
    if dtype.kind == "f":
        return bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())
    widest = np.iinfo(dtype)
    return bool((space.low > widest.min).any() or (space.high < widest.max).any())


def _bounds(space: spaces.Box) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Low and high, and both with a margin, as float64."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(invalid="ignore"):
        margin = MARGIN * np.where(np.isfinite(high - low), high - low, 1.0)
    return low, high, low - margin, high + margin


def fault_of(error: BaseException, env: str, doing: str, ended: NDArray) -> EnvFault:
    """Convert an error in a vector env's step or reset to an `EnvFault`; `ended` [B]: envs that a step resets."""
    turn = _turn(error)
    index = None if turn is None else turn.tb_frame.f_locals.get("i")
    if isinstance(error, EnvFault):
        return EnvFault(error.env, error.what, index if error.index is None else error.index)
    if index is not None and doing == "step" and ended[index]:
        doing = "reset"
    ours = error.__traceback__ is not None and error.__traceback__.tb_next is None  # unpacking its result
    if own_frames(error) is not None or not (turn or ours):
        return raised(env, doing, error, index)
    misfit = None
    if turn is not None and turn.tb_next is not None and index is not None:
        misfit = _misfit(env, turn.tb_frame.f_locals["self"], index)
    return misfit or EnvFault(env, f"gave unusable values from {doing}: {in_one_line(error)}", index)


def _turn(error: BaseException) -> TracebackType | None:
    """Find the frame of `SyncVectorEnv` that was stepping single envs; its local `i` is the failing env."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code not in _TURNS:
        at = at.tb_next
    return at


def _misfit(env: str, envs: SyncVectorEnv[Any, Any], last: int) -> EnvFault | None:
    """Find the first env, up to `last`, whose observation cannot be stacked with the others."""
    check = observation_check(env, envs.single_observation_space)
    for index, obs in enumerate(envs._env_obs[: last + 1]):
        try:
            check(obs)
        except EnvFault as fault:
            return EnvFault(env, fault.what, index)
    return None
