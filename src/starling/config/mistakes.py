"""Explains validation errors of a configuration in plain words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from starling.config import describe
from starling.config.dialect import on_one_line, show
from starling.config.limits import BECAUSE
from starling.errors import did_you_mean, quoted

LONGEST_WORDING = 300
LONGEST_NAME = 80
_BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_WRONG_KIND = (
    "_type",
    "_parsing",
    "_parsing_size",
    "_from_float",
    "_mismatch",
    "literal_error",
    "string_too_short",
    "finite_number",
)


def explain(schema: describe.Node, values: dict[str, Any], problem: Any) -> str:
    """Describe one error of pydantic: where it is, what is expected, and what was found."""
    kind, value, path = problem["type"], problem["input"], keys_to(schema, problem["loc"])
    if path[-1:] == ["[key]"]:
        return f"{'.'.join(path[:-1])}: the key must be text; put it in quotes"
    if kind in ("extra_forbidden", "invalid_key"):
        near = describe.nearest(schema, path, values)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"unknown key {quoted('.'.join(path))}{hint}"
    known, node = describe.find(schema, path)
    key = ".".join(known)
    if kind == "missing":
        return f"{key} is missing: {node.get('description') or describe.wording(schema, node)}"
    if kind in _BOUNDS:
        limit = next(iter(problem["ctx"].values()))
        number = int(limit) if limit == int(limit) else limit
        return f"{key}: must be {_BOUNDS[kind]} {number:,}, not {show(value)}{_reason(schema, node, kind)}"
    if kind == "string_pattern_mismatch":
        return f"{key}: {show(value)} cannot be used ({node.get('description', describe.wording(schema, node))})"
    if kind == "int_parsing_size" and (limit := _limit(schema, node, value)):
        return f"{key}: must be {limit}, not {show(value)}{_reason(schema, node, 'less_than' if value > 0 else kind)}"
    if kind.endswith(_WRONG_KIND):
        hint = _hint(describe.forms(schema, node), key, value)
        return f"{key}: must be {_readable(schema, node)}, not {show(value)}{hint}"
    return f"{key and f'{key}: '}{problem['msg'].removeprefix('Value error, ').removeprefix('Assertion failed, ')}"


def _limit(schema: describe.Node, node: describe.Node, value: float) -> str:
    """The limit that a number too large for pydantic exceeds; empty if there is none."""
    side = "aximum" if value > 0 else "inimum"
    limits = [(name, form[name]) for form in describe.forms(schema, node) for name in describe.LIMITS if name in form]
    return next((f"{describe.LIMITS[name]} {limit:,}" for name, limit in limits if side in name), "")


def _reason(schema: describe.Node, node: describe.Node, kind: str) -> str:
    """The reason for an upper limit in parentheses; empty if none is known."""
    reasons = [form[BECAUSE] for form in describe.forms(schema, node) if BECAUSE in form]
    return f" ({reasons[0]})" if reasons and kind.startswith("less") else ""


def _readable(schema: describe.Node, node: describe.Node) -> str:
    """Describe the expected value; the keys of sections are omitted if the text becomes too long."""
    words = describe.wording(schema, node)
    return words if len(words) <= LONGEST_WORDING else describe.wording(schema, node, brief=True)


def keys_to(schema: describe.Node, location: Sequence[int | str]) -> list[str]:
    """Convert pydantic's `location` to a path of keys, without the names of union members."""
    node, keys, path = schema, list[str](), [str(part) for part in location]
    for step in path[:-1]:
        inner = describe.child(schema, node, step)
        if inner is not None:
            keys.append(step)
            node = inner
    return [*keys, *path[-1:]]


def _hint(forms: list[describe.Node], key: str, value: Any) -> str:
    """Suggest a correction for a value of the wrong type."""
    if not isinstance(value, str):
        kinds = {form.get("type") for form in forms}
        text = "string" in kinds and not kinds & {"integer", "number"} and isinstance(value, int | float)
        return f"; as text it is {key}='{json.dumps(on_one_line(value))}'" if text else ""
    for form in forms:
        first = next(iter(form.get("properties", ())), "")
        inner: describe.Node = form["properties"][first] if first else {}
        if inner.get("type") == "string":
            near = nearest_choice(value, inner.get("enum") or inner.get("examples"))
            if not near:
                return ""
            inside, _, last = key.rpartition(".")
            return (
                f"; did you mean {inside}=[{{{first}: {near}}}]?"
                if last.isdigit()
                else f"; did you mean {key}.{first}={near}?"
            )
    return did_you_mean(value, [str(option) for form in forms for option in form.get("enum", ())])


def nearest_choice(value: Any, choices: Sequence[str] | None) -> str | None:
    """Guess the intended choice: `value` itself if it is valid, an import path, or if `choices` is None."""
    if isinstance(value, str) and len(value) > LONGEST_NAME:
        return None
    if not isinstance(value, str) or choices is None or value in choices or ":" in value:
        return value if isinstance(value, str) else None
    return next(iter(get_close_matches(value, choices, n=1, cutoff=0.5)), None)
