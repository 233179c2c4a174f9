"""Builds a `VectorEnv` from an `EnvConfig`: Gymnasium ids, ALE, MinAtar, envpool, toy envs, and user factories.

A family of environments is a module such as `minatar.py` and a branch in `_family`; its ids are in `catalog.py`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector import VectorEnv as GymVectorEnv

from starling.config.env import EnvConfig
from starling.envs import atari, envpool, mario, minatar
from starling.envs.catalog import (
    ALE,
    ENVIRONMENTS,
    ENVPOOL,
    MARIO,
    MINATAR,
    MINIGRID,
    check_id,
    gymnasium_spec,
    log_mujoco_warnings,
)
from starling.envs.faults import EnvFault, in_one_line, raised
from starling.envs.vector import VectorEnv, seeds_int32
from starling.envs.watch import RewardCheck
from starling.envs.wrappers import frames_per_step, load_wrapper, outer_stack, without_text, wrap
from starling.errors import UserError
from starling.registry import check_kind, import_path
from starling.types import EnvSpec, NDArray, StackSpec

VECTOR_FROM = 4
"""Number of envs from which on Gymnasium's own vectorized form is faster than stepping single envs (CartPole: 80 us
against 20 us per env)."""


@dataclass(frozen=True)
class _Family:
    """Constructors for one kind of env; `vector` is None if the env has no vector form."""

    single: Callable[[str | None], gymnasium.Env[Any, Any]]  # (render_mode)
    vector: Callable[[int, int], GymVectorEnv[Any, Any, Any]] | None = None  # (num_envs, threads)
    vector_from: int = 1  # number of envs from which on the vector form is faster
    stack: StackSpec | None = None
    frames_per_step: int = 1
    seeder: Callable[[NDArray], Any] | None = None
    text: bool = False  # observations have text, which is left out unless a wrapper converts it


def register_env(name: str, factory: Any, summary: str = "") -> None:
    """Register a factory of Gymnasium envs under `name`, which can then be used as `env.id`.

    Args:
        name: The new id.
        factory: A callable, or its import path `package.module:factory`, that returns a `gymnasium.Env` or, if it has a
            parameter `num_envs`, a vector env in NEXT_STEP mode.
        summary: A one-line description.
    """
    ENVIRONMENTS.register(name, factory, summary)


def make_env(config: EnvConfig, num_envs: int, threads: int = 1, render: bool = False) -> VectorEnv:
    """Make `num_envs` copies of an environment.

    Args:
        config: The environment with its arguments and wrappers.
        num_envs: Number of envs.
        threads: Threads of the ALE's or envpool's vector env.
        render: Allow `VectorEnv.render`.
    """
    for wrapper in config.wrappers:
        load_wrapper(wrapper.name)  # reports a wrong name before anything is built
    check_id(config.id)
    with _mendable(config.id):
        family = _family(config)
        fits = num_envs >= family.vector_from and not config.wrappers and not render
        if family.vector and config.vectorize == "auto" and fits:
            env = family.vector(num_envs, threads)
            stack = family.stack
        else:
            env, stack = _sync(config, family, num_envs, "rgb_array" if render else None)
    if env.num_envs != num_envs:
        raise UserError(f"env {config.id!r} made {env.num_envs} envs instead of num_envs={num_envs}")
    seeder = None if isinstance(env, SyncVectorEnv) else family.seeder
    return VectorEnv(env, config.id, stack, family.frames_per_step * frames_per_step(config.wrappers), seeder)


def env_spec(config: EnvConfig) -> EnvSpec:
    """The `EnvSpec` of an environment, found by making one env and closing it."""
    env = make_env(config, num_envs=1)
    env.close()
    return env.spec


def check_stagger(config: EnvConfig, num_envs: int) -> None:
    """Reject `env.stagger` if env loops of `num_envs` envs use a vector form that cannot reset single envs."""
    if config.stagger:
        env = make_env(config, min(num_envs, VECTOR_FROM))
        try:
            env.stagger(np.ones(env.num, np.int64))
        finally:
            env.close()


def _sync(
    config: EnvConfig, family: _Family, num_envs: int, render_mode: str | None
) -> tuple[GymVectorEnv[Any, Any, Any], StackSpec | None]:
    def build(index: int) -> gymnasium.Env[Any, Any]:
        with _mendable(config.id, index):
            env = wrap(_checked(config.id, family.single(render_mode)), config.wrappers)
            return RewardCheck(config.id, without_text(env) if family.text else env)

    # No copy of the observations: code that keeps them longer than one step copies them anyway.
    env = SyncVectorEnv([partial(build, index) for index in range(num_envs)], copy=False)
    checked: Any = env.envs[0]
    outer = checked.env
    same = outer.observation_space == outer.unwrapped.observation_space
    return env, outer_stack(outer) or (family.stack if same else None)


def _family(config: EnvConfig) -> _Family:
    if config.id in ENVIRONMENTS:
        return _factory(config, ENVIRONMENTS.load(config.id))
    if config.id.startswith(ALE):
        return _Family(
            lambda mode: atari.SingleAtari(config, mode),
            lambda num_envs, threads: atari.make_vector(config, num_envs, threads),
            stack=atari.stack(config.atari),
            frames_per_step=config.atari.frame_skip,
            seeder=seeds_int32,
        )
    if config.id.startswith(ENVPOOL):
        return _Family(
            lambda mode: _refuse_single(config.id),
            lambda num_envs, threads: envpool.make_vector(config, num_envs, threads),
            seeder=seeds_int32,
        )
    if config.id.startswith(MINATAR):
        return _Family(lambda mode: minatar.make(config.id, config.args, mode))
    if config.id.startswith(MARIO):
        return _Family(
            lambda mode: mario.make(config.id, config.args, mode),
            stack=mario.stack(config.args),
            frames_per_step=mario.frames_per_step(config.args),
        )
    # Gymnasium ids may have a colon too: module:Name-v0 imports the module, which registers the name.
    if ":" in config.id and "-" not in config.id.partition(":")[2]:
        return _factory(config, import_path(config.id))
    return _gymnasium(config)


def _gymnasium(config: EnvConfig) -> _Family:
    module = config.id.partition(":")[0]
    if module != config.id:
        _import(config.id, module)
    spec = gymnasium_spec(config.id) or gymnasium.spec(config.id.rpartition(":")[2])
    log_mujoco_warnings(spec)

    def single(mode: str | None) -> gymnasium.Env[Any, Any]:
        args = config.args if mode is None else {"render_mode": mode, **config.args}
        env = gymnasium.make(spec, disable_env_checker=True, **args)
        if mode is not None and not {"camera_id", "camera_name"} & args.keys():
            _let_the_camera_follow(env)
        return env

    def vector(num_envs: int, threads: int) -> GymVectorEnv[Any, Any, Any]:
        return gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **config.args)

    return _Family(
        single,
        vector if spec.vector_entry_point else None,
        vector_from=VECTOR_FROM,
        text=config.id.startswith(MINIGRID),
    )


def _let_the_camera_follow(env: gymnasium.Env[Any, Any]) -> None:
    """Render a MuJoCo env with its tracking camera if Gymnasium's default does not follow it (HalfCheetah, Ant)."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is None or "trackbodyid" in (renderer.default_cam_config or {}):
        return
    import mujoco

    renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")  # -1: none


