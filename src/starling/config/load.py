"""From a preset or a file, and overrides, to a checked `Config`; every mistake is reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from starling.config import describe
from starling.config.algo import ALGORITHMS
from starling.config.algo.base import AlgoConfig, config_class
from starling.config.dialect import dump, on_one_line, parse, show
from starling.config.mistakes import explain, nearest_choice
from starling.config.parts import Part
from starling.config.schema import Config
from starling.errors import UserError, did_you_mean

PRESETS = resources.files("starling.config") / "presets"


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in PRESETS.iterdir() if entry.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """The YAML of a preset."""
    if name not in preset_names():
        raise UserError(
            f"unknown preset {name!r}{did_you_mean(name, preset_names())}"
            " (starling presets lists them; a file of your own must end in .yaml)"
        )
    return (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")


def load(source: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration that `source` (a preset's name or a YAML file) gives with `key.sub=value` overrides on top."""
    values, mistakes = merge(source, overrides)
    config, more = check(values)
    return _or_raise(config, mistakes + more)


def from_dict(values: dict[str, Any]) -> Config:
    """A checked configuration from plain data; raises one `UserError` that lists all mistakes, a line each."""
    return _or_raise(*check(values))


def _or_raise(config: Config | None, mistakes: list[str]) -> Config:
    if config is None or mistakes:
        raise UserError("\n".join(mistakes))
    return config


def merge(source: str, overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What `source` and `overrides` say, not yet checked, and the overrides that cannot be applied."""
    values = _read(source)
    mistakes: list[str] = []
    # The name of the algorithm decides which defaults an override may build on, wherever it stands.
    named = [override for override in overrides if override.startswith("algo.name=")]
    for override in (*named[-1:], *overrides):
        try:
            _apply(values, override)
        except UserError as error:
            mistakes.append(str(error))
    return values, list(dict.fromkeys(mistakes))


def check(values: dict[str, Any]) -> tuple[Config | None, list[str]]:
    """The configuration that plain data give, or None and every mistake in them."""
    name: str | None = None
    model, mistakes = Config, list[str]()
    try:
        model = _model_for(config_class(name := _algo_name(values)))
    except UserError as error:  # the rest can be checked all the same
        name, mistakes = None, [str(error)]
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        schema = describe.json_schema(name)
        found = [problem for problem in error.errors() if name or problem["loc"][:1] != ("algo",)]
        return None, list(dict.fromkeys([*mistakes, *(explain(schema, values, problem) for problem in found)]))
    return (None, mistakes) if mistakes else (config, [])


def _algo_name(values: dict[str, Any]) -> str:
    algo = values.get("algo")
    if algo is not None and not isinstance(algo, dict):
        near = nearest_choice(algo, [name for name, _ in ALGORITHMS])
        hint = f"did you mean algo.name={near}?" if near else "name an algorithm, e.g. algo.name=ppo"
        raise UserError(f"algo: must be a section, not {show(algo)}; {hint}")
    name = algo.get("name") if algo else None
    if not isinstance(name, str):
        raise UserError("algo.name is missing; name an algorithm, e.g. algo.name=ppo")
    return name


@cache
def _model_for(algo: type[AlgoConfig]) -> type[Config]:
    """`Config` with `algo` narrowed to one algorithm's settings, so that mistakes in them have their place."""
    return create_model("Config", __base__=Config, algo=(algo, Config.model_fields["algo"]))


def to_dict(config: Config) -> dict[str, Any]:
    """Plain data that `from_dict` turns back into the same configuration."""
    return config.model_dump(mode="json", by_alias=True, serialize_as_any=True)


def differences(one: Any, other: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The dotted keys at which two configurations, as `to_dict` gives them, differ, with both values or `(none)`."""
    for key in dict.fromkeys([*one, *other]):
        here, there = one.get(key, "(none)"), other.get(key, "(none)")
        if isinstance(here, dict) and isinstance(there, dict):
            yield from differences(here, there, f"{prefix}{key}.")
        elif here != there:
            yield f"{prefix}{key}", (here, there)


def to_yaml(config: Config, *, comments: bool = False) -> str:
    """YAML that `load` turns back into the same configuration; `comments` say what every key is."""
    values = to_dict(config)
    if not comments:
        return dump(values)
    lines = _commented(config, values, "")
    column = max(len(text) for text, _ in lines if len(text) <= 40) + 2
    return "".join(f"{text:<{column - 2}}  # {about}\n" if about else f"{text}\n" for text, about in lines)


def _commented(part: Part, values: dict[str, Any], indent: str) -> list[tuple[str, str]]:
    """Lines of YAML, each with what it is about."""
    lines = []
    for name, field in type(part).model_fields.items():
        key, value = field.alias or name, getattr(part, name)
        section = isinstance(value, Part)
        text = f"{indent}{key}:" if section else f"{indent}{key}: {on_one_line(values[key])}"
        lines.append((text, " ".join((field.description or "").split())))
        if section:
            lines += _commented(value, values[key], f"{indent}  ")
    return lines


def _read(source: str) -> dict[str, Any]:
    text = _file_text(Path(source)) if Path(source).suffix in (".yaml", ".yml") else preset_text(source)
    values = parse(text, source)
    if not isinstance(values, dict):
        raise UserError(f"{source} must hold keys and values at its top level")
    return values


def _file_text(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None


def _apply(values: dict[str, Any], override: str) -> None:
    """Set `key.sub=value` in nested `values`; the value is read as YAML."""
    key, equals, text = override.partition("=")
    *path, last = key.split(".")
    if not equals or not all((*path, last)):
        raise UserError(f"{override!r} is not an override; write key.sub=value, e.g. seed=3")
    value = parse(text, f"{override!r}: the value")
    place: Any = values
    for depth, step in enumerate(path):
        if isinstance(place, dict) and place.get(step) is None:
            place[step] = {} if step in place else _default_of(values, path[: depth + 1])
        place = _inside(place, step, path[:depth], override)
    if isinstance(place, list):
        _inside(place, last, path, override)
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        _inside(place, last, path, override)


def _inside(place: Any, step: str, path: list[str], override: str) -> Any:
    """What is at `step` of `place`, a section or a list that stands at `path`."""
    if isinstance(place, dict):
        return place[step]
    key = ".".join(path)
    if not isinstance(place, list):
        raise UserError(f"{override!r}: {key} is {show(place)} here, which has no keys; give {key} as a whole")
    if not step.isdigit() or int(step) >= len(place):
        raise UserError(
            f"{override!r}: {key} is a list of {len(place)}, counted from 0, and has no element {step!r};"
            f" give the whole list, {key}=[...]"
        )
    return place[int(step)]


def _default_of(values: dict[str, Any], path: list[str]) -> Any:
    """The default of what is not there yet, so that an override of one key leaves its neighbours as they are."""
    try:
        schema = describe.json_schema(_algo_name(values))
    except UserError:
        return {}
    known, node = describe.find(schema, path)
    default = node.get("default") if known == path else None
    return {} if default is None else default
