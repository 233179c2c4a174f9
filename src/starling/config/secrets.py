"""Secrets in a configuration: references to environment variables, and hiding of apparent secrets.

`${env:NAME}` in a value refers to the environment variable NAME. It is resolved when a configuration is loaded, and
saved as written, so that no file contains the secret itself.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "[hidden]"
"""Printed in place of a secret."""
LEAST_SECRET = 4
"""Minimum characters of a secret to hide it within other text, where shorter ones occur by chance."""

_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRETS = {
    "token", "tokens", "password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets", "credential",
    "credentials", "apikey", "auth", "authorization", "bearer",
}  # fmt: skip
_KEYS = {"api", "access", "private", "secret", "auth", "account", "encryption", "ssh"}

Path = tuple[str | int, ...]


def looks_secret(key: str) -> bool:
    """Return True if a key is named like a secret: token, db_password, apiKey, access-key, credentials."""
    words = [word.lower() for word in _WORDS.findall(key)]
    pairs = itertools.pairwise(words)
    return not _SECRETS.isdisjoint(words) or any(one in _KEYS and two in ("key", "keys") for one, two in pairs)


def resolve(values: Any, missing: list[str], path: Path = ()) -> tuple[Any, dict[Path, str]]:
    """Replace every `${env:NAME}` in plain data; also return the original texts by path.

    Variables that are not set are added to `missing`, one line each.
    """
    references: dict[Path, str] = {}
    if isinstance(values, dict | list):
        pairs = values.items() if isinstance(values, dict) else enumerate(values)
        resolved = {}
        for key, inner in pairs:
            resolved[key], found = resolve(inner, missing, (*path, key))
            references |= found
        return (resolved if isinstance(values, dict) else list(resolved.values())), references
    if isinstance(values, str) and _REFERENCE.search(values):
        for name in _REFERENCE.findall(values):
            if name not in os.environ:
                where = ".".join(map(str, path))
                missing.append(f"{where}: the environment variable {name} is not set: export it, or change the value")
        return _REFERENCE.sub(lambda match: os.environ.get(match[1], ""), values), {path: values}
    return values, references


def is_unset(text: str) -> bool:
    """Return True if a text refers to an environment variable that is not set."""
    return any(name not in os.environ for name in _REFERENCE.findall(text))


def variables(text: str) -> list[str]:
    """Return the values of the environment variables that a text refers to."""
    return [os.environ[name] for name in _REFERENCE.findall(text) if name in os.environ]


def has_reference(value: Any) -> bool:
    """Return True if a text refers to an environment variable."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def at(values: Any, path: Path) -> Any:
    """Return the value at a path of nested plain data; None if it does not exist."""
    for step in path:
        try:
            values = values[step]
        except (LookupError, TypeError):
            return None
    return values


def restore(values: Any, references: Mapping[Path, tuple[str, Any]]) -> None:
    """Replace resolved values by their references, unless they have changed since."""
    for path, (text, resolved) in references.items():
        if path and at(values, path) == resolved is not None:
            at(values, path[:-1])[path[-1]] = text


def literal_secrets(values: Any, path: Path = (), secret: bool = False) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values of apparent secrets that are not references."""
    if isinstance(values, dict):
        for key, inner in values.items():
            yield from literal_secrets(inner, (*path, key), secret or looks_secret(str(key)))
    elif isinstance(values, list):
        for i, inner in enumerate(values):
            yield from literal_secrets(inner, (*path, i), secret)
    elif secret and isinstance(values, str) and values and not has_reference(values):
        yield ".".join(map(str, path)), values


def hide(values: Any, key: str = "", secret: bool = False) -> Any:
    """Hide apparent secrets in plain data, the value of `key`; references are kept."""
    secret = secret or any(looks_secret(part) for part in key.split("."))
    if isinstance(values, dict):
        return {name: hide(inner, str(name), secret) for name, inner in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(hide(inner, "", secret) for inner in values)
    return HIDDEN if secret and isinstance(values, str) and values and not has_reference(values) else values


def hide_override(override: str) -> str:
    """Hide the value of a `key=value` override if it appears to be a secret."""
    key, equals, value = override.partition("=")
    secret = any(looks_secret(part) for part in key.split(".")) and not has_reference(value)
    if secret or (value[:1] in ("{", "[") and any(map(looks_secret, re.findall(r"[\w-]+(?=['\"]?\s*:)", value)))):
        return f"{key}{equals}{HIDDEN}"
    return override


def hide_in(text: str, secrets: list[str]) -> str:
    """Replace these secrets in a text."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
