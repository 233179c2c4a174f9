"""Errors that a person can mend: shown as one line each, exit code 2, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 500  # characters of a text from elsewhere; paths are shorter
_LONGEST_LINE = 1500  # characters of a message; its beginning and the advice at its end are kept


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what is wrong and what to do.

    Each argument is one line, and `str` gives these lines: whatever a file or an override has put into them, none is
    broken in two, sends anything but text to a terminal, or is longer than a person reads.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)

    def __str__(self) -> str:
        return "\n".join(map(_line, self.args))


def escaped(text: str) -> str:
    """Text in which what a terminal would obey (newlines, control characters, bidi marks) is written as `\\x1b` is."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


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
    """Text from elsewhere for one line of a terminal: escaped, and cut off where it is long."""
    return escaped(cut(str(text), _LONGEST))


def cut(text: str, length: int = 80) -> str:
    """`text`, cut off where it is longer than `length`."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def quoted(name: object) -> str:
    """A name as messages show it: in quotes, cut off where it is long."""
    return cut(repr(name))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause naming the nearest known words, or the empty string when none is near."""
    near = get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def _line(text: object) -> str:
    line = escaped(str(text))
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 500]} ... {line[-490:]}"
