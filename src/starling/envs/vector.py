"""`VectorEnv`: copies of one environment that are stepped together; actors and evaluators use no other interface."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymVectorEnv

from starling.envs.faults import EnvFault, in_one_line
from starling.envs.spaces import action_converter, check_spaces, observation_converter, plain_space, policy_space
from starling.envs.watch import broken_envs, check_outcome, check_rewards, fault_of, observation_check
from starling.errors import UserError
from starling.types import EnvSpec, EnvStep, NDArray, StackSpec

MOST_DROPPED = 10
"""Episodes of one env that may be dropped in a row; more is an error."""
RESETS_SINGLE_ENVS = "resets_single_envs"
"""Key in the metadata of a vector env: its `reset` supports options["reset_mask"]."""
DEFAULT_PACE = 30.0
"""Steps per second at which to show an env that does not declare its `render_fps`."""
GAME_OVER = "starling.game_over"
"""Key in the infos of an env whose episodes are single lives of a game: [B] bool, the game itself has ended."""


class VectorEnv:
    """Wraps a Gymnasium vector env in NEXT_STEP autoreset mode; `reset` and `step` return an `EnvStep`.

    After `reset(seeds)` everything is a pure function of the seeds and the actions. The observations of a step may be
    the env's own buffers: they are valid until the next step or reset, so copy them to keep them longer.

    An env that raises, or returns values that do not fit its spaces, raises an `EnvFault`. If single envs can be reset,
    an episode in which an env returns NaN or inf is dropped instead: that step is discarded, and the env is reset.
    """

    def __init__(
        self,
        env: GymVectorEnv[Any, Any, Any],
        id: str,
        stack: StackSpec | None = None,
        frames_per_step: int = 1,
        seeder: Callable[[NDArray], Any] | None = None,
    ) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise UserError(f"env {id!r} has autoreset_mode {mode}; build it with AutoresetMode.NEXT_STEP")
        raw = EnvSpec(id, env.single_observation_space, env.single_action_space, stack, frames_per_step)
        check_spaces(raw)
        self.spec = replace(raw, observation=plain_space(raw.observation), action=policy_space(raw.action))
        self.num = env.num_envs
        self.infos: dict[str, Any] = {}
        self.game_over = np.zeros(self.num, np.bool_)  # [B] the game has ended; without lives, the episode
        self._env = env
        self._seeder = seeder or _seeder(env)
        self.encode = observation_converter(
            raw.observation
        )  # batch of the env's observations -> batch of the policy's observations
        self.decode = action_converter(raw.action)  # batch of the policy's actions -> batch of the env's actions
        self._check = observation_check(id, raw.observation, self.num)
        self._ended = self._done = self.cut_short = self.dropped = np.zeros(self.num, np.bool_)  # [B]
        self._in_succession = np.zeros(self.num, np.int64)  # [B] episodes dropped since the last one that ended
        self.drops: list[EnvFault] = []  # reasons of dropped episodes; emptied by the code that reports them
        self._countdown = np.zeros(self.num, np.int64)  # [B] steps until `stagger` cuts an episode short; 0: never

    def reset(self, seeds: NDArray) -> EnvStep:
        """Begin an episode in every env, with one seed per env: `seeds` [B] int64, at least 0."""
        if seeds.shape != (self.num,) or seeds.min() < 0:
            raise ValueError(f"seeds must be {self.num} integers of at least 0, not {seeds}")
        seed = self._seeder(seeds)
        try:
            obs, self.infos = self._env.reset(seed=seed)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise fault_of(error, self.spec.id, "reset", self._ended) from error
        self._check(obs)
        none = np.zeros(self.num, np.bool_)
        self._ended = self._done = self.game_over = self.cut_short = self.dropped = none
        self._countdown, self._in_succession = np.zeros((2, self.num), np.int64)
        reward = np.zeros(self.num, np.float32)
        return EnvStep(self.encode(obs), ~none, reward, none, none.copy(), none.copy(), none.copy())

    def stagger(self, steps: NDArray) -> None:
        """Cut the current episode of each env short after `steps` [B] steps; 0: not at all.

        Envs that start together and have episodes of similar length would otherwise stay in sync for a long time, and
        a batch would show all of them at the same stage of an episode.
        """
        if steps.any() and not _resets_single_envs(self._env):
            raise UserError(f"env {self.spec.id!r} cannot reset single envs; set env.stagger=0")
        self._countdown = steps.copy()

    def step(self, actions: NDArray) -> EnvStep:
        """Take `actions` [B, ...]; an env whose episode ended at the last step is reset instead."""
        obs, reward, terminated, truncated = self._take(self.decode(actions))
        self._look(obs, reward, terminated, truncated)
        anew = self.cut_short | self.dropped  # envs to reset explicitly: their episode did not end by itself
        if anew.any():
            obs = self._begin_anew(anew)
            reward = np.where(anew, np.float32(0.0), reward)
            terminated, truncated = terminated & ~anew, truncated & ~anew
        first = self._ended | self.dropped
        valid = ~first
        self._ended = terminated | truncated
        self.cut_short = self._count_down(valid & ~self._ended)
        truncated = truncated | self.cut_short
        self._ended = self._ended | self.cut_short
        # An env that is both terminated and truncated counts as terminated, so that nothing is bootstrapped.
        terminated = terminated & valid
        truncated = truncated & valid & ~terminated
        self._done = (terminated | truncated) & ~self.cut_short
        self._in_succession[self._done] = 0
        self.game_over = self.infos.get(GAME_OVER, self._done) & ~self.dropped
        return EnvStep(self.encode(obs), first, reward * valid, terminated, truncated, valid, self.cut_short)

    def _take(self, actions: NDArray) -> tuple[Any, NDArray, NDArray, NDArray]:
        """Step the env: observations, rewards [B] float32, terminated [B], truncated [B]; errors become `EnvFault`."""
        try:
            obs, reward, terminated, truncated, self.infos = self._env.step(actions)
            check_rewards(self.spec.id, reward)
            reward = np.asarray(reward, np.float32)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise fault_of(error, self.spec.id, "step", self._ended) from error
        return obs, reward, np.asarray(terminated), np.asarray(truncated)

    def _look(self, obs: Any, reward: NDArray, terminated: NDArray, truncated: NDArray) -> None:
        """Reject values that do not fit the spaces; drop episodes with NaN or inf if single envs can be reset."""
        self.dropped = np.zeros(self.num, np.bool_)
        try:
            check_outcome(self.spec.id, self.num, reward, terminated, truncated)
            self._check(obs)
        except EnvFault as fault:
            if fault.finite or not _resets_single_envs(self._env):
                raise
            with np.errstate(over="ignore"):  # values beyond float32 become inf
                self._drop(fault, broken_envs(self.encode(obs), reward))

    def _drop(self, fault: EnvFault, broken: NDArray) -> None:
        """Drop the current episodes of the envs of the mask `broken` [B] because of `fault`."""
        self._in_succession[broken] += 1
        if self._in_succession.max() > MOST_DROPPED:
            index = int(self._in_succession.argmax())
            raise EnvFault(fault.env, f"{fault.what}, in {MOST_DROPPED} consecutive episodes", index)
        self.drops += [EnvFault(fault.env, fault.what, int(index)) for index in np.flatnonzero(broken)]
        self.dropped = broken

    def _begin_anew(self, anew: NDArray) -> Any:
        """Reset the envs of the mask `anew` [B] without a seed; returns the observations of all envs."""
        try:
            obs, _ = self._env.reset(options={"reset_mask": anew})
        except (Exception, SystemExit) as error:
            raise fault_of(error, self.spec.id, "reset", anew) from error
        self._check(obs)
        return obs

    def _count_down(self, played: NDArray) -> NDArray:
        """Count down the steps of `stagger`; returns the envs [B] bool to cut short now."""
        if not self._countdown.any():
            return np.zeros(self.num, np.bool_)
        over = played & (self._countdown == 1)
        self._countdown = np.where(played, np.maximum(self._countdown - 1, 0), 0)
        return np.asarray(over)

    def episode_infos(self) -> dict[int, dict[str, Any]]:
        """Infos of each env whose episode ended at the last step, by env."""
        return {int(index): infos_of(self.infos, int(index)) for index in np.flatnonzero(self._done)}

    @property
    def pace(self) -> float:
        """Steps per second in real time: the env's `render_fps` divided by the frames per step; 30 if undeclared."""
        fps: Any = self._env.metadata.get("render_fps")
        known = isinstance(fps, int | float) and 0 < fps < math.inf
        return fps / self.spec.frames_per_step if known else DEFAULT_PACE

    def render(self, index: int = 0) -> NDArray:
        """Render one env to an image [H, W, 3] uint8; the env must have been made with `render=True`."""
        try:
            frame: Any = self._env.envs[index].render() if isinstance(self._env, SyncVectorEnv) else None
        except (NotImplementedError, gymnasium.error.Error) as error:
            raise UserError(
                f"env {self.spec.id!r} cannot be rendered: {str(error) or 'it renders no images'}"
            ) from error
        except Exception as error:  # missing graphics drivers raise errors of many types
            raise UserError(f"env {self.spec.id!r} cannot be rendered: {in_one_line(error)}") from error
        if frame is None:
            raise UserError(f"env {self.spec.id!r} cannot be rendered: it was not made for rendering")
        return np.asarray(frame, np.uint8)

    def close(self) -> None:
        """Close the env; an error is only logged, so that it does not hide an earlier one."""
        try:
            self._env.close()
        except Exception as error:
            logging.getLogger(__name__).warning("env %r raised in close: %s", self.spec.id, in_one_line(error))


