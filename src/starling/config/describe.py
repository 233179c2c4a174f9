"""Describes every key of the configuration with its type, default, and meaning.

Used by error messages, editors (as JSON Schema), and the reference:
`python -m starling.config.describe > docs/configuration.md`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from starling.config.algorithms import ALGORITHMS, AlgoConfig, config_class
from starling.config.device import DeviceConfig
from starling.config.limits import BECAUSE
from starling.config.parts import Linear, Part
from starling.config.schema import Config

Node = dict[str, Any]
"""A node of a JSON Schema: the schema of one value of the configuration."""

_OWN_ALGORITHM: Node = {
    "type": "object",
    "description": "your own algorithm, package.module:Class; its settings are checked when it is loaded",
    "properties": {"name": {"type": "string", "pattern": ":"}},
    "required": ["name"],
    "additionalProperties": True,
}
BASE = (
    "preset or YAML file (its path relative to this file's folder) that this one derives from: the sections of this"
    " file are merged into the base's, its lists and values replace them"
)
_NOUNS = {
    "integer": ("an integer", "integers"),
    "number": ("a number", "numbers"),
    "boolean": ("true or false", "true or false"),
    "string": ("text", "text"),
    "object": ("keys and values", "keys and values"),
    "null": ("null", "null"),
}
LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


class _WithFactories(GenerateJsonSchema):
    """Schemas with the defaults of factories, in source order, and without titles that repeat the key."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        factory: Any = None if schema.get("default_factory_takes_data") else schema.get("default_factory")
        return factory() if factory else super().get_default_value(schema)

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> Node:
        return {}  # a user-defined type without a schema

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Ignore defaults that JSON cannot represent."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value


def json_schema(algo: str | None = None, known: type[AlgoConfig] | None = None) -> Node:
    """Return the JSON Schema of a configuration for any algorithm, or for `algo` with the settings class `known`."""
    wanted = [algo] if algo else [name for name, _ in ALGORITHMS]
    classes = {name: known or config_class(name) for name in wanted}
    models: list[type[Part]] = [Config, *dict.fromkeys(classes.values())]
    refs, combined = models_json_schema([(model, "validation") for model in models], schema_generator=_WithFactories)
    defs: dict[str, Node] = combined["$defs"]
    names = {model: refs[(model, "validation")]["$ref"].rpartition("/")[2] for model in models}
    root = defs.pop(names[Config])
    defs.pop("AlgoConfig", None)  # only concrete algorithms are useful
    for model in models[1:]:
        called = [name for name, settings in classes.items() if settings is model]
        defs[names[model]]["properties"]["name"] |= {"enum": called}
    settings: list[Node] = [{"$ref": f"#/$defs/{names[model]}"} for model in models[1:]]
    about = root["properties"]["algo"]["description"]
    root["properties"]["algo"] = {"anyOf": settings if algo else [*settings, _OWN_ALGORITHM], "description": about}
    if Linear.__name__ in defs:  # its validator also accepts a constant
        defs[Linear.__name__] = {"anyOf": [{"type": "number"}, defs[Linear.__name__]]}
    defs[DeviceConfig.__name__] = {"anyOf": [{"type": "string"}, defs[DeviceConfig.__name__]]}
    root["title"] = "Starling configuration"
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": defs}
    uniform: Node = json.loads(json.dumps(whole).replace('"oneOf"', '"anyOf"'))  # one way to express alternatives
    return uniform


def file_schema(algo: str | None = None) -> Node:
    """Return the JSON Schema of a file that may have a `base`, so that keys are not required in the file itself."""
    schema = json_schema(algo)
    schema["properties"] = {"base": {"type": "string", "description": BASE}, **schema["properties"]}
    text = json.dumps(schema)
    for name, node in {"": schema, **schema["$defs"]}.items():
        if f'"items": {{"$ref": "#/$defs/{name}"}}' not in text:  # elements of lists are never merged
            for form in forms(schema, node):
                form.pop("required", None)
    return schema


