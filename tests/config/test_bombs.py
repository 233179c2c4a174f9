"""Hostile YAML: every text is rejected with one line, in bounded time and memory; add new cases to `BOMBS`."""

import resource
import time

import pytest

from starling.config.dialect import MAX_DEPTH, parse
from starling.config.load import load
from starling.errors import UserError

SECONDS, MEGABYTES = 5, 500


def aliases(levels, first, template):
    """`levels` anchors, each of which repeats the previous one ten times."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} " + template.format(",".join([f"*a{i - 1}"] * 10)) for i in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "a billion values by aliases": aliases(9, "[x,x,x,x,x,x,x,x,x,x]", "[{}]"),
    "a billion keys by merging": aliases(9, "{k: 1}", "{{<<: [{}]}}"),
    "deep by aliases": "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 2000))]),
    "a section within itself": "env: &a {args: *a}",
    "a list within itself": "env: &a [*a]",
    "brackets": "[" * 100_000,
    "braces": "{a: " * 60_000,
    "dashes": "- " * 100_000,
    "questions": "? " * 100_000,
    "deep JSON": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "deep in arguments": "env: {args: {a: " + "[" * 900 + "]" * 900 + "}}",
    "an integer of 5,000 digits": "seed: " + "9" * 5000,
    "an integer of 4,000 digits": "seed: " + "9" * 4000,
    "a hexadecimal integer": "seed: 0x" + "f" * 4000,
    "a binary integer": "seed: 0b" + "1" * 4000,
    "an integer to the base 60": "seed: " + "1:" * 2000 + "1",
    "a float to the base 60": "seed: !!float " + "1:" * 2000 + "1",
    "a long value": "run: " + "x" * 100_000,
    "a long key": "x" * 100_000 + ": 1",
    "a long text": "run: |\n" + "  a\n" * 60_000,
    "many values": "a: [" + "1," * 100_000 + "]",
    "many keys": "\n".join(f"k{i}: 1" for i in range(20_000)),
    "a large file": "# \n" * 1_000_000,
    "not an integer": "seed: !!int abc",
    "an empty integer": "seed: !!int ''",
    "no boolean": "compile: !!bool maybe",
    "an object": "!!python/object/apply:os.system [ls]",
    "a set": "env: !!set {a}",
    "bytes": "run: !!binary aGk=",
    "a date": "run: !!timestamp x",
    "a long tag": "run: !" + "x" * 5000 + " y",
    "half a character": 'run: "\\ud800"',
    "a list as key": "? [1, 2]\n: 3",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_a_one_line_error_in_bounded_time_and_memory(name, tmp_path):
    file = tmp_path / "bomb.yaml"
    file.write_text(BOMBS[name])
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(UserError) as refused:
        load(str(file))
    assert time.process_time() - began < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    line = str(refused.value)
    assert "bomb.yaml is not valid YAML" in line or "bomb.yaml has more than" in line
    assert "\n" not in line
    assert len(line) < len(str(file)) + 400


@pytest.mark.parametrize(
    "override",
    [
        "seed=" + "9" * 5000,
        "seed=" + "[" * 100_000,
        "run=" + "x" * 100_000,
        "x" * 100_000,
        "x" * 100_000 + "=1",
        "env.args." + "a." * 2000 + "b=1",
        "env.args=&a {b: *a}",
        "net.torso.hidden.\u00b2=1",
        "net.torso.hidden." + "9" * 5000 + "=1",
        "net.torso.hidden.-1=1",
    ],
    ids=lambda override: f"{override[:12]} ({len(override)})",
)
def test_bomb_in_an_override_is_a_one_line_error(override):
    with pytest.raises(UserError) as refused:
        load("ppo-cartpole", [override])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_unknown_keys_by_the_thousand_are_counted_in_bounded_time(tmp_path):
    (tmp_path / "own.yaml").write_text("base: ppo-cartpole\n" + "".join(f"unknown{i}: 1\n" for i in range(4_500)))
    start = time.process_time()
    with pytest.raises(UserError) as refused:
        load(str(tmp_path / "own.yaml"))
    assert str(refused.value).splitlines()[-1] == "and 4,480 more mistakes"
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize(("files", "keys"), [(40, 1), (10, 4_000)])
def test_base_files_are_limited_together(tmp_path, files, keys):
    for number in range(files):
        base = f"b{number - 1}.yaml" if number else "ppo-cartpole"
        args = ", ".join(f"k{number}_{key}: 1" for key in range(keys))
        (tmp_path / f"b{number}.yaml").write_text(f"base: {base}\nenv: {{args: {{{args}}}}}\n")
    start = time.process_time()
    with pytest.raises(UserError, match="derives from more than 16 files, or has more than 262,144 characters"):
        load(str(tmp_path / f"b{files - 1}.yaml"))
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize(
    "override",
    ["algo.epsilon_bandit={arms: 16000, window: 16000}", "algo.epsilon_bandit={arms: 2, window: 500001}"],
)
def test_bandit_that_no_memory_holds_is_refused(override):
    with pytest.raises(UserError, match=r"window=.* times arms=.*: each choice compares all of them|at most 100,000"):
        load("dqn-cartpole", [override])
    with pytest.raises(UserError, match=r"window=100000 times policies=32"):
        load("ngu-deepsea", ["algo.policies=32", "algo.meta={window: 100000}"])


def test_values_just_within_the_limits_are_read():
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH, "text")
    assert parse("a: &a {b: &b [1, 2]}\nc: *a\nd: {<<: *a, e: *b}", "text") == {
        "a": {"b": [1, 2]},
        "c": {"b": [1, 2]},
        "d": {"b": [1, 2], "e": [1, 2]},
    }
    assert parse("x: " + "9" * 39, "text") == {"x": int("9" * 39)}