def _factory(config: EnvConfig, factory: Any) -> _Family:
    """The family of a callable that makes a single env, or a vector env if it has a parameter `num_envs`."""
    check_kind(factory, config.id, "env", (gymnasium.Env, GymVectorEnv))
    declared = inspect.signature(factory).parameters

    def single(mode: str | None) -> gymnasium.Env[Any, Any]:
        if "num_envs" in declared:
            _refuse_single(config.id)
        args = {"render_mode": mode, **config.args} if "render_mode" in declared else config.args
        env: gymnasium.Env[Any, Any] = factory(**args)
        return env

    def vector(num_envs: int, threads: int) -> GymVectorEnv[Any, Any, Any]:
        env = factory(num_envs=num_envs, **config.args)
        if not isinstance(env, GymVectorEnv):
            raise UserError(f"env {config.id!r} takes num_envs but gave a {type(env).__name__}, not a VectorEnv")
        return env

    return _Family(single, vector if "num_envs" in declared else None)


def _refuse_single(id: str) -> NoReturn:
    raise UserError(f"env {id!r} is a vector env: it takes no wrappers, no vectorize: sync, and no rendering")


def _checked(id: str, env: Any) -> gymnasium.Env[Any, Any]:
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"env {id!r} gave a {type(env).__name__}, not a gymnasium.Env")
    return env


def _import(id: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {module!r} of env {id!r}: {error}") from error


@contextmanager
def _mendable(id: str, index: int | None = None) -> Iterator[None]:
    """Convert errors that the user can fix (arguments of an env, a missing package) to a `UserError`.

    Other errors become an `EnvFault` if the env is the user's own, and a `UserError` if it is one of Gymnasium's, whose
    traceback would not help.
    """
    try:
        yield
    except (UserError, EnvFault):
        raise
    except gymnasium.error.Error as error:
        raise UserError(f"env {id!r}: {error}") from error
    except MemoryError as error:
        what = in_one_line(error)
        raise UserError(f"env {id!r} does not fit into memory ({what}); lower env.args or wrappers") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and "argument" in str(error):
            what = str(error).partition(" was raised from the environment creator")[0]  # added by Gymnasium
            raise UserError(f"env {id!r} does not accept env.args: {what}; change or clear them") from error
        if id in gymnasium.registry:
            raise UserError(f"env {id!r} cannot be made here: {in_one_line(error)}") from error
        raise raised(id, "construction", error, index) from error
