"""Errors that the user can fix: printed as one line each with exit code 2, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 500  # characters of external text; paths are shorter
_LONGEST_LINE = 1500  # characters of a message; its start and the advice at its end are kept


class UserError(Exception):
    """A request of the user cannot be fulfilled; the message says what is wrong and what to do.

    Each argument is one line, and `str` joins them. Newlines and control characters within a line, which may come from
    a file or an override, are escaped, and long lines are shortened.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)

    def __str__(self) -> str:
        return "\n".join(map(_line, self.args))


def escaped(text: str) -> str:
    """Escape characters that affect a terminal (newlines, control characters, bidi marks), e.g. as `\\x1b`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def require(condition: object, problem: str) -> None:
    """Raise ValueError unless `condition` holds; for the content of files, since `python -O` disables assert."""
    if not condition:
        raise ValueError(problem)


def to_count(value: object, below: int = 2**62) -> int:
    """Return `value`, a count from a file, if it is an integer in [0, below); raise ValueError otherwise."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"a count of {printable(value)}, which is not an integer in [0, {below:,})")
    return value


def printable(text: object) -> str:
    """Escape external text for one line of a terminal, truncated if it is long."""
    return escaped(cut(str(text), _LONGEST))


def cut(text: str, length: int = 80) -> str:
    """Truncate `text` to `length` characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def quoted(name: object) -> str:
    """Quote a name for a message, truncated if it is long."""
    return cut(repr(name))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a clause with the most similar known words, or an empty string if there are none."""
    near = get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def _line(text: object) -> str:
    line = escaped(str(text))
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 500]} ... {line[-490:]}"
