"""Base class of the settings of an algorithm, and lookup of settings and algorithms by name."""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard

from pydantic import ConfigDict, Field

from starling.config.algo import ALGORITHMS
from starling.config.parts import Part
from starling.errors import UserError
from starling.registry import import_path


class AlgoConfig(Part):
    """Settings of one algorithm; a subclass adds its own."""

    implementation: ClassVar[str] = ""
    actions: ClassVar[tuple[str, ...]] = ()  # names of supported action space classes; empty: any
    name: str = Field(description="algorithm: a built-in name or package.module:Class")

    def check_actions(self, env: str, space: object) -> None:
        """Raise `UserError` if the algorithm does not support the action space of the env."""
        kind = type(space).__name__
        if self.actions and kind not in self.actions:
            raise UserError(f"{self.name} needs a {' or '.join(self.actions)} action space; {env} has a {kind}")


class UnknownConfig(AlgoConfig):
    """Settings of an algorithm that is not imported: any keys are accepted."""

    model_config = ConfigDict(extra="allow")


def config_class(name: str, *, imports: bool = True) -> type[AlgoConfig]:
    """Return the settings class of the algorithm `name`; does not import torch for built-ins.

    With `imports=False`, an algorithm that is neither built in nor registered has `UnknownConfig`.
    """
    if not imports and ":" in name and name not in ALGORITHMS:
        return UnknownConfig
    found = ALGORITHMS.load(name)
    settings = found if _is_settings(found) else getattr(found, "Config", None)
    if not _is_settings(settings):
        raise UserError(f"algorithm {name!r} needs an attribute Config, a subclass of starling.AlgoConfig")
    return settings


def algorithm_class(name: str) -> Any:
    """Return the class of the algorithm `name`; imports torch."""
    found = ALGORITHMS.load(name)
    return import_path(found.implementation) if _is_settings(found) else found


def _is_settings(found: Any) -> TypeGuard[type[AlgoConfig]]:
    return isinstance(found, type) and issubclass(found, AlgoConfig)
