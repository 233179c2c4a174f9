"""Errors that a person can mend: shown as one line, exit code 2, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what is wrong and what to do."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause naming the nearest known words, or the empty string when none is near."""
    near = get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
