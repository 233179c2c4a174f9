"""List what a configuration would load beyond Starling's own parts, without importing anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

NAMES = ("id", "name", "kind", "sampler")
"""Keys under which anything with a colon is taken for an import path."""

FILE_WRITERS = {"RecordVideo": "gymnasium.wrappers:RecordVideo"}
"""Built-in wrappers whose arguments name files to write, with their import paths."""

_OPEN_CLUSTER = "allow_cluster_without_authentication"
_IMPORT_PATH = re.compile(r"[\w.\-]+:[^\W\d]")
"""The beginning of an import path under any other key; `cuda:1`, `host:80` and `http://host` are none."""


@dataclass(frozen=True)
class Import:
    """One import path of a configuration, or a cluster, and the dotted key under which it stands."""

    key: str
    path: str

    @property
    def word(self) -> str:
        """The word that allows it: its top-level package; the path itself for a reference, cluster or file writer."""
        module = self.path.partition(":")[0]
        is_alone = self.key.startswith("ray.") or self.path in FILE_WRITERS.values() or "${" in module
        return self.path if is_alone else module.partition(".")[0]

    def is_allowed(self, allow: Sequence[str]) -> bool:
        """Return True if `allow` names this path, its module, or a package that the module is in."""
        module = self.path.partition(":")[0]
        return any(word == self.path or module == word or module.startswith(f"{word}.") for word in allow if word)


def imports_of(values: Any) -> list[Import]:
    """Every import path in plain data, in the order in which they stand there.

    Known keys (`env.id`, `algo.name`, `net.torso.kind`) count with any colon. Under other keys, such as arguments of an
    env, which may import by themselves, a string counts that has the form `package.module:Name`.
    """
    return list(dict.fromkeys(_walk(values)))


def clusters_of(values: Any) -> list[Import]:
    """The Ray cluster that training would join, unless it is this machine's, and consent to one without a token.

    Ray runs code in both directions, so that a stranger's cluster is a stranger's code.
    """
    ray = values.get("ray") if isinstance(values, dict) else None
    if not isinstance(ray, dict):
        return []
    address, open_to_all = ray.get("address"), ray.get(_OPEN_CLUSTER)
    found = [Import("ray.address", address)] if isinstance(address, str) and address != "auto" else []
    return [*found, *([Import(f"ray.{_OPEN_CLUSTER}", f"ray.{_OPEN_CLUSTER}")] if open_to_all else [])]


def _walk(values: Any) -> Iterator[Import]:
    left: list[tuple[tuple[str, ...], Any]] = [((), values)]
    seen: set[int] = set()  # sections that YAML aliases repeat, or that hold themselves
    while left:
        path, value = left.pop()
        if isinstance(value, str):
            if found := _import_path(path[-1] if path else "", value):
                yield Import(".".join(path), found)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            left += [((*path, str(key)), child) for key, child in inner][::-1]


def _import_path(key: str, value: str) -> str | None:
    if value in FILE_WRITERS:
        return FILE_WRITERS[value]
    return value if (":" in value if key in NAMES else _IMPORT_PATH.match(value)) else None
