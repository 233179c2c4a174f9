"""What the settings of every algorithm share, and how a name becomes settings and an algorithm."""

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
    actions: ClassVar[tuple[str, ...]] = ()  # classes of action spaces it can take, where it says so
    name: str = Field(description="algorithm: a built-in name or package.module:Class")

    def check_actions(self, env: str, space: object) -> None:
        """Refuse an env whose action space the algorithm cannot take; one that says nothing of it takes any."""
        kind = type(space).__name__
        if self.actions and kind not in self.actions:
            raise UserError(f"{self.name} needs a {' or '.join(self.actions)} action space; {env} has a {kind}")


class UnknownConfig(AlgoConfig):
    """Settings of an algorithm that is not imported: whatever stands there."""

    model_config = ConfigDict(extra="allow")


def config_class(name: str, *, imports: bool = True) -> type[AlgoConfig]:
    """The settings class of the algorithm called `name`; built-ins need no torch for this.

    With `imports=False` an algorithm that is neither built in nor registered has `UnknownConfig`.
    """
    if not imports and ":" in name and name not in ALGORITHMS:
        return UnknownConfig
    found = ALGORITHMS.load(name)
    settings = found if _is_settings(found) else getattr(found, "Config", None)
    if not _is_settings(settings):
        raise UserError(f"algorithm {name!r} needs an attribute Config, a subclass of starling.AlgoConfig")
    return settings


def algorithm_class(name: str) -> Any:
    """The algorithm called `name` itself; this imports torch."""
    found = ALGORITHMS.load(name)
    return import_path(found.implementation) if _is_settings(found) else found


def _is_settings(found: Any) -> TypeGuard[type[AlgoConfig]]:
    return isinstance(found, type) and issubclass(found, AlgoConfig)
