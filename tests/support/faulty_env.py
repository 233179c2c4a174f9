"""An environment that fails on demand, to test how a run handles it."""

from __future__ import annotations

import os
import time
from typing import Any, Literal, get_args

import gymnasium
import numpy as np

from starling.envs.toy import Identity, Info, Outcome
from starling.errors import UserError
from starling.types import NDArray

Fault = Literal[
    "raise_step", "raise_reset", "raise_construct", "nan_obs", "nan_reward", "inf_reward", "text_reward", "far_obs",
    "shape", "hang", "exit",
]  # fmt: skip


class Faulty(gymnasium.Wrapper[NDArray, Any, NDArray, Any]):
    """`toy/identity` with the fault `what` after `when` good steps.

    With `once`, the path of a file, the fault occurs only if the file does not exist, and creates it: a second attempt
    succeeds.
    """

    def __init__(self, what: Fault = "raise_step", when: int = 0, once: str | None = None, length: int = 16) -> None:
        if what not in get_args(Fault):
            raise UserError(f"what must be {', '.join(get_args(Fault))}, not {what!r}")
        super().__init__(Identity(length=length))
        self._what, self._good_steps, self._once = what, when, once
        if self._is_due("raise_construct"):
            raise RuntimeError("told to raise in construction")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        if self._is_due("raise_reset"):
            raise RuntimeError("told to raise in reset")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Outcome:
        if self._is_due("raise_step"):
            raise RuntimeError("told to raise in step")
        if self._is_due("hang"):
            time.sleep(1e9)
        if self._is_due("exit"):
            os._exit(7)
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._is_due("shape"):
            obs = np.append(obs, obs[:1])
        if self._is_due("nan_obs"):
            obs = obs * np.float32(np.nan)
        if self._is_due("nan_reward", "inf_reward"):
            reward = float(self._what[:3])  # nan or inf
        if self._is_due("far_obs"):
            obs = obs + np.float32(1000)
        given: Any = "1.5" if self._is_due("text_reward") else float(reward)
        self._good_steps -= 1
        return obs, given, terminated, truncated, info

    def _is_due(self, *faults: str) -> bool:
        """Return True if the fault is due now and is one of `faults`."""
        if self._what not in faults or self._good_steps > 0:
            return False
        if self._once is None:
            return True
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
