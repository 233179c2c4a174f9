"""Redirects MuJoCo's warnings to Python's logging; by default they go to a file in the working directory."""

from __future__ import annotations

import logging

from gymnasium.envs.registration import EnvSpec


def log_warnings(spec: EnvSpec) -> None:
    """Redirect MuJoCo's warnings if `spec` is a MuJoCo env; making the env reports a missing package."""
    if "mujoco" not in str(spec.entry_point):
        return
    try:
        import mujoco
    except ImportError:
        return
    mujoco.set_mju_user_warning(logging.getLogger("mujoco").info)