def forms(schema: Node, node: Node) -> list[Node]:
    """Return the alternative schemas of a value at `node`, with references resolved."""
    if "$ref" in node:
        return forms(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    if "anyOf" in node:
        return [form for inner in node["anyOf"] for form in forms(schema, inner)]
    return [node]


def keys_of(schema: Node, node: Node) -> list[str]:
    """Return the keys of a section at `node`."""
    return list(dict.fromkeys(key for form in forms(schema, node) for key in form.get("properties", ())))


def child(schema: Node, node: Node, step: str) -> Node | None:
    """Return the schema at key or index `step` of `node`; None if there is none."""
    for form in forms(schema, node):
        if step in form.get("properties", ()):
            inner: Node = form["properties"][step]
            return inner
        if form.get("type") == "array" and step.isdigit():
            items: Node = form.get("items", {})
            return items
        if extra := form.get("additionalProperties"):
            return extra if isinstance(extra, dict) else {}
    return None


def find(schema: Node, path: Sequence[str]) -> tuple[list[str], Node]:
    """Return the longest prefix of `path` that exists, and its schema."""
    node: Node = schema
    for count, step in enumerate(path):
        inner = child(schema, node, step)
        if inner is None:
            return list(path[:count]), node
        node = inner
    return list(path), node


def walk(schema: Node, node: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every dotted key below `node` with its schema; list elements have the index N, named sections NAME."""
    for form in forms(schema, node):
        for key, inner in form.get("properties", {}).items():
            yield prefix + key, inner
            yield from walk(schema, inner, f"{prefix}{key}.")
        if form.get("type") == "array":
            yield from walk(schema, form.get("items", {}), f"{prefix}N.")
        elif isinstance(form.get("additionalProperties"), dict):
            yield from walk(schema, form["additionalProperties"], f"{prefix}NAME.")


def flatten(values: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested plain data."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield f"{prefix}{key}"
            yield from flatten(value, f"{prefix}{key}.")


def nearest(schema: Node, path: Sequence[str], values: Node) -> list[str]:
    """Suggest known keys for the unknown `path`: the same name in another section, else a similar name."""
    word, here = path[-1], path[:-1]
    places = {key: node for key, node in walk(schema, schema) if not {"N", "NAME"}.intersection(key.split("."))}
    known = dict.fromkeys(places)
    for place, node in places.items():  # arguments, such as lr, are known from defaults and from `values`
        known |= dict.fromkeys(flatten(node.get("default"), f"{place}."))
    known |= {key: None for key in flatten(values) if find(schema, key.split("."))[0] == key.split(".")}
    same = [key for key in known if key.rpartition(".")[2] == word]
    same += [key for key, node in places.items() if node.get("description") == word]
    if same:
        return sorted(same, key=lambda key: key.count("."))[:3]
    siblings = get_close_matches(word, keys_of(schema, find(schema, here)[1]), n=3, cutoff=0.6)
    if siblings:
        return [".".join([*here, key]) for key in siblings]
    similar = get_close_matches(word, {key.rpartition(".")[2] for key in known}, n=1, cutoff=0.75)
    return [key for key in known if key.rpartition(".")[2] in similar][:3]


def wording(
    schema: Node, node: Node, *, plural: bool = False, brief: bool = False, reasoned_limits: bool = False
) -> str:
    """Describe the values allowed at `node`, e.g. `an integer, at least 1, or null`; `brief` omits keys of sections.

    Limits that only exclude absurd numbers, and have a reason, are included with `reasoned_limits`.
    """
    found = forms(schema, node)
    words = list(dict.fromkeys(_form_wording(schema, form, plural, brief, reasoned_limits) for form in found))
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])}{',' if ',' in ''.join(words[:-1]) else ''} or {words[-1]}"


def _form_wording(schema: Node, form: Node, plural: bool, brief: bool, reasoned_limits: bool) -> str:
    options = form.get("enum", [form["const"]] if "const" in form else [])
    if options:
        return " or ".join(repr(option) for option in options)
    if "properties" in form:
        keys = "" if brief else f" with the keys {', '.join(form['properties'])}"
        return f"{'sections' if plural else 'a section'}{keys}"
    kind = form.get("type")
    if kind == "array":
        items = form.get("items", {})
        return f"a list of {wording(schema, items, plural=True, brief=brief, reasoned_limits=reasoned_limits)}"
    if kind == "object" and form.get("additionalProperties", {}) not in ({}, True, False):
        return f"keys and {wording(schema, form['additionalProperties'], plural=True, reasoned_limits=reasoned_limits)}"
    if kind not in _NOUNS:
        return "anything"
    hidden = {limit for limit in LIMITS if BECAUSE in form and not reasoned_limits and abs(form.get(limit, 0)) > 1}
    limits = [f", {word} {form[limit]:,}" for limit, word in LIMITS.items() if limit in form and limit not in hidden]
    if "pattern" in form and "examples" in form:
        return f"{_NOUNS[kind][plural]} such as {' or '.join(form['examples'])}"
    pattern = f" that matches {form['pattern']}" if "pattern" in form else ""
    return _NOUNS[kind][plural] + "".join(limits) + pattern


def markdown() -> str:
    """Return the reference of all keys, the content of docs/configuration.md."""
    schema = json_schema()
    text = json.dumps(schema)
    kinds = [node["$ref"].rpartition("/")[2] for node in schema["properties"]["curiosity"]["items"]["anyOf"]]
    kinds.append(schema["properties"]["nets"]["additionalProperties"]["$ref"].rpartition("/")[2])
    shared = [name for name in schema["$defs"] if text.count(f'"#/$defs/{name}"') > 1 or name in kinds]
    pages = [_INTRODUCTION]
    plain = {key: node for key, node in schema["properties"].items() if not keys_of(schema, node)}
    pages.append(_page(schema, "The run", "", {"properties": plain}, "", shared))
    for key, node in schema["properties"].items():
        if key == "algo" or key in plain:
            continue
        pages.append(_page(schema, key, _about(schema, node), node, f"{key}.", shared))
    for form in forms(schema, schema["properties"]["algo"]):
        for name in form["properties"]["name"].get("enum", ()):
            about = f"`algo.name={name}`: {_about(schema, form)}"
            pages.append(_page(schema, f"algo: {name}", about, form, "algo.", shared))
    for name in shared:
        place = {"$ref": f"#/$defs/{name}"}
        pages.append(_page(schema, _title(name), _about(schema, place), place, "", shared))
    return "\n".join(pages)


_INTRODUCTION = """# Configuration

All keys, generated by `python -m starling.config.describe > docs/configuration.md`.

A configuration is a preset or a YAML file, with `key.sub=value` overrides on top. A section in a file replaces
the default section; keys that it leaves out have the defaults of the tables below. An override changes only its key;
within a section of `nets.NAME` that is null, the other keys are those of `net`, or `algo.optimizer` for its optimizer.
`starling config show PRESET` prints a whole configuration with these descriptions, `starling config check` finds
mistakes, and `starling config schema` is for editors.

A file may derive from another: `base: NAME`, at its top level, names a preset or a YAML file (its path relative to
the folder of this file). The file's sections are then merged into those of the base; its lists and values replace those
of the base.

If such a file or an override names another kind, the settings of the old kind are dropped:

| changed | stays |
|---|---|
| `algo.name` | what both algorithms inherit from a common class: all of DQN's settings for Ape-X, none for PPO |
| `name` of an optimizer | `clip_norm`, `schedule` and `args.lr` |
| `name` of a schedule or a wrapper | nothing of its `args` |
| `kind` of a torso, unless it was `auto` | `activation` and `norm` |
| `kind` of a head | `hidden` and `activation` |
| `steps` or `fraction` of a ramp | `start` and `end` |

Numbers have an upper limit beyond which they make no sense; the error message says why. A file has at most 262,144
characters, 10,000 values (an alias counts as all that it stands for), and 32 nested sections.

`${env:NAME}` in a value stands for the environment variable NAME: it is read when the configuration is loaded, also by
`starling resume`, and saved as written. Use it for secrets. Text under a key that is named like a secret (`token`,
`password`, `api_key`, `credentials`) is hidden wherever it is printed or logged, and only you may then read the run's
`config.yaml`.
"""


def _page(schema: Node, title: str, about: str, node: Node, prefix: str, shared: list[str]) -> str:
    lines = [f"## {title}", "", *([about, ""] if about else []), "| key | type | default | |", "|---|---|---|---|"]
    lines += _rows(schema, node, prefix, shared)
    return "\n".join([*lines, ""])


def _rows(schema: Node, node: Node, prefix: str, shared: list[str]) -> Iterator[str]:
    """Yield one table row per key; shared sections are linked, others are expanded in place."""
    backslash = "\\"
    for form in forms(schema, node):
        for key, inner in form.get("properties", {}).items():
            parts = [_title(name) for name in shared if f'"#/$defs/{name}"' in json.dumps(inner)]
            below = () if parts else keys_of(schema, inner)
            words = wording(schema, inner, brief=True, reasoned_limits=True).removeprefix("a ").removeprefix("an ")
            kind = ", ".join(f"[{part}](#{part.lower()})" for part in parts) or words
            default = "" if below and inner.get("default") else _default(inner, key in form.get("required", ()))
            cells = (f"`{prefix}{key}`", kind, default, inner.get("description", ""))
            yield f"| {' | '.join(' '.join(cell.split()).replace('|', backslash + '|') for cell in cells)} |"
            if not parts:
                yield from _rows(schema, inner, f"{prefix}{key}.", shared)
        if form.get("type") == "array":
            yield from _rows(schema, form.get("items", {}), f"{prefix}N.", shared)


def _default(node: Node, required: bool) -> str:
    if required:
        return "required"
    text = yaml.safe_dump([node.get("default")], default_flow_style=True, sort_keys=False, width=10_000)
    return f"`{text.strip()[1:-1]}`"


def _about(schema: Node, node: Node) -> str:
    """The docstring of the section at `node`."""
    return next((form["description"] for form in forms(schema, node) if "properties" in form), "")


def _title(name: str) -> str:
    return name.removesuffix("Config")


if __name__ == "__main__":
    sys.stdout.write(markdown())
