"""Wrappers from the configuration: found by name or import path, put around single envs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium import spaces, wrappers

from starling.config.env import WrapperConfig
from starling.errors import UserError, did_you_mean, quoted
from starling.registry import Entry, Registry, check_kind
from starling.types import StackSpec

_STATISTICS = "keeps statistics of its own in every row, which neither a checkpoint nor an evaluation would share"
_FUNCTION = "needs a function, which a configuration cannot hold: write a wrapper of your own, package.module:Class"
_TENSORS = "gives arrays of another library, where NumPy's are expected"
_REFUSED = {
    "NormalizeObservation": _STATISTICS,
    "NormalizeReward": _STATISTICS,
    "Autoreset": "would reset a second time what is reset already",
    "TransformObservation": _FUNCTION,
    "TransformAction": _FUNCTION,
    "TransformReward": _FUNCTION,
    "ArrayConversion": _TENSORS,
    "JaxToNumpy": _TENSORS,
    "JaxToTorch": _TENSORS,
    "NumpyToTorch": _TENSORS,
}
_EXTRAS = {"cv2": ("OpenCV", "starling-rl[opencv]"), "pygame": ("pygame", "starling-rl[video]")}
"""Modules that wrappers of Gymnasium's import when they are made, by name and what installs them."""


_HOLDS = {"MaxAndSkipObservation": ("skip", 4), "AtariPreprocessing": ("frame_skip", 4)}
"""Wrappers that hold an action for several frames: the argument that says for how many, and its default."""

WRAPPERS = Registry(
    "wrapper", {"HideFrames": Entry("starling.envs.hiding:HideFrames", "observations hidden at random")}
)
"""Wrappers beside those of gymnasium: built in, and the user's own."""


def load_wrapper(name: str) -> Any:
    """The wrapper called `name`: a class in gymnasium.wrappers or a subclass of Wrapper or a function, given an env."""
    if name in WRAPPERS or ":" in name:
        wrapper = WRAPPERS.load(name)
        check_kind(wrapper, name, "wrapper", (gymnasium.Wrapper,))
        return wrapper
    if name in _REFUSED:
        raise UserError(f"wrapper {name!r} {_REFUSED[name]}; leave it out")
    known = [n for n in wrappers.__all__ if n != "vector" and n not in _REFUSED] + [n for n, _ in WRAPPERS]
    if name not in known:
        raise UserError(
            f"unknown wrapper {quoted(name)}{did_you_mean(name, known)}"
            " (a class in gymnasium.wrappers, or package.module:Class)"
        )
    return getattr(wrappers, name)


def wrap(env: gymnasium.Env[Any, Any], configs: Sequence[WrapperConfig]) -> gymnasium.Env[Any, Any]:
    """`env` inside all the wrappers, the first of them innermost."""
    for config in configs:
        wrapper = load_wrapper(config.name)
        try:
            env = wrapper(env, **_with_tuples(wrapper, config.args))
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"wrapper {config.name!r} {_missing(error)}") from error
        except (TypeError, ValueError, AssertionError) as error:
            raise UserError(f"wrapper {config.name!r} does not accept its arguments or the env: {error}") from error
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"wrapper {config.name!r} gave a {type(env).__name__}, not a gymnasium.Env")
    return env


def _with_tuples(wrapper: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The arguments with tuples for lists, which YAML has alone, wherever the wrapper's annotations ask for tuples."""
    declared = inspect.signature(wrapper).parameters
    wanted = [name for name in args if name in declared and "tuple" in str(declared[name].annotation).lower()]
    return {name: _as_tuple(value) if name in wanted else value for name, value in args.items()}


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(inner) for inner in value) if isinstance(value, list) else value


def _missing(error: gymnasium.error.DependencyNotInstalled) -> str:
    module = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
    if module not in _EXTRAS:
        return f"cannot be made here: {error}"
    package, requirement = _EXTRAS[module]
    return f"needs {package}: pip install '{requirement}'"


def frames_per_step(configs: Sequence[WrapperConfig]) -> int:
    """Frames of the env that one step through these wrappers takes: those that gymnasium's own hold an action for."""
    held = (config.args.get(*_HOLDS[config.name]) for config in configs if config.name in _HOLDS)
    return math.prod(int(frames) for frames in held)


def outer_stack(env: gymnasium.Env[Any, Any]) -> StackSpec | None:
    """The stack that an outermost FrameStackObservation makes of a single array."""
    if isinstance(env, wrappers.FrameStackObservation) and isinstance(env.observation_space, spaces.Box):
        return StackSpec("", 0, env.stack_size) if env.stack_size > 1 else None
    return None
