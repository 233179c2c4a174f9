"""What can be known to be wrong before torch is imported, which takes longer than a person should wait for a typo."""

from __future__ import annotations

from typing import Any

from starling.config.schema import Config
from starling.errors import UserError, did_you_mean

MADE_BY_STARLING = ("ALE/", "MinAtar/", "envpool/", "toy/")


def unknown_env(id: Any, algorithm: Any) -> str | None:
    """The mistake in a plain Gymnasium id; other ids need torch, or code of the user's that may register its own."""
    if not isinstance(id, str) or not id or id.startswith(MADE_BY_STARLING) or ":" in f"{id}{algorithm}":
        return None
    import gymnasium

    known = list(gymnasium.registry)
    return None if id in known else f"unknown environment {id!r}{did_you_mean(id, known)} (starling envs lists them)"


def check_env(config: Config) -> None:
    """Refuse an unknown Gymnasium id, and one whose actions the algorithm cannot take."""
    env, algo = config.env, config.algo
    mistake = unknown_env(env.id, algo.name)
    if mistake is not None:
        raise UserError(mistake)
    if not algo.actions or env.wrappers or env.args or ":" in env.id or env.id.startswith(MADE_BY_STARLING):
        return
    import gymnasium

    from starling.envs.mujoco import log_warnings

    log_warnings(gymnasium.spec(env.id))
    try:
        made = gymnasium.make(env.id)
    except gymnasium.error.Error:
        return  # what is missing is said, in better words, where the env is made for good
    space = made.action_space
    made.close()
    if type(space).__name__ not in algo.actions:
        raise UserError(f"{algo.name} needs a {' or '.join(algo.actions)} action space; {env.id} has {space}")
