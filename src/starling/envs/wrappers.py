"""Loads the wrappers of a configuration by name or import path, and applies them; wrappers that Gymnasium lacks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from starling.config.env import WrapperConfig
from starling.errors import UserError, did_you_mean, quoted
from starling.registry import Entry, Registry, check_kind
from starling.types import NDArray, StackSpec

_STATISTICS = "keeps its own statistics in every env, which neither a checkpoint nor an evaluation would share"
_FUNCTION = "needs a function, which a configuration cannot hold: write a wrapper of your own, package.module:Class"
_TENSORS = "gives arrays of another library, where NumPy's are expected"
_REFUSED = {
    "NormalizeObservation": _STATISTICS,
    "NormalizeReward": _STATISTICS,
    "Autoreset": "would reset envs a second time",
    "TransformObservation": _FUNCTION,
    "TransformAction": _FUNCTION,
    "TransformReward": _FUNCTION,
    "ArrayConversion": _TENSORS,
    "JaxToNumpy": _TENSORS,
    "JaxToTorch": _TENSORS,
    "NumpyToTorch": _TENSORS,
}
_EXTRAS = {"cv2": ("OpenCV", "starling-rl[opencv]"), "pygame": ("pygame", "starling-rl[video]")}
"""Module that a Gymnasium wrapper imports -> (name of the package, requirement that installs it)."""


_HOLDS = {"MaxAndSkipObservation": ("skip", 4), "AtariPreprocessing": ("frame_skip", 4)}
"""Wrappers that repeat an action for several frames -> (argument with the number of frames, its default)."""

WRAPPERS = Registry(
    "wrapper",
    {
        "HideFrames": Entry("starling.envs.wrappers:HideFrames", "observations hidden at random"),
        "SelectObservation": Entry("starling.envs.wrappers:SelectObservation", "one part of a dict of observations"),
    },
)
"""Wrappers in addition to those of Gymnasium: built in, and registered by the user."""


def load_wrapper(name: str) -> Any:
    """Load the wrapper `name`: a class in gymnasium.wrappers, a subclass of Wrapper, or a function of an env."""
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
    """Apply all wrappers to `env`, the first one innermost."""
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
    """Convert lists to tuples, which YAML does not have, if the annotation of the wrapper's argument is a tuple."""
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
    """Frames of the env per step through these wrappers; considers only those of Gymnasium that repeat actions."""
    held = (config.args.get(*_HOLDS[config.name]) for config in configs if config.name in _HOLDS)
    return math.prod(int(frames) for frames in held)


def outer_stack(env: gymnasium.Env[Any, Any]) -> StackSpec | None:
    """The stack of an outermost FrameStackObservation around an env with a Box observation; None otherwise."""
    if isinstance(env, wrappers.FrameStackObservation) and isinstance(env.observation_space, spaces.Box):
        return StackSpec("", 0, env.stack_size) if env.stack_size > 1 else None
    return None


def without_text(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Leave text out of a dict of observations."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        return env
    kept = [key for key, part in space.spaces.items() if part.dtype is None or part.dtype.kind != "U"]
    return env if len(kept) == len(space.spaces) else wrappers.FilterObservation(env, kept)


class SelectObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Replaces a dict of observations by its part `key`, so that wrappers for images can follow."""

    def __init__(self, env: gymnasium.Env[Any, Any], key: str) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, spaces.Dict):
            raise TypeError(f"only a Dict has parts to select, not {env.observation_space}")
        if key not in env.observation_space.spaces:
            raise ValueError(f"there is no {quoted(key)}; key is one of {', '.join(env.observation_space.spaces)}")
        self.observation_space = env.observation_space[key]
        self._key = key

    def observation(self, observation: dict[str, Any]) -> Any:
        """Return the selected part."""
        return observation[self._key]


class HideFrames(gymnasium.ObservationWrapper[NDArray, Any, NDArray]):
    """Replaces each observation by zeros with probability `chance`, independently of the others."""

    def __init__(self, env: gymnasium.Env[NDArray, Any], chance: float = 0.5) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, spaces.Box):
            raise TypeError(f"only a Box can be hidden, not {env.observation_space}")
        if not 0 <= chance <= 1:
            raise ValueError(f"chance must be between 0 and 1, not {chance}")
        self._chance = chance
        self._random = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng([seed, 1])  # independent of the env's own random numbers
        return super().reset(seed=seed, options=options)

    def observation(self, observation: NDArray) -> NDArray:
        """Return the observation, or zeros of the same shape and dtype."""
        return np.zeros_like(observation) if self._random.random() < self._chance else observation
