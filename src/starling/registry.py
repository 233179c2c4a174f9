"""Lookup of objects by name: built-in, registered, or `package.module:Name`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from starling.errors import UserError, cut, did_you_mean, quoted


def import_path(path: str) -> Any:
    """Import and return the object `package.module:Name`."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise UserError(f"{quoted(path)} is not an import path; write it as package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"cannot import {quoted(path)}: {cut(str(error), 200)}; is it installed or on PYTHONPATH?"
        ) from error
    if not hasattr(module, attribute):
        raise UserError(
            f"module {quoted(module_name)} has no {quoted(attribute)}{did_you_mean(attribute, _own_names(module))}"
        )
    return getattr(module, attribute)


def check_kind(
    found: Any, name: str, kind: str, bases: tuple[type, ...] = (), methods: Sequence[str] = (), functions: bool = True
) -> None:
    """Raise `UserError` if an object cannot construct a `kind`, without calling it.

    Args:
        found: the object that `name` refers to.
        name: the name, for the error message.
        kind: the kind of object, e.g. "algorithm", for the error message.
        bases: a class must be a subclass of one of these, if any are given.
        methods: a class must have attributes of these names.
        functions: True if a Python function is accepted too.
    """
    plain = found
    while isinstance(plain, partial):
        plain = plain.func
    if isinstance(plain, type):
        lacks = [method for method in methods if not hasattr(plain, method)]
        if issubclass(plain, bases or object) and not lacks:
            return
        is_one = f"the class {plain.__qualname__}" + (f", which lacks {', '.join(lacks)}" if lacks else "")
    else:
        if functions and inspect.isfunction(inspect.unwrap(plain)):
            return
        is_one = f"a {type(plain).__name__}"
    subclass = " or ".join(f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in bases)
    wanted = f"a subclass of {subclass}" if bases else f"a class with {', '.join(methods)}"
    raise UserError(f"{kind} {name!r} names {is_one}; it must be {wanted}{', or a function' if functions else ''}")


def check_arguments(factory: Any, what: str, call: str, /, *args: Any, **kwargs: Any) -> None:
    """Raise `UserError` unless `factory` takes these arguments, without calling it; `call` describes them."""
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError as error:
        raise UserError(f"{what} cannot be made with {call}: {error}") from error


def _own_names(module: ModuleType) -> list[str]:
    """The public callables of a module, without those imported from other packages."""
    package = module.__name__.partition(".")[0]
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and str(getattr(value, "__module__", "")).partition(".")[0] == package
    ]


@dataclass(frozen=True)
class Entry:
    """A registered object or its import path, with a one-line summary."""

    target: Any
    summary: str

    def load(self) -> Any:
        return import_path(self.target) if isinstance(self.target, str) else self.target


class Registry:
    """Registered names of one kind ("algorithm", "torso"), imported only when they are used."""

    def __init__(self, kind: str, built_in: dict[str, Entry]) -> None:
        self.kind = kind
        self._entries = dict(built_in)
        self._built_in = frozenset(built_in)

    def register(self, name: str, target: Any, summary: str = "") -> None:
        """Register `target`, an object or an import path; raise `UserError` if the name is taken."""
        if name in self._entries and self._entries[name].target != target:
            raise UserError(f"{self.kind} {name!r} is already registered; choose another name")
        self._entries[name] = Entry(target, summary)

    def load(self, name: str) -> Any:
        """Return the object registered as `name`; other names with a colon are import paths."""
        if name in self._entries:
            return self._entries[name].load()
        if ":" in name:
            return import_path(name)
        raise UserError(
            f"unknown {self.kind} {quoted(name)}{did_you_mean(name, self._entries)}"
            f" (known: {', '.join(sorted(self._entries))}; your own as package.module:Name)"
        )

    def added(self) -> list[tuple[str, Entry]]:
        """Return the registered entries that are not built in."""
        return [(name, entry) for name, entry in self if name not in self._built_in]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return iter(sorted(self._entries.items()))
