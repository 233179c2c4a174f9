"""Errors that a person can mend: shown as one line, exit code 2, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 500  # characters of such a text; paths are shorter


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what is wrong and what to do."""


def require(condition: object, problem: str) -> None:
    """Raise ValueError unless `condition` holds: for what a file says, since `python -O` leaves out an assert."""
    if not condition:
        raise ValueError(problem)


def to_count(value: object, below: int = 2**62) -> int:
    """Return `value` if it is an integer in [0, below), as counts in a file are; raise ValueError if it is not."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"a count of {printable(value)}, which is no integer in [0, {below:,})")
    return value


def printable(text: object) -> str:
    """Text from elsewhere for one line of a terminal: quoted if it has control characters, cut off if it is long."""
    shown = str(text)
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}..."
    return shown if shown.isprintable() else ascii(shown)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause naming the nearest known words, or the empty string when none is near."""
    near = get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
