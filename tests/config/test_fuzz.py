"""Thousands of unusual values for every key: each gives a configuration or one `UserError`, and quickly.

`STARLING_FUZZ` multiplies the number of values.
"""

import json
import math
import os
import random
import time

import pytest

from starling.config import describe
from starling.config.dialect import on_one_line
from starling.config.load import check, from_dict, load, to_dict, to_yaml
from starling.config.schema import Config
from starling.envs.registry import env_spec
from starling.errors import UserError
from starling.launch.plan import RunPlan, check_network

ROUNDS = int(os.environ.get("STARLING_FUZZ", "1"))
VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 10**4, 10**5, 10**6, 10**9, 2**31 - 1, 2**31, 2**53, 2**63, 2**64,
    10**39, -(10**39), 0.0, -0.0, 1e-300, 5e-324, 1e-9, 0.5, 0.999999, 1.0, 1.5, 1e6, 1e30, 1e308, -1e308, math.inf,
    -math.inf, math.nan, "", " ", "auto", "none", "null", "nan", "1", "1e8", "²", "../..", "/", "a/b", "os:system",
    "x" * 4000, "\u0000", "é", "name=1", [], [1], [0], [-1], [10**9], [None], ["nosuch"], [[]], [{}], [1] * 500, {},
    {"a": 1}, {"name": 1}, {"kind": "none"}, {"start": 1, "end": 2}, {"": 1}, {1: 2}, {"a": {"b": {"c": []}}},
]  # fmt: skip
PRESETS = ["ppo-cartpole", "dqn-cartpole", "sac-pendulum", "r2d2-cartpole", "impala-clear-cartpole", "ngu-deepsea"]
SLOW = 3.0
"""Seconds of CPU after which one value counts as a hang."""


def keys(schema, values):
    """Every key in a schema or in values, as a path; for lists the element 0."""
    found = [key for key, _ in describe.walk(schema, schema)] + list(describe.flatten(values))
    return sorted({tuple("0" if step == "N" else step for step in key.split(".")) for key in found})


def put(values, path, value):
    """A copy of `values` with `value` at `path`, if there is such a place; missing sections are created."""
    values = json.loads(json.dumps(values))
    place = values
    for step in path[:-1]:
        if isinstance(place, list):
            place = place[int(step)] if step.isdigit() and int(step) < len(place) else {}
        elif isinstance(place, dict):
            place[step] = place.get(step) if isinstance(place.get(step), dict | list) else {}
            place = place[step]
    if isinstance(place, list):
        place[:] = [value]
    else:
        place[path[-1]] = value
    return values


def cases(preset, each=4):
    """(path, value) for every key: `each` values, seeded by the key so that failures can be reproduced."""
    base = to_dict(load(preset))
    schema = describe.json_schema(base["algo"]["name"])
    for path in keys(schema, base):
        rng = random.Random(f"{preset} {path}")
        for value in rng.sample(VALUES, min(len(VALUES), each * ROUNDS)):
            yield base, path, value


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_of_every_key_is_accepted_or_rejected(preset, monkeypatch):
    known = {}
    monkeypatch.setattr("starling.launch.plan.env_spec", lambda env: known.setdefault(to_key(env), env_spec(env)))
    taken = refused = drawn = 0
    for base, path, value in cases(preset):
        began, what = time.process_time(), f"{'.'.join(path)}={value!r:.60}"
        config, mistakes = check(put(base, path, value))
        assert (config is None) == bool(mistakes), what
        assert all(isinstance(line, str) and "\n" not in line and len(line) < 2000 for line in mistakes), what
        refused += config is None
        if config is not None:
            taken += 1
            assert isinstance(config, Config), what
            assert from_dict(to_dict(config)) == config, what
            if path[0] != "env" or path == ("env", "num"):  # an env would be made for each value
                drawn += makes_a_plan(config, what)
        assert time.process_time() - began < SLOW, what
    assert taken > 100 < refused
    assert drawn > 50


def to_key(env):
    return on_one_line(env.model_dump(mode="json"))


def makes_a_plan(config, what):
    """Return whether a configuration gives a run plan; any error but a `UserError` fails the test."""
    refused = error_message(lambda: check_network(RunPlan.from_config(config)))
    assert "\n" not in refused, what
    return not refused


def error_message(action):
    """The error message of an action; empty if there is none."""
    try:
        action()
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("preset", PRESETS[:2])
def test_every_override_is_accepted_or_rejected(preset):
    for _, path, value in cases(preset, each=1):
        if isinstance(value, dict) and any(not isinstance(key, str) for key in value):
            continue
        override = f"{'.'.join(path)}={on_one_line(value)}"
        refused = error_message(lambda override=override: to_yaml(load(preset, [override])))
        assert all(len(line) < 2000 for line in refused.splitlines()), override


def test_random_text_is_accepted_or_rejected():
    rng = random.Random(0)
    pieces = ["a", "algo", ": ", ":", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&x ", "*x", "<<", "!!int ", "!", "|",
              ">", "'", '"', "\\", "#", "%", "@", "`", "1", "e9", ".", "~", "null", "---\n", "\t", "? ", "\u0000",
              "\ud800", "é", "env", "base", "0x", "_", "${env:HOME}"]  # fmt: skip
    for _ in range(300 * ROUNDS):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 25)))
        assert "\n" not in error_message(lambda text=text: load("ppo-cartpole", [f"env.args={text}"])), text
