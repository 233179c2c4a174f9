"""Lists the code outside Starling that a configuration would import, without importing it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

NAMES = ("id", "name", "kind", "sampler")
"""Keys under which any text with a colon is an import path."""

FILE_WRITERS = {"RecordVideo": "gymnasium.wrappers:RecordVideo"}
"""Built-in wrappers that write files named by their arguments, with their import paths."""

_OPEN_CLUSTER = "allow_cluster_without_authentication"
_IMPORT_PATH = re.compile(r"[\w.\-]+:[^\W\d]")
"""Start of an import path under any other key; does not match `cuda:1`, `host:80`, or `http://host`."""


@dataclass(frozen=True)
class Import:
    """An import path or a cluster address in a configuration, and its dotted key."""

    key: str
    path: str

    @property
    def word(self) -> str:
        """The name that permits it in `allow`: its package; for references, clusters, and file writers its path."""
        module = self.path.partition(":")[0]
        is_alone = self.key.startswith("ray.") or self.path in FILE_WRITERS.values() or "${" in module
        return self.path if is_alone else module.partition(".")[0]

    def is_allowed(self, allow: Sequence[str]) -> bool:
        """Return True if `allow` contains this path, its module, or a parent package of it."""
        module = self.path.partition(":")[0]
        return any(word == self.path or module == word or module.startswith(f"{word}.") for word in allow if word)


def imports_of(values: Any) -> list[Import]:
    """Return every import path in plain data, in order.

    Under known keys (`env.id`, `algo.name`, `net.torso.kind`) any string with a colon counts. Under other keys, such as
    arguments of an env, which may import by itself, a string counts if it has the form `package.module:Name`.
    """
    return list(dict.fromkeys([*_walk(values), *_wrapper_names(values)]))


def clusters_of(values: Any) -> list[Import]:
    """Return the Ray cluster that training would join, unless it is `auto`, and the consent to one without a token.

    Ray runs code in both directions, so joining an untrusted cluster means running untrusted code.
    """
    ray = values.get("ray") if isinstance(values, dict) else None
    if not isinstance(ray, dict):
        return []
    address, open_to_all = ray.get("address"), ray.get(_OPEN_CLUSTER)
    found = [Import("ray.address", address)] if isinstance(address, str) and address != "auto" else []
    return [*found, *([Import(f"ray.{_OPEN_CLUSTER}", f"ray.{_OPEN_CLUSTER}")] if open_to_all else [])]


def _walk(values: Any) -> Iterator[Import]:
    left: list[tuple[tuple[str, ...], Any]] = [((), values)]
    seen: set[int] = set()  # sections that are repeated by YAML aliases, or contain themselves
    while left:
        path, value = left.pop()
        if isinstance(value, str):
            if found := _import_path(path[-1] if path else "", value):
                yield Import(".".join(path), found)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            left += [((*path, str(key)), child) for key, child in inner][::-1]


def _wrapper_names(values: Any) -> Iterator[Import]:
    """Yield the wrappers that are given as `{Name: {arguments}}`, whose names are keys."""
    env = values.get("env") if isinstance(values, dict) else None
    wrappers = env.get("wrappers") if isinstance(env, dict) else None
    for key in wrappers if isinstance(wrappers, dict) else ():
        if found := _import_path("name", str(key)):
            yield Import("env.wrappers", found)


def _import_path(key: str, value: str) -> str | None:
    if value in FILE_WRITERS:
        return FILE_WRITERS[value]
    return value if (":" in value if key in NAMES else _IMPORT_PATH.match(value)) else None
