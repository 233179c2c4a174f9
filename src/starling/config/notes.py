"""Notes on a configuration that can be used, but may not mean what its author expects; each is one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starling.config import atari_ids
from starling.config.algorithms import ALGORITHMS
from starling.config.dialect import on_one_line
from starling.config.load import is_file, load, merge, preset_names, read_files
from starling.config.schema import Config
from starling.config.secrets import hide

FAMILIES = {"-atari": "ALE/", "-minatar": "MinAtar/"}
"""Endings of presets that are meant for a family of envs -> prefix of their ids."""
_SHOWN = 6  # settings in a note
_TUNED = ("stop", "algo", "net", "curiosity", "env")
"""Sections whose settings depend on the env, those with the largest effect first."""


def notes_on(source: str, overrides: Sequence[str], config: Config) -> list[str]:
    """Return notes on `config`, which was loaded from `source` and `overrides`."""
    found = (_atari_note(source, overrides, config), _text_note(config), _carried_over(source, overrides, config))
    return [note for note in found if note is not None]


def any_env_preset(algorithm: str, env_id: str) -> str | None:
    """Return the preset of an algorithm for any env of the kind of `env_id`; None if there is none."""
    suffixes = [suffix for suffix, prefix in FAMILIES.items() if env_id.startswith(prefix)]
    candidates = [f"{algorithm}{suffix}" for suffix in (*suffixes, "")]
    return next((name for name in candidates if name in preset_names()), None)


def _atari_note(source: str, overrides: Sequence[str], config: Config) -> str | None:
    """Say which env and which preprocessing an Atari id of an earlier version has become."""
    typed = _typed_id(source, overrides)
    if typed is None or typed == config.env.id or atari_ids.resolve(typed) is None:
        return None
    atari = config.env.atari
    return (
        f"env: {typed} is {config.env.id} with env.atari.frame_skip={atari.frame_skip} and"
        f" env.atari.sticky={atari.sticky:g}"
    )


def _text_note(config: Config) -> str | None:
    """Say that missions, which are text, are left out, unless a wrapper may convert them."""
    if not config.env.id.startswith(("MiniGrid-", "BabyAI-")) or config.env.wrappers:
        return None
    return (
        "env: the observations are image and direction; the mission, which is text, is left out"
        " (env.wrappers='{minigrid.wrappers:DictObservationSpaceWrapper: {}}' gives it as indices of words)"
    )


def _typed_id(source: str, overrides: Sequence[str]) -> str | None:
    """Return the id in the overrides, or else in the file `source`, as it is written there."""
    given = [override.partition("=")[2] for override in overrides if override.partition("=")[0] == "env.id"]
    if given or not is_file(source):
        return given[-1] if given else None
    env = read_files(source)[-1][1].get("env")
    id = env.get("id") if isinstance(env, dict) else None
    return id if isinstance(id, str) else None


def _carried_over(source: str, overrides: Sequence[str], config: Config) -> str | None:
    """Name the settings that were chosen for a preset's own env, if the run has another one."""
    settings, _ = merge(source, overrides)
    chain = [name for name, _ in read_files(source)]
    meant = [i for i, name in enumerate(chain) if name in preset_names() and _is_meant_for(name, config.env.id)]
    for name in chain[meant[-1] + 1 if meant else 0 :]:
        keys = settings.by_file().get("" if name == source else name, [])
        carried = sorted(filter(_depends_on_env, keys), key=lambda key: _TUNED.index(key[0]))
        if name not in preset_names() or not carried:
            continue
        shown = ", ".join(f"{'.'.join(key)}={_at(settings.values, key)}" for key in carried[:_SHOWN])
        more = f" and {len(carried) - _SHOWN} more" if len(carried) > _SHOWN else ""
        preset = any_env_preset(config.algo.name, config.env.id)
        advice = "" if preset is None else f"; the preset for any env: {preset}"
        return f"note: {name} is made for {load(name).env.id}, and {config.env.id} takes over its {shown}{more}{advice}"
    return None


def _is_meant_for(preset: str, env_id: str) -> bool:
    if preset in ALGORITHMS or load(preset).env.id == env_id:
        return True
    return any(preset.endswith(suffix) and env_id.startswith(prefix) for suffix, prefix in FAMILIES.items())


def _depends_on_env(key: tuple[str, ...]) -> bool:
    return key[0] in _TUNED and key not in (("env", "id"), ("env", "num"), ("algo", "name"))


def _at(values: Any, key: tuple[str, ...]) -> str:
    for step in key:
        values = values[step]
    return on_one_line(hide(values, ".".join(key)))
