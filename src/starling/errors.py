"""Errors that a person can mend: shown as one line, exit code 2, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 500  # characters of such a text; paths are shorter


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what is wrong and what to do."""


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
