"""MuJoCo's own warnings: into Python's log, not into a file in whatever folder a run was started from."""

from __future__ import annotations

import logging

from gymnasium.envs.registration import EnvSpec


def log_warnings(spec: EnvSpec) -> None:
    """Before an env of MuJoCo is made; what is missing for it is said, in better words, when that is done."""
    if "mujoco" not in str(spec.entry_point):
        return
    try:
        import mujoco
    except ImportError:
        return
    mujoco.set_mju_user_warning(logging.getLogger("mujoco").info)
