"""JSON from files that somebody else may have written: parsed in bounded memory, and nothing but a ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

MOST_VALUES = 2_000_000
"""Of one text; a value takes up to 100 bytes in memory, and as few as two in a file."""
LONGEST_INTEGER = 40
"""Characters; the state of numpy's random numbers has 128 bits, which are 39."""


def parse_json(
    content: bytes | str, parse_constant: Callable[[str], Any] | None = None, most: int = MOST_VALUES
) -> Any:
    """Parse JSON; raises ValueError for what is none, for too many values, and for too deep or too long ones.

    Args:
        content: UTF-8 or text.
        parse_constant: what to make of NaN, Infinity, and -Infinity; floats unless given.
        most: values that there may be.
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
