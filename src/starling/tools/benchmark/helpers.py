"""Other processes that help to measure: they do what they are told, a line at a time, and answer with lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen


@contextmanager
def helper(command: list[str]) -> Iterator[Popen[str]]:
    """A process whose lines are read and written here; it is gone at the end."""
    with Popen(command, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def last_words(process: Popen[str]) -> str:
    """Why a process ended that should not have: the last line of what it said."""
    assert process.stderr is not None
    return (process.stderr.read().strip().splitlines() or ["no reason was given"])[-1]
