"""The environment ids that this machine knows, by prefix and package; needs no torch.

`ENVIRONMENTS` registers toy problems and the user's own factories, `known_ids` lists everything, `check_id` refuses an
unknown id with a suggestion. `registry.py` builds the environments.
"""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import os
import re
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

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
    },
)
ALE, MINATAR, ENVPOOL, MARIO = "ALE/", "MinAtar/", "envpool/", "SuperMarioBros"
"""Prefixes of ids that are not in Gymnasium's registry."""
MINIGRID = ("MiniGrid-", "BabyAI-")


@dataclass(frozen=True)
class Package:
    """The packages that ids with a given prefix need.

    Attributes:
        family: Heading under which `starling envs` lists the ids.
        modules: Modules that must be installed.
        requirement: What installs them.
        registers: The module that adds the ids to Gymnasium's registry when it is imported; None if they are not there.
    """

    family: str
    modules: tuple[str, ...]
    requirement: str
    registers: str | None = None

    def missing(self) -> str | None:
        """The first module that is not installed."""
        return next((module for module in self.modules if find_spec(module) is None), None)


_MINIGRID = Package("MiniGrid", ("minigrid",), "starling-rl[minigrid]", "minigrid")
_PACKAGES = {
    ALE: Package("ALE", ("ale_py",), "starling-rl[atari]"),
    MINATAR: Package("MinAtar", ("minatar",), "starling-rl[minatar]"),
    MARIO: Package("Super Mario Bros.", ("gym_super_mario_bros", "cv2"), "starling-rl[mario]"),
    ENVPOOL: Package("envpool", ("envpool",), "starling-rl[envpool]"),
    "dm_control/": Package("dm_control", ("shimmy", "dm_control"), "starling-rl[dm-control]", "shimmy"),
    **dict.fromkeys(MINIGRID, _MINIGRID),
    "popgym-": Package("POPGym", ("popgym",), "starling-rl[popgym]", "popgym"),
    "Vizdoom": Package("ViZDoom", ("vizdoom",), "starling-rl[vizdoom]", "vizdoom.gymnasium_wrapper"),
}
"""Package by the prefix of an id."""
_WITHOUT_WHEEL = {
    "procgen": "Procgen has no wheel for this Python; envpool has its games: env.id=envpool/CoinrunHard-v0 and so on"
    " (pip install 'starling-rl[envpool]')",
    "dmlab": "DeepMind Lab has no wheel: build it from its sources, and write a factory, env.id=package.module:factory",
}
"""Advice for ids that cannot be had, by their lower-case prefix."""
_GYMNASIUM = {
    "gymnasium.envs.mujoco.": ("mujoco", "starling-rl[mujoco]"),
    "gymnasium.envs.box2d.": ("Box2D", "starling-rl[box2d]"),
    "gymnasium.envs.phys2d.": ("jax", "gymnasium[jax]"),
    "gymnasium.envs.tabular.": ("jax", "gymnasium[jax]"),
}
"""The package and the requirement that installs it for Gymnasium's own envs, by the prefix of their module."""
_TOO_OLD = {"Pusher-v4"}  # needs mujoco below 3, but the extra installs a later version
_UNPLAYABLE = ("VizdoomDoom", "MiniGrid-WFC-", "dm_control/compatibility-env")
"""Prefixes of ids that are not listed: the packages lack their files (the original Doom), or they need an argument."""
_RENDERED = re.compile(r"dm_control/([A-Z]\w+|\w+_vision|quadruped-escape)-v0")
"""Ids of dm_control whose observations are rendered, which ends the process if it can render nowhere."""
_TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}
_MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_MARIO_ROMS = ("vanilla", "downsample", "pixel", "rectangle")
MARIO_STAGES = tuple(f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5))
"""All stages of Super Mario Bros., by world and stage."""


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


def mario_games() -> dict[str, dict[str, Any]]:
    """Map every id of gym-super-mario-bros to the arguments of `MarioEnv` that it stands for."""
    games: dict[str, dict[str, Any]] = {}
    for version, rom in enumerate(_MARIO_ROMS):
        games |= {f"{MARIO}-{stage}-v{version}": {"stages": (stage,), "rom": rom} for stage in MARIO_STAGES}
        games[f"{MARIO}-v{version}"] = {"stages": (), "rom": rom}
        games[f"{MARIO}RandomStages-v{version}"] = {"stages": MARIO_STAGES, "rom": rom}
    games |= {f"{MARIO}2-v{v}": {"stages": (), "rom": _MARIO_ROMS[v], "lost_levels": True} for v in (0, 1)}
    return games


