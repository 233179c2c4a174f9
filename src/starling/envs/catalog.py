"""The environment ids that this machine knows, by prefix and package; needs no torch.

`ENVIRONMENTS` registers toy problems and the user's own factories, `known_ids` lists everything, `check_id` refuses an
unknown id with a suggestion. `registry.py` builds the environments.
"""

from __future__ import annotations

import inspect
import logging
from importlib.util import find_spec

import gymnasium
from gymnasium.envs.registration import EnvSpec

from starling.errors import UserError, did_you_mean, quoted
from starling.registry import Entry, Registry

ENVIRONMENTS = Registry(
    "environment",
    {
        "toy/identity": Entry("starling.envs.toy:Identity", "act as the observation says"),
        "toy/match": Entry("starling.envs.toy:Match", "act as the observation says, in a Box with uneven bounds"),
        "toy/memory": Entry("starling.envs.toy:Memory", "recall a cue after a delay"),
        "toy/truncation": Entry("starling.envs.toy:Truncation", "reward 1 per step, until truncated or terminated"),
        "toy/counting": Entry("starling.envs.toy:Counting", "observations that count steps"),
        "toy/dict": Entry("starling.envs.toy:Mixed", "a dict of vector, image, and index"),
        "toy/deep-sea": Entry("starling.envs.toy_explore:DeepSea", "one of 2^N paths is rewarded"),
        "toy/rooms": Entry("starling.envs.toy_explore:Rooms", "a goal some rooms away"),
        "toy/faulty": Entry("starling.envs.toy_faulty:Faulty", "misbehaves on demand"),
    },
)
ALE, MINATAR, ENVPOOL = "ALE/", "MinAtar/", "envpool/"
"""Prefixes of ids that do not come from Gymnasium's registry; each needs its own package."""

_PACKAGES = {
    ALE: ("ale_py", "starling-rl[atari]"),
    MINATAR: ("minatar", "starling-rl[minatar]"),
    ENVPOOL: ("envpool", "starling-rl[envpool]"),
}
"""Prefix of an id -> (package that it needs, requirement that installs it)."""
_GYMNASIUM = {
    "gymnasium.envs.mujoco.": ("mujoco", "starling-rl[mujoco]"),
    "gymnasium.envs.box2d.": ("Box2D", "gymnasium[box2d]"),
    "gymnasium.envs.phys2d.": ("jax", "gymnasium[jax]"),
    "gymnasium.envs.tabular.": ("jax", "gymnasium[jax]"),
}
"""The same for Gymnasium's own envs, by the prefix of their module."""
_TOO_OLD = {"Pusher-v4"}  # needs mujoco below 3, but the extra installs a later version
_TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}
_MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def atari_games() -> dict[str, str]:
    """Map every `ALE/<Game>-v5` to the name of its ROM; empty if the ALE is not installed."""
    try:
        from ale_py import roms
    except ModuleNotFoundError:
        return {}
    names = [rom for rom in roms.get_all_rom_ids() if rom not in _TWO_PLAYERS]
    return {f"{ALE}{rom.title().replace('_', '')}-v5": rom for rom in names}


def minatar_games() -> dict[str, tuple[str, bool]]:
    """Map every `MinAtar/<Game>-v<n>` to its game and a flag: minimal actions (v1) or all six (v0)."""
    names = {game: game.title().replace("_", "") for game in _MINATAR_GAMES}
    return {f"{MINATAR}{name}-v{v}": (game, v == 1) for game, name in names.items() for v in (0, 1)}


def known_ids() -> list[str]:
    """All ids that can be made with the installed packages, sorted."""
    own = {name for name, _ in ENVIRONMENTS}
    games = {*atari_games(), *(minatar_games() if _installed(MINATAR) else ())}
    made_by_gymnasium = {id for id, spec in gymnasium_envs().items() if not _is_retired(spec) and _need(spec) is None}
    return sorted(own | games | made_by_gymnasium)


def missing() -> dict[str, list[str]]:
    """Env ids that a `pip install` would add, by requirement; only a prefix if the ids are unknown without it."""
    found = {requirement: [f"{prefix}..."] for prefix, (_, requirement) in _PACKAGES.items() if not _installed(prefix)}
    for id, spec in gymnasium_envs().items():
        need = _need(spec)
        if need is not None and id not in _TOO_OLD:
            found.setdefault(need[1], []).append(id)
    return found


def check_id(id: str) -> None:
    """Reject an unknown id, or one whose package is not installed; import paths are not checked."""
    if id in ENVIRONMENTS or ":" in id:
        return
    prefix = next((prefix for prefix in _PACKAGES if id.startswith(prefix)), None)
    spec = gymnasium.registry.get(id)
    if prefix is not None:
        need = None if _installed(prefix) else _PACKAGES[prefix]
    else:
        need = None if spec is None else _need(spec)
    if need is not None:
        raise UserError(f"env {id!r} needs the package {need[0]}: pip install '{need[1]}'")
    if spec is None and prefix != ENVPOOL and id not in (known := known_ids()):  # `envpool.make_vector` checks its own
        raise UserError(f"unknown environment {quoted(id)}{did_you_mean(id, known)} (starling envs lists them)")
    if spec is not None and _is_retired(spec):
        near = did_you_mean(id, known_ids())
        raise UserError(f"env {id!r} cannot be made with the installed packages{near}")


def gymnasium_envs() -> dict[str, EnvSpec]:
    """Specs of Gymnasium's registry, without those that importing the ALE adds (not every process imports it)."""
    return {id: spec for id, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py.")}


def _installed(prefix: str) -> bool:
    return find_spec(_PACKAGES[prefix][0]) is not None


def _is_retired(spec: EnvSpec) -> bool:
    """Return True if Gymnasium only keeps the name of a removed env, whose entry point is a function that raises."""
    entry = spec.entry_point
    return spec.id in _TOO_OLD or (inspect.isfunction(entry) and entry.__module__.startswith("gymnasium."))


def _need(spec: EnvSpec) -> tuple[str, str] | None:
    """The missing package that an env needs and the requirement that installs it; None if nothing is missing."""
    entry = str(spec.entry_point)
    needs = (need for module, need in _GYMNASIUM.items() if entry.startswith(module))
    return next((need for need in needs if find_spec(need[0]) is None), None)


def log_mujoco_warnings(spec: EnvSpec) -> None:
    """Redirect MuJoCo's warnings to Python's logging; by default they go to a file in the working directory.

    Nothing happens if `spec` is not a MuJoCo env, or if the package is missing, which making the env reports.
    """
    if "mujoco" not in str(spec.entry_point):
        return
    try:
        import mujoco
    except ImportError:
        return
    mujoco.set_mju_user_warning(logging.getLogger("mujoco").info)
