"""From a preset or a file, and overrides, to a checked `Config`; every mistake is reported at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, create_model

from starling.config.algo.base import AlgoConfig, config_class
from starling.config.parts import Part
from starling.config.schema import Config
from starling.errors import UserError, did_you_mean

PRESETS = resources.files("starling.config") / "presets"


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in PRESETS.iterdir() if entry.name.endswith(".yaml"))


def load(source: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration that `source` (a preset's name or a YAML file) gives with `key.sub=value` overrides on top."""
    values = _read(source)
    for override in overrides:
        _apply(values, override)
    return from_dict(values)


def from_dict(values: dict[str, Any]) -> Config:
    """A checked configuration from plain data; raises one `UserError` that lists all mistakes, a line each."""
    algo = values.get("algo")
    name = algo.get("name") if isinstance(algo, dict) else None
    if not isinstance(name, str):
        raise UserError("algo.name is missing; name an algorithm, e.g. algo.name=ppo")
    model = _model_for(config_class(name))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(_explain(model, problem) for problem in error.errors())) from None


@cache
def _model_for(algo: type[AlgoConfig]) -> type[Config]:
    """`Config` with `algo` narrowed to one algorithm's settings, so that mistakes in them have their place."""
    return create_model("Config", __base__=Config, algo=(algo, Config.model_fields["algo"]))


def to_dict(config: Config) -> dict[str, Any]:
    """Plain data that `from_dict` turns back into the same configuration."""
    return config.model_dump(mode="json", by_alias=True, serialize_as_any=True)


def to_yaml(config: Config) -> str:
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"no such file: {source}")
        text = path.read_text(encoding="utf-8")
    elif source in preset_names():
        text = (PRESETS / f"{source}.yaml").read_text(encoding="utf-8")
    else:
        raise UserError(
            f"unknown preset {source!r}{did_you_mean(source, preset_names())}"
            f" (known: {', '.join(preset_names())}; or a file ending in .yaml)"
        )
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{source} must hold keys and values at its top level")
    return values


def _apply(values: dict[str, Any], override: str) -> None:
    """Set `key.sub=value` in nested `values`; the value is read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"{override!r} is not an override; write key.sub=value, e.g. seed=3")
    *path, last = key.split(".")
    for step in path:
        child = values.setdefault(step, {})
        if not isinstance(child, dict):
            child = values[step] = {}
        values = child
    try:
        values[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"{override!r}: the value is not valid YAML") from None


def _explain(model: type[Part], problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r}{did_you_mean(location[-1], _keys_at(model, location[:-1]))}"
    if problem["type"] == "missing":
        return f"{key} is missing"
    return f"{key}: {problem['msg'].removeprefix('Value error, ').lower()}, not {problem['input']!r}"


def _keys_at(model: type[Part], location: Iterable[str]) -> list[str]:
    """The keys that the section at `location` knows."""
    for step in location:
        inner = next((f.annotation for n, f in model.model_fields.items() if step in (n, f.alias)), None)
        sections = [a for a in (inner, *getattr(inner, "__args__", ())) if isinstance(a, type) and issubclass(a, Part)]
        if not sections:
            return []
        model = sections[0]
    return [field.alias or name for name, field in model.model_fields.items()]
