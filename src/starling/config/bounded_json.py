"""Parses JSON from untrusted files in bounded memory; raises only ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

MOST_VALUES = 2_000_000
"""Maximum number of values in one text; a value takes up to 100 bytes in memory, and as few as two in a file."""
LONGEST_INTEGER = 40
"""Maximum characters of an integer; the 128-bit state of numpy's generators has up to 39."""


def parse_json(
    content: bytes | str, parse_constant: Callable[[str], Any] | None = None, most: int = MOST_VALUES
) -> Any:
    """Parse JSON; raise ValueError if it is invalid, has too many values, or is nested too deeply.

    Args:
        content: UTF-8 bytes or text.
        parse_constant: converts NaN, Infinity, and -Infinity; floats by default.
        most: maximum number of values.
    """
    data, text = (content, content.decode("utf-8")) if isinstance(content, bytes) else (content.encode(), content)
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > most:
        raise ValueError(f"more than {most:,} values")
    try:
        return _decoder(parse_constant).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@cache
def _decoder(parse_constant: Callable[[str], Any] | None) -> json.JSONDecoder:
    return json.JSONDecoder(parse_int=_integer, parse_constant=parse_constant)


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(digits):,} characters")
    return int(digits)
