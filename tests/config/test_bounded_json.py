"""Bounded JSON parsing: accepts everything that json writes, rejects anything else within bounds."""

import json

import pytest

from starling.config.bounded_json import LONGEST_INTEGER, MOST_VALUES, parse_json


@pytest.mark.parametrize("value", [None, 1.5, -(2**127), "é", [1, {"a": [True]}], {"inf": float("inf")}])
def test_output_of_json_is_read(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1",
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "9" * (LONGEST_INTEGER + 1),
        "9" * 5_000,
        "[" + "[]," * MOST_VALUES + "[]]",
        b"\xff",
    ],
    ids=lambda text: str(text[:8]),
)
def test_anything_else_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 (of any kind)
        parse_json(text)
