"""Merges settings as plain data: files on top of their base, overrides on top of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from starling.config import atari_ids, describe
from starling.config.algorithms import AlgoConfig, config_class
from starling.config.dialect import MAX_DEPTH, MAX_DIGITS, MAX_TEXT, parse, show
from starling.config.parts import REPLACES, SHORT
from starling.config.secrets import hide_override
from starling.errors import UserError

KINDS = ("name", "kind")
"""Keys that determine which other keys a section has; they are set first."""

Path = tuple[str, ...]


class Settings:
    """Nested plain data, merged from files and overrides, with the file that each value comes from.

    A key that names another kind (another algorithm, optimizer, torso) drops the settings that belonged to the old one.
    """

    def __init__(self, *, imports: bool = True) -> None:
        self.values: dict[str, Any] = {}
        self._imports = imports  # algorithms that are not built in, for their settings
        self._origins: dict[Path, str] = {}

    def add_file(self, values: dict[str, Any], origin: str) -> None:
        """Merge the content of a file: sections are merged key by key, lists and scalars replace what was there.

        The first file is taken as it is.
        """
        values = _copy(values)  # a YAML alias shares one section, but each copy may change
        given = frozenset(leaves(values))
        if self.values:
            self._merge(self.values, values, (), origin, given)
        else:
            self.values, self._origins = values, dict.fromkeys(given, origin)

    def add_overrides(self, overrides: Sequence[str]) -> list[str]:
        """Apply `key.sub=value` overrides in order; return one line for each that cannot be applied."""
        given = frozenset(tuple(override.partition("=")[0].split(".")) for override in overrides)
        kinds = [override for override in overrides if override.partition("=")[0].rpartition(".")[2] in KINDS]
        for override in sorted(kinds, key=lambda override: override.partition("=")[0].count(".")):
            try:
                self._override(override, given)
            except UserError:  # the loop below applies or reports it
                continue
        mistakes = []
        for override in overrides:
            try:
                self._override(override, given)
            except UserError as error:
                mistakes.append(str(error))
        return list(dict.fromkeys(mistakes))

    def origin(self, path: Sequence[str]) -> str | None:
        """The file that the value at `path`, or its section, comes from; None for an override or a missing value."""
        for length in range(len(path), 0, -1):
            if tuple(path[:length]) in self._origins:
                return self._origins[tuple(path[:length])]
        return None

    def by_file(self) -> dict[str, list[Path]]:
        """Return the paths of all values that come from files, by file, in order; overrides are not included."""
        found: dict[str, list[Path]] = {}
        for path in leaves(self.values):
            if path in self._origins:
                found.setdefault(self._origins[path], []).append(path)
        return found

    def _merge(
        self, place: dict[str, Any], new: dict[str, Any], path: Path, origin: str, given: frozenset[Path]
    ) -> None:
        """Merge `new` into the section `place` at `path`; keys of `KINDS` are set first."""
        for key in sorted(new, key=lambda key: key not in KINDS):
            here, value = (*path, str(key)), new[key]
            if isinstance(value, dict) and place.get(key) is None:
                default = {} if key in place else self._default(here)
                place[key] = default if isinstance(default, dict) else {}
            if isinstance(value, dict):
                place[key] = self._as_section(place[key], here)
            if isinstance(value, dict) and isinstance(place[key], dict):
                self._merge(place[key], value, here, origin, given)
            else:
                was_section = isinstance(place.get(key), dict)
                self._put(place, path, key, value, given)
                self._forget(here, is_section=was_section)
                self._origins[here] = origin

    def _override(self, override: str, given: frozenset[Path]) -> None:
        key, equals, text = override.partition("=")
        *path, last = key.split(".")
        what = show(hide_override(override))
        if len(key) > MAX_TEXT or len(path) >= MAX_DEPTH:
            raise UserError(
                f"{show(key)}: a key of {len(key):,} characters in {len(path) + 1:,} parts; no key is that long"
            )
        if not equals or not all((*path, last)):
            raise UserError(f"{what} is not an override; write key.sub=value, e.g. seed=3")
        if key == "base":
            raise UserError(f"{what}: base belongs in a file; give another preset or file in place of this one")
        value = parse(text, f"{what}: the value")
        place: Any = self.values
        for depth, step in enumerate(path):
            if isinstance(place, dict) and place.get(step) is None:
                place[step] = {} if step in place else self._default((*path[: depth + 1],))
            if isinstance(place, dict):
                place[step] = self._as_section(place[step], path[: depth + 1])
            place = _inside(place, step, path[:depth], override)
        if isinstance(place, dict):
            self._put(place, (*path,), last, value, given)
        else:
            _inside(place, last, path, override)
            place[int(last)] = value
        self._forget((*path, last))

    def _put(self, place: dict[str, Any], path: Path, key: str, value: Any, given: frozenset[Path]) -> None:
        """Set one key of the section `place` at `path`, and drop its neighbors that belonged to another kind."""
        if path == ("algo",) and key == "name":
            self._drop_other_algorithm(place, value)
        elif path == ("env",) and key == "id":
            value = self._take_atari_id(place, value, given)
        elif value is not None:
            known, node = describe.find(self._schema(), [*path, key])
            old = place.get(key, node.get("default"))
            if len(known) == len(path) + 1 and old not in (value, "auto"):
                for neighbor, kept in node.get(REPLACES, {}).items():
                    if (*path, neighbor) not in given:
                        self._drop(place, path, neighbor, kept)
        place[key] = value

    def _take_atari_id(self, env: dict[str, Any], id: Any, given: frozenset[Path]) -> Any:
        """Return the id that `id` stands for, and set its settings of `env.atari` unless they are given beside it."""
        try:
            found = atari_ids.resolve(id) if isinstance(id, str) else None
        except ValueError:  # reported by the check
            return id
        if found is None:
            return id
        atari: Any = env.setdefault("atari", {}) if found.settings else None
        for key, value in found.settings.items() if isinstance(atari, dict) else ():
            if not {("env", "atari"), ("env", "atari", key)} & given:
                atari[key] = value
                self._forget(("env", "atari", key))
        return found.id

    def _drop(self, place: dict[str, Any], path: Path, key: str, kept: Sequence[str]) -> None:
        inner = place.pop(key, None)
        self._forget((*path, key))
        if isinstance(inner, dict) and (left := {name: inner[name] for name in kept if name in inner}):
            place[key] = left

    def _drop_other_algorithm(self, algo: dict[str, Any], name: Any) -> None:
        """Keep only settings that the new algorithm inherits from the same class as the old one."""
        try:
            old, new = (config_class(str(one), imports=self._imports) for one in (algo["name"], name))
        except (KeyError, UserError):
            return
        if old is not new:
            for key in algo.keys() - _common_keys(old, new):
                self._drop(algo, ("algo",), key, ())

    def _forget(self, path: Path, *, is_section: bool = True) -> None:
        """Drop the origin of the value at a path, and those of all values in it if it was a section."""
        self._origins.pop(path, None)
        if is_section:
            self._origins = {key: file for key, file in self._origins.items() if key[: len(path)] != path}

    def _default(self, path: Path) -> Any:
        """The default of a missing section, so that one key can be set and its neighbors keep their defaults.

        That of a section of `nets.NAME` is the section of `net` or `algo` whose place it takes.
        """
        if len(path) == 3 and path[0] == "nets":
            path = ("algo" if path[2] == "optimizer" else "net", path[2])
            section = self.values.get(path[0])
            if isinstance(section, dict) and section.get(path[1]) is not None:
                return _copy(section[path[1]])
        known, node = describe.find(self._schema(), path)
        default = node.get("default") if known == list(path) else None
        return {} if default is None else _copy(default)

    def _as_section(self, value: Any, path: Sequence[str]) -> Any:
        """The section that a single value at `path` stands for, if any, so that one key of it can be set."""
        if isinstance(value, dict | list):
            return value
        known, node = describe.find(self._schema(), path)
        short = node.get(SHORT) if known == list(path) else None
        return value if short is None else {short: value}

    def _schema(self) -> describe.Node:
        """The schema for the named algorithm; empty if it is missing or unknown."""
        algo = self.values.get("algo")
        name = algo.get("name") if isinstance(algo, dict) else None
        try:
            return schema_for(name, config_class(name, imports=self._imports)) if isinstance(name, str) else {}
        except UserError:
            return {}


@cache
def schema_for(name: str, settings: type[AlgoConfig]) -> describe.Node:
    """The schema for the algorithm `name` with this settings class; cached."""
    return describe.json_schema(name, settings)


def _common_keys(one: type[AlgoConfig], other: type[AlgoConfig]) -> set[str]:
    """The keys that two algorithms inherit from a common class."""
    common = [base for base in one.__mro__ if issubclass(base, AlgoConfig) and issubclass(other, base)]
    return {field.alias or name for base in common for name, field in base.model_fields.items()}


def leaves(values: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values in nested plain data that are not sections."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key))


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _inside(place: Any, step: str, path: Sequence[str], override: str) -> Any:
    """Return the element `step` of `place`, the section or list at `path`."""
    if isinstance(place, dict):
        return place[step]
    key, what = ".".join(path), show(hide_override(override))
    if not isinstance(place, list):
        raise UserError(f"{what}: {key} is {show(place)} here, which has no keys; give {key} as a whole")
    if not (step.isascii() and step.isdecimal() and len(step) <= MAX_DIGITS) or int(step) >= len(place):
        raise UserError(
            f"{what}: {key} is a list of {len(place)}, counted from 0, and has no element {show(step)};"
            f" give the whole list, {key}=[...]"
        )
    return place[int(step)]