def family(id: str) -> str:
    """The heading under which `starling envs` lists an id."""
    prefix = _prefix(id)
    if prefix is not None:
        return _PACKAGES[prefix].family
    return "toy" if id.startswith("toy/") else "Gymnasium"


def known_ids() -> list[str]:
    """All ids that can be made with the installed packages, sorted."""
    for prefix in _PACKAGES:
        _register(prefix)
    own = {name for name, _ in ENVIRONMENTS}
    games = {*atari_games()}
    for prefix, ids in ((MINATAR, minatar_games()), (MARIO, mario_games())):
        games |= set() if _PACKAGES[prefix].missing() else set(ids)
    made_by_gymnasium = {id for id, spec in gymnasium_envs().items() if not (_is_retired(spec) or _need(id, spec))}
    return sorted(id for id in own | games | made_by_gymnasium if not id.startswith(_UNPLAYABLE))


def missing() -> dict[str, list[str]]:
    """Env ids that a `pip install` would add, by requirement; only a prefix if the ids are unknown without it."""
    found: dict[str, list[str]] = {}
    for prefix, package in _PACKAGES.items():
        if package.missing():
            found.setdefault(package.requirement, []).append(f"{prefix}...")
    for id, spec in gymnasium_envs().items():
        need = _need(id, spec)
        if need is not None and _prefix(id) is None and id not in _TOO_OLD:
            found.setdefault(need[1], []).append(id)
    return found


def without_wheel(part: str) -> list[str]:
    """Return the advice of all prefixes that contain `part` or are a prefix of it."""
    part = part.lower().replace("_", "").replace("deepmindlab", "dmlab")
    return [text for prefix, text in _WITHOUT_WHEEL.items() if part in prefix or part.startswith(prefix)]


def check_id(id: str) -> None:
    """Reject an unknown id, or one whose package is not installed; import paths are not checked."""
    if id in ENVIRONMENTS or ":" in id:
        return
    spec = gymnasium_spec(id)
    need = _need(id, spec)
    if need is not None:
        raise UserError(f"env {id!r} needs the package {need[0]}: pip install '{need[1]}'")
    if _RENDERED.fullmatch(id) and not {"MUJOCO_GL", "DISPLAY"} & os.environ.keys():
        raise UserError(f"env {id!r} renders what it observes, and there is no display: set MUJOCO_GL=egl or osmesa")
    own = id.startswith(ENVPOOL)  # `envpool.make_vector` checks these
    if spec is None and not own and id not in (known := known_ids()):
        if advice := without_wheel(id):
            raise UserError(f"env {quoted(id)} cannot be made here: {advice[0]}")
        raise UserError(f"unknown environment {quoted(id)}{did_you_mean(id, known)} (starling envs lists them)")
    if spec is not None and _is_retired(spec):
        near = did_you_mean(id, known_ids())
        raise UserError(f"env {id!r} cannot be made with the installed packages{near}")


def gymnasium_spec(id: str) -> EnvSpec | None:
    """The spec of an id in Gymnasium's registry, to which the package of its prefix adds its own ids; None: none."""
    prefix = _prefix(id)
    if prefix is not None:
        _register(prefix)
    return gymnasium.registry.get(id)


def import_quietly(module: str) -> Any:
    """Import a module without what it prints to stderr and its warnings; importing Gym alone prints advice."""
    with redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
        return importlib.import_module(module)


def gymnasium_envs() -> dict[str, EnvSpec]:
    """Specs of Gymnasium's registry, without those that importing the ALE adds (not every process imports it)."""
    return {id: spec for id, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py.")}


def _prefix(id: str) -> str | None:
    return next((prefix for prefix in _PACKAGES if id.startswith(prefix)), None)


def _register(prefix: str) -> None:
    """Add the ids with a prefix to Gymnasium's registry if their package is installed."""
    package = _PACKAGES[prefix]
    if package.registers is not None and package.missing() is None:
        import_quietly(package.registers)


def _is_retired(spec: EnvSpec) -> bool:
    """Return True if Gymnasium only keeps the name of a removed env, whose entry point is a function that raises."""
    entry = spec.entry_point
    return spec.id in _TOO_OLD or (inspect.isfunction(entry) and entry.__module__.startswith("gymnasium."))


def _need(id: str, spec: EnvSpec | None) -> tuple[str, str] | None:
    """The missing package that an env needs and the requirement that installs it; None if nothing is missing."""
    prefix = _prefix(id)
    if prefix is not None:
        package = _PACKAGES[prefix]
        module = package.missing()
        return None if module is None else (module, package.requirement)
    entry = "" if spec is None else str(spec.entry_point)
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
