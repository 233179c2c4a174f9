"""From a preset or a file, and overrides, to a checked `Config`; every mistake is reported at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, create_model

from starling.config import describe
from starling.config.algo.base import AlgoConfig, config_class
from starling.config.parts import Part
from starling.config.schema import Config
from starling.errors import UserError, did_you_mean

LONGEST_WORDING = 300
PRESETS = resources.files("starling.config") / "presets"

_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
_BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_WRONG_KIND = ("_type", "_parsing", "_from_float", "_mismatch", "literal_error", "string_too_short", "finite_number")


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, a date is text and a key stands only once."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)  # here merged keys (<<) are not yet among a mapping's own
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add((key.tag, str(key.value)))
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that `_Loader` would read as numbers."""


for _dialect in (_Loader, _Dumper):
    _dialect.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


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
        return None, list(dict.fromkeys([*mistakes, *(_explain(schema, values, problem) for problem in found)]))
    return (None, mistakes) if mistakes else (config, [])


def _algo_name(values: dict[str, Any]) -> str:
    algo = values.get("algo")
    if algo is not None and not isinstance(algo, dict):
        raise UserError(f"algo: must be a section, not {_show(algo)}; did you mean algo.name={algo}?")
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
        return yaml.dump(values, Dumper=_Dumper, sort_keys=False)
    lines = _commented(config, values, "")
    column = max(len(text) for text, _ in lines if len(text) <= 40) + 2
    return "".join(f"{text:<{column - 2}}  # {about}\n" if about else f"{text}\n" for text, about in lines)


def _commented(part: Part, values: dict[str, Any], indent: str) -> list[tuple[str, str]]:
    """Lines of YAML, each with what it is about."""
    lines = []
    for name, field in type(part).model_fields.items():
        key, value = field.alias or name, getattr(part, name)
        section = isinstance(value, Part)
        text = f"{indent}{key}:" if section else f"{indent}{key}: {as_yaml(values[key])}"
        lines.append((text, " ".join((field.description or "").split())))
        if section:
            lines += _commented(value, values[key], f"{indent}  ")
    return lines


def as_yaml(value: Any) -> str:
    """Plain data as YAML on one line."""
    text = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10**9).strip()
    if "\n" in text:  # YAML would spread it over several lines
        return json.dumps(value, ensure_ascii=False)
    return str(text[1:-1])


def _read(source: str) -> dict[str, Any]:
    text = _file_text(Path(source)) if Path(source).suffix in (".yaml", ".yml") else preset_text(source)
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not valid YAML: {_yaml_problem(error)}") from None
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


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"{problem} (line {mark.line + 1})" if mark else problem


def _apply(values: dict[str, Any], override: str) -> None:
    """Set `key.sub=value` in nested `values`; the value is read as YAML."""
    key, equals, text = override.partition("=")
    *path, last = key.split(".")
    if not equals or not all((*path, last)):
        raise UserError(f"{override!r} is not an override; write key.sub=value, e.g. seed=3")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{override!r}: the value is not valid YAML: {_yaml_problem(error)}") from None
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
        raise UserError(f"{override!r}: {key} is {_show(place)} here, which has no keys; give {key} as a whole")
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


def _explain(schema: describe.Node, values: dict[str, Any], problem: Any) -> str:
    """One mistake in plain words: where, what is expected, what is there instead."""
    kind, value, path = problem["type"], problem["input"], _keys(schema, [str(part) for part in problem["loc"]])
    if path[-1:] == ["[key]"]:
        return f"{'.'.join(path[:-1])}: the key must be text; put it in quotes"
    if kind in ("extra_forbidden", "invalid_key"):
        near = describe.nearest(schema, path, values)
        return f"unknown key {'.'.join(path)!r}" + (f"; did you mean {' or '.join(map(repr, near))}?" if near else "")
    known, node = describe.find(schema, path)
    key = ".".join(known)
    if kind == "missing":
        return f"{key} is missing: {node.get('description') or describe.wording(schema, node)}"
    if kind in _BOUNDS:
        limit = next(iter(problem["ctx"].values()))
        return f"{key}: must be {_BOUNDS[kind]} {int(limit) if limit == int(limit) else limit:,}, not {_show(value)}"
    if kind == "string_pattern_mismatch":
        return f"{key}: {_show(value)} cannot be used ({node.get('description', describe.wording(schema, node))})"
    if kind.endswith(_WRONG_KIND):
        hint = _hint(describe.forms(schema, node), key, value)
        return f"{key}: must be {_readable(schema, node)}, not {_show(value)}{hint}"
    return f"{key and f'{key}: '}{problem['msg'].removeprefix('Value error, ').removeprefix('Assertion failed, ')}"


def _readable(schema: describe.Node, node: describe.Node) -> str:
    """What is expected; without the keys of sections where there are so many that nobody would read them."""
    words = describe.wording(schema, node)
    return words if len(words) <= LONGEST_WORDING else describe.wording(schema, node, brief=True)


def _keys(schema: describe.Node, path: list[str]) -> list[str]:
    """The path without the forms that pydantic tried on its way, which are no keys."""
    node, keys = schema, []
    for step in path[:-1]:
        inner = describe.child(schema, node, step)
        if inner is not None:
            keys.append(step)
            node = inner
    return [*keys, *path[-1:]]


def _hint(forms: list[describe.Node], key: str, value: Any) -> str:
    """What was probably meant by a value of the wrong kind."""
    if not isinstance(value, str):
        text = any(form.get("type") == "string" for form in forms) and isinstance(value, int | float)
        return f"; as text it is {key}='{json.dumps(as_yaml(value))}'" if text else ""
    for form in forms:
        first = next(iter(form.get("properties", ())), None)
        if first and form["properties"][first].get("type") == "string":
            return f"; did you mean {key}.{first}={value}?"
    return did_you_mean(value, [str(option) for form in forms for option in form.get("enum", ())])


def _show(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else as_yaml(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
