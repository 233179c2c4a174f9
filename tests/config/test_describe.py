"""Descriptions of the configuration: the schema agrees with the checks, and the reference page with the code."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import Field

from starling.config.algorithms import AlgoConfig
from starling.config.describe import child, file_schema, find, forms, json_schema, markdown, walk, wording
from starling.config.limits import BECAUSE
from starling.config.load import check, load, preset_names, preset_text, to_dict
from starling.config.parts import REPLACES

schema_for, file_schema_for = functools.cache(json_schema), functools.cache(file_schema)
REFERENCE = Path(__file__).parents[2] / "docs" / "configuration.md"
KINDS = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
    "null": type(None),
}
LIMITS = {
    "minimum": lambda value, limit: value >= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minLength": lambda value, limit: len(value) >= limit,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "enum": lambda value, options: value in options,
    "const": lambda value, only: value == only,
    "required": lambda value, keys: set(keys) <= set(value),
}
ANNOTATIONS = {
    "$schema", "$defs", "title", "description", "default", "examples", "type", "properties", "items",
    "additionalProperties", BECAUSE, REPLACES,
}  # fmt: skip


def is_valid(schema, node, value):
    """Validate `value` against the schema `node`; supports only what these schemas use."""
    if "$ref" in node:
        return is_valid(schema, schema["$defs"][node["$ref"].removeprefix("#/$defs/")], value)
    if "anyOf" in node:
        return any(is_valid(schema, inner, value) for inner in node["anyOf"])
    assert set(node) <= ANNOTATIONS | set(LIMITS), node
    if "type" in node and not isinstance(value, KINDS[node["type"]]):
        return False
    if isinstance(value, bool) and node.get("type") in ("integer", "number"):
        return False
    if not all(holds(value, node[word]) for word, holds in LIMITS.items() if word in node):
        return False
    if isinstance(value, dict):
        known, others = node.get("properties", {}), node.get("additionalProperties", True)
        return all(is_valid(schema, known[k], v) if k in known else others is not False for k, v in value.items())
    return not isinstance(value, list) or all(is_valid(schema, node.get("items", {}), item) for item in value)


@pytest.mark.parametrize("preset", preset_names())
def test_presets_and_resolved_configurations_match_the_schema(preset):
    resolved = to_dict(load(preset))
    for name in (None, resolved["algo"]["name"]):
        for schema in (schema_for(name), file_schema_for(name)):
            assert is_valid(schema, schema, resolved)
        assert is_valid(file_schema_for(name), file_schema_for(name), yaml.safe_load(preset_text(preset)))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("{base: dqn-atari, algo: {batch: 3, epsilon: {end: 0.5}}, env: {num: 3}}", True),
        ("{base: mine.yaml}", True),
        ("{base: 3}", False),
        ("{base: dqn-atari, algo: {batchs: 3}}", False),
        ("{base: dqn-atari, algo: {name: ppo, capacity: 3}}", False),
        ("{base: dqn-atari, env: {wrappers: [{args: {}}]}}", False),
    ],
)
def test_file_with_a_base_may_be_incomplete(text, valid):
    assert is_valid(file_schema_for(), file_schema_for(), yaml.safe_load(text)) is valid


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", -1),
        ("seed", "much"),
        ("sede", 1),
        ("algo.name", "pppo"),
        ("algo.discount", 1),
        ("algo.no_such", 1),
        ("algo.clip", "wide"),
        ("algo.clip", {"start": 1}),
        ("net.init", "orthogonl"),
        ("net.torso.hidden", [0]),
        ("env", {"num": 3}),
        ("env", "CartPole-v1"),
        ("env.wrappers", [{"args": {}}]),
        ("run", "a/b"),
        ("stop.return_", 3),
        ("seed", 7),
        ("algo.clip", 0.3),
        ("env.args", {"any": ["thing"]}),
        ("stop.return", None),
    ],
)
def test_schema_and_checks_reject_the_same_values(path, value):
    values = to_dict(load("ppo-cartpole"))
    *sections, last = path.split(".")
    section_values = values
    for section in sections:
        section_values = section_values[section]
    section_values[last] = value
    accepted = check(values)[0] is not None
    assert is_valid(schema_for(), schema_for(), values) is accepted
    assert is_valid(schema_for("ppo"), schema_for("ppo"), values) is accepted


def test_user_algorithm_matches_the_general_schema():
    own = {"algo": {"name": "package.module:Class", "anything": 1}, "env": {"id": "CartPole-v1"}}
    assert is_valid(schema_for(), schema_for(), own)
    assert not is_valid(schema_for("dqn"), schema_for("dqn"), own)


class Shape:
    """A type without a JSON Schema."""


class OddConfig(AlgoConfig, arbitrary_types_allowed=True):
    """Settings that a JSON Schema cannot express."""

    shape: Shape = Field(default_factory=Shape, description="no JSON")
    steps: int = Field(3, ge=1, description="a plain one")


class Odd:
    Config = OddConfig


def test_types_without_a_json_schema_are_accepted(monkeypatch):
    monkeypatch.setitem(sys.modules, "odd", sys.modules[__name__])
    schema = json_schema("odd:Odd")
    assert wording(schema, find(schema, ["algo", "shape"])[1]) == "anything"
    assert load("ppo-cartpole", ["algo={name: 'odd:Odd'}", "algo.steps=4"]).algo.steps == 4


def test_schema_nodes_are_found_by_path():
    schema = schema_for("dqn")
    assert find(schema, ["algo", "prioritized", "beta", "start"])[0] == ["algo", "prioritized", "beta", "start"]
    assert find(schema, ["algo", "prioritized", "gamma", "start"])[0] == ["algo", "prioritized"]
    assert wording(schema, find(schema, ["env", "wrappers", "0", "name"])[1]) == "text"
    assert child(schema, schema["properties"]["seed"], "x") is None
    assert {"algo.optimizer.schedule.args", "env.wrappers.N.name", "stop.return"} <= dict(walk(schema, schema)).keys()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("threads", "an integer, at least 1, or null"),
        ("algo.discount", "a number, at least 0, below 1"),
        ("net.inputs", "a list of 'action' or 'reward'"),
        ("net.torso.hidden", "a list of integers, above 0, or null"),
        ("net.core", "a section with the keys kind, size"),
        ("env.wrappers", "a list of sections with the keys name, args, or keys and values"),
        ("env.args", "keys and values"),
        ("algo.epsilon", "a number or a section with the keys start, end, steps, fraction"),
    ],
)
def test_accepted_values_are_described_in_plain_words(path, words):
    schema = schema_for("dqn")
    assert wording(schema, find(schema, path.split("."))[1]) == words


def test_reference_page_is_up_to_date():
    command = [sys.executable, "-m", "starling.config.describe"]
    generated = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    message = "run: python -m starling.config.describe > docs/configuration.md"
    assert generated == REFERENCE.read_text(encoding="utf-8"), message


def test_reference_has_every_key_of_every_algorithm():
    text, schema = markdown(), schema_for()
    assert {
        "| `stop.return` |",
        "| `env.atari.size` |",
        "| `env.wrappers.N.name` |",
        "| `algo.prioritized` |",
        "| `alpha` |",  # of a part that several algorithms share
    } <= {f"{row.partition(' | ')[0]} |" for row in text.splitlines()}
    for settings in forms(schema, schema["properties"]["algo"]):
        for name in settings["properties"]["name"].get("enum", ()):
            page = text.partition(f"## algo: {name}\n")[2].partition("\n## ")[0]
            assert [key for key in settings["properties"] if f"| `algo.{key}` |" not in page] == []


def numbers(schema, node):
    """The numeric variants of a value or of its items; the constant of a ramp has the ramp's limits."""
    found = forms(schema, node)
    for form in found:
        ramp = any("start" in other.get("properties", ()) for other in found)
        if form.get("type") in ("integer", "number") and not ramp:
            yield form
        if form.get("type") == "array":
            yield from numbers(schema, form.get("items", {}))
        if isinstance(form.get("additionalProperties"), dict):
            yield from numbers(schema, form["additionalProperties"])


def test_every_number_has_a_lower_and_an_upper_limit():
    schema = schema_for()
    found = [(key, form) for key, node in walk(schema, schema) for form in numbers(schema, node)]
    assert len(found) > 200
    assert not [key for key, form in found if not {"minimum", "exclusiveMinimum"} & set(form)]
    assert not [key for key, form in found if not {"maximum", "exclusiveMaximum"} & set(form)]
