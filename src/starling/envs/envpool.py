"""Envs of envpool, which steps all envs in C++; an id is `envpool/` followed by envpool's own name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from starling import tree
from starling.config.env import EnvConfig
from starling.envs.catalog import ENVPOOL
from starling.envs.faults import in_one_line
from starling.envs.vector import RESETS_SINGLE_ENVS
from starling.errors import UserError, did_you_mean
from starling.types import NDArray

TAKEN = ("num_envs", "batch_size", "num_threads", "seed")
"""Arguments of a pool that `env.args` must not set."""


def make_vector(config: EnvConfig, num_envs: int, threads: int) -> VectorEnv[Any, Any, Any]:
    """Make `num_envs` envs of `config.id`; `config.args` are passed to envpool."""
    import envpool

    name = config.id.removeprefix(ENVPOOL)
    known = envpool.list_all_envs()
    if name not in known:
        raise UserError(f"envpool has no env {name!r}{did_you_mean(name, known)}")
    for argument in config.args:
        if argument in TAKEN:
            raise UserError(f"env.args.{argument} is set by the run; remove it")
    try:
        return Pool(name, num_envs, {"num_threads": threads, **config.args})
    except ImportError as error:  # Procgen's games need Qt
        raise UserError(f"env {config.id!r} cannot be made here: {in_one_line(error)}") from error


class Pool(VectorEnv[Any, Any, Any]):
    """A synchronous pool as a Gymnasium vector env; `reset` makes a new pool, since only that can be seeded."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, RESETS_SINGLE_ENVS: True}  # noqa: RUF012 (as in Gymnasium)

    def __init__(self, name: str, num_envs: int, args: dict[str, Any]) -> None:
        import envpool

        self._name, self._args, self.num_envs = name, args, num_envs
        with _quietly():
            spec = envpool.make_spec(name, **{key: args[key] for key in args if key != "num_threads"})
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._pool: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the envs of `options["reset_mask"]`; without a mask, all of them, with one seed per env if given."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            import envpool

            seeds = {} if seed is None else {"seed": [int(one) for one in seed]}
            with _quietly():
                self._pool = envpool.make_gymnasium(self._name, num_envs=self.num_envs, **seeds, **self._args)
                self._obs, infos = self._pool.reset()
            return self._obs, infos
        begun, infos = self._pool.reset(np.nonzero(mask)[0])
        self._obs = tree.map(partial(_put, mask), self._obs, begun)
        return self._obs, infos

    def step(self, actions: NDArray) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any]]:
        self._obs, reward, terminated, truncated, infos = self._pool.step(actions)
        return self._obs, reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress Gymnasium's warnings about the spaces that envpool declares."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _put(mask: NDArray, values: NDArray, new: NDArray) -> NDArray:
    values = values.copy()
    values[mask] = new
    return values
