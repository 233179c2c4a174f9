"""Registered user code that is sent to worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starling.config.algorithms import ALGORITHMS
from starling.envs.catalog import ENVIRONMENTS
from starling.envs.wrappers import WRAPPERS
from starling.errors import UserError
from starling.nets.torsos import TORSOS
from starling.registry import Registry

_REGISTRIES: dict[str, Registry] = {
    registry.kind: registry for registry in (ALGORITHMS, ENVIRONMENTS, WRAPPERS, TORSOS)
}


@dataclass(frozen=True)
class Part:
    """A registered name and its target; only pickled to start our own child processes."""

    kind: str
    name: str
    target: Any
    summary: str

    def register(self) -> None:
        _REGISTRIES[self.kind].register(self.name, self.target, self.summary)


def parts_of(settings: dict[str, Any]) -> tuple[Part, ...]:
    """Return the registered parts that a configuration names; raise `UserError` if one cannot be pickled."""
    named = set(_strings(settings))
    added = [(kind, name, entry) for kind, registry in _REGISTRIES.items() for name, entry in registry.added()]
    parts = [Part(kind, name, entry.target, entry.summary) for kind, name, entry in added if name in named]
    for part in parts:
        try:
            pickle.dumps(part.target)
        except Exception as error:
            raise UserError(
                f"{part.kind} {part.name!r} cannot be sent to a worker process: {error}; define it at the top level of"
                " a module (not as a lambda or inside a function), or use runtime=inline"
            ) from error
    return tuple(parts)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from _strings(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _strings(child)