def infos_of(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Infos of one env from Gymnasium's vector infos, whose masks `_key` mark the envs that have `key`."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if (key.startswith("_") and key[1:] in infos) or (mask is not None and not mask[index]):
            continue
        found[key] = infos_of(value, index) if isinstance(value, dict) else value[index]
    return found


def _resets_single_envs(env: GymVectorEnv[Any, Any, Any]) -> bool:
    """Return True if `reset` supports a mask; Gymnasium cannot tell, and other envs would silently reset all."""
    return (
        env.metadata.get(RESETS_SINGLE_ENVS, False)
        or isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        or type(env.unwrapped).__module__ == "ale_py.vector_env"
    )


def _seeder(env: GymVectorEnv[Any, Any, Any]) -> Callable[[NDArray], Any]:
    if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        return lambda seeds: seeds.tolist()
    return joint_seed


def joint_seed(seeds: NDArray) -> int:
    """Hash the seeds [B] of all envs into one, for a vector env that has a single random generator."""
    return int(np.random.SeedSequence(seeds.tolist()).generate_state(1)[0] >> 1)


def seeds_int32(seeds: NDArray) -> NDArray:
    """Hash each of the seeds [B] to a non-negative int32, as C++ envs need it (the ALE ignores negative seeds)."""
    return np.array([joint_seed(seeds[i : i + 1]) for i in range(len(seeds))])
